"""Reads the snapshots of Delta tables: https://github.com/delta-io/delta/blob/master/PROTOCOL.md.

The worker copies the end of the table's log into a temporary folder, from the last checkpoint on, and deltalake reads
it there: so S3 is read with the client of the load, and its credentials are given to no other library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from math import isnan
from pathlib import Path
from struct import pack, unpack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from storeside.transfer.base.damage import words
from storeside.transfer.base.errors import LoadObjectError, TransferError, TransferInputError
from storeside.transfer.formats.parquet_pages import require_below
from storeside.transfer.lakes import snapshots
from storeside.transfer.lakes.snapshots import Snapshot, below, check_number, key_of, read, too_large
from storeside.transfer.request.source import Source, uri_of
from storeside.transfer.types.arrow_types import arrow_columns
from storeside.transfer.types.partitions import check_key, value_in

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# Names become names of local files, so each pattern matches whole names, and nothing that leaves the folder.
_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[\w-]{36})?\.(?:parquet|json)", re.ASCII)
_SIDECAR = re.compile(r"_sidecars/[\w.-]+\.parquet", re.ASCII)  # Spark writes more than a UUID
_THREADS = 8
# Features of readers that change nothing for a load of whole files; `_check` reads more about the two last ones.
_READABLE = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "columnMapping", "deletionVectors"})
_MAPPING = "delta.columnMapping.mode"
# The largest number of 32 bits.
_FLOAT32 = 3.4028234663852886e38


def snapshot(client: S3Client, source: Source) -> Snapshot:
    """Return the version that `source` names, or the newest one. Raises TransferInputError if it cannot be loaded."""
    folder = f"{source.keys}_delta_log/"
    log = {key.removeprefix(folder): size for key, size in below(client, source.bucket, folder).items()}
    version = _version(log, source)
    names = _needed(log, version)
    if (size := sum(log[name] for name in names)) > snapshots.MOST_TOTAL:
        raise TransferInputError(
            f"{source.uri}: its log has {size} bytes since the last checkpoint: make a checkpoint"
        )
    with TemporaryDirectory() as place:
        try:
            _copy(client, source, folder, names, Path(place) / "_delta_log")
            table = DeltaTable(place, version=version)
            _check(table, source)
            return _snapshot(table, source)
        except TransferError:
            raise
        except (DeltaError, ValueError, OSError) as e:
            fault = (
                _damaged(Path(place) / "_delta_log", names) or f"{words(e)}: restore its log, or load another version"
            )
            raise TransferInputError(f"{source.uri}: version {version} of the table cannot be read: {fault}") from e


def _damaged(log: Path, names: Iterable[str]) -> str:
    """Return which line of a commit is not JSON; empty if all are. deltalake names neither line nor commit."""
    for name in filter(_COMMIT.fullmatch, names):
        try:
            lines = (log / name).read_bytes().splitlines()
        except OSError:  # it was not copied
            continue
        for number, line in enumerate(lines, 1):
            try:
                json.loads(line)
            except ValueError as e:
                return f"line {number} of its commit {name!r} is damaged ({e}): restore this commit"
    return ""


def _version(log: Iterable[str], source: Source) -> int:
    commits = [int(match[1]) for name in log if (match := _COMMIT.fullmatch(name))]
    if not commits:
        place = uri_of(source.bucket, f"{source.keys}_delta_log/")
        raise TransferInputError(f"{source.uri}: there is no Delta table: {place} has no commits")
    wanted = int(source.snapshot) if source.snapshot else max(commits)
    if wanted not in commits:
        raise TransferInputError(
            f"{source.uri}: it has no version {wanted}; its log has {min(commits)} to {max(commits)}"
        )
    return wanted


def _needed(log: Iterable[str], version: int) -> list[str]:
    """Return the files of a log from which a version can be read: the last whole checkpoint, and later commits."""
    parts: dict[tuple[int, str], list[str]] = {}
    for name in log:
        if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
            parts.setdefault((int(match[1]), match[3] or ""), []).append(name)
    whole = {start: names for (start, total), names in parts.items() if len(names) >= int(total or 1)}
    start = max(whole, default=-1)
    commits = [name for name in log if (match := _COMMIT.fullmatch(name)) and start <= int(match[1]) <= version]
    return [*whole.get(start, ()), *commits, *(name for name in log if start >= 0 and _SIDECAR.fullmatch(name))]


def _copy(client: S3Client, source: Source, folder: str, names: list[str], place: Path) -> None:
    (place / "_sidecars").mkdir(parents=True)

    def copy(name: str) -> int:
        content = read(client, source.bucket, folder + name)
        (place / name).write_bytes(content)
        return _unpacked_size(content, uri_of(source.bucket, folder + name))

    with ThreadPoolExecutor(_THREADS) as threads:
        if sum(threads.map(copy, names)) > snapshots.MOST_TOTAL:
            raise too_large(source.uri, snapshots.MOST_TOTAL)


def _unpacked_size(content: bytes, place: str) -> int:
    """Return the size of a file of the log in memory. Raises TransferInputError for too many bytes, or damage."""
    if not place.endswith(".parquet"):
        return len(content)
    try:
        return require_below(content, snapshots.MOST_BYTES)
    except OverflowError:
        raise too_large(place, snapshots.MOST_BYTES) from None
    except LoadObjectError as e:
        raise TransferInputError(f"{place}: it cannot be read as a checkpoint: {e}") from e


def _check(table: DeltaTable, source: Source) -> None:
    """Raise TransferInputError for a table whose files alone do not show its rows."""
    features = set(table.protocol().reader_features or ())
    if unknown := sorted(features - _READABLE):
        raise TransferInputError(f"{source.uri}: a load cannot read tables with {', '.join(unknown)}: copy the table")
    if (mode := table.metadata().configuration.get(_MAPPING, "none")) != "none":
        raise TransferInputError(
            f"{source.uri}: {_MAPPING} is {mode!r}, so its files name columns differently: write a table without it"
        )
    if "deletionVectors" in features and _has_deleted(table):
        raise TransferInputError(
            f"{source.uri}: version {table.version()} has deletion vectors, which a load cannot apply: rewrite the"
            " files with REORG TABLE … APPLY (PURGE)"
        )


def _has_deleted(table: DeltaTable) -> bool:
    """Return whether a file has a deletion vector. Files with vectors are not copied: an error shows them."""
    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except (DeltaError, ValueError, OSError):
        return True


def _snapshot(table: DeltaTable, source: Source) -> Snapshot:
    import pyarrow as pa

    columns = tuple(arrow_columns(pa.schema(table.schema().to_arrow())))
    partitions = tuple(table.metadata().partition_columns)
    actions = pa.table(table.get_add_actions())
    check_number(source, table.version(), len(actions))
    files = {}
    for batch in actions.select(
        [n for n in ("path", "size_bytes", "partition") if n in actions.column_names]
    ).to_batches():
        for row in batch.to_pylist():
            path = unquote(row["path"])
            key = key_of(path, source) if "://" in path else source.keys + path
            _check_values(key, row.get("partition") or {}, partitions, source)
            files[key] = row["size_bytes"]
    return Snapshot(source.uri, str(table.version()), files, columns, partitions, ignores_others=True)


def _check_values(key: str, values: Mapping[str, Any], names: Iterable[str], source: Source) -> None:
    """Raise TransferInputError unless the partition values of the log are those in the key of a file."""
    for name in names:
        try:
            check_key(key, [name])
        except LoadObjectError as e:
            raise TransferInputError(f"{source.uri}: {key!r}: {e}") from e
        if not _is_value(found := value_in(key, name), values.get(name), name, source):
            raise TransferInputError(
                f"{source.uri}: {key!r}: the log states {values.get(name)!r} for the column {name!r}, but the key"
                f" {found!r}, from which a load reads it: write these rows with another value"
            )


def _is_value(text: str | None, value: Any, name: str, source: Source) -> bool:
    """Return whether a text in a key is the value of a column that deltalake has read from the log."""
    if value is None or isinstance(value, str):
        return text == (value or None)  # Delta has no empty text there
    if isinstance(value, bool):
        return text == str(value).lower()
    if type(value) not in _VALUES:
        raise TransferInputError(
            f"{source.uri}: the partition column {name!r} has values of the type {type(value).__name__}: a load reads"
            " only text, numbers, booleans, dates and timestamps from keys"
        )
    try:
        return text is not None and bool(_VALUES[type(value)](text, value))
    except (ValueError, ArithmeticError):  # the text is no value of this type
        return False


def _is_moment(text: str, value: datetime) -> bool:
    """Return whether a text is a timestamp. If the column has a zone, a text without an offset is in UTC."""
    found = datetime.fromisoformat(text)
    return value == (found.replace(tzinfo=value.tzinfo) if found.tzinfo is None else found)


def _is_float(text: str, value: float) -> bool:
    """Return whether a text is a number of 64 bits, or of 32 bits."""
    found = float(text)
    narrow = unpack("f", pack("f", found))[0] if abs(found) <= _FLOAT32 else found
    return value in (found, narrow) or (isnan(value) and isnan(found))


# How the text in a key is compared with a value, by its type.
_VALUES: Mapping[type, Callable[[str, Any], bool]] = {
    int: lambda text, value: text == str(value),
    date: lambda text, value: text == value.isoformat(),
    datetime: _is_moment,
    Decimal: lambda text, value: Decimal(text) == value,
    float: _is_float,
}
