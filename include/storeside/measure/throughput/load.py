"""The load, and a process of AIStore's generator `aisloader`, which ends with the process that started it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.measure.errors import MeasureInputError, MeasureTransientError
from storeside.measure.processes import tied

Workload = Literal["read", "write", "mixed"]
WORKLOADS: dict[str, int] = {"read": 0, "write": 100, "mixed": 50}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
OBJECT_BYTES = range(1 << 10, (5 << 30) + 1)
CONCURRENCY = range(1, 4097)
SECONDS = range(5, 86_401)
LOADERS = range(1, 65)
_REMEDY = (
    "install AIStore's aisloader on the workers and set its path in the extra 'aisloader' of the AIStore connection"
    " ('python -m storeside.stack.building.aisloader' builds it), or name an image in the extra 'aisloader_image'"
    " to run the loaders on Kubernetes"
)
# With an interval, the loader would write separate totals per interval.
_OUTPUT = ("-quiet", "-json", "-statsinterval=0")
# Environment variables that the loader needs. Any other could direct it to another cluster or to S3.
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG")


def size(text: str) -> int:
    """Return the bytes of a size such as ``10MiB``. Raises MeasureInputError for any other text."""
    match = re.fullmatch(r"(\d+) ?(KiB|MiB|GiB|TiB)", text.strip())
    if match is None:
        raise MeasureInputError(f"size {text!r}: write a number and one of {', '.join(UNITS)}, such as 10MiB")
    return int(match[1]) * UNITS[match[2]]


def in_units(count: int) -> str:
    """Return a text for `size`: the number of bytes in the largest unit that states it exactly, rounded up to KiB."""
    count = -(-count // UNITS["KiB"]) * UNITS["KiB"]
    unit = next(name for name, factor in reversed(UNITS.items()) if count % factor == 0)
    return f"{count // UNITS[unit]}{unit}"


@dataclass(frozen=True)
class Load:
    """Random reads, random writes, or half of each, for `seconds`, with objects of one size.

    `loaders` processes run the load at the same time, with `concurrency` workers each.

    A dataset of `dataset_bytes` is written before and removed after the load. Without it, the loader reads the
    bucket's objects below `prefix`. Writes stop early at a total of `write_bytes`: each loader writes its part.

    Raises:
        MeasureInputError: a value is out of range, or values contradict each other.
    """

    bucket: Bucket
    workload: str
    object_bytes: int
    concurrency: int
    seconds: int
    dataset_bytes: int = 0
    prefix: str = ""
    write_bytes: int = 10 << 30
    loaders: int = 1

    def __post_init__(self) -> None:
        if self.workload not in WORKLOADS:
            raise MeasureInputError(f"workload {self.workload!r}: use one of {', '.join(WORKLOADS)}")
        for name, value, allowed in (
            ("object size", self.object_bytes, OBJECT_BYTES),
            ("concurrency", self.concurrency, CONCURRENCY),
            ("seconds", self.seconds, SECONDS),
            ("loaders", self.loaders, LOADERS),
        ):
            if value not in allowed:
                raise MeasureInputError(f"{name} {value}: use {allowed[0]} to {allowed[-1]}")
        self._validate_dataset()

    def _validate_dataset(self) -> None:
        if self.workload == "mixed" and not self.dataset_bytes:
            raise MeasureInputError("workload 'mixed': needs a dataset, because it also writes to the bucket")
        if self.prefix and self.workload != "read":
            raise MeasureInputError(f"prefix {self.prefix!r}: only reads use the objects of the bucket")
        if self.prefix and self.dataset_bytes:
            raise MeasureInputError(
                f"prefix {self.prefix!r}: a dataset is written below another prefix; use one of the two"
            )
        if self.dataset_bytes and self.dataset_bytes < 2 * self.object_bytes:
            raise MeasureInputError(
                f"dataset of {self.dataset_bytes} bytes: needs at least two objects of {self.object_bytes} bytes"
            )
        if self.write_bytes < self.loaders * self.object_bytes:
            least = in_units(self.loaders * self.object_bytes)
            raise MeasureInputError(
                f"limit of {self.write_bytes} bytes for writes: is less than one object of {self.object_bytes} bytes"
                f" for each of {self.loaders} loaders: set write_limit to at least {least}, or use smaller objects or"
                " fewer loaders"
            )

    @property
    def generators(self) -> str:
        """The loaders in words, such as ``3 loaders with 64 workers each``."""
        if self.loaders == 1:
            return f"1 loader with {self.concurrency} workers"
        return f"{self.loaders} loaders with {self.concurrency} workers each"

    @property
    def reads_own(self) -> bool:
        """Whether the loader reads a dataset that was written for this measurement."""
        return self.workload != "write" and self.dataset_bytes > 0

    @property
    def writes(self) -> bool:
        """Whether the measurement writes to the bucket."""
        return self.workload != "read" or self.reads_own

    def arguments(self, own_prefix: str) -> list[str]:
        """Return the arguments of each loader; it writes objects below `own_prefix`."""
        below = own_prefix if self.writes else self.prefix
        most = [] if self.workload == "read" else [f"-totalputsize={self.write_bytes // self.loaders}"]
        return [*self._common(below), f"-pctput={WORKLOADS[self.workload]}", f"-duration={self.seconds}s", *most]

    def fill_arguments(self, own_prefix: str) -> list[str]:
        """Return the arguments of the one loader that writes the dataset."""
        most = f"-totalputsize={self.dataset_bytes}"
        return [*self._common(own_prefix), "-pctput=100", "-skiplist=true", "-duration=0", most]

    def _common(self, below: str) -> list[str]:
        return [
            f"-bucket={self.bucket}",
            "-cleanup=false",  # a cleanup would destroy the bucket
            f"-subdir={below}",
            f"-minsize={self.object_bytes}",
            f"-maxsize={self.object_bytes}",
            f"-numworkers={self.concurrency}",
        ]


@dataclass(frozen=True)
class Outcome:
    """The report of one or more loaders: start in seconds since the epoch, duration, totals, and latencies.

    `together` is the time, in seconds since the epoch, in which all loaders ran.
    """

    began: float
    seconds: float
    requests: int
    errors: int
    bytes: int
    latency_seconds: float
    latency_min_seconds: float
    latency_max_seconds: float
    together: tuple[float, float]

    @classmethod
    def parse(cls, text: str) -> Outcome:
        """Parse the totals that the loader writes at its end. Raises BadInput if they are missing."""
        totals = json.loads(text)[-1]
        parts = [totals["get"], totals["put"]]
        requests = sum(int(part["count"]) for part in parts)
        waited = sum(int(part["count"]) * int(part["latency"]) for part in parts)
        began, seconds = datetime.fromisoformat(parts[0]["start_time"]).timestamp(), parts[0]["duration"] / 1e9
        busy = [part for part in parts if int(part["count"])]  # the latencies of no requests are 0
        return cls(
            began=began,
            seconds=seconds,
            requests=requests,
            errors=sum(int(part["errors"]) for part in parts),
            bytes=sum(int(part["bytes"]) for part in parts),
            latency_seconds=waited / requests / 1e9 if requests else 0.0,
            latency_min_seconds=min((int(part["min_latency"]) for part in busy), default=0) / 1e9,
            latency_max_seconds=max((int(part["max_latency"]) for part in busy), default=0) / 1e9,
            together=(began, began + seconds),
        )


def find(loader: str) -> str:
    """Return the loader's path. Raises MeasureInputError with the remedy if it does not exist."""
    found = shutil.which(loader)
    if found is None:
        raise MeasureInputError(f"loader {loader!r} was not found or cannot be run: {_REMEDY}")
    return found


