"""The speech manifest: from facts in AIStore to rows in ``storeside.speech``, each loaded once.

ClickHouse pulls the facts itself from AIStore's S3 API into a staging table; what a run publishes is moved from there
in one atomic step. Until then nothing of it is visible, and a step that is repeated starts from a fresh table.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from include import sql
from include.storage.buckets import Bucket, list_aistore
from include.transfer.loads import LONG_STATEMENT
from include.transfer.source import literal
from include.transform.ledger import Ledger, Scope
from include.transform.naming import Naming
from include.transformers.formats import CODECS

log = logging.getLogger(__name__)

FACTS = {
    "duration_seconds": "Float64",
    "sample_rate": "UInt32",
    "channels": "UInt8",
    "samples": "UInt64",
    "bytes": "UInt64",
    "peak_dbfs": "Float64",
    "rms_dbfs": "Float64",
    "checksum": "String",
    "codec": "String",
    "complete": "String",
    "declared_seconds": "Nullable(Float64)",
    "ignored": "String",
}
# What transformers of earlier versions, which have none of it, stand for.
_UNSTATED: dict[str, Any] = {"complete": "unknown", "declared_seconds": None, "ignored": ""}
_BATCH = 1000


class ManifestError(Exception):
    """The manifest cannot be completed; the message names what is missing."""


def run_prefix(run_id: str) -> str:
    """Return the prefix below which the facts of a run stand in their bucket, such as ``3f2a…/``."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:16] + "/"


def facts_naming(run_id: str) -> Naming:
    """Return how the facts of a run are called: after the whole object, ``a.wav.json`` below the run's prefix.

    Facts of an object with another extension than our containers, or none, have its very name: AIStore gives them no
    ``.json``.
    """
    return Naming({container: f"{container}.json" for container in CODECS}, run_prefix(run_id))


def facts_url(endpoint: str, facts: Bucket, run_id: str, prepend: str = "") -> str:
    """Return where a transcode puts the facts of a run, before their names: see `facts_naming`.

    `endpoint` is the URL of AIStore as transformers reach it; `prepend` goes before the names of results.
    """
    query = {"provider": facts.provider}
    if facts.namespace:
        query["namespace"] = facts.namespace
    path = quote(f"{facts.name}/{run_prefix(run_id)}{prepend}")
    return f"{endpoint.rstrip('/')}/v1/objects/{path}?{urlencode(query)}"


@dataclass(frozen=True)
class Staged:
    """Facts that were found, their bytes, and the rows of them that are to be published."""

    facts: int
    facts_bytes: int
    rows: int


