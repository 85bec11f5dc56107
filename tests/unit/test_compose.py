"""docker-compose.yaml and the Dockerfile, as far as no engine is needed: complete, pinned, unprivileged, in step."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from storeside.aistore.spec import TRANSFORMER_IMAGE
from storeside.doctor.connections import PREFIX, Connection
from storeside.stack import authn
from storeside.stack.airflow import airflow
from storeside.stack.containers import aistore as container
from storeside.stack.containers import certificates, transformers
from storeside.stack.containers import files as container_files
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.servers import aistore, s3
from storeside.stack.settings import CHECKOUT, Stack, default_folder
from tests.containers import base_images

COMPOSE = yaml.safe_load((CHECKOUT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
COMMANDS = ("airflow-init", "certificates", "demo", "doctor", "hsds-init")
INIT = [name for name in COMMANDS if name.endswith("-init") or name == "certificates"]
DOCKERFILE = (CHECKOUT / "Dockerfile").read_text()
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
TARGETS = ("airflow", "transformer", "aistore", "s3", "hsds")
IMAGE_FILES = CHECKOUT / "include" / "storeside" / "stack" / "images"
# The sources of an image's lock file.
SOURCES = {name: IMAGE_FILES / f"{name}.txt" for name in ("airflow", "aistore", "s3")}
SOURCES["transformer"] = CHECKOUT / "include" / "storeside" / "transformers" / "requirements.txt"


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_unprivileged_and_limited(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    if not service["image"].startswith("storeside/"):
        assert not service["user"].startswith("0"), "an image of others starts as root"
    if name not in COMMANDS:
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["restart"] == "unless-stopped"
        assert service["volumes"], "it would forget everything"
    if name not in ("demo", "doctor"):
        assert service["deploy"]["resources"]["limits"]["memory"]


def test_images_are_pinned_and_ours_are_built() -> None:
    for name, service in SERVICES.items():
        image, _, tag = service["image"].partition(":")
        assert tag, name
        assert tag != "latest", name
        if image.startswith("storeside/"):
            assert service["pull_policy"] == "never", f"{name}: a registry would be asked, or `run` would build again"
    for argument in re.findall(r"^ARG \w+_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE):
        assert re.search(r":\d+\.\d+\.\d+", argument), argument


def test_one_service_builds_each_of_our_images() -> None:
    """Compose labels an image with its service: if two services build it, it changes, and containers are replaced."""
    used = {service["image"] for service in SERVICES.values() if service["image"].startswith("storeside/")}
    builders = [(s["image"], s["build"]["target"]) for s in SERVICES.values() if "build" in s]
    assert sorted(image for image, _ in builders) == sorted(used)
    assert {target for _, target in builders} == {image.partition("/")[2].partition(":")[0] for image in used}
    assert used <= {f"storeside/{target}:{TRANSFORMER_IMAGE.partition(':')[2]}" for target in TARGETS}


def needs(name: str) -> set[str]:
    """Return a service and its direct and indirect dependencies, which `docker compose run` builds and starts."""
    return {name}.union(*(needs(other) for other in SERVICES[name].get("depends_on", ())))


@pytest.mark.parametrize("name", [name for name, s in SERVICES.items() if s["image"].startswith("storeside/airflow")])
def test_what_runs_airflow_starts_the_service_that_builds_its_image(name: str) -> None:
    assert any(
        SERVICES[other]["image"] == SERVICES[name]["image"] for other in needs(name) if "build" in SERVICES[other]
    )


@pytest.mark.parametrize("name", INIT)
def test_up_waits_for_the_end_of_a_command(name: str) -> None:
    """Compose waits for the end of a command that a service depends on; otherwise only until it runs."""
    found = {
        other: service["depends_on"][name]
        for other, service in SERVICES.items()
        if name in service.get("depends_on", {})
    }
    assert "service_completed_successfully" in {condition["condition"] for condition in found.values()}
    for other, condition in found.items():  # without its profile the command is no service
        inactive = set(SERVICES[name].get("profiles", ())) - set(SERVICES[other].get("profiles", ()))
        assert condition.get("required", True) is not bool(inactive), other


def test_postgres_is_healthy_only_when_it_answers_by_tcp() -> None:
    probe = SERVICES["postgres"]["healthcheck"]["test"]
    assert probe[probe.index("--host") + 1] == "127.0.0.1"


def test_there_is_time_to_stop() -> None:
    """Docker kills containers that have not ended within ten seconds, or the grace period."""
    seconds = {"s": 1, "m": 60}
    grace = {
        name: int(text[:-1]) * seconds[text[-1]]
        for name, service in SERVICES.items()
        if (text := service.get("stop_grace_period"))
    }
    assert grace["scheduler"] >= 600, "it waits for its tasks: the workers of Airflow's chart have as long"
    assert grace["triggerer"] >= 60, "as in Airflow's chart"
    assert {"aistore", "clickhouse"} <= set(grace)


def test_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_each_port_of_this_machine_can_be_changed() -> None:
    page = (CHECKOUT / "docs" / "running.md").read_text()
    variables = {}
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            found = re.fullmatch(r"127\.0\.0\.1:\$\{(STORESIDE_\w+_PORT):-(\d+)\}:(\d+)", port)
            assert found, port
            variables[name] = found[1]
            assert found[2] == found[3]
            assert f"`{found[1]}`" in page
    assert len(set(variables.values())) == len(variables) == 4
    base = SERVICES["scheduler"]["environment"]["AIRFLOW__API__BASE_URL"]
    assert base == f"http://localhost:${{{variables['api-server']}:-8080}}"


def test_make_knows_every_secret(tmp_path: Path) -> None:
    wanted = set(re.findall(r"\$\{(\w+):\?", (CHECKOUT / "docker-compose.yaml").read_text()))
    (tmp_path / "Makefile").symlink_to(CHECKOUT / "Makefile")
    subprocess.run(["make", ".env"], cwd=tmp_path, check=True, capture_output=True)
    lines = (tmp_path / ".env").read_text().splitlines()
    made = dict(line.split("=", 1) for line in lines)
    assert set(made) == wanted
    assert len(set(made.values())) == len(made)
    assert min(map(len, made.values())) >= 32
    assert len(made["AIRFLOW_JWT_SECRET"]) >= 64, "HS512 wants a key of 64 bytes (RFC 7518, 3.2)"
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0


def test_make_adds_the_secrets_that_an_older_env_lacks(tmp_path: Path) -> None:
    (tmp_path / "Makefile").symlink_to(CHECKOUT / "Makefile")
    old = "# mine\nPOSTGRES_PASSWORD=kept\nexport S3_ACCESS_KEY = kept too\nHSDS_PASSWORD=\nAIS_TARGETS=3"  # no \n
    (tmp_path / ".env").write_text(old)
    for _ in range(2):  # repeating it changes nothing
        subprocess.run(["make", ".env"], cwd=tmp_path, check=True, capture_output=True)
        text = (tmp_path / ".env").read_text()
        assert text.startswith(f"{old}\n")
        added = [line.split("=")[0] for line in text.removeprefix(old).splitlines() if line]
        assert len(added) == len(set(added)) == 10
        assert not {"POSTGRES_PASSWORD", "S3_ACCESS_KEY"} & set(added)
        assert "HSDS_PASSWORD" in added, "for docker compose an empty value is none"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("AIRFLOW_JWT_SECRET={}", True),
        ("export AIRFLOW_JWT_SECRET = '{}'", True),
        ("AIRFLOW_JWT_SECRET={0}{0}", False),
        ("# none", False),
    ],
)
def test_a_short_jwt_secret_of_an_older_env_stays_and_make_says_how_to_replace_it(
    tmp_path: Path, line: str, told: bool
) -> None:
    secret = "0123456789abcdef" * 3  # the length that `make .env` once used
    (tmp_path / "Makefile").symlink_to(CHECKOUT / "Makefile")
    (tmp_path / ".env").write_text(line.format(secret) + "\n")
    done = subprocess.run(["make", ".env"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert (tmp_path / ".env").read_text().startswith(line.format(secret))
    assert ("AIRFLOW_JWT_SECRET in .env has fewer than the 64 bytes" in done.stdout) is told
    assert secret not in done.stdout


def test_the_embedded_stack_signs_with_a_long_key_too(tmp_path: Path) -> None:
    assert len(Stack.create(tmp_path, 1).secrets["airflow_jwt"]) >= 64


def test_connections_lead_to_the_services() -> None:
    environment = SERVICES["scheduler"]["environment"]
    text = {name: re.sub(r"\$\{(\w+):\?[^}]*\}", r"\1", value) for name, value in environment.items()}
    found = {
        name: Connection.parse(name.removeprefix(PREFIX).lower(), value)
        for name, value in text.items()
        if name.startswith(PREFIX)
    }
    assert {(c.host, c.port) for c in found.values() if c.host} == {("aistore", container.PORT), ("clickhouse", 8443)}
    assert {c.extra_dejson.get("secure") for c in found.values() if c.host == "clickhouse"} == {True}
    authority = str(container_files.CERTIFICATES / "ca.pem")
    trusted = {
        name: extra.get("ca_cert") or extra.get("verify") or extra["client_kwargs"]["ca_cert"]
        for name, extra in ((name, c.extra_dejson) for name, c in found.items())
    }
    assert set(trusted.values()) == {authority}, trusted
    assert SERVICES["aistore"]["environment"]["AIS_HOST"] == "aistore"
    aws = found["AIRFLOW_CONN_AWS_DEFAULT"]
    endpoint = f"https://s3:{SERVICES['s3']['environment']['GATEWAY_PORT']}"
    assert aws.extra_dejson["endpoint_url"] == endpoint == SERVICES["aistore"]["environment"]["S3_ENDPOINT"]
    config = ElementTree.parse(CHECKOUT / "include" / "storeside" / "stack" / "images" / "clickhouse" / "config.xml")  # noqa: S314 - ours
    collection = config.find(f"named_collections/{aws.extra_dejson['clickhouse_collection']}")
    assert collection is not None
    assert collection.findtext("url") == endpoint + "/"
    users = ElementTree.parse(CHECKOUT / "include" / "storeside" / "stack" / "images" / "clickhouse" / "users.xml")  # noqa: S314 - ours
    user = users.find(f"users/{found['AIRFLOW_CONN_CLICKHOUSE_DEFAULT'].login}")
    assert user is not None
    assert f"GRANT NAMED COLLECTION ON {collection.tag}" in [query.text for query in user.findall("grants/query")]
    cluster = found["AIRFLOW_CONN_AISTORE_DEFAULT"]
    assert cluster.login == authn.AIRFLOW
    assert cluster.schema == "https"
    assert cluster.extra_dejson["authn_url"] == f"https://aistore:{container.AUTHN_PORT}"
    for extra, readers in (
        ("clickhouse_collection", ("storeside_loader", "storeside_ledger")),
        ("clickhouse_url_collection", ("storeside_loader",)),
    ):
        collection = config.find(f"named_collections/{cluster.extra_dejson[extra]}")
        assert collection is not None
        assert collection.findtext("url") == f"https://aistore:{container.PORT}/"
        for reader in readers:
            queries = [query.text for query in users.findall(f"users/{reader}/grants/query")]
            assert f"GRANT NAMED COLLECTION ON {collection.tag}" in queries
    taken = {e.get("from_env") for root in (config, users) for e in root.iter() if e.get("from_env")}
    assert taken == set(SERVICES["clickhouse"]["environment"])


def test_aistore_gets_its_backend() -> None:
    assert set(aistore.BACKEND) <= set(SERVICES["aistore"]["environment"])
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GATEWAY_PORT"} <= set(SERVICES["s3"]["environment"])
    assert s3.BUCKET == "recordings"


def test_transformers_have_a_container_without_secrets_and_without_a_network_besides_aistore() -> None:
    service, nodes = SERVICES["transformers"], SERVICES["aistore"]
    assert "environment" not in service
    assert "env_file" not in service
    assert service["networks"] == ["transformers"]
    assert COMPOSE["networks"]["transformers"]["internal"] is True
    others = [name for name, other in SERVICES.items() if "transformers" in other.get("networks", ())]
    assert sorted(others) == ["aistore", "transformers"]
    assert "ports" not in service
    assert [ip_address(server) in ip_network("192.0.2.0/24") for server in service["dns"]] == [True]  # RFC 5737
    assert service["read_only"] is True
    assert service["volumes"] == [
        f"{nodes['volumes'][0]}:ro",  # paths of objects are the same in both
        f"authority:{container_files.CERTIFICATES}:ro",
    ]
    assert all(path.startswith("/tmp:") for path in service["tmpfs"])  # noqa: S108
    user, group = service["user"].split(":")
    assert user not in ("0", "50000"), "it would own AIStore's files"
    assert group == "0", "the group may read the objects"
    assert service["command"][-1] == transformers.__name__


def test_aistore_and_its_transformers_find_each_other() -> None:
    service, nodes = SERVICES["transformers"], SERVICES["aistore"]
    environment = nodes["environment"]
    assert set(container.REQUIRED) <= set(environment)
    assert environment["TRANSFORMERS_HOST"] == "transformers"
    assert nodes["networks"]["transformers"]["aliases"] == [environment["AIS_DATA_HOST"]]
    assert service["healthcheck"]["test"][-2] == f"https://transformers:{container.PODS_PORT}/healthz"
    assert service["image"] == nodes["image"]
    assert "transformers" in nodes["depends_on"]


def test_no_command_has_a_password_among_its_arguments() -> None:
    """All users of the machine can read the arguments of the containers' processes."""
    for name, service in SERVICES.items():
        command = json.dumps([service.get("command"), service.get("entrypoint"), service.get("healthcheck")])
        assert not re.search(r"\$\{?\w*(PASSWORD|SECRET|KEY)", command), name


