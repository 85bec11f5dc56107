"""PostgreSQL as a component: Airflow's metadata database where several schedulers and workers share it.

The server is the one of the machine: of the PATH, or of Debian's package, which keeps it outside the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from storeside.stack.settings import HOST, Stack, StackError
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import listens

USER = "airflow"
# The database that initdb creates.
DATABASE = "postgres"
REMEDY = "run apt-get install postgresql, or put initdb and postgres into the PATH"
_DEBIAN = Path("/usr/lib/postgresql")
# PostgreSQL refuses to run as root. In a user namespace, root has another number, and still owns its files.
_NOT_ROOT = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


def folder_of_programs() -> Path:
    """Return the folder with `initdb` and `postgres`. Raises StackError if the machine has none, or cannot run it."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(_DEBIAN.glob("[1-9]*/bin"), key=lambda place: float(place.parent.name), reverse=True)
    programs = next((place for place in places if (place / "postgres").exists()), None)
    if programs is None:
        raise StackError(f"PostgreSQL is not installed, and CeleryExecutor needs it: {REMEDY}")
    if _user() and subprocess.run([*_user(), "true"], capture_output=True, check=False).returncode:
        raise StackError(
            "PostgreSQL does not run as root, and this machine allows no user namespaces: run make as another user"
        )
    return programs


def url(stack: Stack, driver: str) -> str:
    """Return the URL of the database with the password, for a driver of SQLAlchemy such as ``psycopg2``."""
    place = f"{HOST}:{stack.ports['postgres']}/{DATABASE}"
    return f"postgresql+{driver}://{USER}:{stack.secrets['postgres']}@{place}"


def component(stack: Stack) -> Component:
    """Return the server of the stack; create its files first if they are absent.

    Raises:
        StackError: PostgreSQL is absent, cannot run, or cannot create its files.
    """
    programs = folder_of_programs()
    data = stack.state / "postgres"
    if not data.exists():
        _create(stack, programs, data)
    settings = {
        "listen_addresses": HOST,
        "port": stack.ports["postgres"],
        "unix_socket_directories": "",
        "max_connections": 200,
        "shared_buffers": "64MB",
    }
    return Component(
        name="postgres",
        command=(
            *_user(),
            str(programs / "postgres"),
            *("-D", str(data)),
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ),
        healthy=partial(listens, HOST, stack.ports["postgres"]),
        stop_signal="INT",  # ends sessions instead of waiting for them
        stop_seconds=30,
        ports=(stack.ports["postgres"],),
    )


def _user() -> tuple[str, ...]:
    return () if os.geteuid() else _NOT_ROOT


def _create(stack: Stack, programs: Path, data: Path) -> None:
    """Run initdb; `data` appears only when it is complete."""
    stack.state.mkdir(parents=True, exist_ok=True)
    new = data.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    with tempfile.NamedTemporaryFile("w", dir=stack.state) as password:
        password.write(stack.secrets["postgres"])
        password.flush()
        command = [
            *_user(),
            str(programs / "initdb"),
            *("--pgdata", str(new)),
            *("--username", USER),
            *("--pwfile", password.name),
            *("--auth", "scram-sha-256"),
            *("--encoding", "UTF8"),
            *("--locale", "C"),
        ]
        done = subprocess.run(command, cwd=stack.state, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"initdb failed: {' '.join(done.stderr.split())[-300:]}")
    new.replace(data)
