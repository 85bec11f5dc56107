"""The three pipelines under faults: their objects, the triggers of their runs, their progress and their results."""

from __future__ import annotations

import hashlib
import io
import math
import random
import struct
import threading
import time
import uuid
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import requests

from storeside.aistore.buckets import Bucket
from storeside.stack import authn, demo
from storeside.stack.airflow.api import FINAL
from storeside.stack.servers import s3
from tests.chaos.patience import patiently
from tests.chaos.rig import Rig
from tests.support import allow_in_forms, configure
from tests.transfers import parquet

ROWS = 12
_RATE = 16_000
_SAMPLES = 4_000
_WAVE_OBJECTS = 300


@dataclass
class Pipeline:
    """One pipeline: it puts objects up to `count`, those after `base` as far as `allowed`, a share, lets it.

    `stopped` ends that earlier; `finished` when all are in place.
    """

    rig: Rig
    name: str
    dag: str
    allowed: Callable[[], float]
    count: int = 0
    base: int = 0
    put: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    progress: list[tuple[float, int]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = self.rig.api()
        self.clickhouse = patiently(lambda: demo.clickhouse_client(self.rig.stack))
        self.s3 = s3.of_stack("s3", self.rig.stack)
        self.sqs = s3.of_stack("sqs", self.rig.stack)

    # what differs

    bucket = ""
    settings: ClassVar[dict[str, object]] = {}

    def object(self, number: int) -> tuple[str, bytes]:
        """Return key and content of an object."""
        raise NotImplementedError

    def done(self) -> int:
        """Return how many objects are where they belong."""
        raise NotImplementedError

    def sweeps(self) -> list[dict[str, Any]]:
        """Return the parameters of runs that process all objects."""
        raise NotImplementedError

    def verify(self) -> Verdict:
        """Compare all that arrived with all that was put."""
        raise NotImplementedError

    # what is the same

    def prepare(self) -> None:
        """Make the bucket, and let the DAG run."""
        names = {found["Name"] for found in self.s3.list_buckets()["Buckets"]}
        if self.bucket not in names:
            self.s3.create_bucket(Bucket=self.bucket)
        if self.settings:
            patiently(lambda: configure(self.api, self.dag, **self.settings), 240)
        patiently(lambda: self.api.request("PATCH", f"dags/{self.dag}", json={"is_paused": False}), 120)
        patiently(lambda: allow_in_forms(self.api, buckets=["s3://*", "ais://*"]))

    def more(self, objects: int) -> None:
        """Have this number of objects put besides the earlier ones."""
        self.base, self.count = self.put, self.put + objects
        self.stopped.clear()
        self.finished.clear()

    def produce(self) -> None:
        """Put the objects, as far as is allowed at each moment."""
        while self.put < self.count and not self.stopped.is_set():
            if self.put >= self.base + self.allowed() * (self.count - self.base):
                time.sleep(0.2)
                continue
            key, content = self.object(self.put)
            patiently(lambda k=key, c=content: self.s3.put_object(Bucket=self.bucket, Key=k, Body=c))
            self.put += 1

    def watch(self) -> None:
        """Note how far it is, once a second, until all is in place."""
        while not self.finished.is_set():
            try:
                done = self.done()
            except Exception:
                done = -1
            if done > (self.progress[-1][1] if self.progress else 0):
                self.progress.append((time.time(), done))
            if done >= self.count:
                self.finished.set()
            time.sleep(1)

    def run(self, dag: str, conf: dict[str, Any]) -> str:
        """Run a DAG to its end, whatever becomes of the answers; returns the state."""
        run = f"chaos-{uuid.uuid4().hex[:8]}"

        def trigger() -> None:
            try:
                self.api.trigger(dag, conf, run)
            except requests.HTTPError as e:
                if e.response.status_code != requests.codes.conflict:
                    raise

        patiently(trigger)
        self.runs.append(run)
        deadline = time.monotonic() + 900
        while (state := patiently(lambda: self.api.run(dag, run))["state"]) not in FINAL:
            if time.monotonic() > deadline:
                self.trouble.append(f"run {run} of {dag} is {state} after 900 s")
                return str(state)
            time.sleep(1)
        return str(state)

    def query(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Ask ClickHouse."""
        return [tuple(row) for row in self.clickhouse.query(statement, parameters=parameters).result_rows]


@dataclass(frozen=True)
class Verdict:
    """The faults of the results: objects that are missing, duplicated or changed."""

    lost: list[str]
    duplicated: list[str]
    truncated: list[str]


def text(number: int, row: int) -> str:
    """Return the value of a row."""
    return hashlib.sha256(f"{number}/{row}".encode()).hexdigest()


def rows(number: int) -> list[tuple[int, int, str]]:
    """Return the rows of an object."""
    return [(number, row, text(number, row)) for row in range(ROWS)]


def csv(number: int) -> bytes:
    """Return an object's rows as CSV."""
    return ("object,row,text\n" + "".join(f"{n},{row},{value}\n" for n, row, value in rows(number))).encode()


def jsonl(number: int) -> bytes:
    """Return an object's rows as JSON Lines."""
    return "".join(f'{{"object":{n},"row":{row},"text":"{value}"}}\n' for n, row, value in rows(number)).encode()


def columns(number: int) -> bytes:
    """Return an object's rows as Parquet."""
    numbers, order, values = zip(*rows(number), strict=True)
    return parquet({"object": numbers, "row": order, "text": values})


def verdict(query: Callable[[str], list[tuple[Any, ...]]], table: str, numbers: range) -> Verdict:
    """Compare a table with the rows that were put, by their number and their values."""
    found = {
        number: (count, distinct, right)
        for number, count, distinct, right in query(
            "SELECT toInt64(object) AS o, count(), uniqExact(row),"
            " countIf(text = lower(hex(SHA256(concat(toString(o), '/', toString(row))))))"
            f" FROM {table} GROUP BY o"
        )
    }
    lost = [f"{table} {n}" for n in numbers if n not in found]
    duplicated = [f"{table} {n}: {found[n][0]} rows" for n in numbers if n in found and found[n][0] > found[n][1]]
    short = [n for n in numbers if n in found and (found[n][1] < ROWS or found[n][2] < found[n][0])]
    return Verdict(lost, duplicated, [f"{table} {n}: {found[n]}" for n in short])


class Loads(Pipeline):
    """A bucket with CSV, JSON Lines and Parquet, loaded by `s3_to_clickhouse` each time that it is started."""

    bucket = "chaos-loads"
    FORMATS = (("csv", csv), ("jsonl", jsonl), ("parquet", columns))

    def object(self, number: int) -> tuple[str, bytes]:
        form, make = self.FORMATS[number % 3]
        return f"{form}/{number:06}.{form}", make(number)

    def sweeps(self) -> list[dict[str, Any]]:
        return [
            {"bucket": self.bucket, "keys": f"{form}/", "table": f"data.chaos_{form}", "format": form}
            for form, _ in self.FORMATS
        ]

    def done(self) -> int:
        counts = [self.query(f"SELECT uniqExact(object) FROM data.chaos_{form}")[0][0] for form, _ in self.FORMATS]
        return int(sum(counts))

    def prepare(self) -> None:
        super().prepare()
        for form, _ in self.FORMATS:
            self.clickhouse.command(
                f"CREATE TABLE data.chaos_{form} (object UInt32, row UInt32, text String)"
                " ENGINE = MergeTree ORDER BY (object, row)"
            )

    def drive(self) -> None:
        """Start one run after the other until all is loaded."""
        while not self.finished.is_set():
            for conf in self.sweeps():
                if self.run(self.dag, conf) == "running":
                    return

    def verify(self) -> Verdict:
        parts = [
            verdict(self.query, f"data.chaos_{form}", range(n, self.put, 3))
            for n, (form, _) in enumerate(self.FORMATS)
        ]
        return Verdict(
            [x for p in parts for x in p.lost],
            [x for p in parts for x in p.duplicated],
            [x for p in parts for x in p.truncated],
        )


class Events(Pipeline):
    """The bucket whose events start runs of `s3_events_to_clickhouse` automatically."""

    bucket = s3.TABLES
    table = "data.trips"
    settings: ClassVar[dict[str, object]] = {
        "queue": f"{bucket}-events", "bucket": bucket, "table": table, "schedule": "*/15 * * * *",
    }  # fmt: skip

    def object(self, number: int) -> tuple[str, bytes]:
        return f"chaos/{number:06}.csv", csv(number)

    def sweeps(self) -> list[dict[str, Any]]:
        return [{"bucket": self.bucket, "keys": "chaos/", "table": self.table, "format": "csv"}]

    def done(self) -> int:
        return int(self.query(f"SELECT uniqExact(object) FROM {self.table}")[0][0])

    def verify(self) -> Verdict:
        return verdict(self.query, self.table, range(self.put))


class Speech(Pipeline):
    """Recordings that S3 events announce to `speech_pipeline`; each has different noise, which transcoding keeps."""

    bucket = s3.BUCKET

    def object(self, number: int) -> tuple[str, bytes]:
        return f"chaos/{number:06}.wav", recording(number)

    def sweeps(self) -> list[dict[str, Any]]:
        return [{"prefix": "chaos/"}]

    def done(self) -> int:
        return int(self.query("SELECT uniqExact(source_object) FROM speech.manifest")[0][0])

    def prepare(self) -> None:
        from storeside.ledger.objects import Ledger

        super().prepare()
        Ledger(self.clickhouse).create()
        self.clickhouse.command("SYSTEM STOP MERGES speech.manifest")  # a merge would hide a duplicate row

    def verify(self) -> Verdict:
        counts = self.query(
            "SELECT source_object, any(object), any(checksum), count() FROM speech.manifest GROUP BY 1"
        )
        found = {source: (name, checksum, count) for source, name, checksum, count in counts}
        lost, duplicated, truncated = [], [], []
        bucket = Bucket("ais", "speech").handle(authn.cluster(self.rig.stack).client())
        for number in range(self.put):
            source, content = self.object(number)
            if source not in found:
                lost.append(source)
                continue
            name, checksum, count = found[source]
            if count > 1:
                duplicated.append(f"{source}: {count} rows")
            try:
                result = bytes(patiently(lambda n=name: bucket.object(n).get_reader().read_all(), 60))
            except Exception as e:
                lost.append(f"{source}: {e}")
                continue
            if hashlib.sha256(result).hexdigest() != checksum:
                truncated.append(f"{source}: {len(result)} bytes, not those of the manifest")
            elif samples(result) != samples(content):
                truncated.append(f"{source}: not the samples that were put")
        return Verdict(lost, duplicated, truncated)


def recording(number: int) -> bytes:
    """Return a quarter of a second of a tone and noise, 16 kHz mono, as WAV."""
    chance = random.Random(number)  # noqa: S311
    tone = chance.uniform(100, 2_000) * 2 * math.pi / _RATE
    values = [int(8_000 * math.sin(n * tone)) + chance.randrange(-500, 500) for n in range(_SAMPLES)]
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_RATE)
        file.writeframes(struct.pack(f"<{_SAMPLES}h", *values))
    return sink.getvalue()


def samples(content: bytes) -> bytes:
    """Return the samples of a WAV file; empty when it is none."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            return file.readframes(file.getnframes())
    except (wave.Error, EOFError):
        return b""