@pytest.mark.exhaustive
def test_the_connection_of_hsds_is_made_and_renewed(tmp_path: Path) -> None:
    script, found, _ = SERVICES["hsds-init"]["command"][-1].partition("python -c '\nimport h5pyd")
    assert found
    file = tmp_path / "hsds.json"
    script = script.replace("$$", "$").replace("/tmp/hsds.json", str(file))  # noqa: S108
    assert str(file) in script
    shutil.copyfile(airflow.template(default_folder() / "cache"), tmp_path / "airflow.db")
    database = f"sqlite:///{tmp_path / 'airflow.db'}"
    own = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database, "HOME": str(tmp_path)}
    own["AIRFLOW__CORE__FERNET_KEY"] = ""  # so that passwords are not encrypted
    own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = []
    for password in ("first", 'a"b\\c'):
        command = ["bash", "-euc", script]
        subprocess.run(command, env=own | {"HS_PASSWORD": password}, check=True, capture_output=True)
        assert not file.exists()
        with contextlib.closing(sqlite3.connect(tmp_path / "airflow.db")) as tables:
            shown += tables.execute("SELECT conn_id, host, port, login, password FROM connection").fetchall()
    assert shown == [("hsds_default", "hsds", 5101, "storeside", password) for password in ("first", 'a"b\\c')]


