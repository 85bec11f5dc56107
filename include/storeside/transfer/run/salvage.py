"""Loads the good rows of text objects, and counts or keeps the rows that cannot be parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import (
    UNKNOWN_TABLE,
    LoadObjectError,
    TransferTransientError,
    classify,
    code_of,
    drift,
    names_unknown_column,
    plain,
)
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.formats.text_rows import Record
from storeside.transfer.objects import strict_json
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK
from storeside.transfer.staging.inserting import insert
from storeside.transfer.staging.json_names import Names
from storeside.transfer.staging.json_values import JsonValues
from storeside.transfer.state.loads import Planned
from storeside.transfer.statements.reading import TOGETHER, Reading
from storeside.transfer.tables.table import Destination

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_BLOCK = 4 * CHUNK
_KEPT_BYTES = 64 << 10
_KEPT_AT_ONCE = 1000


@dataclass(frozen=True)
class Rejected:
    """A row that could not be parsed; `row` is its number as in the column `_row_number`: from 0, no header."""

    row: int
    raw: bytes
    reason: str


def salvage(
    client: Client, content: Content, reading: Reading, planned: Planned, staging: str, system: Sequence[str],
    query_id: str, reject: Callable[[Rejected], None], *, strict: bool = False,
) -> int:  # fmt: skip
    """Send the rows of an object that can be parsed to the staging table; return their number.

    Rows are sent in blocks; a refused block is halved until the bad rows are alone. `reject` receives each bad row,
    and may raise an error to stop. With `strict`, it also receives lines that RFC 8259 forbids. Raises
    LoadObjectError for content without rows, and DriftError for a row with a field that the table lacks.
    """
    header = b""
    form = TEXTS[reading.form.name]
    rows = form.records(content.plain(), reading.form)
    if form.headers(reading.form):
        header = next(rows, (0, b""))[1]
    # `records` has removed the lines to skip.
    reading = replace(reading, form=replace(reading.form, csv=replace(reading.form.csv, skip_rows=0)))
    shift = 1 if header else 0
    count = 0
    values, names = JsonValues(reading), Names(reading.columns)

    def send(block: list[Record], *, together: bool = True) -> int:
        nonlocal count
        body = header + b"".join(raw for _, raw in block)
        first = block[0][0] - shift
        count += 1
        try:
            insert(
                client, iter((body,)), reading.form.clickhouse, replace(reading, together=together), planned,
                staging, system, f"{query_id}-{count}", first_row=first,
            )  # fmt: skip
        except DatabaseError as e:
            _raise_without_a_row(e)
            if len(block) == 1:
                if TOGETHER in str(e):
                    return send(block, together=False)
                reject(_refused(e, first, block[0][1]))
                return 0
            middle = len(block) // 2
            return send(block[:middle]) + send(block[middle:])
        return len(block)

    def is_json(record: Record) -> bool:
        if reason := _fault(*record, values, names):
            reject(Rejected(*record, reason))
        return not reason

    if strict:
        rows = filter(is_json, rows)
    return sum(map(send, _blocks(rows)))


def _raise_without_a_row(error: DatabaseError) -> None:
    """Raise the error that no row has caused. Raises TransferError."""
    if code_of(error) == UNKNOWN_TABLE:  # a later try has dropped the staging table
        raise TransferTransientError(plain(error)) from error
    if not isinstance(ours := classify(error), LoadObjectError):
        raise ours from error


def _refused(error: DatabaseError, row: int, raw: bytes) -> Rejected:
    """Return a row that ClickHouse cannot parse. Raises DriftError for a row with a field that the table lacks."""
    reason = plain(error, row)
    if names_unknown_column(reason):
        raise drift(reason) from error
    return Rejected(row, raw, f"row {row}, {reason}" if reason.startswith("column ") else reason)


def _fault(row: int, document: bytes, values: JsonValues, names: Names) -> str:
    """Return why a strict load refuses a document of JSON; empty if it does not.

    Raises LoadObjectError if the first line has several documents, because these are all rows of the object.
    """
    if reason := values.fault(document):
        return f"row {row}, {reason}"
    if reason := strict_json.fault(document):
        if not row and reason.endswith(strict_json.JOINED):
            raise LoadObjectError(f"row 0 is not JSON (RFC 8259): {reason}")
        return f"not JSON (RFC 8259): {reason}"
    reason = names.fault(document)
    return f"row {row}, {reason}" if reason else ""


def _blocks(records: Iterator[Record]) -> Iterator[list[Record]]:
    block: list[Record] = []
    size = 0
    for record in records:
        if block and record[0] != block[-1][0] + 1:  # the rows of a block are numbered from its first row
            yield block
            block, size = [], 0
        block.append(record)
        size += len(record[1])
        if size >= _BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


class RejectedRows:
    """Counts the rejected rows of an object, up to a limit, and with `keep` stores them in ``<table>_rejected``.

    With `hides`, it stores an empty text instead of each row.
    """

    def __init__(
        self, destination: Destination, planned: Planned, bucket: str, *, keep: bool, limit: int, hides: bool = False
    ) -> None:
        self.destination = destination
        self.planned = planned
        self.bucket = bucket
        self.keep = keep
        self.limit = limit
        self.hides = hides
        self.count = 0
        self._begun = ""
        self._rows: list[list[Any]] = []

    @property
    def _table(self) -> tuple[str, str]:
        return self.destination.database, f"{self.destination.table}_rejected"

    def __call__(self, rejected: Rejected) -> None:
        """Count one row, and store it with `keep`. Raises LoadObjectError when the limit is exceeded."""
        self.count += 1
        if self.count > self.limit:
            raise LoadObjectError(
                f"over {self.limit} rows cannot be parsed, such as row {rejected.row}: {rejected.reason}"
            )
        if self.keep:
            kept = b"" if self.hides else rejected.raw.rstrip(b"\r\n")[:_KEPT_BYTES]
            raw = kept.decode("utf-8", "backslashreplace")
            o = self.planned
            self._rows.append([o.load_id, self.bucket, o.key, o.version, rejected.row, rejected.reason, raw])
            if len(self._rows) >= _KEPT_AT_ONCE:
                self.flush()

    def flush(self) -> None:
        """Write the collected rows. The table's engine removes a row that is written twice."""
        if not self._rows:
            return
        database, table = self._table
        client = self.destination.client
        client.command(
            f"CREATE TABLE IF NOT EXISTS {identifier(database)}.{identifier(table)} (load_id UInt64,"
            " bucket LowCardinality(String), key String, version String, row_number UInt64, reason String,"
            " raw String, rejected_at DateTime64(3) DEFAULT now64(3))"
            " ENGINE = ReplacingMergeTree(rejected_at) ORDER BY (load_id, row_number)"
        )
        client.insert(
            table, self._rows, database=database, settings={"async_insert": 0},
            column_names=["load_id", "bucket", "key", "version", "row_number", "reason", "raw"],
        )  # fmt: skip
        self._rows = []

    def begin(self) -> None:
        """Notice the server's time, to tell rows of earlier tries apart."""
        if self.keep:
            self._begun = str(first_row(self.destination.client.query("SELECT toString(now64(3, 'UTC'))"))[0])

    def forget_earlier(self) -> None:
        """Remove rows that earlier tries to load the object rejected: the table's columns may have changed since."""
        self._remove("AND rejected_at < toDateTime64({begun:String}, 3, 'UTC')")

    def forget(self) -> None:
        """Remove the rows of an object that fails."""
        self._remove("")

    def _remove(self, condition: str) -> None:
        if not self.keep:
            return
        database, table = self._table
        client, parameters = self.destination.client, {"load_id": self.planned.load_id, "begun": self._begun}
        quoted = f"{identifier(database)}.{identifier(table)}"
        those = f"WHERE load_id = {{load_id:UInt64}} {condition}"
        if not first_row(client.query(f"EXISTS TABLE {quoted}"))[0]:
            return
        if first_row(client.query(f"SELECT count() FROM {quoted} {those}", parameters=parameters))[0]:
            client.command(
                f"DELETE FROM {quoted} {those}", parameters=parameters, settings={"lightweight_deletes_sync": 2}
            )
