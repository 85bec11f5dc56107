"""ORC and Arrow: files of generated tables through the product's loaders into ClickHouse, and through pyarrow.

The tables are those of the Parquet family, without the types that the format cannot store. None of these formats has
checksums, so a damaged file may have other values; it must not have another number of rows.
"""

from __future__ import annotations

import io
import random
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from storeside.stack.settings import Stack
from storeside.transfer.base.errors import TransferError
from storeside.transfer.base.schema import UNNAMED
from tests.fuzz.differential.loading import ARROW, PULL, PUSH, Loading
from tests.fuzz.differential.outcome import Outcome
from tests.fuzz.differential.parquet import REFUSED, Null, emptied, equal, plain, read
from tests.fuzz.differential.parquet_files import SAFE_CODECS, Family
from tests.fuzz.differential.text import server

FORMS = ("orc", "arrow", "arrowstream")
# Files that share a table.
TOGETHER = 30
_AT_ONCE = 2
_FAULTY = 0.3
_CODECS = {"orc": ("uncompressed", "zlib", "snappy", "lz4", "zstd"), "arrow": (None, "lz4", "zstd")}
# A section of docs/differences.md.
DAMAGED = "Damage to ORC and Arrow, which have no checksums"


def compare(files: int, seed: int) -> Outcome:
    """Compare a number of files of a seed."""
    with server() as (stack, client, store):
        return compare_with(stack, client, store, files, seed)


def compare_with(stack: Stack, client: Any, store: Any, files: int, seed: int) -> Outcome:
    """Compare with running servers."""
    outcome = Outcome("columnar")
    counts = [min(TOGETHER, files - begin) for begin in range(0, files, TOGETHER)]

    def table(n: int) -> Outcome:
        return _table(client, store, f"{seed}/{n}", FORMS[n % len(FORMS)], counts[n])

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for one in pool.map(table, range(len(counts))):
            outcome.add(one)
    return outcome


def _table(client: Any, store: Any, label: str, form: str, count: int) -> Outcome:
    """Compare a number of files that share their columns."""
    outcome = Outcome("columnar", count)
    r = random.Random(f"columnar/{label}")  # noqa: S311
    empty = r.random() < 0.5
    # ClickHouse pulls only if rows need no numbers; then their order is unknown.
    numbered = ("_row_number",) if r.random() < 0.3 else ()
    family = _family(r, form)
    originals = {f"{n:04}": _file(family, random.Random(f"{label}/{n}"), form) for n in range(count)}  # noqa: S311
    files = {name: content if name == "0000" else _damaged(r, content) for name, content in originals.items()}
    expected = {name: read_by_pyarrow(content, form) for name, content in files.items()}
    try:
        loading = Loading(
            client, store, files, f"data.fuzz_{uuid.uuid4().hex[:12]}", format=form, loader=PULL, sample_objects=1,
            on_null_nested="empty" if empty else "refuse", system_columns=numbered,
        )  # fmt: skip
    except TransferError as e:
        outcome.refused += count
        outcome.stricter[f"no table: {e}"[:100]] += count
        return outcome
    readable = {name for name, rows in expected.items() if rows is not REFUSED}
    found: dict[str, dict[str, Any]] = {name: {} for name in files}
    for loader, some in ((PULL, list(files)), (PUSH, list(files)[::2]), (ARROW, list(files)[1::2])):
        for name, rows in read(loading, some, readable, loader).items():
            found[name][loader] = rows
    loading.close()
    for name, content in files.items():
        wanted, original = expected[name], read_by_pyarrow(originals[name], form)
        if empty:
            wanted, original = (rows if rows is REFUSED else emptied(rows) for rows in (wanted, original))
        if not numbered:
            wanted, original = _sorted(wanted), _sorted(original)
            found[name] = {loader: _sorted(rows) for loader, rows in found[name].items()}
        _judge(outcome, f"{label}, {form}, file {name}", wanted, original, found[name], content != originals[name])
    return outcome


def _family(r: random.Random, form: str) -> Family:
    """Return columns whose types the format can store."""
    while True:
        family = Family(r)
        columns = [column for column in family.columns if _stores(form, column[0])]
        if columns:
            family.columns, family.schema = columns, pa.schema([field for field, _ in columns])
            return family


def _stores(form: str, field: pa.Field) -> bool:
    try:
        _written(form, pa.schema([field]).empty_table(), None, 1)
    except pa.ArrowException:
        return False
    return True


def _file(family: Family, r: random.Random, form: str) -> bytes:
    table = pq.read_table(io.BytesIO(family.file(r, SAFE_CODECS)))
    codec = r.choice(_CODECS["orc" if form == "orc" else "arrow"])
    return _written(form, table, codec, r.choice((1, 7, 1000)))


def _written(form: str, table: pa.Table, codec: str | None, rows: int) -> bytes:
    sink = io.BytesIO()
    if form == "orc":
        orc.write_table(table, sink, compression=codec or "uncompressed")
        return sink.getvalue()
    new = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=form == "arrow")
    with new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def _damaged(r: random.Random, content: bytes) -> bytes:
    if r.random() >= _FAULTY:
        return content
    if r.random() < 0.4:
        return content[: r.randrange(len(content))]
    at = r.randrange(len(content))
    return content[:at] + r.randbytes(1) + content[at + 1 :]


def read_by_pyarrow(content: bytes, form: str) -> Any:
    """Return the rows that pyarrow reads, or REFUSED."""
    try:
        source = pa.BufferReader(content)
        if form == "orc":
            table = orc.ORCFile(source).read()
        elif form == "arrow":
            table = pa.ipc.open_file(source).read_all()
        else:
            table = pa.ipc.open_stream(source).read_all()
        table.validate(full=True)
        columns = [[value for chunk in column.chunks for value in plain(chunk)] for column in table.columns]
        names = [name or UNNAMED for name in table.schema.names]
    except (pa.ArrowException, OSError, UnicodeError, OverflowError, ValueError, MemoryError):
        return REFUSED
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _sorted(rows: Any) -> Any:
    return sorted(rows, key=_key) if isinstance(rows, list) else rows


def _key(value: Any) -> str:
    if isinstance(value, dict):
        return repr(sorted((name, _key(one)) for name, one in value.items()))
    if isinstance(value, list | tuple):
        return repr([_key(one) for one in value])
    return repr(None if isinstance(value, Null) else value)


def _judge(
    outcome: Outcome, again: str, wanted: Any, original: Any, found: Mapping[str, Any], is_damaged: bool
) -> None:
    refusals = [rows for rows in found.values() if isinstance(rows, str)]
    for loader, rows in found.items():
        if isinstance(rows, str) or equal(rows, wanted):
            continue
        if is_damaged and original is not REFUSED and len(rows) == len(original):
            outcome.intended[DAMAGED] += 1
        else:
            outcome.silent.append(f"{again}: {loader} loads {rows!r:.200} instead of {wanted!r:.200}")
        return
    if refusals:
        outcome.refused += 1
        if wanted is not REFUSED:
            outcome.stricter[f"{'damaged' if is_damaged else 'whole'}: {refusals[0]}"[:110]] += 1
    else:
        outcome.equal += 1
