"""Deterministic data in the shape of New York's yellow taxi trips, in all formats: generated once, then cached.

The data have the 19 columns, types, empty values and rough distributions of the public files (one month is about
three million trips in 50 MB of Parquet), from a seed. ``python -m tests.benchmarks.taxi FOLDER`` writes the common
formats.
"""

from __future__ import annotations

import argparse
import gzip
import io
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.benchmarks import versitygw

MONTH_ROWS = 3_174_394  # yellow_tripdata_2022-07
FIVE_ROWS = 15_845_558  # 2022-01 to 2022-05
LARGE_ROWS = 60_000_000
LARGE_GROUP = 1_000_000
SMALL_COUNT = 10_000
SMALL_ROWS = {"parquet": 480, "csv": 200, "jsonl": 50}  # about 20 KB
CHUNK = 250_000
FORMS = ("parquet", "csv", "csv.gz", "jsonl", "jsonl.gz")
TIME = pa.timestamp("us")

SCHEMA = pa.schema(
    [
        ("VendorID", pa.int64()),
        ("tpep_pickup_datetime", TIME),
        ("tpep_dropoff_datetime", TIME),
        ("passenger_count", pa.float64()),
        ("trip_distance", pa.float64()),
        ("RatecodeID", pa.float64()),
        ("store_and_fwd_flag", pa.string()),
        ("PULocationID", pa.int64()),
        ("DOLocationID", pa.int64()),
        ("payment_type", pa.int64()),
        ("fare_amount", pa.float64()),
        ("extra", pa.float64()),
        ("mta_tax", pa.float64()),
        ("tip_amount", pa.float64()),
        ("tolls_amount", pa.float64()),
        ("improvement_surcharge", pa.float64()),
        ("total_amount", pa.float64()),
        ("congestion_surcharge", pa.float64()),
        ("airport_fee", pa.float64()),
    ]
)
# Trips that were not metered by the hour's usual way lack these.
OPTIONAL = ("passenger_count", "RatecodeID", "store_and_fwd_flag", "congestion_surcharge", "airport_fee")
# How busy the hours of a day are.
HOURS = (*(2.6, 1.7, 1.1, 0.7, 0.5, 0.6, 1.4, 2.6, 3.5, 3.9, 4.2, 4.6),
         *(5.0, 5.1, 5.5, 5.6, 5.6, 6.2, 6.8, 6.5, 5.9, 5.8, 5.6, 4.3))  # fmt: skip
DAYS = 31
ZONES = 262


def trips(rows: int, seed: int, month: str = "2022-07") -> pa.Table:
    """Return trips of one month, roughly in the order of their start; the last 3% lack the optional columns."""
    random = np.random.Generator(np.random.PCG64(seed))

    def one_of(values: dict[float, float]) -> np.ndarray:
        weights = np.array(list(values.values()))
        return random.choice(np.array(list(values)), rows, p=weights / weights.sum())

    def sometimes(share: float, value: float, otherwise: float = 0.0) -> np.ndarray:
        return np.where(random.random(rows) < share, value, otherwise)

    def zones() -> np.ndarray:
        popularity = 1 / np.arange(1, ZONES + 1) ** 1.2
        return random.choice(random.permutation(ZONES) + 1, rows, p=popularity / popularity.sum())

    unmetered = np.arange(rows) >= rows - int(rows * 0.0327)
    begin = np.datetime64(month, "s").astype(np.int64) + _starts(rows, random)
    distance = np.where(
        random.random(rows) < 0.012, 0, np.round(np.minimum(random.lognormal(0.62, 0.85, rows), 60), 1)
    )
    miles_per_second = np.clip(random.normal(11.5, 4, rows), 3, 40) / 3600
    seconds = np.clip(distance / miles_per_second + random.normal(150, 90, rows), 20, 10_800).astype(np.int64)
    seconds = seconds // 60 * 60
    vendor = one_of({1: 0.29, 2: 0.71}).astype(np.int64)
    airport = random.random(rows) < 0.036
    payment = np.where(unmetered, 0, one_of({1: 0.785, 2: 0.2, 3: 0.006, 4: 0.009})).astype(np.int64)
    fare = np.where(airport, 52, np.round((3 + distance * 2.5 + seconds / 120) * 2) / 2)
    fare = np.where(unmetered, np.round(fare + random.random(rows) * 5, 2), fare)
    extra = np.where(
        vendor == 1,
        one_of({2.5: 0.4, 3.0: 0.3, 3.5: 0.25, 0.0: 0.05}),
        one_of({0.0: 0.45, 0.5: 0.3, 1.0: 0.25}),
    )
    charges = {
        "extra": extra,
        "mta_tax": sometimes(0.99, 0.5),
        "tolls_amount": sometimes(0.085, 6.55),
        "improvement_surcharge": sometimes(0.995, 0.3, -0.3),
        "congestion_surcharge": sometimes(0.92, 2.5),
        "airport_fee": sometimes(0.085, 1.25),
    }
    due = fare + sum(charges.values())
    share = one_of({0.0: 0.28, 0.2: 0.446, 0.25: 0.115, 0.3: 0.087, 0.15: 0.072})
    tip = np.where((payment == 1) | unmetered, np.round(due * share, 2), 0)
    columns = {
        "VendorID": vendor,
        "tpep_pickup_datetime": begin * 1_000_000,
        "tpep_dropoff_datetime": (begin + seconds) * 1_000_000,
        "passenger_count": one_of({1: 0.725, 2: 0.152, 3: 0.041, 4: 0.021, 5: 0.021, 6: 0.013, 0: 0.027}),
        "trip_distance": distance,
        "RatecodeID": np.where(airport, 2, one_of({1: 0.978, 5: 0.009, 3: 0.004, 4: 0.002, 99: 0.007})),
        "store_and_fwd_flag": np.where(random.random(rows) < 0.991, "N", "Y"),
        "PULocationID": zones(),
        "DOLocationID": zones(),
        "payment_type": payment,
        "fare_amount": fare,
        "tip_amount": tip,
        "total_amount": np.round(due + tip, 2),
    } | charges
    return pa.table(
        [
            pa.array(columns[field.name], mask=unmetered if field.name in OPTIONAL else None).cast(field.type)
            for field in SCHEMA
        ],
        schema=SCHEMA,
    )


