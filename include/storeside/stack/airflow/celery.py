"""Airflow with CeleryExecutor: two schedulers, two triggerers and two workers, which share nothing but connections.

Each process has its own folder and its own loopback address, as if it ran on a separate machine. All share the
metadata database, the queue, and the code. Tasks reach storage through Airflow's connections. A bucket of the
embedded S3 keeps the logs, because a task may be deferred by one worker and resumed by another.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from storeside.stack.airflow import airflow
from storeside.stack.building import packages
from storeside.stack.servers import postgres, redis, s3
from storeside.stack.settings import SOURCES, Stack, StackError
from storeside.stack.supervision import own_address
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import answers, listens
from storeside.stack.supervision.supervisord import read, write

SERVERS = ("postgres", "redis")
LOCK = Path(__file__).parents[1] / "images" / "celery.lock"
LOG_BUCKET = "airflow-logs"
# Tasks that a worker runs at the same time, and that a scheduler sends to the queue.
CONCURRENCY = 2
# Loopback addresses by component. All addresses of 127.0.0.0/8 reach the same machine.
ADDRESSES = {
    "api-server": "127.0.0.11",
    "execution-api": "127.0.0.12",
    "dag-processor": "127.0.0.13",
    "scheduler": "127.0.0.21",
    "scheduler-2": "127.0.0.22",
    "triggerer": "127.0.0.31",
    "triggerer-2": "127.0.0.32",
    "worker": "127.0.0.41",
    "worker-2": "127.0.0.42",
}
_SETTINGS = {
    "CORE__EXECUTOR": "CeleryExecutor",
    "CORE__PARALLELISM": CONCURRENCY,  # of each scheduler
    "CORE__HOSTNAME_CALLABLE": f"{own_address.__name__}.{own_address.of_this_process.__name__}",
    "CELERY__WORKER_CONCURRENCY": CONCURRENCY,
    # Seconds until the tasks of a killed process are found. Airflow's defaults are five to ten minutes.
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 60,
    "SCHEDULER__TASK_QUEUED_TIMEOUT": 120,
    "SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": 15,
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 30,
    # The server of a scheduler that answers whether this scheduler lives; the API reports only the newest heartbeat.
    "SCHEDULER__ENABLE_HEALTH_CHECK": True,
    "LOGGING__REMOTE_LOGGING": True,
    "LOGGING__REMOTE_BASE_LOG_FOLDER": f"s3://{LOG_BUCKET}/",
    "LOGGING__REMOTE_LOG_CONN_ID": "aws_default",
}


def servers(stack: Stack) -> list[Component]:
    """Return the metadata database and the queue; none if the stack has another executor.

    Raises:
        StackError: a server is not installed, or cannot create its files.
    """
    return [postgres.component(stack), redis.component(stack)] if stack.executor == "celery" else []


def environment(stack: Stack, component: str = "api-server") -> dict[str, str]:
    """Return the variables that connect an `airflow` command to this stack, as in one of its components.

    They contain the stack's secrets.

    Raises:
        StackError: the packages of this mode cannot be installed.
    """
    home = stack.state / "airflow" / component
    settings = {
        **_SETTINGS,
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": airflow.passwords_file(stack),
        # Servers of logs check requests of the API server with it: it must be the same in all processes.
        "API__SECRET_KEY": airflow.secret_key(stack, "api"),
        "DATABASE__SQL_ALCHEMY_CONN": postgres.url(stack, "psycopg2"),
        "CELERY__BROKER_URL": redis.url(stack),
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": ADDRESSES[component],
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": stack.ports["airflow_logs"],
        "LOGGING__BASE_LOG_FOLDER": home / "logs",
        "LOGGING__WORKER_LOG_SERVER_PORT": stack.ports["airflow_logs"],
        "LOGGING__TRIGGER_LOG_SERVER_PORT": stack.ports["airflow_trigger_logs"],
    }
    return {
        **airflow.environment(stack),
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(map(str, (SOURCES, _packages(stack)))),
        "TMPDIR": str(home / "tmp"),
        own_address.VARIABLE: ADDRESSES[component],
        **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()},
    }


def components(stack: Stack) -> list[Component]:
    """Return all Airflow processes; call `prepare` before they start."""
    return [_component(stack, name) for name in ADDRESSES]


def prepare(stack: Stack, tell: Callable[[str], object] = lambda text: None) -> None:
    """Write the passwords, create the folders, and migrate the database of new state or of an earlier Airflow.

    The database must run.

    Calls `tell` before steps that take long.

    Raises:
        StackError: the packages cannot be installed, or the database cannot be migrated.
    """
    airflow.prepare_files(stack, tell)
    for name in ADDRESSES:
        for folder in ("logs", "tmp", "work"):
            (stack.state / "airflow" / name / folder).mkdir(parents=True, exist_ok=True)
    done, version = stack.state / "airflow" / "migrated", importlib.metadata.version("apache-airflow")
    if read(done) == version:
        return
    if done.exists():
        airflow.refuse_running(stack)
        tell("migrating Airflow's tables (half a minute)")
        _run(stack, "db", "migrate")
        write(done, version)
        return
    tell("creating Airflow's tables (half a minute)")
    variables = {name: {"value": value, "description": told} for name, (value, told) in airflow.VARIABLES.items()}
    file = done.with_name("variables.json")
    write(file, json.dumps(variables))
    _run(stack, "db", "migrate")
    _run(stack, "variables", "import", "--action-on-existing-key", "skip", str(file))
    write(done, version)


def finish(stack: Stack) -> None:
    """Create the bucket of the logs in the running S3."""
    client = s3.of_stack("s3", stack)
    if LOG_BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=LOG_BUCKET)


def _component(stack: Stack, name: str) -> Component:
    kind = name.removesuffix("-2")
    port = airflow.SERVED.get(kind)
    command = {
        "scheduler": ("airflow", "scheduler", "--skip-serve-logs"),
        "triggerer": (own_address.__name__, "triggerer"),
        "worker": (own_address.__name__, "celery", "worker", "--celery-hostname", name),
    }.get(kind, ("airflow", *airflow.PROCESSES.get(kind, ())))
    return Component(
        name=name,
        command=(sys.executable, "-m", *command, *(("--port", str(stack.ports[port])) if port else ())),
        healthy=_probe(stack, name, kind),
        environment=environment(stack, name),
        directory=stack.state / "airflow" / name / "work",
        stop_seconds=15,
        stop_last=kind == "execution-api",  # tasks report their final state to it
        start_seconds=300,
        ports=(stack.ports[port],) if port else (),
    )


def _probe(stack: Stack, name: str, kind: str) -> Callable[[], bool]:
    address = ADDRESSES[name]
    if kind == "worker":
        return partial(listens, address, stack.ports["airflow_logs"])
    if kind == "scheduler":
        return partial(answers, f"http://{address}:{stack.ports['airflow_logs']}/health")
    reported = airflow.probe(stack, kind)
    if kind == "triggerer":
        port = stack.ports["airflow_trigger_logs"]
        return lambda: listens(address, port) and reported()
    return reported


def _packages(stack: Stack) -> Path:
    """Return the folder with the packages that requirements.lock does not contain; install them once."""
    version = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:10]
    name = f"celery-{sys.version_info.major}.{sys.version_info.minor}-{version}"
    return packages.install("CeleryExecutor", LOCK, stack.cache / name)


def _run(stack: Stack, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *command],
        env={**os.environ, **environment(stack)},
        cwd=stack.state,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = " | ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise StackError(f"airflow {' '.join(command[:2])} failed: {said}")
