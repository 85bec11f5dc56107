"""Text objects with rows that cannot be parsed: the good rows are loaded, the bad ones are counted or kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError

from include.transfer.content import CHUNK, Content
from include.transfer.errors import ObjectError, TransientError, is_transient, plain
from include.transfer.formats import Format
from include.transfer.loads import Planned
from include.transfer.push import insert
from include.transfer.source import identifier
from include.transfer.statement import Reading
from include.transfer.table import Destination

_BLOCK = 4 * CHUNK
# A row that does not end within this is not one.
LONGEST_ROW = 64 << 20
_KEPT_BYTES = 64 << 10
_KEPT_AT_ONCE = 1000

Record = tuple[int, bytes]


@dataclass(frozen=True)
class Rejected:
    """A row that could not be parsed; `row` counts from 0, without a header."""

    row: int
    raw: bytes
    reason: str


def salvage(
    client: Any, content: Content, reading: Reading, planned: Planned, staging: str, system: Sequence[str],
    query_id: str, reject: Callable[[Rejected], None],
) -> int:  # fmt: skip
    """Send the rows of an object that can be parsed to the staging table; returns how many.

    Rows go in blocks; a block that is refused is halved until the bad rows are alone, and they go to `reject`, which
    may raise to give up. Raises ObjectError for content that has no rows.
    """
    header = b""
    records = _records(content.plain(), reading.form)
    if reading.form.clickhouse == "CSVWithNames":
        header = next(records, (0, b""))[1]
    # Of the first lines, those to be left out are gone.
    reading = replace(reading, form=replace(reading.form, csv=replace(reading.form.csv, skip_rows=0)))
    shift = 1 if header else 0
    accepted = 0
    count = 0

    def send(block: list[Record]) -> int:
        nonlocal count
        body = header + b"".join(raw for _, raw in block)
        first = block[0][0] - shift
        count += 1
        try:
            insert(
                client, iter((body,)), reading.form.clickhouse, reading, planned, staging, system,
                f"{query_id}-{count}", first_row=first,
            )  # fmt: skip
        except DatabaseError as e:
            if is_transient(e):
                raise TransientError(plain(e)) from e
            if len(block) == 1:
                reject(Rejected(first, block[0][1], plain(e)))
                return 0
            middle = len(block) // 2
            return send(block[:middle]) + send(block[middle:])
        return len(block)

    for block in _blocks(records):
        accepted += send(block)
    return accepted


def _blocks(records: Iterator[Record]) -> Iterator[list[Record]]:
    block: list[Record] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record[1])
        if size >= _BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _records(file: Any, form: Format) -> Iterator[Record]:
    """Yield a text's records with their numbers; a line feed within quotes does not end one of CSV."""
    is_csv = form.name == "csv"
    skip = form.csv.skip_rows if is_csv else 0
    opening = re.compile(rb'(?:^|%b)[ \t]*"' % re.escape(form.csv.delimiter.encode()))
    pending: list[bytes] = []
    size = number = 0
    inside = False
    for line in _lines(file):
        if skip:
            skip -= 1
            continue
        pending.append(line)
        size += len(line)
        if is_csv and b'"' in line:
            inside = _ends_inside(line, opening, inside)
        if size > LONGEST_ROW:
            raise ObjectError(f"row {number} does not end within {LONGEST_ROW >> 20} MB")
        if inside:
            continue
        if record := b"".join(pending).rstrip(b"\r\n"):
            yield number, record + b"\n"
            number += 1
        pending, size = [], 0
    if pending:
        yield number, b"".join(pending).rstrip(b"\r\n") + b"\n"


def _ends_inside(line: bytes, opening: re.Pattern[bytes], inside: bool) -> bool:
    """Tell whether a line ends within quotes. A quote opens at the beginning of a field; elsewhere it is a letter."""
    at = 0
    while True:
        if inside:
            at = line.find(b'"', at) + 1
            if not at:
                return True
            inside = line[at : at + 1] == b'"'  # two of them are one that is meant
            at += inside
        else:
            found = opening.search(line, at)
            if not found:
                return False
            at, inside = found.end(), True


def _lines(file: Any) -> Iterator[bytes]:
    pending: list[bytes] = []  # of a line whose end has not come yet: to join it with each piece costs its square
    size = 0
    while True:
        try:
            piece = file.read(CHUNK)
        except OSError as e:
            raise ObjectError(f"its compressed content is broken: {e}") from e
        if not piece:
            break
        first, *lines = piece.split(b"\n")
        pending.append(first)
        size += len(first)
        if lines:
            yield b"".join(pending) + b"\n"
            *whole, rest = lines
            for line in whole:
                yield line + b"\n"
            pending, size = [rest], len(rest)
        if size > LONGEST_ROW:
            raise ObjectError(f"a row does not end within {LONGEST_ROW >> 20} MB")
    if rest := b"".join(pending):
        yield rest


class RejectedRows:
    """Collects the bad rows of an object: counted, up to a limit, and kept in ``<table>_rejected`` if asked for."""

    def __init__(self, destination: Destination, planned: Planned, bucket: str, *, keep: bool, limit: int) -> None:
        self.destination = destination
        self.planned = planned
        self.bucket = bucket
        self.keep = keep
        self.limit = limit
        self.count = 0
        self._rows: list[list[Any]] = []

    @property
    def _table(self) -> tuple[str, str]:
        return self.destination.database, f"{self.destination.table}_rejected"

    def __call__(self, rejected: Rejected) -> None:
        """Take one row. Raises ObjectError when it is one too many."""
        self.count += 1
        if self.count > self.limit:
            raise ObjectError(
                f"over {self.limit} rows cannot be parsed, such as row {rejected.row}: {rejected.reason}"
            )
        if self.keep:
            raw = rejected.raw.rstrip(b"\r\n")[:_KEPT_BYTES].decode("utf-8", "backslashreplace")
            o = self.planned
            self._rows.append([o.load_id, self.bucket, o.key, o.version, rejected.row, rejected.reason, raw])
            if len(self._rows) >= _KEPT_AT_ONCE:
                self.flush()

    def flush(self) -> None:
        """Write what was kept; the same row twice is one."""
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
