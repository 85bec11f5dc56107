"""The images of Airflow, S3, ClickHouse and PostgreSQL for a node of ours, with the names in ``docs/kubernetes``.

Airflow's follows the Dockerfile. ClickHouse and PostgreSQL are the stand-ins of the Compose tests. All lie on the
layer with Airflow's packages, so the node unpacks Debian and Python once.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from storeside import __version__
from storeside.stack.building.packages import uv
from storeside.stack.servers.clickhouse_server import PINNED
from storeside.stack.settings import CHECKOUT
from tests.containers.base_images import STAND_INS, postgres_server
from tests.kubernetes.images import Store, copy_files, image_config, inputs_of, packages, run, tree

AIRFLOW = f"storeside/airflow:{__version__}"
S3 = f"storeside/s3:{__version__}"
CLICKHOUSE = "clickhouse/clickhouse-server:26.9"
POSTGRES = "library/postgres:17.6-bookworm"
_CODE = tuple(CHECKOUT / name for name in ("dags", "include", "operators", "plugins"))
_STACK = (CHECKOUT / "include/storeside/__init__.py", CHECKOUT / "include/storeside/stack")
_S3_LOCK = CHECKOUT / "include/storeside/stack/images/s3.lock"
_PYTHON = "3.11"


def provide(store: Store) -> None:
    """Make the images that `store` has not."""
    base = store.layer("airflow-base", inputs_of("airflow"), lambda root: packages(root, "airflow"))
    code = store.layer("airflow-code", [tree(path) for path in _CODE], _airflow)
    store.image(AIRFLOW, [base, code], _airflow_config())
    emulator = store.layer("s3", [_S3_LOCK.read_bytes(), *(tree(path) for path in _STACK)], _s3)
    store.image(S3, [base, emulator], _with("/opt/s3", "python", "-m", "storeside.stack.servers.s3_server"))
    engine = store.layer("clickhouse", [PINNED, tree(STAND_INS / "clickhouse")], _clickhouse)
    store.image(CLICKHOUSE, [base, engine], _with("/opt/clickhouse", "python", "/serve.py"))
    database = store.layer("postgres", [POSTGRES, tree(STAND_INS / "postgres")], _postgres)
    config = image_config("postgres") | {"Entrypoint": ["docker-entrypoint.sh"]}
    config["Env"] = [entry.replace("PATH=/opt/venv", "PATH=/usr/local/pgsql", 1) for entry in config["Env"]]
    store.image(POSTGRES, [base, database], config)


def _airflow(root: Path) -> None:
    copy_files(root, _CODE)
    for folder in ("opt/airflow", "opt/airflow/logs"):
        (root / folder).mkdir(parents=True)
        (root / folder).chmod(0o775)
        shutil.chown(root / folder, 50000, 0)
    entrypoint = root / "entrypoint"
    entrypoint.write_text('#!/bin/sh\nexec "$@"\n')
    entrypoint.chmod(0o755)


def _airflow_config() -> dict[str, Any]:
    config = image_config("airflow", "version") | {"Entrypoint": ["tini", "--"], "WorkingDir": "/opt/airflow"}
    config["Env"] += [
        "AIRFLOW_HOME=/opt/airflow",
        "AIRFLOW__CORE__DAGS_FOLDER=/opt/storeside/dags",
        "AIRFLOW__CORE__PLUGINS_FOLDER=/opt/storeside/plugins",
        "AIRFLOW__CORE__LOAD_EXAMPLES=False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED=False",
    ]
    return config


def _s3(root: Path) -> None:
    _install(root / "opt/s3", "--require-hashes", "-r", str(_S3_LOCK))
    copy_files(root, _STACK)
    _writable(root / "var/lib/storeside")


def _clickhouse(root: Path) -> None:
    _install(root / "opt/clickhouse", "--no-deps", f"chdb-core=={PINNED}")
    settings = root / "etc/clickhouse-server"
    for folder in (settings / "config.d", settings / "users.d", root / "var/lib/clickhouse"):
        _writable(folder)
    for name in ("config.xml", "users.xml"):
        shutil.copy(STAND_INS / "clickhouse" / name, settings)
    shutil.copy(STAND_INS / "clickhouse" / "serve.py", root)


def _postgres(root: Path) -> None:
    postgres_server(POSTGRES.partition(":")[2], root / "usr/local/pgsql")
    command = root / "usr/local/bin/docker-entrypoint.sh"
    command.parent.mkdir()
    shutil.copy(STAND_INS / "postgres" / "entrypoint.sh", command)
    command.chmod(0o755)
    for folder in ("run/postgresql", "var/lib/postgresql/data"):
        _writable(root / folder)


def _with(packages_folder: str, *command: str) -> dict[str, Any]:
    """Return the settings of an image whose packages are in a separate folder."""
    config = image_config(*command)
    config["Env"] = [entry.replace("PYTHONPATH=", f"PYTHONPATH={packages_folder}:", 1) for entry in config["Env"]]
    return config


def _install(folder: Path, *what: str) -> None:
    interpreter = subprocess.run(
        [f"python{_PYTHON}", "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=True
    )
    run(
        uv("the images"), "pip", "install", "--quiet", "--compile-bytecode", "--link-mode", "copy",
        "--python", interpreter.stdout.strip(), "--target", str(folder), *what,
    )  # fmt: skip


def _writable(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
