"""Loads the facts of recordings from AIStore into ``speech.manifest``, each once.

The facts come into a staging table, see `storeside.speech.facts`. Publishing moves a run's rows to the manifest in
one atomic step. No row is visible before that, and a repeated step starts with a new table.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.aistore.buckets import Bucket, objects_url
from storeside.aistore.stored_objects import list_aistore
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.speech.errors import LostStagingError
from storeside.speech.facts import PULLED, FactsTable
from storeside.sql.answers import first_row
from storeside.transfer.base.staging_tables import sweep
from storeside.transform.naming import Naming
from storeside.transformers.audio.formats import CODECS

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient

log = logging.getLogger(__name__)


def facts_prefix(run_id: str, audio: Bucket) -> str:
    """Return the prefix of a run's facts about the audio in a bucket, such as ``3f2a…/``."""
    return _key(run_id, str(audio)) + "/"


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def facts_naming(run_id: str, audio: Bucket) -> Naming:
    """Return the naming of a run's facts: the whole object name and ``.json``, such as ``a.wav.json``.

    The facts of an object without an extension, or with one that is no supported container, have exactly its name,
    because AIStore then adds no ``.json``. All facts about the bucket `audio` are below one prefix.
    """
    return Naming({container: f"{container}.json" for container in CODECS}, facts_prefix(run_id, audio))


def facts_url(endpoint: str, facts: Bucket, run_id: str, audio: Bucket, prepend: str = "") -> str:
    """Return the URL below which a transcode writes a run's facts; see `facts_naming` for their names.

    `endpoint` is the URL of AIStore for the transformers; `audio` is the bucket of the results, and `prepend`
    precedes their names.
    """
    return objects_url(endpoint, facts, facts_prefix(run_id, audio) + prepend)


@dataclass(frozen=True)
class Staged:
    """The number of facts, their bytes, and the number of rows to publish."""

    facts: int
    facts_bytes: int
    rows: int