def test_keys_of_s3_are_in_few_containers() -> None:
    holders = {name for name, service in SERVICES.items() if "S3_SECRET_KEY" in json.dumps(service)}
    airflow = {name for name, service in SERVICES.items() if service["image"].startswith("storeside/airflow")}
    assert holders - airflow == {"aistore", "clickhouse", "s3"}


def test_clickhouse_reads_its_token_from_the_file_that_aistore_writes() -> None:
    config = ElementTree.parse(IMAGE_FILES / "clickhouse" / "config.xml")  # noqa: S314 - ours
    shared = {
        path.split(":")[1]
        for name in ("aistore", "clickhouse")
        for path in SERVICES[name]["volumes"]
        if path.startswith("tokens:")
    }
    assert shared == {str(container_files.TOKENS), "/etc/clickhouse-server/aistore"}
    assert "tokens:/etc/clickhouse-server/aistore:ro" in SERVICES["clickhouse"]["volumes"]
    assert config.findtext("include_from") == "/etc/clickhouse-server/aistore/aistore.xml"
    token = config.find("named_collections/storeside_aistore/session_token")
    assert token is not None
    assert token.get("incl") == container_files.COLLECTION_TOKEN
    (header,) = config.findall("named_collections/storeside_aistore_objects/headers/header")
    value = header.find("value")
    assert (header.findtext("name"), value is not None and value.get("incl")) == (
        "Authorization",
        container_files.COLLECTION_HEADER,
    )
    assert "aistore" in SERVICES["clickhouse"]["depends_on"]
    assert f"-m 0755 {container_files.TOKENS}" in STAGES["aistore"], "a new volume gets its owner from the image"


