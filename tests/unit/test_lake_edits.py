"""Row-level deletes of Iceberg tables, and columns by field id, as far as no table is needed."""

from __future__ import annotations

import io
import zlib
from datetime import date
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.response import StreamingBody
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from pyroaring import BitMap64

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.lakes import edits
from storeside.transfer.lakes.deletes import Deletes
from storeside.transfer.lakes.edits import DeleteFile, Edit, Editor
from storeside.transfer.lakes.fields import Fields
from storeside.transfer.request.source import EDIT, Source
from storeside.transfer.state.loads import Planned

SOURCE = Source("lake", "t/")
PLACE = "s3://lake/t/data/"


class Bucket:
    """A store of objects: the part of boto3's client that reads content."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def get_object(self, Bucket: str, Key: str, Range: str = "", IfMatch: str = "") -> dict[str, Any]:
        content = self.objects[Key]
        if Range:
            first, last = map(int, Range.removeprefix("bytes=").split("-"))
            content = content[first : last + 1]
        return {"Body": StreamingBody(io.BytesIO(content), len(content)), "ETag": '"etag"'}


def field(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


class Lake:
    """A data file, and files of deletes."""

    def __init__(self, table: pa.Table, **options: Any) -> None:
        self.bucket = Bucket()
        self.put("t/data/a.parquet", table, **options)

    def put(self, key: str, table: pa.Table, **options: Any) -> DeleteFile:
        made = io.BytesIO()
        pq.write_table(table, made, **options)
        self.bucket.objects[key] = made.getvalue()
        return DeleteFile(key, len(made.getvalue()), len(table))

    def positions(self, *places: tuple[str, int]) -> DeleteFile:
        schema = pa.schema([field(2147483546, "file_path", pa.string()), field(2147483545, "pos", pa.int64())])
        rows = [{"file_path": f"{PLACE}{name}", "pos": n} for name, n in places]
        return self.put(f"t/data/{len(self.bucket.objects)}-deletes.parquet", pa.Table.from_pylist(rows, schema))

    def vector(self, *numbers: int, rows: int | None = None) -> DeleteFile:
        body = b"\xd1\xd39d" + BitMap64(numbers).serialize()
        blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
        key = f"t/data/{len(self.bucket.objects)}.puffin"
        self.bucket.objects[key] = b"PFA1" + blob
        return DeleteFile(key, 4 + len(blob), len(numbers) if rows is None else rows, offset=4, length=len(blob))

    def values(self, columns: list[pa.Field], rows: list[tuple[Any, ...]]) -> DeleteFile:
        names = [column.name for column in columns]
        table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], pa.schema(columns))
        made = self.put(f"t/data/{len(self.bucket.objects)}-values.parquet", table)
        ids = tuple(int(column.metadata[b"PARQUET:field_id"]) for column in columns)
        return DeleteFile(made.key, made.size, made.rows, ids)

    def read(self, *deletes: DeleteFile, fields: Fields | None = None, **constants: Any) -> pa.Table:
        edit = Edit(f"{PLACE}a.parquet", deletes, fields, {int(k[1:]): v for k, v in constants.items()})
        key = "t/data/a.parquet"
        planned = Planned(key, f"etag{EDIT}{edit.digest}", len(self.bucket.objects[key]), 0.0, 1)
        content = Editor(cast(Any, self.bucket), SOURCE, {key: edit}).content(planned)
        return pq.read_table(io.BytesIO(b"".join(content.stream())))


NUMBERS = pa.table({"n": pa.array(range(1000), pa.int64())}, pa.schema([field(1, "n", pa.int64())]))


@pytest.mark.guarantee("load-snapshot-rows")
@pytest.mark.parametrize("kind", ["positions", "vector"])
def test_the_rows_at_deleted_positions_are_missing_and_no_others(kind: str) -> None:
    lake = Lake(NUMBERS, row_group_size=300)
    gone = [0, 1, 299, 300, 599, 600, 999]
    deletes = lake.vector(*gone) if kind == "vector" else lake.positions(*[("a.parquet", n) for n in gone])
    assert lake.read(deletes)["n"].to_pylist() == [n for n in range(1000) if n not in gone]


def test_deletes_of_other_files_and_beyond_the_last_row_remove_nothing() -> None:
    lake = Lake(NUMBERS)
    deletes = lake.positions(("b.parquet", 0), ("a.parquet", 5), ("a.parquet", 5000), ("aa.parquet", 7))
    assert lake.read(deletes)["n"].to_pylist() == [n for n in range(1000) if n != 5]
    assert len(lake.read(lake.vector(*range(1000)))) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: blob[:-1], lambda blob: blob[:10] + bytes([blob[10] ^ 1]) + blob[11:],
        lambda blob: blob[:4] + b"\0\0\0\x01" + blob[8:],
    ],
)  # fmt: skip
def test_a_damaged_deletion_vector_is_refused(damage: Any) -> None:
    lake = Lake(NUMBERS)
    vector = lake.vector(1, 2, 3)
    lake.bucket.objects[vector.key] = damage(lake.bucket.objects[vector.key])
    with pytest.raises(LoadObjectError, match=r"the deletion vector at byte 4 is damaged: restore the file"):
        lake.read(vector)


def test_a_deletion_vector_of_another_number_of_rows_is_refused() -> None:
    lake = Lake(NUMBERS)
    with pytest.raises(LoadObjectError, match="has 3 positions, and the table states 4"):
        lake.read(lake.vector(1, 2, 3, rows=4))


N, CITY = field(1, "n", pa.int64()), field(2, "city", pa.string())
ROWS = [(1, "a"), (2, None), (None, "a"), (None, None), (1, None), (2, "b"), (1, "a")]


def of_rows(columns: list[pa.Field], rows: list[tuple[Any, ...]]) -> pa.Table:
    names = [column.name for column in columns]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], pa.schema(columns))


@pytest.mark.guarantee("load-snapshot-rows")
@pytest.mark.parametrize(
    ("columns", "deleted"),
    [
        ([N], [(1,)]), ([N], [(None,)]), ([CITY], [("a",), (None,)]), ([N, CITY], [(1, "a"), (2, None)]),
        ([N, CITY], [(None, None)]), ([N, CITY], [(1, "b"), (2, "a")]), ([CITY, N], [(None, 1), ("x", 1), ("b", 2)]),
        ([N, CITY], []),
    ],
)  # fmt: skip
def test_the_rows_with_deleted_values_are_missing_and_no_others(
    columns: list[pa.Field], deleted: list[tuple[Any, ...]]
) -> None:
    lake = Lake(of_rows([N, CITY], ROWS), row_group_size=2)
    order = [("n", "city").index(column.name) for column in columns]
    expected = [row for row in ROWS if tuple(row[n] for n in order) not in deleted]
    found = lake.read(lake.values(columns, deleted)).to_pylist()
    assert [(row["n"], row["city"]) for row in found] == expected


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.decimal128(9, 2), [Decimal("1.25"), Decimal("2.50"), None]), (pa.date32(), [0, 1, None]),
        (pa.bool_(), [True, False, None]), (pa.timestamp("us", "UTC"), [0, 1, None]),
        (pa.binary(), [b"a", b"b", None]),
        (pa.time64("us"), [0, 1, None]), (pa.uuid(), [UUID(int=1).bytes, UUID(int=2).bytes, None]),
    ],
)  # fmt: skip
def test_values_of_each_type_delete_rows(kind: pa.DataType, values: list[Any]) -> None:
    storage = getattr(kind, "storage_type", kind)
    column = field(1, "v", kind)
    stored = pa.array(values, storage).cast(kind)
    lake = Lake(pa.Table.from_arrays([stored], schema=pa.schema([column])))
    made = lake.put("t/data/d.parquet", pa.Table.from_arrays([stored.slice(1)], schema=pa.schema([column])))
    found = lake.read(DeleteFile(made.key, made.size, made.rows, (1,)))["v"]
    assert found.to_pylist() == stored.slice(0, 1).to_pylist()


@pytest.mark.parametrize("kinds", [(pa.large_string(), pa.string()), (pa.string(), pa.string_view())])
def test_texts_of_writers_that_state_other_types_of_arrow_are_compared(kinds: tuple[pa.DataType, ...]) -> None:
    stored, deleted = (field(2, "city", kind) for kind in kinds)
    lake = Lake(of_rows([stored], [("a",), ("b",), (None,)]))
    assert lake.read(lake.values([deleted], [("b",), (None,)]))["city"].to_pylist() == ["a"]
    lake = Lake(pa.table({"city": pa.array(["a", "b"]).dictionary_encode()}, pa.schema([
        field(2, "city", pa.dictionary(pa.int32(), pa.string()))
    ])))  # fmt: skip
    assert lake.read(lake.values([deleted], [("b",)]))["city"].to_pylist() == ["a"]


@pytest.mark.parametrize("kinds", [(pa.int32(), pa.int64()), (pa.decimal128(4), pa.decimal128(9)), (pa.int64(),) * 2])
def test_a_column_may_have_a_wider_type_in_later_files_of_deletes(kinds: tuple[pa.DataType, ...]) -> None:
    before, after = (field(1, "n", kind) for kind in kinds)
    for rows in (before, after):
        lake = Lake(of_rows([rows], [(1,), (2,), (3,), (None,)]))
        deletes = lake.values([before], [(1,)]), lake.values([after], [(3,)]), lake.values([after], [(None,)])
        assert lake.read(*deletes)["n"].to_pylist() == [2]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()])
def test_paths_of_writers_that_state_other_types_of_arrow_are_compared(kind: pa.DataType) -> None:
    lake = Lake(of_rows([N], [(1,), (2,)]))
    columns = [field(2147483546, "file_path", kind), field(2147483545, "pos", pa.int64())]
    deletes = lake.put("t/data/d.parquet", of_rows(columns, [(f"{PLACE}a.parquet", 0)]))
    assert lake.read(deletes)["n"].to_pylist() == [2]


def test_values_of_floating_point_are_refused_and_promoted_ones_compared() -> None:
    lake = Lake(of_rows([field(1, "n", pa.int32()), field(2, "x", pa.float64())], [(1, 0.5), (2, 1.5)]))
    assert lake.read(lake.values([N], [(1,)]))["n"].to_pylist() == [2]
    with pytest.raises(LoadObjectError, match="values of double, which a load does not compare"):
        lake.read(lake.values([field(2, "x", pa.float64())], [(0.5,)]))
    with pytest.raises(LoadObjectError, match=r"values of string, and its column is int32"):
        lake.read(lake.values([field(1, "n", pa.string())], [("1",)]))


def test_a_deleted_column_that_a_file_lacks_is_null_or_the_value_of_its_partition() -> None:
    lake = Lake(of_rows([N], [(1,), (2,)]))
    assert lake.read(lake.values([CITY], [("a",)])).num_rows == 2
    assert lake.read(lake.values([CITY], [(None,)])).num_rows == 0
    assert lake.read(lake.values([CITY], [("a",)]), c2="a").num_rows == 0


@pytest.mark.guarantee("load-snapshot-rows")
def test_a_deleted_column_that_a_file_lacks_has_its_initial_default() -> None:
    columns = NestedField(1, "n", LongType()), NestedField(2, "city", StringType(), initial_default="a")
    fields = Fields(Schema(*columns), ((2, "city", "a"),))
    lake = Lake(of_rows([N], [(1,), (2,)]))
    assert lake.read(lake.values([CITY], [("a",)]), fields=fields).num_rows == 0
    assert lake.read(lake.values([CITY], [(None,), ("b",)]), fields=fields)["city"].to_pylist() == ["a", "a"]
    assert lake.read(lake.values([CITY], [("a",)]), fields=fields, c2="b")["city"].to_pylist() == ["b", "b"]
    day = NestedField(2, "day", DateType(), initial_default="2026-01-05")
    fields = Fields(Schema(columns[0], day), ((2, "day", "2026-01-05"),))
    deleted = lake.values([field(2, "day", pa.date32())], [(date(2026, 1, 5),)])
    assert lake.read(deleted, fields=fields).num_rows == 0


@pytest.mark.guarantee("load-snapshot-rows")
def test_a_file_without_ids_whose_rows_are_deleted_by_values_is_refused() -> None:
    lake = Lake(pa.table({"n": pa.array([1, 2], pa.int64())}))
    assert lake.read(lake.positions(("a.parquet", 0)))["n"].to_pylist() == [2]
    with pytest.raises(LoadObjectError, match="its columns have no field ids, and its rows are deleted by values"):
        lake.read(lake.values([N], [(1,)]))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()])
def test_a_file_may_state_another_type_of_arrow_for_texts(kind: pa.DataType) -> None:
    lake = Lake(of_rows([field(2, "town", kind)], [("a",), (None,)]))
    fields = Fields(Schema(NestedField(2, "city", StringType())), ((2, "city", "None"),))
    assert lake.read(fields=fields)["city"].to_pylist() == ["a", None]


PLACE_OF = StructType(NestedField(5, "street", StringType()), NestedField(6, "number", LongType()))
TABLE = Schema(
    NestedField(1, "id", LongType()), NestedField(9, "city", StringType()), NestedField(3, "place", PLACE_OF),
    NestedField(4, "tags", ListType(7, PLACE_OF)), NestedField(8, "share", DoubleType()),
    NestedField(10, "land", StringType(), initial_default="DE"), NestedField(11, "day", DateType()),
    NestedField(12, "by", MapType(13, StringType(), 14, PLACE_OF)),
)  # fmt: skip


def struct_of(street: str) -> pa.DataType:
    return pa.struct([field(5, street, pa.string()), field(6, "number", pa.int32())])


@pytest.mark.guarantee("load-snapshot-rows")
def test_columns_are_found_by_their_ids() -> None:
    """A column of the file was renamed, one dropped, one made again; fields within structs, lists and maps, too."""
    old = struct_of("road")
    columns = [
        field(1, "n", pa.int32()), field(2, "city", pa.string()), field(3, "place", old),
        field(4, "tags", pa.list_(pa.field("element", old, metadata={"PARQUET:field_id": "7"}))),
        field(8, "share", pa.float32()),
        field(12, "by", pa.map_(field(13, "key", pa.string()).with_nullable(False), field(14, "value", old))),
    ]  # fmt: skip
    place = {"road": "A", "number": 1}
    rows: list[tuple[Any, ...]] = [
        (1, "old", place, [place, None], 0.5, [("k", place)]), (2, "old", None, None, None, None),
        (3, "old", {"road": None, "number": None}, [], 1.5, []), (4, "old", place, [place], 0.5, [("k", None)]),
    ]  # fmt: skip
    lake = Lake(of_rows(columns, rows), row_group_size=2)
    fields = Fields(TABLE, ((9, "city", "None"),))
    found = lake.read(lake.vector(0), fields=fields).to_pylist()
    new = {"street": "A", "number": 1}
    base = {"city": None, "land": "DE", "day": None}
    assert found == [
        {"id": 2, "place": None, "tags": None, "share": None, "by": None, **base},
        {"id": 3, "place": {"street": None, "number": None}, "tags": [], "share": 1.5, "by": [], **base},
        {"id": 4, "place": new, "tags": [new], "share": 0.5, "by": [("k", None)], **base},
    ]
    first = lake.read(fields=fields).to_pylist()[0]
    assert (first["tags"], first["by"]) == ([new, None], [("k", new)])


def test_a_file_with_the_names_of_the_table_is_read_as_it_is() -> None:
    fields = Fields(Schema(NestedField(1, "n", LongType()), NestedField(2, "city", StringType())), ((2, "city", ""),))
    table = of_rows([N, CITY], ROWS)
    lake = Lake(table)
    assert lake.read(fields=fields).equals(table)
    for wrong in ([N, field(3, "city", pa.string())], [N, field(2, "town", pa.string())]):
        assert not fields.are_in(pa.schema(wrong), most=True)
    for right in ([N], [N, CITY, field(3, "dropped", pa.string())], [pa.field("n", pa.int64())]):
        assert fields.are_in(pa.schema(right), most=True)
    without = pa.table({"n": [1]})
    with pytest.raises(LoadObjectError, match="its columns have no field ids"):
        Lake(without).read(fields=fields)
    with pytest.raises(LoadObjectError, match="it has string where the table has long"):
        Lake(of_rows([field(1, "n", pa.string())], [("a",)])).read(fields=fields)


def entry(content: DataFileContent, sequence: int, name: str = "", **more: Any) -> ManifestEntry:
    form = FileFormat.PUFFIN if name.endswith("puffin") else FileFormat.PARQUET
    spec = more.pop("spec", 1)
    given = {
        "content": content, "file_path": f"{PLACE}{name or 'a.parquet'}", "file_format": form, "record_count": 1,
        "file_size_in_bytes": 9, "partition": Record(more.pop("partition", "x")), **more,
    }  # fmt: skip
    file = DataFile.from_args(_table_format_version=3, **given)
    file.spec_id = spec
    made = ManifestEntry.from_args(_table_format_version=3, status=ManifestEntryStatus.ADDED, data_file=file)
    made.sequence_number = sequence
    return made


POSITIONS, VALUES, DATA = (
    DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES, DataFileContent.DATA,
)  # fmt: skip
FILE = f"{PLACE}a.parquet"


@pytest.mark.guarantee("load-snapshot-rows")
@pytest.mark.parametrize(
    ("deletes", "applied"),
    [
        ({"content": POSITIONS, "sequence": 5, "name": "d.parquet"}, True),
        ({"content": POSITIONS, "sequence": 4, "name": "d.parquet"}, False),
        ({"content": POSITIONS, "sequence": 6, "name": "d.parquet", "partition": "y"}, False),
        ({"content": POSITIONS, "sequence": 6, "name": "d.parquet", "spec": 0}, False),
        ({"content": POSITIONS, "sequence": 6, "name": "d.parquet", "referenced_data_file": FILE}, True),
        ({"content": POSITIONS, "sequence": 6, "name": "d.parquet", "referenced_data_file": f"{FILE}x"}, False),
        ({"content": VALUES, "sequence": 6, "name": "d.parquet", "equality_ids": [1]}, True),
        ({"content": VALUES, "sequence": 5, "name": "d.parquet", "equality_ids": [1]}, False),
        ({"content": VALUES, "sequence": 6, "name": "d.parquet", "equality_ids": [1], "partition": "y"}, False),
        ({"content": VALUES, "sequence": 6, "name": "d.parquet", "equality_ids": [1], "spec": 0}, True),
    ],
)
def test_a_file_of_deletes_applies_by_its_sequence_and_partition(deletes: dict[str, Any], applied: bool) -> None:
    found = Deletes(SOURCE, {0})
    found.add(entry(**deletes))
    assert bool(found.of(entry(DATA, 5))) is applied


def test_a_deletion_vector_replaces_deletes_by_position_and_not_those_by_values() -> None:
    found = Deletes(SOURCE, {0})
    place = {"referenced_data_file": FILE, "content_offset": 4, "content_size_in_bytes": 40}
    found.add(entry(POSITIONS, 6, "p.parquet"))
    found.add(entry(VALUES, 6, "v.parquet", equality_ids=[1]))
    found.add(entry(POSITIONS, 7, "d.puffin", **place))
    assert [o.key for o in found.of(entry(DATA, 5))] == ["t/data/v.parquet", "t/data/d.puffin"]
    with pytest.raises(TransferInputError, match="has a second deletion vector for"):
        found.add(entry(POSITIONS, 8, "e.puffin", **place))
    with pytest.raises(TransferInputError, match="states no place of a deletion vector"):
        found.add(entry(POSITIONS, 8, "f.puffin"))
    with pytest.raises(TransferInputError, match="states no columns"):
        found.add(entry(VALUES, 8, "g.parquet"))


def test_the_version_of_a_file_changes_with_its_deletes_and_names() -> None:
    one, two = DeleteFile("a", 1, 1), DeleteFile("b", 1, 1, offset=4, length=9)
    fields = [Fields(TABLE, ((1, name, "None"),)) for name in ("n", "m")]
    made = [
        Edit("p"), Edit("p", (one,)), Edit("p", (one, two)), Edit("p", (two,)),
        Edit("p", (DeleteFile("b", 1, 1, offset=50, length=9),)), *(Edit("p", (), given) for given in fields),
    ]  # fmt: skip
    assert len({edit.digest for edit in made}) == len(made)
    assert Edit("p", (one, two)).digest == Edit("p", (two, one)).digest


def test_too_many_deletes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "_MOST_DELETES", 2)
    lake = Lake(NUMBERS)
    made = lake.positions(*[("a.parquet", n) for n in range(3)])
    for deletes in (made, lake.vector(1, 2, 3)):
        with pytest.raises(LoadObjectError, match="it has 3 deletes, over 2"):
            lake.read(deletes)
    with pytest.raises(LoadObjectError, match="it has more deletes than the table states, 2"):
        lake.read(DeleteFile(made.key, made.size, 2))
