# The images of Storeside. `docker compose build` builds all of them, `docker build --target airflow .` a single one.
#
#   airflow      Airflow with the DAGs, for all Airflow processes under compose and in Airflow's Helm chart
#   transformer  the server that AIStore runs next to its targets (storeside/transformer-audio)
#   aistore      AIStore, and in a second container its ETLs, for compose; on Kubernetes use NVIDIA's own images
#   s3           S3 and SQS for compose
#   hsds         a node of HSDS, for compose with the profile hsds
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG GO_IMAGE=golang:1.26.8

FROM ${GO_IMAGE} AS go

FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# Group 0, as on OpenShift and in Airflow's image. AIStore's objects are readable for this group.
RUN useradd --uid 50000 --gid 0 --create-home --home-dir /home/storeside storeside

# Each stage `…-packages` installs an environment; then slim.py removes the files that no program uses.
FROM base AS installer
ENV UV_NO_PROGRESS=1 UV_LINK_MODE=copy VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
RUN apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*
WORKDIR /requirements
COPY include/storeside/stack/images/uv.lock include/storeside/stack/images/slim.py ./
RUN pip install --require-hashes -r uv.lock && uv venv --quiet --python /usr/local/bin/python3 /opt/venv

FROM installer AS airflow-packages
COPY include/storeside/stack/images/airflow.lock ./
RUN uv pip install --quiet --no-cache --require-hashes -r airflow.lock && python slim.py /opt/venv

FROM installer AS transformer-packages
COPY include/storeside/stack/images/transformer.lock ./
RUN uv pip install --quiet --no-cache --require-hashes -r transformer.lock && python slim.py /opt/venv

FROM transformer-packages AS aistore-packages
COPY include/storeside/stack/images/aistore.lock ./
RUN uv pip install --quiet --no-cache --require-hashes -r aistore.lock && python slim.py /opt/venv

FROM installer AS s3-packages
COPY include/storeside/stack/images/s3.lock ./
RUN uv pip install --quiet --no-cache --require-hashes -r s3.lock && python slim.py /opt/venv

FROM installer AS hsds-packages
COPY include/storeside/stack/servers/hsds_requirements.txt ./
RUN uv pip install --quiet --no-cache --require-hashes -r hsds_requirements.txt && python slim.py /opt/venv

FROM base AS native
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev pkg-config \
        libavcodec-dev libavformat-dev libavutil-dev libswresample-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY include/storeside/__init__.py storeside/__init__.py
COPY include/storeside/transformers storeside/transformers
RUN STORESIDE_NATIVE_DIR=/native python3 -m storeside.transformers.native.build

