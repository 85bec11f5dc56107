"""Airflow's processes as components of the stack."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from storeside.sql import roles
from storeside.stack import authn
from storeside.stack.building import aisloader
from storeside.stack.podrunner.component import NAMESPACE, kube_config
from storeside.stack.servers import hsds
from storeside.stack.servers.clickhouse import passwords
from storeside.stack.servers.clickhouse_users import (
    AISTORE_COLLECTION,
    DATA,
    DATABASE,
    LEDGER,
    LOADER,
    OBJECTS_COLLECTION,
    PAGES,
)
from storeside.stack.servers.s3 import BUCKET, QUEUE, REGION, keys
from storeside.stack.servers.trouble import of_scheduler
from storeside.stack.settings import CHECKOUT, HOST, SOURCES, Stack, StackError
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import json_of
from storeside.stack.supervision.processes import marked

# Tasks use a separate API server. In a shared process, users and tasks block each other: after a user's request
# Airflow writes a log entry in the event loop and waits for SQLite's lock. A task's request holds that lock and waits
# for the event loop.
PROCESSES = {
    "api-server": ("api-server", "--apps", "core"),
    "execution-api": ("api-server", "--apps", "execution"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
HEALTH = {
    "api-server": "metadatabase",
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}
SERVED = {"api-server": "airflow", "execution-api": "airflow_execution"}
DATABASE_FILE = "airflow.db"
# Airflow Variables of a new stack, with their descriptions. Without the first, only the form starts the pipeline.
VARIABLES = {
    "storeside_speech_pipeline": (
        {"source": f"s3://{BUCKET}", "queue": QUEUE, "schedule": "0 3 * * *", "keep_extension": True},
        "Settings of the DAG speech_pipeline; see docs/configuration.md",
    )
}
# The Variable of a trial: forms may use every bucket, queue and table of its own servers. A * contains no slash, so
# that no entry means another server.
FORMS = {
    **{use: ["s3://*", "ais://*"] for use in ("read", "write", "delete")},
    "tables": ["*.*"],
    "databases": ["*"],
    "queues": ["*"],
    "domains": ["/home/storeside/*"],
    "after_load": ["none", "delete", "move", "tag"],
    "tags": ["*"],
}
# Number of concurrent tasks, and of the LocalExecutor's worker processes.
PARALLELISM = 4
# Seconds after which a DAG's file is parsed again, which is how new settings in Variables take effect.
PARSE_SECONDS = 30


def environment(stack: Stack) -> dict[str, str]:
    """Return the variables that connect an `airflow` command to this stack; they contain its secrets."""
    home = stack.state / "airflow"
    url = stack.url("airflow")
    settings = {
        "CORE__DAGS_FOLDER": CHECKOUT / "dags",
        "CORE__PLUGINS_FOLDER": CHECKOUT / "plugins",
        "CORE__LOAD_EXAMPLES": False,
        "CORE__FERNET_KEY": secret_key(stack, "fernet"),
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": PARALLELISM,
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": True,
        "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": passwords_file(stack),
        "CORE__EXECUTION_API_SERVER_URL": f"{stack.url('airflow_execution')}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": _database_url(home),
        "DATABASE__LOAD_DEFAULT_CONNECTIONS": False,
        "OPERATORS__DEFAULT_DEFERRABLE": True,
        "API__HOST": HOST,
        "API__BASE_URL": url,
        "API__WORKERS": 1,
        "API_AUTH__JWT_SECRET": stack.secrets["airflow_jwt"],
        "DAG_PROCESSOR__REFRESH_INTERVAL": 30,
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": PARSE_SECONDS,
        "DAG_PROCESSOR__PARSING_PROCESSES": 1,
        "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": 180,
        "CORE__DAGBAG_IMPORT_TIMEOUT": 120,  # 30 s are too short when all servers start for the first time
        "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": 1,
        # Seconds until the scheduler notices that a worker ended. The default, 5, is longer than most tasks here.
        "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
        "LOGGING__BASE_LOG_FOLDER": home / "logs",
        "USAGE_DATA_COLLECTION__ENABLED": False,
    }
    return {
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": str(SOURCES),
        **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()},
        **{f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in connections(stack).items()},
    }


def secret_key(stack: Stack, use: str) -> str:
    """Return a key of Airflow: without a fixed one, processes that start together each generate their own."""
    digest = hashlib.sha256(f"{use} {stack.secrets['airflow_jwt']}".encode()).digest()
    return base64.urlsafe_b64encode(digest).decode()


def connections(stack: Stack) -> dict[str, dict[str, Any]]:
    """Return the Airflow connections to the other components by connection id in upper case."""
    access_key, secret_key = keys(stack)
    to_hsds = hsds.connection(stack)
    secure = {"secure": True, "client_kwargs": {"ca_cert": str(stack.authority)}} if stack.tls else {}
    return {
        **({"HSDS_DEFAULT": to_hsds} if to_hsds else {}),
        "AWS_DEFAULT": {
            "conn_type": "aws",
            "login": access_key,
            "password": secret_key,
            "extra": {
                "region_name": REGION,
                "endpoint_url": stack.url("s3"),
                "clickhouse_collection": "storeside_s3",
                **({"verify": str(stack.authority)} if stack.tls else {}),
            },
        },
        **{
            conn_id: {
                "conn_type": "clickhouse",
                "host": HOST,
                "port": stack.ports["clickhouse_http"],
                "login": user,
                "password": passwords(stack)[user],
                "schema": DATA if user == LOADER else DATABASE,
                "extra": {**extra, **secure},
            }
            for conn_id, user, extra in (
                ("CLICKHOUSE_DEFAULT", LOADER, {roles.LEDGER: "clickhouse_ledger", roles.PAGES: "clickhouse_pages"}),
                ("CLICKHOUSE_LEDGER", LEDGER, {}),
                ("CLICKHOUSE_PAGES", PAGES, {}),
            )
        },
        "AISTORE_DEFAULT": {
            "conn_type": "http",
            "host": HOST,
            "port": stack.ports["ais_proxy"],
            "schema": "https" if stack.tls else "http",
            **({"login": authn.AIRFLOW, "password": stack.secrets["authn_airflow"]} if stack.secure else {}),
            "extra": {
                **(
                    {
                        "authn_url": stack.url("authn"),
                        "clickhouse_collection": AISTORE_COLLECTION,
                        "clickhouse_url_collection": OBJECTS_COLLECTION,
                    }
                    if stack.secure
                    else {}
                ),
                "kube_config": str(kube_config(stack)),
                "kube_namespace": NAMESPACE,
                **({"ca_cert": str(stack.authority)} if stack.tls else {}),
                "aisloader": str(aisloader.path(stack.cache)),
            },
        },
    }


def components(stack: Stack) -> list[Component]:
    """Return the API servers, scheduler, DAG processor and triggerer; call `prepare` before they start."""
    variables = environment(stack)
    return [
        Component(
            name=name,
            command=_command(name, *(("--port", str(stack.ports[SERVED[name]])) if name in SERVED else ())),
            healthy=probe(stack, name),
            trouble=partial(of_scheduler, stack, PARALLELISM) if name == "scheduler" else str,
            environment=variables,
            directory=SOURCES,
            stop_seconds=15,
            stop_last=name == "execution-api",  # tasks report their final state to it
            start_seconds=240,
            ports=(stack.ports[SERVED[name]],) if name in SERVED else (),
        )
        for name in PROCESSES
    ]


def _command(name: str, *more: str) -> tuple[str, ...]:
    watch = ("-m", "storeside.stack.executor_watch", sys.executable) if name == "scheduler" else ()
    return (sys.executable, *watch, "-m", "airflow", *PROCESSES[name], *more)


def passwords_file(stack: Stack) -> Path:
    """Return the file with the passwords of Airflow's users, which only its owner can read."""
    return stack.state / "airflow" / "passwords.json"


