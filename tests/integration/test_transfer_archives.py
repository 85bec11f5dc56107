"""Archives of text are loaded once and whole, or fail alone; from S3 and from AIStore, with both loaders."""

from __future__ import annotations

import gzip

import pytest

from storeside.transfer.request.options import LoadLimits
from tests.shards import tar
from tests.transfers import Loading, each_storage
from tests.unit.test_transfer_archives import KINDS, zipped

pytestmark = each_storage


def numbers(start: int) -> bytes:
    return b"n,s\n" + b"".join(b'%d,"row %d\nof two lines"\n' % (n, n) for n in range(start, start + 1000))


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_each_archive_is_loaded_once_and_bad_ones_fail_alone(loading: Loading, loader: str) -> None:
    archives = {
        f"in/{key}": make([("a.csv", numbers(2000 * n)), ("sub/b.csv", numbers(2000 * n + 1000)), ("c.md", b"#")])
        for n, (key, make) in enumerate(KINDS.items())
    }
    whole = zipped([("a.csv", numbers(0))])
    bad = {
        "in/cut.tar": archives["in/x.tar"][:30_000],
        "in/cut.tgz": archives["in/x.tgz"][:-9],
        "in/cut.zip": whole[:-30],
        "in/damaged.zip": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "in/rows.tar": tar([("a.csv", numbers(0)), ("b.csv", b"n,s\nmany,x\n")]),
        "in/other.tar": tar([("a.csv", numbers(0)), ("b.csv", b"s,n\nx,1\n")]),
    }
    loading.put({**archives, **bad, "in/plain.csv": b"n,s\n-1,x\n", "in/text.zip": b"n,s\n-2,x\n"})
    loading.create("n Int64, s String")
    report = loading.load("in/", loader=loader, format="csv", system_columns=("_object", "_row_number"))
    assert (report.loaded, report.failed) == (len(archives) + 2, len(bad))
    total = 2000 * len(archives)
    assert loading.query(f"SELECT count(), uniqExact(n), min(n), max(n) FROM {loading.table} WHERE n >= 0") == [
        (total, total, 0, total - 1)
    ]
    assert loading.query(f"SELECT countIf(_row_number != n % 2000) FROM {loading.table} WHERE n >= 0") == [(0,)]
    reasons = loading.reasons()
    assert reasons.keys() == bad.keys()
    for key, reason in {
        "in/cut.tar": "ends within the member 'sub/b.csv'", "in/cut.tgz": "broken",
        "in/cut.zip": "the archive is broken", "in/damaged.zip": "member 'a.csv': its content is broken",
        "in/other.tar": "member 'b.csv': its header differs",
    }.items():  # fmt: skip
        assert reason in reasons[key]
    again = loading.load("in/", loader=loader, format="csv", system_columns=("_object", "_row_number"))
    assert (again.loaded, again.failed, again.known_bad) == (0, 0, len(bad))


def test_a_table_is_made_of_json_members_and_bad_rows_are_kept(loading: Loading) -> None:
    rows = [b'{"n": %d, "s": "x"}\n' % n for n in range(50)]
    loading.put(
        {
            "a.tar.gz": gzip.compress(tar([("1.json", b"".join(rows[:20])), ("1.flac", bytes(2000))])),
            "b.zip": zipped([("2.jsonl", b"".join(rows[20:40]) + b'{"n": \n'), ("3.jsonl", b"".join(rows[40:]))]),
        }
    )
    report = loading.load(on_bad_rows="keep")
    assert (report.loaded, report.failed, report.rows, report.rejected) == (2, 0, 50, 1)
    assert loading.rows("n, s", "n") == [(n, "x") for n in range(50)]
    assert loading.query(f"SELECT key, row_number FROM {loading.table}_rejected") == [("b.zip", 20)]


def test_a_bomb_fails_alone(loading: Loading) -> None:
    packed = gzip.compress(b"n\n" + b"1\n" * 2_000_000)
    loading.put({"bomb.zip": zipped([("a.csv.gz", packed)]), "b.csv": b"n\n1\n"})
    report = loading.load(format="csv", limits=LoadLimits(bytes=1_000_000))
    assert (report.loaded, report.failed) == (1, 1)
    assert "more than 1000000 bytes" in loading.reasons()["bomb.zip"]