def volumes(name: str) -> dict[str, str]:
    """Return the places of a service's volumes, with ``:ro`` for those that it cannot write."""
    return dict(path.split(":", 1) for path in SERVICES[name]["volumes"])


def test_each_key_is_in_the_container_of_its_server_only() -> None:
    folder = certificates.FOLDER
    written = {"authority", *(f"tls-{server}" for server in certificates.SERVERS)}
    assert volumes("certificates") == {name: f"{folder}/{name.removeprefix('tls-')}" for name in written}
    assert SERVICES["certificates"]["network_mode"] == "none"
    for name in set(SERVICES) - {"certificates"}:
        mounted = {volume: place for volume, place in volumes(name).items() if volume in written}
        assert all(place.endswith(":ro") for place in mounted.values()), name
        assert set(mounted) <= {"authority", f"tls-{name}"}, name
        if SERVICES[name]["image"].startswith("storeside/airflow"):
            assert mounted == {"authority": f"{container_files.CERTIFICATES}:ro"}, name
        if mounted:
            assert "certificates" in needs(name), f"{name} might create the volume, with another owner"
    assert volumes("aistore")["tls-aistore"] == f"{container_files.CERTIFICATES}:ro"


def test_certificates_have_the_names_of_the_services_and_keys_their_groups() -> None:
    groups = SERVICES["certificates"]["group_add"]
    for name, server in certificates.SERVERS.items():
        service = SERVICES[name]
        aliases = {alias for net in ("transformers",) for alias in _aliases(service, net)}
        assert set(server.names) == {name, *aliases}
        group = service.get("user", "50000:0").partition(":")[2]
        assert str(server.group) == group, name
        assert group == "0" or group in groups, "only a member of a group may give it a file"