class SpeechManifest:
    """The manifest of the audio in `bucket` for one run, which may make the manifests of several buckets.

    `facts` is the AIStore bucket into which transcode and probe wrote, `endpoint` the URL of AIStore's S3 API for
    ClickHouse. `collection` is ClickHouse's named collection with a token for AIStore, if AIStore requires one.
    """

    def __init__(
        self, clickhouse: HttpClient, bucket: Bucket, facts: Bucket, endpoint: str, run_id: str, collection: str = ""
    ) -> None:
        self.clickhouse = clickhouse
        self.bucket = bucket
        self.facts = facts
        self.endpoint = endpoint.rstrip("/")
        self.collection = collection
        self.run_id = run_id
        self.prefix = facts_prefix(run_id, bucket)
        key = _key(run_id, str(bucket), str(facts))
        self.facts_table = f"facts_{key}"
        self.invalid_table = f"invalid_{key}"
        self.staging_table = f"speech_{key}"

    def has_begun(self, aistore: Any) -> bool:
        """Return whether the run has facts or a staging table."""
        tables = first_row(
            self.clickhouse.query(
                "SELECT count() FROM system.tables"
                " WHERE database = 'storeside_staging' AND name IN {names:Array(String)}",
                parameters={"names": [self.facts_table, self.invalid_table, self.staging_table]},
            )
        )[0]
        return bool(tables) or any(True for _ in list_aistore(aistore, self.facts, self.prefix))

    def stage(self, aistore: Any, scope: Scope, pulled: int = PULLED) -> Staged:
        """Fill the staging table from the facts, except rows that were published before.

        `scope` is the scope of the run's probes, with any selection: tasks may probe parts of a bucket. Only objects
        with a result of a probe get rows, because publishing records these objects as done. Other facts may belong to
        objects that were transcoded but not delivered.
        ClickHouse pulls up to `pulled` facts itself; of a larger run, this task reads and sends them.

        Raises MissingFactsError when facts are missing, and UnreadableFactsError.
        """
        self._create()
        probes = Ledger(self.clickhouse).parts(scope)
        facts, size = self._facts().fill(aistore, probes, pulled)
        for probe in probes:
            self.clickhouse.command(
                sql.query("stage_manifest"),
                parameters={
                    **probe.parameters,
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
        """Mark rows as invalid; `leave_out_invalid` and `fail_invalid` act on the marks."""
        self.clickhouse.insert(
            f"storeside_staging.`{self.invalid_table}`",
            [(name, reason) for name in objects],
            column_names=["object", "reason"],
            settings={"async_insert": 0},
        )

    def forget_verdicts(self) -> None:
        """Delete the reasons of invalid staged rows before a new validation; rows already left out stay invalid."""
        self.clickhouse.command(
            f"ALTER TABLE storeside_staging.`{self.invalid_table}` DELETE"
            f" WHERE object IN (SELECT object FROM storeside_staging.`{self.staging_table}`)",
            settings={"mutations_sync": 1},
        )

    def invalid(self) -> int:
        """Return the number of rows that were marked as invalid."""
        return int(
            first_row(
                self.clickhouse.query(f"SELECT uniqExact(object) FROM storeside_staging.`{self.invalid_table}`")
            )[0]
        )

    def leave_out_invalid(self) -> None:
        """Remove the invalid rows from the staging table, so that they are not published."""
        self.clickhouse.command(
            f"ALTER TABLE storeside_staging.`{self.staging_table}` DELETE"
            f" WHERE object IN (SELECT object FROM storeside_staging.`{self.invalid_table}`)",
            settings={"mutations_sync": 1},
        )

    def fail_invalid(self, scope: Scope) -> None:
        """Record objects whose rows were left out as failed, with the expectations that they do not meet."""
        Ledger(self.clickhouse).settle_invalid(scope, self.invalid_table)

    def publish(self, scope: Scope) -> int:
        """Move the staged rows into ``speech.manifest`` in one step; return the number of its rows there.

        Runs at the same time publish one after the other. Each leaves out the rows that another has published since
        they were staged. A repeated call moves nothing: either the staging table is empty, or `clean_up` has dropped
        it after the plans of the probes were deleted (`scope` is their scope). Raises LostStagingError when
        the table does not exist but the plan does, and TransferTransientError when other runs publish for five
        minutes.
        """
        from storeside.transfer.state.lock import locked

        staging = f"storeside_staging.`{self.staging_table}`"
        if self.clickhouse.command(f"EXISTS TABLE {staging}"):
            with locked(self.clickhouse, "speech.manifest", self.run_id, self.staging_table):
                bound = {"staging": self.staging_table, "bucket": str(self.bucket)}
                self.clickhouse.command(sql.query("leave_out_published"), parameters=bound)
                self.clickhouse.command(f"ALTER TABLE {staging} MOVE PARTITION tuple() TO TABLE speech.manifest")
        elif Ledger(self.clickhouse).parts(scope):
            raise LostStagingError(
                f"table storeside_staging.{self.staging_table} with the rows of run {self.run_id} does not exist, and"
                " the rows are not published: clear the task that stages them"
            )
        else:
            log.info("this run published and cleaned up its staged rows before")
        return int(
            first_row(
                self.clickhouse.query(
                    "SELECT count() FROM speech.manifest WHERE bucket = {bucket:String} AND run_id = {run_id:String}",
                    parameters={"bucket": str(self.bucket), "run_id": self.run_id},
                )
            )[0]
        )

    def clean_up(self, aistore: Any) -> None:
        """Delete the facts, then drop the staging tables; they are last because a repeated task publishes first."""
        names = (o.name for o in list_aistore(aistore, self.facts, self.prefix))
        while window := list(islice(names, 10_000)):
            self.facts.objects(aistore, window).delete()
        for table in (self.facts_table, self.invalid_table, self.staging_table):
            self.clickhouse.command(f"DROP TABLE IF EXISTS storeside_staging.`{table}`")

    def _create(self) -> None:
        self.clickhouse.command("CREATE DATABASE IF NOT EXISTS storeside_staging")
        sweep(self.clickhouse)
        self._facts().create()
        self.clickhouse.command(
            f"CREATE OR REPLACE TABLE storeside_staging.`{self.invalid_table}` (object String, reason String)"
            " ENGINE = MergeTree ORDER BY object"
        )
        self.clickhouse.command(
            f"CREATE OR REPLACE TABLE storeside_staging.`{self.staging_table}` AS speech.manifest"
        )

    def _facts(self) -> FactsTable:
        return FactsTable(self.clickhouse, self.facts_table, self.facts, self.prefix, self.endpoint, self.collection)

    def _count(self, table: str) -> int:
        return int(first_row(self.clickhouse.query(f"SELECT count() FROM {table}"))[0])