def _starts(rows: int, random: np.random.Generator) -> np.ndarray:
    """Return the starts of trips, in seconds since the month's: sorted but for a few."""
    busy = np.tile(np.array(HOURS), DAYS)
    hours = np.repeat(np.arange(busy.size), random.multinomial(rows, busy / busy.sum()))
    starts = np.sort(hours * 3600 + random.integers(0, 3600, rows))
    late = random.random(rows) < 0.02
    starts[late] += random.integers(0, 900, int(late.sum()))
    return starts // 2 * 2


def as_csv(table: pa.Table, header: bool = True) -> bytes:
    """Return trips as CSV: an empty field is an absent value."""
    names = ",".join(table.column_names) + "\n" if header else ""
    return names.encode() + _joined(table, "", ",", "\n", "", quote=False)


def as_jsonl(table: pa.Table) -> bytes:
    """Return trips as JSON Lines."""
    return _joined(table, "{", ",", "}\n", "null", quote=True)


def _joined(table: pa.Table, begin: str, between: str, end: str, absent: str, quote: bool) -> bytes:
    parts: list[pa.Array | str] = []
    for number, name in enumerate(table.column_names):
        lead = between if number else begin
        parts += [f'{lead}"{name}":' if quote else lead, _text(table[name], quote).fill_null(absent)]
    rows = pc.binary_join_element_wise(*parts, end, "").combine_chunks()
    return b"".join(_bytes(chunk) for chunk in ([rows] if isinstance(rows, pa.Array) else rows.chunks))


def _bytes(strings: pa.Array) -> memoryview | bytes:
    """Return the concatenated bytes of the strings, which Arrow stores in this form."""
    if not len(strings):
        return b""
    offsets = np.frombuffer(strings.buffers()[1], np.int32)[strings.offset : strings.offset + len(strings) + 1]
    return memoryview(strings.buffers()[2])[offsets[0] : offsets[-1]]


def _text(column: pa.ChunkedArray, quote: bool) -> pa.ChunkedArray:
    """Return values as text, floats with their point (2.0) as other writers of such files have them."""
    if pa.types.is_timestamp(column.type):
        text = column.cast(pa.timestamp("s")).cast(pa.string())
    elif pa.types.is_floating(column.type):
        coded = column.combine_chunks().dictionary_encode()
        text = pa.chunked_array([pa.array(map(repr, coded.dictionary.to_pylist()), pa.string()).take(coded.indices)])
    else:
        text = column.cast(pa.string())
    if quote and not pa.types.is_floating(column.type) and not pa.types.is_integer(column.type):
        text = pc.binary_join_element_wise('"', text, '"', "")
    return text


@dataclass(frozen=True)
class Objects:
    """Objects of one form in a bucket: their keys below `prefix`, and their total rows and bytes."""

    prefix: str
    form: str
    keys: tuple[str, ...]
    rows: int
    size: int

    @property
    def format(self) -> str:
        """The format without its compression."""
        return self.form.removesuffix(".gz")