def _aliases(service: dict[str, Any], network: str) -> list[str]:
    networks = service.get("networks", {})
    return list(networks[network]["aliases"]) if network in networks else []


def test_clickhouse_and_s3_serve_tls_with_their_certificates() -> None:
    config = ElementTree.parse(IMAGE_FILES / "clickhouse" / "config.xml")  # noqa: S314 - ours
    assert config.find("http_port[@remove='1']") is not None
    port = config.findtext("https_port")
    assert SERVICES["clickhouse"]["ports"] == [f"127.0.0.1:${{STORESIDE_CLICKHOUSE_PORT:-{port}}}:{port}"]
    place = volumes("clickhouse")["tls-clickhouse"].removesuffix(":ro")
    files = [config.findtext(f"openSSL/{name}") for name in ("server/certificateFile", "server/privateKeyFile")]
    assert files == [f"{place}/server.pem", f"{place}/server.key"]
    assert config.findtext("openSSL/client/caConfig") == f"{place}/ca.pem"
    assert config.findtext("openSSL/client/verificationMode") == "strict"
    environment, place = SERVICES["s3"]["environment"], volumes("s3")["tls-s3"].removesuffix(":ro")
    assert environment["USE_SSL"] == "1"
    names = ("MINISTACK_SSL_CERT", "MINISTACK_SSL_KEY", s3.AUTHORITY_VARIABLE)
    assert [environment[name] for name in names] == [f"{place}/{n}" for n in ("server.pem", "server.key", "ca.pem")]


# the Dockerfile


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_one_virtual_environment(target: str) -> None:
    """A second one on top hides the first, whose layers stay in the image."""
    parents = {name: parent for parent, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)}
    found, stage = [], target
    while stage in STAGES:
        found += re.findall(r"^COPY --from=(\S+-packages) /opt/venv /opt/venv$", STAGES[stage], re.MULTILINE)
        stage = parents[stage]
    assert found == [f"{target}-packages"]


