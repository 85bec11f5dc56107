"""The faults: their actions, targets and durations, and the proof that they hit something."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from storeside.stack import demo
from storeside.transfer.base.staging_tables import STAGING
from tests.chaos.answers import AWS_ANSWERS, GATEWAY_ANSWERS, Answer
from tests.chaos.patience import patiently
from tests.chaos.rig import LINKS, Rig
from tests.link import Link
from tests.support import etl_servers

# Components by the work that is lost with them; the numbers of kills and of standstills among a hundred faults.
KILLED = {
    "triggerer": (4, 1),
    "scheduler": (3, 1),
    "worker": (6, 1),
    "dag-processor": (1, 1),
    "api-server": (1, 1),
    "execution-api": (2, 1),
    "ais-proxy": (2, 1),
    "ais-target": (4, 2),
    "ETL server": (5, 1),
    "podrunner": (2, 1),
    "clickhouse": (5, 2),
    "s3": (4, 2),
}
# A component that is killed again while it starts is given up by the supervisor.
STEADY_SECONDS = 15.0
# Seconds for which a fault waits for something to hit.
PATIENCE_SECONDS = 45.0
STANDSTILL_SECONDS = (3.0, 30.0)
LINK_SECONDS = (2.0, 8.0)
DISK_SECONDS = (5.0, 12.0)
CLOCK_STEPS = (-120, 120)
CLOCK_SECONDS = (5.0, 20.0)
# Tables of the ledger into which tasks insert rows all the time; one at a time has too many parts.
CROWDED = ("loads", "runs", "objects", "events", "event_batches")
# Seconds within which loads drop the tables that they created while the disk of ClickHouse was full.
MENDING_SECONDS = 60.0
_ALL = ("speech_pipeline", "s3_to_clickhouse", "s3_events_to_clickhouse")
_SPEECH = _ALL[:1]
_FILLING = bytes(1 << 16)
T = TypeVar("T")
_AISTORE = ("ais-proxy", "ais-target", "ETL server", "podrunner")


class NoVictim(Exception):
    """At this moment the fault has nothing to hit."""


@dataclass
class Fault:
    """One fault that was done: `met` counts processes, connections or requests that it met."""

    kind: str
    pipelines: tuple[str, ...]
    began: float = 0.0
    ended: float = 0.0
    met: int = 0


@dataclass(frozen=True)
class Kind:
    """A kind of fault: `act` injects and reverts it, and returns the affected component. Raises NoVictim."""

    name: str
    weight: float
    pipelines: tuple[str, ...]
    act: Callable[[Rig, random.Random], int]


def kinds(rig: Rig) -> list[Kind]:
    """Return all kinds of faults that can be done to this stack, here and by this user."""
    found = []
    for victim, (kills, stops) in KILLED.items():
        about = _SPEECH if victim in _AISTORE else _ALL
        found.append(Kind(f"kill -9 {victim}", kills, about, lambda r, c, v=victim: _kill(r, c, v)))
        found.append(Kind(f"SIGSTOP {victim}", stops, about, lambda r, c, v=victim: _stop(r, c, v)))
    for name in LINKS:
        about = _SPEECH if "AIStore" in name else _ALL
        found.append(Kind(f"reset {name}", 3, about, lambda r, c, n=name: _reset(r.links[n])))
        found.append(Kind(f"slow {name}", 2, about, lambda r, c, n=name: _slow(r.links[n], c)))
        found.append(Kind(f"truncated {name}", 3, about, lambda r, c, n=name: _truncate(r.links[n], c)))
        answers = AWS_ANSWERS if "S3" in name else GATEWAY_ANSWERS
        for what, answer in answers.items():
            found.append(Kind(f"{what} {name}", 2, about, lambda r, c, n=name, a=answer: _answer(r.links[n], a, c)))
    for name in rig.disks:
        about = _SPEECH if name == "mountpath" else _ALL
        found.append(Kind(f"disk full {name}", 3, about, lambda r, c, n=name: _fill(r, n, c)))
    found.append(Kind("clock step S3, SQS", 3, _ALL, _step))
    found.append(Kind("too many parts ClickHouse", 4, _ALL, _crowd))
    if not os.geteuid():
        found.append(
            Kind("reset AIStore > ETL server", 4, _SPEECH, lambda r, c: _break(r, lambda: etl_servers(r.stack)))
        )
        found.append(Kind("reset AIStore > AIStore", 4, _SPEECH, lambda r, c: _break(r, lambda: _nodes(r))))
    return found


def sequence(known: list[Kind], count: int, chance: random.Random, only: str = "") -> list[Kind]:
    """Return so many faults in a random order, each kind as often as its weight says.

    `only` names, with commas, parts of the names of the kinds that are wanted; empty takes all.
    """
    known = [kind for kind in known if any(part in kind.name for part in only.split(","))]
    whole = sum(kind.weight for kind in known)
    exact = [(kind, kind.weight / whole * count) for kind in known]
    counts = {kind.name: int(share) for kind, share in exact}
    by_rest = sorted(exact, key=lambda pair: pair[1] % 1, reverse=True)
    n = 0
    while sum(counts.values()) < count:
        counts[by_rest[n % len(by_rest)][0].name] += 1
        n += 1
    order = [kind for kind in known for _ in range(counts[kind.name])]
    chance.shuffle(order)
    return order


def _victim(rig: Rig, chance: random.Random, victim: str) -> psutil.Process:
    """Return a process of this kind; waits for one. Raises NoVictim."""

    def look() -> list[psutil.Process]:
        with suppress(psutil.Error, StopIteration, AssertionError, OSError):
            if victim == "ETL server":
                return etl_servers(rig.stack)
            pids = rig.pids(STEADY_SECONDS)
            if victim == "worker":
                return _tasks(psutil.Process(pids["scheduler"])) if "scheduler" in pids else []
            return [psutil.Process(pid) for name, pid in pids.items() if name.startswith(victim)]
        return []

    return chance.choice(_found(look, victim))


def _found(look: Callable[[], list[T]], what: str) -> list[T]:
    """Look until there is something. Raises NoVictim."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        if time.monotonic() > deadline:
            raise NoVictim(what)
        time.sleep(0.5)
    return found


