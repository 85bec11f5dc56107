"""Archives of Parquet, Avro, ORC and Arrow are loaded once and whole, or fail alone with the member at fault."""

from __future__ import annotations

import gzip
import zipfile
from typing import Any

import pyarrow as pa
import pytest

from storeside.transfer.request.options import LoadLimits
from storeside.transfer.staging import push
from tests.avro_files import avro, record
from tests.shards import tar
from tests.transfers import Loading, each_storage, parquet
from tests.unit.test_reading_typed import file_of
from tests.unit.test_transfer_archives import KINDS, zipped

pytestmark = each_storage
FORMS = {"parquet": ".parquet", "orc": ".orc", "arrow": ".feather", "arrowstream": ".arrows", "avro": ".avro"}


def member(form: str, start: int, rows: int = 100) -> bytes:
    """Return a file of rows with the numbers from `start`, texts, and lists of which every third is NULL."""
    numbers = range(start, start + rows)
    lists = [None if n % 3 == 0 else [n, None] for n in numbers]
    if form == "avro":
        kinds = {"n": "long", "s": ["null", "string"], "l": ["null", {"type": "array", "items": ["null", "long"]}]}
        rows = [
            {
                "n": n,
                "s": (0, None) if n % 7 == 0 else (1, f"row {n}"),
                "l": (0, None) if n % 3 == 0 else (1, [(1, n), (0, None)]),
            }
            for n in numbers
        ]
        return avro(record(**kinds), rows)
    columns = {
        "n": pa.array(numbers, pa.int64()),
        "s": pa.array([None if n % 7 == 0 else f"row {n}" for n in numbers], pa.string()),
        "l": pa.array(lists, pa.list_(pa.int64())),
    }
    return parquet(columns) if form == "parquet" else file_of(form, columns)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loader", ["pull", "push"])
def test_each_archive_is_loaded_once_and_bad_ones_fail_alone(loading: Loading, loader: str, form: str) -> None:
    end = FORMS[form]
    archives = {
        f"in/{key}": make(
            [
                (f"a{end}", member(form, 300 * n)), (f"sub/b{end}", member(form, 300 * n + 100)), ("c.md", b"#"),
                (f"c{end}", member(form, 300 * n + 200)), (f"._c{end}", b"\0\1"),
            ]
        )
        for n, (key, make) in enumerate(KINDS.items())
    }  # fmt: skip
    good, whole = member(form, 0), zipped([(f"a{end}", member(form, 0))], zipfile.ZIP_STORED)
    bad = {
        "in/cut.tar": archives["in/x.tar"][:3000], "in/cut.tgz": archives["in/x.tgz"][:-9],
        "in/damaged.zip": whole[:300] + bytes([whole[300] ^ 1]) + whole[301:],
        "in/member.tar": tar([(f"a{end}", good), (f"b{end}", good[: len(good) // 2])]),
        "in/other.zip": zipped([(f"a{end}", good), (f"b{end}", b"n,s\n1,2\n")]),
    }  # fmt: skip
    loading.put({**archives, **bad, f"in/plain{end}": member(form, -100)})
    loading.create("n Int64, s Nullable(String), l Array(Nullable(Int64))")
    options: dict[str, Any] = {"loader": loader, "format": form, "on_null_nested": "empty"}
    report = loading.load("in/", **options, system_columns=("_object", "_row_number"))
    assert (report.loaded, report.failed) == (len(archives) + 1, len(bad))
    total = 300 * len(archives)
    facts = (
        "count(), uniqExact(n), min(n), max(n), countIf(isNull(s) != (n % 7 = 0)), countIf(empty(l) != (n % 3 = 0))"
    )
    assert loading.query(f"SELECT {facts} FROM {loading.table} WHERE n >= 0") == [(total, total, 0, total - 1, 0, 0)]
    assert loading.query(f"SELECT countIf(_row_number != n % 300) FROM {loading.table} WHERE n >= 0") == [(0,)]
    reasons = loading.reasons()
    assert reasons.keys() == bad.keys()
    for key in ("in/member.tar", "in/other.zip"):
        assert f"member 'b{end}': " in reasons[key], reasons[key]
    assert f"member 'a{end}': its content is broken" in reasons["in/damaged.zip"]
    assert "begin like" not in reasons["in/member.tar"]
    again = loading.load("in/", **options, system_columns=("_object", "_row_number"))
    assert (again.loaded, again.failed, again.known_bad) == (0, 0, len(bad))


def test_a_table_is_made_of_members_and_drift_names_the_member(loading: Loading) -> None:
    more = parquet({"n": [7], "extra": ["x"]})
    first = parquet({"n": pa.array([1, 2], pa.int8())})
    loading.put({"a.zip": zipped([("1.parquet", first), ("2.parquet", more)]), "b.tar": tar([("1.parquet", first)])})
    report = loading.load()
    assert (report.loaded, report.failed) == (1, 1)
    assert "member '2.parquet': columns 'extra' are not in" in loading.reasons()["a.zip"]
    report = loading.load(on_drift="add", retry_failed=True)
    assert (report.loaded, report.failed) == (1, 0)
    assert loading.rows("n, extra") == [(1, None), (1, None), (2, None), (2, None), (7, "x")]


def test_formats_that_differ_within_an_archive_or_from_the_load(loading: Loading) -> None:
    rows = parquet({"n": [1]})
    loading.put(
        {
            "1.parquet": rows, "2.parquet": rows, "text.zip": zipped([("a.csv", b"n\n1\n")]),
            "both.zip": zipped([("a.parquet", rows), ("b.csv", b"n\n1\n")]),
        }
    )  # fmt: skip
    report = loading.load()
    assert (report.loaded, report.failed) == (2, 2)
    reasons = loading.reasons()
    assert "member 'b.csv': it is csv, and 'a.parquet' is not: set `format`" in reasons["both.zip"]
    assert "member 'a.csv': not a whole Parquet file" in reasons["text.zip"]
    report = loading.load(format="parquet", retry_failed=True)
    assert (report.loaded, report.failed) == (1, 1)


def test_limits_count_all_members(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "WHOLE_PARQUET", 0)  # large members, row group by row group
    rows = parquet({"s": ["x" * 1000 + str(n) for n in range(1000)]}, compression="none", use_dictionary=False)
    loading.put(
        {
            "big.tgz": gzip.compress(tar([(f"{n}.parquet", rows) for n in range(4)])),
            "b.zip": zipped([("a.parquet", rows)]),
        }
    )
    report = loading.load(format="parquet", limits=LoadLimits(bytes=3_000_000))
    assert (report.loaded, report.failed, report.rows) == (1, 1, 1000)
    assert "has more than 3000000 bytes" in loading.reasons()["big.tgz"]