class Bucket:
    """A folder of objects; each kind is generated at its first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def month(self, form: str = "parquet", rows: int = MONTH_ROWS) -> Objects:
        """Return one object of trips of one month; Parquet in one row group."""
        prefix = f"{form}-{rows}/"
        key = f"{prefix}yellow_tripdata_2022-07.{form}"
        if self._missing([key], prefix):
            if form.endswith(".gz"):
                plain = self.month(form.removesuffix(".gz"), rows)
                self._write(key, lambda file: _compress(self.folder / plain.keys[0], file))
            else:
                self._write(key, lambda file: _write(trips(rows, seed=7), form, file))
        return self._objects(prefix, form, [key], rows)

    def five(self, rows: int = FIVE_ROWS) -> Objects:
        """Return five Parquet objects of trips of five months."""
        prefix = f"five-{rows}/"
        keys = [f"{prefix}yellow_tripdata_2022-{month:02}.parquet" for month in range(1, 6)]
        if self._missing(keys, prefix):
            for number, key in enumerate(keys):
                table = trips((rows + number) // 5, seed=100 + number, month=f"2022-{number + 1:02}")
                self._write(key, partial(_write, table, "parquet"))
        return self._objects(prefix, "parquet", keys, rows)

    def large(self, rows: int = LARGE_ROWS) -> Objects:
        """Return one Parquet object of many trips, in row groups of a million."""
        prefix = f"large-{rows}/"
        key = f"{prefix}sample.parquet"
        if self._missing([key], prefix):
            self._write(key, lambda file: _write_large(rows, file))
        return self._objects(prefix, "parquet", [key], rows)

    def small(self, form: str = "parquet", count: int = SMALL_COUNT) -> Objects:
        """Return many objects of about 20 KB."""
        each = SMALL_ROWS[form]
        prefix = f"small-{form}-{count}/"
        keys = [f"{prefix}{number // 1000:03}/trips-{number:06}.{form}" for number in range(count)]
        if self._missing(keys, prefix):
            for begin in range(0, count, 1000):
                table = trips(each * 1000, seed=1000 + begin)
                for number, key in enumerate(keys[begin : begin + 1000]):
                    part = table.slice(number * each, each)
                    self._write(key, partial(_write, part, form))
        return self._objects(prefix, form, keys, each * count)

    def _missing(self, keys: list[str], prefix: str) -> bool:
        if all((self.folder / key).exists() for key in keys):
            return False
        print(f"making {prefix} in {self.folder}, once", file=sys.stderr, flush=True)
        return True

    def _objects(self, prefix: str, form: str, keys: list[str], rows: int) -> Objects:
        size = sum((self.folder / key).stat().st_size for key in keys)
        return Objects(prefix, form, tuple(keys), rows, size)

    def _write(self, key: str, write: Callable[[BinaryIO], None]) -> None:
        path = self.folder / key
        with _renamed(path) as new, new.open("wb") as file:
            write(file)


@contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    """Give a file its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    yield new
    versitygw.publish(new)
    new.replace(path)


def _write(table: pa.Table, form: str, file: BinaryIO) -> None:
    if form == "parquet":
        pq.write_table(table, file, compression="snappy", row_group_size=table.num_rows)
        return
    for begin in range(0, table.num_rows, CHUNK):
        chunk = table.slice(begin, CHUNK)
        file.write(as_csv(chunk, header=not begin) if form == "csv" else as_jsonl(chunk))


def _write_large(rows: int, file: BinaryIO) -> None:
    with pq.ParquetWriter(file, SCHEMA, compression="snappy") as writer:
        for number, begin in enumerate(range(0, rows, LARGE_GROUP)):
            month = f"{2018 + number // 12}-{number % 12 + 1:02}"
            group = trips(min(LARGE_GROUP, rows - begin), seed=2000 + number, month=month)
            writer.write_table(group, row_group_size=LARGE_GROUP)


def _compress(plain: Path, file: BinaryIO) -> None:
    with plain.open("rb") as content, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        shutil.copyfileobj(content, packed, io.DEFAULT_BUFFER_SIZE * 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=MONTH_ROWS, help="default: %(default)s")
    parser.add_argument("--forms", default="parquet,csv", help="default: %(default)s")
    options = parser.parse_args()
    for form in options.forms.split(","):
        made = Bucket(options.folder).month(form, options.rows)
        print(f"{made.prefix}: {made.rows} rows, {made.size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