def environment(cluster: Cluster, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the loader's environment, which contains the token: every user can see a process's arguments."""
    found = {
        "AIS_ENDPOINT": cluster.endpoint,
        "AIS_AUTHN_TOKEN": str(cluster.credential or ""),
        "AIS_CRT": cluster.client_cert,
        "AIS_CRT_KEY": cluster.client_key,
        "AIS_CLIENT_CA": cluster.ca_cert,
        "AIS_SKIP_VERIFY_CRT": "false" if cluster.verify else "true",
    }
    return {name: variables[name] for name in _KEPT if name in variables} | {k: v for k, v in found.items() if v}


def output(totals: str) -> list[str]:
    """Return the arguments with which a loader writes only its totals, to the file `totals`."""
    return [*_OUTPUT, f"-stats-output={totals}"]


def result(exit_code: int, totals: str, log: Callable[[], str]) -> Outcome:
    """Return the outcome of a loader that has ended, from its exit code, its totals and its log.

    Raises:
        MeasureTransientError: the loader or some of its requests failed; the message contains its output.
    """
    if exit_code:
        raise MeasureTransientError(f"aisloader exited with {exit_code}: {_gist(log())}")
    try:
        outcome = Outcome.parse(totals)
    except (ValueError, KeyError, IndexError) as e:
        raise MeasureTransientError(f"aisloader left no totals ({e}): {_gist(log())}") from e
    if outcome.errors:
        raise MeasureTransientError(
            f"{outcome.errors} requests of aisloader failed and {outcome.requests} succeeded,"
            f" so the measurement is invalid: {_gist(log())}"
        )
    return outcome


def _gist(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    failed = [line for line in lines if "failed" in line.lower() or "error" in line.lower()]
    return " | ".join((failed or lines)[-2:])[-600:] or "it wrote no output"


class Loader:
    """A running loader. It is killed when the process that started it ends; closing it removes its files."""

    def __init__(self, loader: str, arguments: list[str], variables: dict[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="storeside-loader-"))
        self._totals = self._folder / "totals.json"
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tied([loader, *arguments, *output(str(self._totals))]),
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: Any) -> None:
        self.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The loader's process id."""
        return self._process.pid

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`; return whether the loader has ended."""
        try:
            self._process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill the loader at once; its totals are lost."""
        if self._process.poll() is None:
            self._process.kill()

    def end(self) -> None:
        """Kill the loader and wait for its end."""
        self.kill()
        self._process.wait()

    def outcome(self) -> Outcome:
        """Return the totals of a loader that has ended.

        Raises:
            MeasureTransientError: the loader or some of its requests failed; the message contains its output.
        """
        totals = self._totals.read_text() if self._totals.exists() else ""
        return result(self._process.returncode, totals, lambda: self._log.read_text(errors="replace"))