def prepare(stack: Stack, tell: Callable[[str], object] = lambda text: None) -> None:
    """Write the passwords, create folders and a migrated database for new state, and compile the packages once.

    The database of an earlier version of Airflow is copied and then migrated. Calls `tell` before steps that take
    long.

    Raises:
        StackError: the database cannot be migrated.
    """
    prepare_files(stack, tell)
    database, current = stack.state / "airflow" / DATABASE_FILE, template(stack.cache)
    if not database.exists():
        new = database.with_suffix(".new")
        shutil.copyfile(current, new)
        _write_variables(new, variables(stack))
        new.replace(database)
    elif (revision := _revision(database)) != _revision(current):
        refuse_running(stack)
        kept = database.with_name(f"{DATABASE_FILE}.{revision}")
        tell(f"migrating Airflow's database (half a minute); {kept} keeps a copy of the old one")
        _copy_database(database, kept)
        _migrate(stack.state, {**os.environ, **environment(stack)})


def refuse_running(stack: Stack) -> None:
    """Raise StackError if Airflow runs: its processes cannot use the tables of another version."""
    if any(marked(stack.state, name) for name in PROCESSES):
        raise StackError("Airflow has another version now, and runs: run 'make down', then 'make up' again")


def _revision(database: Path) -> str | None:
    """Return the revision of the tables in a database of Airflow; None if there are none."""
    with closing(sqlite3.connect(database)) as connection:
        try:
            return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])
        except (sqlite3.OperationalError, TypeError):
            return None