# Runs a module's imports as an image would: {copied} are the project's files, {locked} the distributions.
IMPORTS = """
import importlib, importlib.metadata as metadata, json, os, re, sys
copied, locked, modules = map(json.loads, sys.argv[1:])
own = metadata.packages_distributions()

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        names = {re.sub("[-_.]+", "-", distribution).lower() for distribution in own.get(top, ())}
        if names and not names & set(locked):
            raise ModuleNotFoundError(f"the image has no {name}", name=name)

sys.meta_path.insert(0, Absent())
sys.path[:] = [copied, *(p for p in sys.path if "storeside" not in p or "site-packages" in p)]
sys.path = [path for path in sys.path if not os.path.exists(os.path.join(path, "storeside")) or path == copied]
for module in modules:
    importlib.import_module(module)
"""


def copied_to(place: Path, source: str) -> None:
    """Copy a file or a folder of the checkout, as COPY does."""
    place.parent.mkdir(parents=True, exist_ok=True)
    copy = shutil.copytree if (CHECKOUT / source).is_dir() else shutil.copy
    copy(CHECKOUT / source, place)


@pytest.mark.parametrize(
    ("target", "modules"),
    [
        (
            "aistore",
            [
                "storeside.aistore.login",
                "storeside.stack.containers.aistore",
                "storeside.stack.containers.certificates",
                "storeside.stack.containers.transformers",
                "storeside.stack.podrunner.__main__",
                "storeside.stack.podrunner.runtime_python",
                "storeside.transformers.serve",
                "storeside.transformers.workers.worker",
            ],
        ),
        ("transformer", ["storeside.transformers.serve", "storeside.transformers.workers.worker"]),
        ("s3", ["storeside.stack.servers.s3_server"]),
    ],
)
def test_an_image_has_the_modules_that_its_processes_import(target: str, modules: list[str], tmp_path: Path) -> None:
    stages, stage = "", target
    parents = {name: parent for parent, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)}
    while stage in STAGES:
        stages, stage = stages + STAGES[stage], parents[stage]
    copied = re.findall(r"^COPY (include/\S+) /opt/storeside/(include/\S+)$", stages, re.MULTILINE)
    assert copied
    for source, destination in copied:
        copied_to(tmp_path / destination, source)
    locked = set(pins(IMAGE_FILES / f"{target}.lock"))
    if target == "aistore":
        locked |= set(pins(IMAGE_FILES / "transformer.lock"))
    arguments = [str(tmp_path / "include"), sorted(locked), modules]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *map(json.dumps, arguments)],
        check=False, capture_output=True, text=True, cwd=tmp_path, env={"HOME": str(tmp_path)},
    )  # fmt: skip
    assert not done.returncode, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("stage", "module"),
    [("aisnode", "storeside.stack.building.nodes"), ("native", "storeside.transformers.native.build")],
)
def test_a_stage_has_the_modules_that_build_its_programs(stage: str, module: str, tmp_path: Path) -> None:
    for line in re.findall(r"^COPY (include/\S.*)$", STAGES[stage], re.MULTILINE):
        *sources, destination = line.split()
        for source in sources:
            copied_to(tmp_path / destination / (Path(source).name if destination.endswith("/") else ""), source)
    done = subprocess.run(  # without this environment's packages
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module}"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert not done.returncode, done.stderr[-2000:]


@pytest.mark.parametrize("target", TARGETS)
def test_targets_do_not_run_as_root(target: str) -> None:
    users = re.findall(r"^USER (\S+)$", STAGES[target], re.MULTILINE)
    assert users
    assert users[-1] == "50000:0"


def test_images_of_a_checkout_with_a_strict_umask_are_readable(tmp_path: Path) -> None:
    copies = [name for name, text in STAGES.items() if re.search(r"^COPY \S+ /opt/storeside/", text, re.MULTILINE)]
    assert set(copies) == {"airflow", "transformer-code", "aistore", "s3"}
    commands = set()
    for name in copies:
        after = re.split(r"^COPY .*\n", STAGES[name], flags=re.MULTILINE)[-1]
        commands |= set(re.findall(r"^RUN (find /opt/storeside .*)$", after, re.MULTILINE))
        assert "RUN find /opt/storeside " in after, f"{name}: COPY keeps the modes of the checkout"
    (command,) = commands
    folder = tmp_path / "package"
    folder.mkdir(mode=0o700)
    for file, mode in (("module.py", 0o600), ("program", 0o750), ("usual", 0o644)):
        (folder / file).touch()
        (folder / file).chmod(mode)
    (folder / "link").symlink_to("/no/such/place")
    subprocess.run(["/bin/sh", "-euc", command.replace("/opt/storeside", str(tmp_path))], check=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir()) if path.name != "link"}
    assert modes == {"package": 0o755, "module.py": 0o644, "program": 0o755, "usual": 0o644}