def _tasks(scheduler: psutil.Process) -> list[psutil.Process]:
    """Return the processes that run tasks.

    Not the executor's own above them: with each that is killed, Airflow 3.3's LocalExecutor has a task less at once.
    """
    found = []
    for child in scheduler.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            title = " ".join(child.cmdline())
            if title.startswith("airflow worker -- ") and "LocalExecutor" not in title:
                found.append(child)
    return found


def _kill(rig: Rig, chance: random.Random, victim: str) -> int:
    with _alone(rig.alone) if victim == "clickhouse" else nullcontext(), suppress(psutil.NoSuchProcess):
        _victim(rig, chance, victim).kill()
        return 1
    raise NoVictim(victim)


def _stop(rig: Rig, chance: random.Random, victim: str) -> int:
    try:
        process = _victim(rig, chance, victim)
        process.suspend()
    except psutil.NoSuchProcess as e:
        raise NoVictim(victim) from e
    time.sleep(chance.uniform(*STANDSTILL_SECONDS))
    with suppress(psutil.NoSuchProcess):
        process.resume()
    return 1


def _fault_of(link: Link) -> threading.Lock:
    """Return the lock that the fault of a link holds."""
    lock: threading.Lock = link.__dict__.setdefault("fault", threading.Lock())
    return lock


@contextmanager
def _alone(lock: threading.Lock) -> Iterator[None]:
    """Have a link, or ClickHouse, for one fault at a time. Raises NoVictim."""
    if not lock.acquire(blocking=False):
        raise NoVictim("another fault has it")
    try:
        yield
    finally:
        lock.release()


def _reset(link: Link) -> int:
    with _alone(_fault_of(link)):
        _found(lambda: [1] * bool(link.connections), "connection")
        before = link.met
        link.reset()
        time.sleep(0.2)
        return link.met - before


def _slow(link: Link, chance: random.Random) -> int:
    with _alone(_fault_of(link)):
        before = link.carried
        link.rtt = chance.uniform(0.5, 3)
        try:
            time.sleep(chance.uniform(*LINK_SECONDS))
        finally:
            link.rtt = 0
        return int(link.carried > before)


def _truncate(link: Link, chance: random.Random) -> int:
    with _alone(_fault_of(link)):
        before = link.met
        link.truncates = True
        try:
            _until_met(link, before, chance)
        finally:
            link.truncates = False
        return link.met - before


def _answer(link: Link, answer: Answer, chance: random.Random) -> int:
    with _alone(_fault_of(link)):
        before = link.met
        link.answer = answer
        try:
            _until_met(link, before, chance)
        finally:
            link.answer = None
        return link.met - before


def _until_met(link: Link, before: int, chance: random.Random) -> None:
    """Wait until a fault has met something, and then for its time. Raises NoVictim."""
    _found(lambda: [1] * (link.met > before), "request")
    time.sleep(chance.uniform(*LINK_SECONDS))


def _fill(rig: Rig, name: str, chance: random.Random) -> int:
    if name != "ClickHouse":
        return _fill_disk(rig.disks[name] / "filling", chance)
    with _alone(rig.alone):
        met = _fill_disk(rig.disks[name] / "filling", chance)
        _mend(rig)
    return met


