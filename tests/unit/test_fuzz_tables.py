"""The short form of the fuzzing of tables and events, and the faults that it has found."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from storeside.events.notifications import parse
from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats import parquet as objects
from storeside.transfer.request.object_format import Csv
from storeside.transfer.staging import arrow_rows
from storeside.transfer.types.arrow_types import arrow_columns
from tests.fuzz import tables
from tests.fuzz.tables import Held, csv_columns
from tests.transfers import parquet


def test_the_fuzzing_begins_with_good_inputs() -> None:
    found = tables.corpora()
    for content in found[tables.read_parquet]:
        assert objects.ParquetObject(Held("a.parquet", content)).facts().rows in (40, 1)
    assert sum(len(parse(content.decode())) for content in found[tables.read_event][:4]) == 6
    assert all(
        Held("a.snappy", content).sample(100).startswith(b'{"n": 0') for content in found[tables.read_text][:9]
    )


@pytest.mark.exhaustive
def test_parsers_refuse_by_their_own_errors_in_bounded_time() -> None:
    found, following = tables.fuzz(1_200, seed=2)
    assert not found.wrong
    assert following == 1_200
    assert set(found.inputs.values()) == {300}


def test_a_sample_of_a_block_that_unpacks_to_much_costs_no_more_than_the_block() -> None:
    """Every small read copied the rest of the block: 64 MB, four thousand times."""
    bomb = tables.snappy_bomb()
    assert len(bomb) < 4 << 20
    held = Held("a.csv.snappy", bomb)
    file = held.plain()
    assert len(file.read(64)) == 64
    copied = [len(piece) for piece in iter(lambda: file.read(1 << 20), b"")]
    assert sum(copied) == (64 << 20) - 64
    assert len(held.sample(1 << 18)) == 1 << 18


@pytest.mark.parametrize("at", range(4, 400, 7))
def test_rows_of_a_damaged_parquet_object_are_an_error_of_the_object(at: int) -> None:
    content = bytearray(parquet(pa.table({"s": [f"word {n}" for n in range(2_000)]}), compression="none"))
    content[at : at + 16] = random.Random(at).randbytes(16)  # noqa: S311
    try:
        schema, batches = objects.row_groups(Held("a.parquet", bytes(content)))
        assert sum(len(piece) for piece in arrow_rows.stream(schema, batches))
    except LoadObjectError:
        pass


@pytest.mark.parametrize("header", [b"\xff\tb\n", b"a\ta\n", b"a\tb\xc3\n"])
def test_a_header_that_is_none_is_an_error_of_the_object(header: bytes) -> None:
    with pytest.raises(LoadObjectError):
        csv_columns(header + b"1\t2\n", Csv("\t"))
    with pytest.raises(LoadObjectError):
        csv_columns((header + b"1\t2\n"), Csv("\t", encoding="utf-16"))


def test_many_columns_cost_their_number_and_not_its_square() -> None:
    names = [f"c{n}" for n in range(100_000)]
    assert len(arrow_columns(pa.schema([(name, pa.int8()) for name in names]))) == len(names)