class SpeechManifest:
    """The manifest of the audio in `bucket` for one run.

    `facts` is the AIStore bucket that transcode and probe wrote to, `endpoint` the URL of AIStore's S3 API as
    ClickHouse reaches it.
    """

    def __init__(self, clickhouse: Any, bucket: Bucket, facts: Bucket, endpoint: str, run_id: str) -> None:
        self.clickhouse = clickhouse
        self.bucket = bucket
        self.facts = facts
        self.endpoint = endpoint.rstrip("/")
        self.run_id = run_id
        self.prefix = run_prefix(run_id)
        key = self.prefix.rstrip("/")
        self.facts_table = f"facts_{key}"
        self.invalid_table = f"invalid_{key}"
        self.staging_table = f"speech_{key}"

    def stage(self, aistore: Any, scope: Scope) -> Staged:
        """Fill the staging table from the facts; what was published before is left out.

        Rows are of the objects that the probe, whose `scope` it is, has results of: those that publishing records as
        done. Other facts may be there, of objects that were transcoded and then not delivered.

        ClickHouse reads a key as a URL and as a pattern, so it cannot name some objects (``?``, ``*``, ``{}``):
        what it did not bring is read through AIStore. Raises ManifestError when facts are missing still.
        """
        self._create()
        path = f"{self.facts.name}/{self.prefix}"
        self.clickhouse.command(
            sql.query("pull_facts"),
            parameters={
                "facts": self.facts_table,
                "url": f"{self.endpoint}/{path}**",
                "structure": ", ".join(f"{name} {kind}" for name, kind in FACTS.items()),
            },
        )
        facts, size = self._push_missing(aistore)
        self._require_all(scope)
        self.clickhouse.command(
            sql.query("stage_manifest"),
            parameters={
                **scope.parameters,
                "facts": self.facts_table,
                "staging": self.staging_table,
                "bucket": str(self.bucket),
                "facts_bucket": self.facts.name,
            },
        )
        staged = Staged(facts, size, self.staged())
        log.info("%d facts (%d bytes), %d rows to publish", staged.facts, staged.facts_bytes, staged.rows)
        return staged

    def staged(self) -> int:
        """Return the number of rows in the staging table."""
        return self._count(f"storeside_staging.`{self.staging_table}`")

    def frames(self, window: int = 50_000) -> Iterator[Any]:
        """Stream the staged rows as pandas frames of about `window` rows."""
        query = f"SELECT * FROM storeside_staging.`{self.staging_table}` ORDER BY object"
        with self.clickhouse.query_df_stream(query, settings={"max_block_size": window}) as frames:
            yield from frames

    def aggregates(self, select: str, expected_rows: int) -> Any:
        """Return the one-row pandas frame of `select` over the staged rows."""
        return self.clickhouse.query_df(
            f"SELECT {select} FROM storeside_staging.`{self.staging_table}`",
            parameters={"expected_rows": expected_rows},
        )

    def mark_invalid(self, objects: list[str], reason: str) -> None:
        """Note that rows are not valid; `leave_out_invalid` and `fail_invalid` act on it."""
        self.clickhouse.insert(
            f"storeside_staging.`{self.invalid_table}`",
            [(name, reason) for name in objects],
            column_names=["object", "reason"],
            settings={"async_insert": 0},
        )

    def forget_verdicts(self) -> None:
        """Forget what made staged rows invalid, before they are validated again; those left out stay invalid."""
        self.clickhouse.command(
            f"ALTER TABLE storeside_staging.`{self.invalid_table}` DELETE"
            f" WHERE object IN (SELECT object FROM storeside_staging.`{self.staging_table}`)",
            settings={"mutations_sync": 1},
        )

    def invalid(self) -> int:
        """Return the number of rows that were marked as not valid."""
        return int(
            self.clickhouse.query(
                f"SELECT uniqExact(object) FROM storeside_staging.`{self.invalid_table}`"
            ).first_row[0]
        )

    def leave_out_invalid(self) -> None:
        """Remove the rows that are not valid from the staging table, so that they are not published."""
        self.clickhouse.command(
            f"ALTER TABLE storeside_staging.`{self.staging_table}` DELETE"
            f" WHERE object IN (SELECT object FROM storeside_staging.`{self.invalid_table}`)",
            settings={"mutations_sync": 1},
        )

    def fail_invalid(self, scope: Scope) -> None:
        """Record the objects of rows that were left out as failed, with the expectation they did not meet."""
        self.clickhouse.command(
            sql.query("settle_invalid"),
            parameters={**scope.parameters, "invalid": self.invalid_table},
        )

    def publish(self, scope: Scope) -> int:
        """Move the staged rows into ``storeside.speech`` in one step; returns how many this run has there.

        Repeating it moves nothing: the staging table is empty then, or `clean_up` has dropped it, after the plan of
        the probe, whose `scope` it is, was forgotten. Raises ManifestError when it is gone and the plan is not.
        """
        staging = f"storeside_staging.`{self.staging_table}`"
        if self.clickhouse.command(f"EXISTS TABLE {staging}"):
            self.clickhouse.command(f"ALTER TABLE {staging} MOVE PARTITION tuple() TO TABLE storeside.speech")
        elif Ledger(self.clickhouse).planned(scope):
            raise ManifestError(
                f"storeside_staging.{self.staging_table}, the staged rows of run {self.run_id}, is gone, and they are"
                " not published: clear the task that stages them"
            )
        else:
            log.info("what this run had staged was published and cleaned up before")
        return int(
            self.clickhouse.query(
                "SELECT count() FROM storeside.speech WHERE run_id = {run_id:String}",
                parameters={"run_id": self.run_id},
            ).first_row[0]
        )

    def clean_up(self, aistore: Any) -> None:
        """Delete the facts and drop the staging tables; those last, as whoever repeats it publishes first."""
        names = (o.name for o in list_aistore(aistore, self.facts, self.prefix))
        while window := list(islice(names, 10_000)):
            self.facts.handle(aistore).objects(obj_names=window).delete()
        for table in (self.facts_table, self.invalid_table, self.staging_table):
            self.clickhouse.command(f"DROP TABLE IF EXISTS storeside_staging.`{table}`")

    def _create(self) -> None:
        self.clickhouse.command("CREATE DATABASE IF NOT EXISTS storeside_staging")
        for (stale,) in self.clickhouse.query(
            "SELECT name FROM system.tables WHERE database = 'storeside_staging'"
            " AND metadata_modification_time < now() - INTERVAL 7 DAY"
        ).result_rows:  # of runs that failed and were never cleared
            self.clickhouse.command(f"DROP TABLE IF EXISTS storeside_staging.`{stale}`")
        columns = ", ".join(f"{name} {kind}" for name, kind in FACTS.items())
        self.clickhouse.command(
            f"CREATE OR REPLACE TABLE storeside_staging.`{self.facts_table}` (path String, {columns})"
            " ENGINE = MergeTree ORDER BY path"
        )
        self.clickhouse.command(
            f"CREATE OR REPLACE TABLE storeside_staging.`{self.invalid_table}` (object String, reason String)"
            " ENGINE = MergeTree ORDER BY object"
        )
        self.clickhouse.command(
            f"CREATE OR REPLACE TABLE storeside_staging.`{self.staging_table}` AS storeside.speech"
        )

    def _push_missing(self, aistore: Any) -> tuple[int, int]:
        """Insert facts that ClickHouse could not pull by name; returns how many facts there are, and their bytes."""
        bucket = self.facts.handle(aistore)
        expected = size = 0
        listing = list_aistore(aistore, self.facts, self.prefix)
        while window := list(islice(listing, _BATCH)):
            expected += len(window)
            size += sum(o.size for o in window)
            paths = [f"{self.facts.name}/{o.name}" for o in window]
            # Not as a parameter: those have an end.
            there = {
                row[0]
                for row in self.clickhouse.query(
                    f"SELECT path FROM storeside_staging.`{self.facts_table}`"
                    f" WHERE path IN ({', '.join(map(literal, paths))})",
                    settings={"max_query_size": LONG_STATEMENT},
                ).result_rows
            }
            rows = []
            for found, full in zip(window, paths, strict=True):
                if full not in there:
                    facts = json.loads(bucket.object(found.name).get_reader().read_all())
                    rows.append([full, *({**_UNSTATED, **facts}[column] for column in FACTS)])
            if rows:
                log.info("%d facts have names that ClickHouse cannot address, read through AIStore", len(rows))
                self.clickhouse.insert(
                    f"storeside_staging.`{self.facts_table}`",
                    rows,
                    column_names=["path", *FACTS],
                    settings={"async_insert": 0},
                )
        loaded = self._count(f"storeside_staging.`{self.facts_table}`")
        if loaded != expected:
            raise ManifestError(f"{loaded} facts were read where {self.facts}/{self.prefix} holds {expected}")
        return expected, size

    def _require_all(self, scope: Scope) -> None:
        """Raise ManifestError when an object that is done once this run publishes has no facts."""
        absent = self.clickhouse.query(
            "SELECT count(), any(object) FROM storeside.results(job = {job:String}, effect = {effect:String})"
            " WHERE fresh AND concat({facts_bucket:String}, '/', destination_object)"
            f" NOT IN (SELECT path FROM storeside_staging.`{self.facts_table}`)",
            parameters={**scope.parameters, "facts_bucket": self.facts.name},
        ).first_row
        if absent[0]:
            raise ManifestError(f"{absent[0]} facts that were made are gone from {self.facts}, as of {absent[1]!r}")

    def _count(self, table: str) -> int:
        return int(self.clickhouse.query(f"SELECT count() FROM {table}").first_row[0])
