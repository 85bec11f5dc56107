"""Redis as a component: the queue between Airflow's schedulers and its Celery workers."""

from __future__ import annotations

import shutil
from functools import partial

from storeside.stack.settings import HOST, Stack, StackError
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import listens
from storeside.stack.supervision.supervisord import write

REMEDY = "run apt-get install redis-server, or put redis-server into the PATH"


def program() -> str:
    """Return the path of `redis-server`. Raises StackError if the machine has none."""
    found = shutil.which("redis-server")
    if found is None:
        raise StackError(f"Redis is not installed, and CeleryExecutor needs it: {REMEDY}")
    return found


def url(stack: Stack) -> str:
    """Return the URL of the queue with the password."""
    return f"redis://:{stack.secrets['redis']}@{HOST}:{stack.ports['redis']}/0"


def component(stack: Stack) -> Component:
    """Write the configuration and return the server, which keeps the queue on disk. Raises StackError if absent."""
    redis = program()
    home = stack.state / "redis"
    home.mkdir(parents=True, exist_ok=True)
    settings = {
        "bind": HOST,
        "port": stack.ports["redis"],
        "requirepass": stack.secrets["redis"],
        "dir": f'"{home}"',
        "appendonly": "yes",
        "save": '""',
        # A new title would overwrite the environment, in which the stack marks its processes.
        "set-proc-title": "no",
    }
    configuration = home / "redis.conf"
    write(configuration, "".join(f"{name} {value}\n" for name, value in settings.items()))
    return Component(
        name="redis",
        command=(redis, str(configuration)),
        healthy=partial(listens, HOST, stack.ports["redis"]),
        ports=(stack.ports["redis"],),
    )
