"""Brings the facts of a run from AIStore into a table of ClickHouse: one small JSON object per recording.

ClickHouse pulls the facts of a small run itself, from AIStore's S3 API, with one request per object. For a large run
these requests would take longer than everything else. The task then reads batches of thousands of facts with GetBatch
of AIStore, and sends each batch to ClickHouse as it is.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.aistore.buckets import Bucket
from storeside.aistore.many import Wanted, read_many
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.speech.columns import RECORDING_COLUMNS
from storeside.speech.errors import MissingFactsError, UnreadableFactsError
from storeside.sql.answers import first_row
from storeside.transfer.base.errors import is_transient, plain

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient

log = logging.getLogger(__name__)

# ClickHouse pulls up to this many facts, which takes it about a second.
PULLED = 1000
# Names of facts that one query returns; the query compares the listings of the whole run.
_NAMES = 100_000

# The path of facts, ``bucket/name``, and their content.
Fact = tuple[str, bytes]


class FactsTable:
    """The table `table` with the facts of one run, which are in `bucket` below `prefix`.

    `endpoint` is the URL of AIStore's S3 API for ClickHouse, and `collection` ClickHouse's named collection with a
    token for it, if AIStore requires one.
    """

    def __init__(
        self, clickhouse: HttpClient, table: str, bucket: Bucket, prefix: str, endpoint: str, collection: str
    ) -> None:
        self._clickhouse = clickhouse
        self._table = table
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint = endpoint
        self._collection = collection

    def create(self) -> None:
        """Create the empty table in place of an existing one."""
        columns = ", ".join(f"{name} {kind}" for name, kind in RECORDING_COLUMNS.items())
        self._clickhouse.command(
            f"CREATE OR REPLACE TABLE storeside_staging.`{self._table}` (path String, {columns})"
            " ENGINE = MergeTree ORDER BY path"
        )

    def fill(self, aistore: Any, probes: Sequence[Scope], pulled: int = PULLED) -> tuple[int, int]:
        """Insert the facts of all objects with a result of a probe; return their number and bytes.

        `probes` are the scopes of the probes. ClickHouse pulls up to `pulled` facts. It interprets a key as a URL and
        as a pattern, so it cannot address some objects (``?``, ``*``, ``{}``): the task reads these, and all facts of
        a larger run. Raises MissingFactsError if facts are missing, and UnreadableFactsError.
        """
        results = [Ledger(self._clickhouse).fresh_results(scope) for scope in probes]
        expected, size = sum(count for count, _, _ in results), sum(size for _, _, size in results)
        if expected <= pulled:
            self._pull()
        sent = 0
        for scope in probes:
            for batch in read_many(aistore, self._bucket, self._not_there(scope)):
                facts = [(f"{self._bucket.name}/{name}", content) for name, content in batch if content is not None]
                self._insert(facts)
                sent += len(facts)
        if sent:
            log.info(
                "this task has read %d of the %d facts through AIStore, ClickHouse has pulled the others",
                sent,
                expected,
            )
        for scope in probes:
            self._require_each(scope)
        self._require_once()
        return expected, size

    def _pull(self) -> None:
        self._clickhouse.command(
            sql.query("pull_facts_as") if self._collection else sql.query("pull_facts"),
            parameters={
                "collection": self._collection,
                "facts": self._table,
                "url": f"{self._endpoint}/{self._bucket.name}/{self._prefix}**",
                "structure": ", ".join(f"{name} {kind}" for name, kind in RECORDING_COLUMNS.items()),
            },
        )

    def _not_there(self, scope: Scope) -> Iterator[Wanted]:
        """Yield names and sizes of needed facts that the table does not have, in the order of their names."""
        after = ""
        while True:
            rows = self._clickhouse.query(
                "SELECT destination_object, result_size FROM"
                " storeside.results(job = {job:String}, effect = {effect:String})"
                " WHERE fresh AND destination_object > {after:String}"
                " AND concat({bucket:String}, '/', destination_object)"
                f" NOT IN (SELECT path FROM storeside_staging.`{self._table}`)"
                " ORDER BY destination_object LIMIT {limit:UInt32}",
                parameters={**scope.parameters, "bucket": self._bucket.name, "after": after, "limit": _NAMES},
            ).result_rows
            yield from ((str(name), int(size)) for name, size in rows)
            if len(rows) < _NAMES:
                return
            after = rows[-1][0]

    def _insert(self, facts: Sequence[Fact]) -> None:
        """Insert facts. Raises UnreadableFactsError with the first path whose content ClickHouse cannot read."""
        from clickhouse_connect.driver.exceptions import DatabaseError

        if not facts:
            return
        try:
            self._clickhouse.raw_insert(
                f"storeside_staging.`{self._table}`",
                insert_block=b"\n".join(_row(path, content) for path, content in facts),
                fmt="JSONEachRow",
                settings={"async_insert": 0},
            )
        except DatabaseError as e:
            if is_transient(e):
                raise
            if len(facts) == 1:
                raise _unreadable(facts[0][0], plain(e)) from e
            half = len(facts) // 2
            self._insert(facts[:half])
            self._insert(facts[half:])

    def _require_each(self, scope: Scope) -> None:
        """Raise MissingFactsError unless the table has the facts of each object that publishing records as done."""
        absent = first_row(
            self._clickhouse.query(
                "SELECT count(), any(object) FROM storeside.results(job = {job:String}, effect = {effect:String})"
                " WHERE fresh AND concat({bucket:String}, '/', destination_object)"
                f" NOT IN (SELECT path FROM storeside_staging.`{self._table}`)",
                parameters={**scope.parameters, "bucket": self._bucket.name},
            )
        )
        if absent[0]:
            raise MissingFactsError(
                f"{self._bucket} has lost {absent[0]} facts of this run, such as those of {absent[1]!r}:"
                " a retry reads them again"
            )

    def _require_once(self) -> None:
        """Raise MissingFactsError for facts stored twice: the client repeats an INSERT whose answer was lost."""
        twice = first_row(
            self._clickhouse.query(f"SELECT count() - uniqExact(path) FROM storeside_staging.`{self._table}`")
        )[0]
        if twice:
            raise MissingFactsError(f"ClickHouse stored {twice} facts twice: a retry reads them again")


def _row(path: str, content: bytes) -> bytes:
    """Return facts as a row of JSON with their path. Raises UnreadableFactsError if they are not one JSON object.

    The row is written from the parsed facts: ClickHouse would read several objects, even without a line feed
    between them, as several rows, and so as facts of other paths.
    """
    try:
        facts = json.loads(content)
        if isinstance(facts, dict) and "path" not in facts:
            return os.fsencode(json.dumps({"path": path, **facts}, ensure_ascii=False, allow_nan=False))
        reason = "it has a field 'path'" if isinstance(facts, dict) else "it is a list or a value"
    except (ValueError, RecursionError) as e:
        reason = str(e)
    raise _unreadable(path, f"it is no JSON object of facts ({reason})")


def _unreadable(path: str, reason: str) -> UnreadableFactsError:
    return UnreadableFactsError(
        f"the facts ais://{path} cannot be read: {reason}: delete them, and clear the task that probes the objects"
    )