FROM base AS aisnode
COPY --from=go /usr/local/go /usr/local/go
ENV PATH=/usr/local/go/bin:$PATH GOPATH=/go GOCACHE=/go/build
WORKDIR /build
COPY include/storeside/__init__.py storeside/
COPY include/storeside/stack/__init__.py include/storeside/stack/settings.py storeside/stack/
COPY include/storeside/stack/building/__init__.py include/storeside/stack/building/backends.py include/storeside/stack/building/go.py include/storeside/stack/building/nodes.py include/storeside/stack/building/packages.py include/storeside/stack/building/patch.py include/storeside/stack/building/patches.py include/storeside/stack/building/secure_patches.py storeside/stack/building/
COPY include/storeside/stack/images/go.lock include/storeside/stack/images/go.sum storeside/stack/images/
RUN --mount=type=cache,target=/go python3 -c "from pathlib import Path; from storeside.stack.building import nodes; \
    nodes.build(Path('/cache'), print)" || { cat /cache/*.log; false; }

FROM base AS airflow
# Airflow's Helm chart prefixes the commands of its probes with /entrypoint.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/* \
    && install -d -o 50000 -g 0 -m 0775 /opt/airflow /opt/airflow/logs \
    && printf '#!/bin/sh\nexec "$@"\n' > /entrypoint && chmod 0755 /entrypoint
COPY --from=airflow-packages /opt/venv /opt/venv
COPY dags /opt/storeside/dags
COPY include /opt/storeside/include
COPY operators /opt/storeside/operators
COPY plugin[s] /opt/storeside/plugins/
# Here and below: the files of a checkout that was made with a strict umask are readable for its owner only.
RUN find /opt/storeside ! -type l ! -perm -go=r -exec chmod go=u-w {} +
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/storeside/include \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/storeside/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/storeside/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE=True \
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED=False
WORKDIR /opt/airflow
USER 50000:0
ENTRYPOINT ["tini", "--"]
CMD ["airflow", "version"]

FROM base AS transformer-code
# The command ffmpeg depends on a window system, only for its player: without its drivers the image is 160 MB smaller.
RUN printf 'path-exclude=/usr/lib/*/%s\n' 'dri/*' 'libLLVM*' 'libz3.so*' > /etc/dpkg/dpkg.cfg.d/no-graphics \
    && apt-get update \
    && apt-get install --yes --no-install-recommends ffmpeg libavcodec59 libavformat59 libavutil57 libseccomp2 libswresample4 \
    && rm -rf /var/lib/apt/lists/* \
    && ffmpeg -version && ! ldd /usr/bin/ffmpeg | grep 'not found'
COPY include/storeside/__init__.py /opt/storeside/include/storeside/__init__.py
COPY include/storeside/transformers /opt/storeside/include/storeside/transformers
# The library goes to its default path: ETLs that the pod runner starts do not inherit the image's environment.
COPY --from=native /native /opt/storeside/include/storeside/transformers/native
RUN find /opt/storeside ! -type l ! -perm -go=r -exec chmod go=u-w {} +
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/opt/storeside/include
WORKDIR /opt/storeside

FROM transformer-code AS transformer
COPY --from=transformer-packages /opt/venv /opt/venv
USER 50000:0
EXPOSE 8000
CMD ["python", "-m", "storeside.transformers.serve", "--transform", "audio_transcode"]

# Based on transformer-code: based on transformer, the image would contain those packages twice.
FROM transformer-code AS aistore
COPY --from=aistore-packages /opt/venv /opt/venv
COPY --from=aisnode /cache /opt/storeside/cache
COPY include/storeside/stack /opt/storeside/include/storeside/stack
# The login at AuthN.
COPY include/storeside/errors.py /opt/storeside/include/storeside/errors.py
COPY include/storeside/aistore/__init__.py /opt/storeside/include/storeside/aistore/__init__.py
COPY include/storeside/aistore/errors.py /opt/storeside/include/storeside/aistore/errors.py
COPY include/storeside/aistore/login.py /opt/storeside/include/storeside/aistore/login.py
RUN find /opt/storeside ! -type l ! -perm -go=r -exec chmod go=u-w {} +
# New volumes get their owner from these folders.
RUN install -d -o 50000 -g 0 -m 0770 /var/lib/storeside && install -d -o 50000 -g 0 -m 0755 /var/lib/tokens \
    /var/lib/certificates/authority /var/lib/certificates/aistore /var/lib/certificates/clickhouse /var/lib/certificates/s3
ENV STORESIDE_HOME=/var/lib/storeside
VOLUME /var/lib/storeside
USER 50000:0
EXPOSE 51080
CMD ["python", "-m", "storeside.stack.containers.aistore"]

FROM base AS s3
COPY --from=s3-packages /opt/venv /opt/venv
COPY include/storeside/__init__.py /opt/storeside/include/storeside/__init__.py
COPY include/storeside/stack /opt/storeside/include/storeside/stack
RUN find /opt/storeside ! -type l ! -perm -go=r -exec chmod go=u-w {} +
RUN install -d -o 50000 -g 0 -m 0770 /var/lib/storeside
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/opt/storeside/include
WORKDIR /opt/storeside
VOLUME /var/lib/storeside
USER 50000:0
EXPOSE 4566
CMD ["python", "-m", "storeside.stack.servers.s3_server"]

FROM base AS hsds
COPY --from=hsds-packages /opt/venv /opt/venv
RUN install -d -o 50000 -g 0 -m 0770 /var/lib/hsds
# All threads share one memory arena. The cache of chunks is small, because a chunk is seldom read twice. HSDS refuses
# writes while chunks that are not stored yet fill it, so it stores a chunk at once, not after a second.
ENV PATH=/opt/venv/bin:$PATH MALLOC_ARENA_MAX=1 CHUNK_MEM_CACHE_SIZE=16m S3_AGE_TIME=0 METADATA_MEM_CACHE_SIZE=16m \
    ROOT_DIR=/var/lib/hsds BUCKET_NAME=hsds ALLOW_NOAUTH=False LOG_LEVEL=WARNING PASSWORD_FILE=/tmp/passwords.txt
VOLUME /var/lib/hsds
USER 50000:0
EXPOSE 5101
# HSDS has a single user, HSDS_USER with HSDS_PASSWORD, who has all rights.
ENTRYPOINT ["/bin/sh", "-euc", "umask 077; mkdir -p $ROOT_DIR/$BUCKET_NAME; echo \"$HSDS_USER:$HSDS_PASSWORD\" > $PASSWORD_FILE; exec python -m hsds.node_runner --standalone --admin_user=$HSDS_USER \"$@\"", "hsds"]
CMD ["--node_type=sn", "--sn_url=http://localhost:5101"]
