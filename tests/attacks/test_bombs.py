"""Attacks with small objects that become large: each fails alone with its reason, and other objects are loaded.

The attacker may put objects into a bucket that is loaded.
"""

from __future__ import annotations

import gzip
import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import clickhouse_connect
import pyarrow as pa
import pytest

from storeside.stack.servers import clickhouse as server
from storeside.stack.servers import s3
from storeside.stack.servers.clickhouse_users import LOADER, PAGES
from storeside.stack.settings import HOST, Stack
from storeside.transfer.base import watch
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request import options
from storeside.transfer.request.options import LoadLimits
from tests.support import unique
from tests.transfers import Loading, parquet

MB = 1 << 20
LOADERS = ("pull", "push")


def gzipped(head: bytes, piece: bytes, times: int) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(times):
            file.write(piece)
    return packed.getvalue()


def many_rows() -> bytes:
    """30 million rows."""
    return gzipped(b"s\n", b"a\n" * MB, 30)


def long_rows() -> bytes:
    """600 MB in 6000 rows."""
    return gzipped(b"s\n", (b"x" * 100_000 + b"\n") * 10, 600)


def load_with_bomb(loading: Loading, key: str, bomb: bytes, **request: Any) -> str:
    """Load a bomb among good objects; return the reason why it failed."""
    loading.create("s String")
    suffix = "parquet" if key.endswith(".parquet") else "csv"
    good = parquet({"s": ["good"]}) if suffix == "parquet" else b"s\ngood\n"
    loading.put({key: bomb, **{f"{n}.{suffix}": good for n in range(3)}})
    assert len(bomb) < 4 * MB
    report = loading.load(format=suffix, **request)
    assert (report.loaded, report.failed, report.rows) == (3, 1, 3)
    assert loading.rows("DISTINCT s") == [("good",)]
    return loading.reasons()[key]


@pytest.mark.parametrize("loader", LOADERS)
def test_many_rows(loading: Loading, loader: str) -> None:
    reason = load_with_bomb(loading, "bomb.csv.gz", many_rows(), loader=loader, limits=LoadLimits(rows=1_000_000))
    assert reason == "it has more than 1000000 rows: divide it, or raise the rows of `limits`"


@pytest.mark.parametrize("loader", LOADERS)
def test_long_rows(loading: Loading, loader: str) -> None:
    reason = load_with_bomb(loading, "bomb.csv.gz", long_rows(), loader=loader, limits=LoadLimits(bytes=50 * MB))
    assert reason.startswith(f"its content has more than {50 * MB} bytes")


@pytest.mark.parametrize("loader", LOADERS)
def test_more_than_the_ratio_allows(loading: Loading, loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_ANY_RATIO", MB)
    bomb = long_rows()
    reason = load_with_bomb(loading, "bomb.csv.gz", bomb, loader=loader, limits=LoadLimits(ratio=20))
    assert reason.startswith(f"its content has more than {20 * len(bomb)} bytes")


def test_content_that_the_worker_decompresses(loading: Loading) -> None:
    """ClickHouse would take a truncated zstd stream for a whole one, so the worker reads it."""
    packed = pa.compress(b"s\n" + (b"x" * 100_000 + b"\n") * 3000, codec="zstd", asbytes=True)
    reason = load_with_bomb(loading, "bomb.csv.zst", packed, loader="push", limits=LoadLimits(bytes=50 * MB))
    assert reason.startswith(f"its content has more than {50 * MB} bytes")


@pytest.mark.parametrize("loader", LOADERS)
def test_a_small_parquet_object(loading: Loading, loader: str) -> None:
    table = pa.table({"s": pa.array(["x" * 100_000]).take(pa.array([0] * 6000))})
    bomb = parquet(table, compression="zstd", row_group_size=500)
    reason = load_with_bomb(loading, "bomb.parquet", bomb, loader=loader, limits=LoadLimits(bytes=50 * MB))
    assert reason.startswith(f"its content has more than {50 * MB} bytes")


@pytest.mark.parametrize("loader", LOADERS)
def test_bytes_that_are_written_before_anything_is_watched(
    loading: Loading, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_SECONDS", 100.0)
    bomb = gzipped(b"s\n", b"x" * 100_000 + b"\n", 400)
    reason = load_with_bomb(loading, "bomb.csv.gz", bomb, loader=loader, limits=LoadLimits(bytes=5 * MB))
    assert reason.startswith(f"its content has more than {5 * MB} bytes")


def test_rows_that_are_written_before_anything_is_watched(loading: Loading) -> None:
    bomb = b"s\n" + b"a\n" * 5000
    reason = load_with_bomb(loading, "bomb.csv", bomb, limits=LoadLimits(rows=1000))
    assert reason.startswith("it has more than 1000 rows")


def test_time(loading: Loading) -> None:
    reason = load_with_bomb(loading, "bomb.csv.gz", many_rows(), limits=LoadLimits(seconds=1))
    assert "Timeout exceeded" in reason
    assert "raise the seconds of `limits`" in reason


@pytest.mark.parametrize("on_drift", ["add", "widen"])
def test_columns_of_an_existing_table(loading: Loading, on_drift: str) -> None:
    names = ["s", *(f"c{n}" for n in range(300))]
    bomb = b"%s\n%s\n" % (",".join(names).encode(), b",".join([b"1"] * len(names)))
    reason = load_with_bomb(loading, "bomb.csv", bomb, on_drift=on_drift, limits=LoadLimits(columns=200))
    assert reason == "with its 300 new columns the table exceeds 200 columns: see `limits`"


def test_columns_of_a_new_table(loading: Loading) -> None:
    names = [f"c{n}" for n in range(300)]
    loading.put({"bomb.csv": b"%s\n%s\n" % (",".join(names).encode(), b",".join([b"1"] * len(names)))})
    with pytest.raises(TransferInputError, match="would have 300 columns, but `limits` allows 200"):
        loading.load(limits=LoadLimits(columns=200))
    assert loading.query(f"EXISTS {loading.table}") == [(0,)]


def test_other_loads_go_on_meanwhile(loading: Loading) -> None:
    """Two bombs of one row each take as much memory as a statement may have."""
    own = s3.of_stack("s3", loading.stack)  # as each task has
    other = Loading(loading.stack, loading.clickhouse, own)
    other.put({f"{n}.csv": b"n\n%d\n" % n for n in range(20)})
    loading.create("s String")
    loading.put({f"{n}.csv.gz": gzipped(b"s\n", b"x" * MB, 600) for n in range(2)})
    bombs = loading.transfer(format="csv")
    bombs.client.set_client_setting("max_memory_usage", str(400 * MB))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: bombs.run(bombs.prepare()))
        while not running.done():
            other.put({f"{unique('more')}.csv": b"n\n1\n"})
            assert other.load().failed == 0
    assert running.result().failed == 2
    assert {"Query memory limit exceeded" in reason for reason in loading.reasons().values()} == {True}


def test_loads_and_pages_leave_memory_to_the_ledger(stack: Stack, clickhouse: Any) -> None:
    """No user may take all memory of the server, so the ledger can be written while bombs are loaded."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * server.MEMORY_RATIO
    for user, name in ((LOADER, "max_memory_usage_for_user"), (PAGES, "max_memory_usage")):
        client = clickhouse_connect.get_client(
            host=HOST, port=stack.ports["clickhouse_http"], username=user, password=server.passwords(stack)[user]
        )
        (most,) = client.query(f"SELECT toUInt64(getSetting('{name}'))").first_row
        assert 0 < most <= 0.8 * total