def _copy_database(database: Path, to: Path) -> None:
    """Copy a database to one file, including the content of its write-ahead log."""
    to.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM INTO ?", (str(to),))


def _migrate(folder: Path, variables: Mapping[str, str]) -> None:
    """Migrate the database that the variables name. Raises StackError if that fails."""
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    result = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        said = " | ".join((result.stdout + result.stderr).strip().splitlines()[-3:])
        raise StackError(f"airflow db migrate failed: {said}")


def prepare_files(stack: Stack, tell: Callable[[str], object] = lambda text: None) -> None:
    """Write the passwords, and compile the packages once; calls `tell` before."""
    passwords = passwords_file(stack)
    passwords.parent.mkdir(parents=True, exist_ok=True)
    new = passwords.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(json.dumps({user: stack.secrets[f"airflow_{user}"] for user in ("admin", "viewer")}))
    new.replace(passwords)
    compile_packages(tell)


def variables(stack: Stack) -> dict[str, tuple[object, str]]:
    """Return the Variables of a new stack, with their descriptions; with TLS, forms have the default lists."""
    told = "Names that forms accept: all of this trial's own servers; see docs/configuration.md"
    return {**VARIABLES, **({} if stack.tls else {"storeside_forms": (FORMS, told)})}


def _write_variables(database: Path, given: Mapping[str, tuple[object, str]]) -> None:
    """Give new state its Airflow Variables; users may change and delete them in Airflow's UI."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executemany(
            "INSERT INTO variable (key, val, description, is_encrypted) VALUES (?, ?, ?, 0)",
            [(name, json.dumps(value), told) for name, (value, told) in given.items()],
        )


# Large packages that Airflow does not import at its start; Oracle's SDK alone is larger than all others together.
# Python compiles their modules at the first import.
_COMPILED_LATER = ("oci", "kubernetes", "kubernetes_asyncio", "scipy", "matplotlib", "mypy", "fontTools", "altair")


def compile_packages(tell: Callable[[str], object] = lambda text: None) -> None:
    """Compile the installed packages to bytecode once; without it, Airflow processes take twice as long to start."""
    packages = Path(sysconfig.get_path("purelib"))
    done = packages / f".storeside-compiled-{importlib.metadata.version('apache-airflow')}"
    if done.exists():
        return
    tell("compiling the Python packages, once (half a minute)")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    skipped = re.escape(f"{packages}/") + f"({'|'.join(_COMPILED_LATER)})/"
    command = [sys.executable, "-m", "compileall", "-q", "-q", "-j", "2", "-x", skipped, str(packages)]
    subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, check=False)  # a few templates do not compile
    try:
        done.touch()
    except OSError:
        return  # a read-only environment is compiled already, or stays uncompiled


def template(cache: Path) -> Path:
    """Return an SQLite file with Airflow's current tables, which is created once per Airflow version.

    Raises:
        StackError: the database cannot be migrated.
    """
    path = cache / f"airflow-{importlib.metadata.version('apache-airflow')}.db"
    if path.exists():
        return path
    work = cache / "airflow-migration"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))},
        "AIRFLOW_HOME": str(work),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(work / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(work / "plugins"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": _database_url(work),
    }
    _migrate(work, variables)
    new = path.with_suffix(".new")
    _copy_database(work / DATABASE_FILE, new)
    new.replace(path)
    shutil.rmtree(work)
    return path


def health(url: str) -> dict[str, str]:
    """Return the status of each process as Airflow's API reports it; empty if the API does not answer."""
    entries = json_of(f"{url}/api/v2/monitor/health").items()
    return {name: entry.get("status") or "" for name, entry in entries if entry}


def probe(stack: Stack, name: str) -> Callable[[], bool]:
    """Return the health probe of one of the `PROCESSES`."""
    if name == "execution-api":
        address = f"{stack.url('airflow_execution')}/execution/health"
        return lambda: json_of(address).get("status") == "healthy"
    return lambda: health(stack.url("airflow")).get(HEALTH[name]) == "healthy"


def _database_url(home: Path) -> str:
    # Seconds that a write waits for other writes. A busy disk exceeds the default of 5.
    return f"sqlite:///{home / DATABASE_FILE}?timeout=25"