def _fill_disk(path: Path, chance: random.Random) -> int:
    if path.exists():
        raise NoVictim("the disk is full")
    try:
        with suppress(OSError), path.open("wb", buffering=0) as file:
            while True:
                file.write(_FILLING)
        time.sleep(chance.uniform(*DISK_SECONDS))
    finally:
        path.unlink(missing_ok=True)
    return 1


def _mend(rig: Rig) -> None:
    """Drop staging tables whose definition is an empty file: ClickHouse writes it on a full disk, then never starts.

    Loads drop most of these tables themselves, so this waits for them. Raises RuntimeError for other tables. See
    findings/clickhouse-tables-on-a-full-disk.sh.
    """
    deadline = time.monotonic() + MENDING_SECONDS
    while (found := empty_definitions(rig.disks["ClickHouse"])) and time.monotonic() < deadline:
        time.sleep(1)
    for path in found:
        _drop(rig, path)


def empty_definitions(folder: Path) -> list[Path]:
    """Return the definitions of tables below ClickHouse's folder that are empty files, as paths in its data."""
    found = []
    for path in (folder / "data" / "store").glob("*/*/*.sql"):
        with suppress(FileNotFoundError):  # a load has just dropped it
            found += [path.relative_to(folder / "data")] * (not path.stat().st_size)
    return found


def _drop(rig: Rig, definition: Path) -> None:
    client = patiently(lambda: demo.clickhouse_client(rig.stack))
    statement = "SELECT database, name FROM system.tables WHERE endsWith(metadata_path, {path:String})"
    named = patiently(lambda: client.query(statement, parameters={"path": str(definition)}))
    for database, name in named.result_rows:
        if database != STAGING:
            raise RuntimeError(f"the definition of {database}.{name} is an empty file")
        patiently(lambda n=name: client.command(f"DROP TABLE IF EXISTS {STAGING}.`{n}` SYNC"))


def _crowd(rig: Rig, chance: random.Random) -> int:
    """Let a table of the ledger refuse rows as if it had too many parts: its limit is one part, until it is reset."""
    with _alone(rig.alone):
        client = patiently(lambda: demo.clickhouse_client(rig.stack))
        table = f"storeside.{chance.choice(CROWDED)}"
        before = _refused(client)
        patiently(lambda: client.command(f"ALTER TABLE {table} MODIFY SETTING parts_to_throw_insert = 1"))
        try:
            _found(lambda: [1] * (_refused(client) > before), "insert")
            time.sleep(chance.uniform(*LINK_SECONDS))
            return _refused(client) - before
        finally:
            patiently(lambda: client.command(f"ALTER TABLE {table} RESET SETTING parts_to_throw_insert"))


def _refused(client: Any) -> int:
    """Return how many inserts ClickHouse has refused because of too many parts."""
    statement = "SELECT sum(value) FROM system.events WHERE event = 'RejectedInserts'"
    return int(patiently(lambda: client.query(statement)).result_rows[0][0])


def _step(rig: Rig, chance: random.Random) -> int:
    if rig.clock.exists():
        raise NoVictim("the clock is stepped")
    rig.clock.write_text(str(chance.choice(CLOCK_STEPS)))
    try:
        time.sleep(chance.uniform(*CLOCK_SECONDS))
    finally:
        rig.clock.unlink()
    return 1


def _break(rig: Rig, servers: Callable[[], list[psutil.Process]]) -> int:
    """Break the connections that AIStore's nodes have with these servers, which no link can stand between."""

    def between() -> list[tuple[int, int]]:
        with suppress(psutil.Error, StopIteration, AssertionError, OSError):
            clients = set(_connections(_nodes(rig)))
            return [(here, there) for here, there in _connections(servers()) if (there, here) in clients]
        return []

    found = _found(between, "connection")
    for here, there in found:
        command = ["ss", "-K", "sport", "=", str(here), "dport", "=", str(there)]
        subprocess.run(command, capture_output=True, check=False)
    return len(found)


def _nodes(rig: Rig) -> list[psutil.Process]:
    return [psutil.Process(pid) for name, pid in rig.pids().items() if name.startswith("ais-")]


def _connections(processes: list[psutil.Process]) -> list[tuple[int, int]]:
    sockets = [socket for process in processes for socket in process.net_connections("tcp")]
    return [(s.laddr.port, s.raddr.port) for s in sockets if s.status == psutil.CONN_ESTABLISHED]


def resume(rig: Rig) -> None:
    """Continue all stopped processes when the driver is interrupted."""
    for pid in rig.pids().values():
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)