def test_the_airflow_image_has_the_entrypoint_of_the_charts_probes(tmp_path: Path) -> None:
    made = re.search(r"(printf .* > )/entrypoint && chmod 0755 /entrypoint$", STAGES["airflow"], re.MULTILINE)
    assert made
    program = tmp_path / "entrypoint"
    subprocess.run(["/bin/sh", "-c", f"{made[1]}{program} && chmod 0755 {program}"], check=True)
    done = subprocess.run([program, "printf", "%s.", "a b", "$c"], check=True, capture_output=True, text=True)
    assert done.stdout == "a b.$c."


def test_everything_that_is_copied_is_there_and_sent() -> None:
    allowed = [line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
        if source != "plugin[s]"  # there may be none
    ]
    assert len(sources) > 10
    for source in sources:
        assert (CHECKOUT / source).exists(), source
        assert any(fnmatch.fnmatch(source, f"{rule}*") for rule in allowed), f"{source} is not sent"


def packages(path: Path) -> set[str]:
    return {line for line in path.read_text().splitlines() if line and not line.startswith("#")}


def pins(path: Path) -> dict[str, str]:
    """Return the versions of a lock file by package; every package has hashes."""
    text = path.read_text()
    found = re.findall(r"^([a-z0-9._-]+)==(\S+)[^\n]*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^\w", text, re.MULTILINE)), path
    return dict(found)


def test_the_airflow_image_has_what_the_project_needs_there() -> None:
    needed = (CHECKOUT / "requirements.txt").read_text().partition("# Code that runs beside")[0]
    project = {line for line in needed.splitlines() if line and not line.startswith("#")}
    image = packages(IMAGE_FILES / "airflow.txt")
    (too_large,) = project - image
    assert too_large.startswith("deltalake==")
    assert too_large in (CHECKOUT / "docs" / "running.md").read_text(), "says how to add it"
    for package in image - project:
        assert "==" in package, f"{package} is neither in the lock nor pinned"


@pytest.mark.parametrize("image", SOURCES)
def test_images_install_the_versions_of_the_project_by_hash(image: str) -> None:
    project, locked = pins(CHECKOUT / "requirements.lock"), pins(IMAGE_FILES / f"{image}.lock")
    for package in packages(SOURCES[image]):
        name, _, version = re.sub(r"\[.*?\]", "", package).partition("==")
        assert version in ("", locked[name]), package
    both = locked.keys() & project.keys()
    assert {name: locked[name] for name in both} == {name: project[name] for name in both}, "run `make lock`"
    # Besides the project's lock, which has all packages of the others, `make audit` checks this one.
    assert image == "airflow" or locked.keys() <= project.keys()


def test_every_python_package_of_an_image_has_a_hash() -> None:
    installs = re.findall(r"\bpip install\b[^\n&]*", DOCKERFILE)
    locks = {re.search(r"--require-hashes -r (\S+)", install)[1] for install in installs}  # type: ignore[index]
    assert locks == {"uv.lock", "hsds_requirements.txt", *(f"{image}.lock" for image in SOURCES)}
    (uv,) = re.findall(r"^UV_VERSION := (\S+)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert pins(IMAGE_FILES / "uv.lock") == {"uv": uv}, "run `make lock`"


def test_etls_find_their_image_under_compose() -> None:
    assert fnmatch.fnmatch(TRANSFORMER_IMAGE.partition(":")[0], next(iter(IMAGES)))
    command = json.loads(re.search(r"^CMD (\[.*)$", STAGES["aistore"], re.MULTILINE)[1])  # type: ignore[index]
    assert command == ["python", "-m", container.__name__]


def test_the_stand_in_for_clickhouse_has_each_module_of_its_relay() -> None:
    code = (
        "import sys, storeside.stack.supervision.tls_relay;"
        " print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('storeside')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == {str(CHECKOUT / "include" / name) for name in base_images.RELAY}
