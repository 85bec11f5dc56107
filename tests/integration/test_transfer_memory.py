"""Memory use of a transfer: objects, rows and names that are larger than the worker may become."""

from __future__ import annotations

import base64
import gc
import gzip
import io
import random
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storeside.transfer.base import queries
from storeside.transfer.base.schema import Column
from tests.transfers import Loading, parquet

LOADERS = ("pull", "push")
MB = 1 << 20
# The worker may grow by this much; it loads more than twice as much here.
WORKER_MB = 60


@contextmanager
def bounded(most_mb: float = WORKER_MB) -> Iterator[None]:
    """Check that this process, which is the worker, does not grow by more than `most_mb` meanwhile."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak: earlier tests may have had a higher one
    before = resident("VmRSS")
    yield
    grown = (resident("VmHWM") - before) / 1024
    assert grown < most_mb, f"{grown:.0f} MB"


def resident(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which))


# plans


def test_a_large_plan_is_never_whole_in_the_worker(loading: Loading) -> None:
    loading.put({"year=2024/a.csv": b"n\n1\n"})
    transfer = loading.transfer(partition_columns=("year",), overlap_seconds=0)  # so that the plan is stored
    transfer.prepare()
    loading.clickhouse.command(
        "INSERT INTO storeside.load_plan (transfer, batch, key, version, size, load_id)"
        " SELECT {id:String}, 1, concat('year=', toString(number % 50), '/', toString(number)), 'v', 1, number"
        " FROM numbers(300_000)",
        parameters={"id": transfer.id},
    )
    with bounded():
        assert transfer._preparation.table.in_keys() == [Column("year", "Nullable(Int64)")]
        assert not transfer._preparation.table.look._are_all(transfer.plan.sample(200))
    transfer.plan.forget("load_plan")


# objects that are pushed


def test_a_pushed_gzip_is_never_whole_in_the_worker(loading: Loading) -> None:
    """Neither as stored nor unpacked: both are 150 MB, since packing at level 0 does not shrink data."""
    letters = base64.b64encode(random.Random(1).randbytes(750 * 1000))  # noqa: S311
    lines = b"".join(letters[n : n + 1000] + b"\n" for n in range(0, len(letters), 1000))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=0) as file:
        file.write(b"text\n")
        for _ in range(150):
            file.write(lines)
    assert packed.tell() > 150_000_000
    loading.put({"a.csv.gz": packed.getvalue()})
    del packed
    loading.create("text String")
    with bounded():
        assert loading.load(loader="push", format="csv").rows == 150_000


@pytest.mark.parametrize(
    ("limits", "rows", "group", "most_mb"),
    [
        ((), 16_000_000, 1_000_000, WORKER_MB),
        (("staging.push.WHOLE_PARQUET",), 32_000_000, 1_000_000, 90),
        (("staging.push.WHOLE_PARQUET", "formats.parquet.WHOLE_ROW_GROUP"), 8_000_000, 8_000_000, 45),
    ],
    ids=["as it is", "by row groups", "within a row group"],
)
def test_a_pushed_parquet_is_never_whole_in_the_worker(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, limits: tuple[str, ...], rows: int, group: int, most_mb: float
) -> None:
    """128 and 256 MB in row groups of 8 MB, and 64 MB in one; limits above these sizes are lowered.

    By row groups the worker grows by 41 to 67 MB for 128 MB and for 256 MB: the allocator keeps pages of each thread
    that fetches or decodes.
    """
    for limit in limits:
        monkeypatch.setattr(f"storeside.transfer.{limit}", 1000)
    numbers = pa.array(np.random.default_rng(1).integers(0, 1 << 60, rows))
    content = parquet({"n": numbers}, row_group_size=group, compression="none", use_dictionary=False)
    total = int(numbers.to_numpy().sum(dtype=np.uint64))  # ClickHouse adds modulo 2^64
    assert len(content) >= 8 * rows
    loading.put({"a.parquet": content})
    del content, numbers
    loading.create("n Int64")
    with bounded(most_mb):
        assert loading.load(loader="push", format="parquet").rows == rows
    assert loading.query(f"SELECT count(), sum(toUInt64(n)) FROM {loading.table}") == [(rows, total)]


# archives


@pytest.mark.parametrize("inside", ["large members", "many members"])
def test_an_archive_of_text_is_never_whole_in_the_worker(loading: Loading, inside: str) -> None:
    """160 MB in two members, or in 20,000, in a gzip that does not shrink them."""
    letters = base64.b64encode(random.Random(1).randbytes(6000))  # noqa: S311
    rows, members = (10_000, 2) if inside == "large members" else (1, 20_000)
    member = b"text\n" + (letters + b"\n") * rows
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=0) as file,
        tarfile.open(fileobj=file, mode="w|") as archive,
    ):
        for n in range(members):
            info = tarfile.TarInfo(f"{n}.csv")
            info.size = len(member)
            archive.addfile(info, io.BytesIO(member))
    assert packed.tell() > 160_000_000
    loading.put({"a.tar.gz": packed.getvalue()})
    del packed, member
    loading.create("text String")
    with bounded():
        assert loading.load(format="csv").rows == rows * members


@pytest.mark.parametrize("limit", [None, "staging.push.WHOLE_PARQUET"], ids=["as it is", "by row groups"])
def test_a_parquet_member_of_an_archive_is_never_whole_in_the_worker(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, limit: str | None
) -> None:
    """Two members of 128 MB in row groups of 8 MB, which are copied to the disk one after the other."""
    if limit:
        monkeypatch.setattr(f"storeside.transfer.{limit}", 1000)
    numbers = pa.array(np.random.default_rng(1).integers(0, 1 << 60, 16_000_000))
    content = parquet({"n": numbers}, row_group_size=1_000_000, compression="none", use_dictionary=False)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compresslevel=1) as archive:
        for n in range(2):
            archive.writestr(f"{n}.parquet", content)
    loading.put({"a.zip": packed.getvalue()})
    del content, numbers, packed
    loading.create("n Int64")
    with bounded(90):
        assert loading.load(format="parquet").rows == 32_000_000


# rows and names of excessive length

FORMS = {
    "csv": (b"n,s\n2,y\n3,", b"\n4,z\n", b"n,s\n1,x\n"),
    "jsonl": (b'{"n": 2, "s": "y"}\n{"n": 3, "s": "', b'"}\n{"n": 4, "s": "z"}\n', b'{"n": 1, "s": "x"}\n'),
}


def long(before: bytes, megabytes: int, after: bytes) -> bytes:
    """Return a small gzip of something long."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(before)
        for _ in range(megabytes):
            file.write(b"x" * MB)
        file.write(after)
    return packed.getvalue()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_300_mb_is_a_row(loading: Loading, form: str, loader: str) -> None:
    """ClickHouse has the memory for it, three times its length; the worker does not need any."""
    before, after, good = FORMS[form]
    loading.create("n Int64, s String")
    loading.put({f"long.{form}.gz": long(before, 300, after), f"good.{form}": good})
    with bounded():  # a worker that checks a JSON document holds all of it
        report = loading.load(loader=loader, format=form, strict_json=loader == "pull")
    assert (report.loaded, report.failed) == (2, 0)
    assert loading.rows("n, length(s)") == [(1, 1), (2, 1), (3, 300 * MB), (4, 1)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_needs_more_memory_than_a_statement_may_take(loading: Loading, form: str, loader: str) -> None:
    """Only its object fails, with a reason, and is not tried again; the others of its batch are loaded."""
    before, after, good = FORMS[form]
    loading.create("n Int64, s String")
    loading.put({f"long.{form}.gz": long(before, 300, after), **{f"{n}.{form}": good for n in range(5)}})
    transfer = loading.transfer(loader=loader, format=form, strict_json=False)
    transfer.client.set_client_setting("max_memory_usage", str(400 * MB))
    with bounded():
        report = transfer.run(transfer.prepare())
    loading.check(report)
    assert (report.loaded, report.failed, report.rows) == (5, 1, 5)
    reason = loading.reasons()[f"long.{form}.gz"]
    assert "Query memory limit exceeded" in reason
    assert "`max_memory_usage`" in reason
    assert loading.left(transfer) == []
    again = loading.load(loader=loader, format=form, strict_json=False)
    assert (again.skipped, again.known_bad) == (5, 1)


def test_a_worker_checks_json_documents_up_to_a_length(loading: Loading) -> None:
    before, after, good = FORMS["jsonl"]
    loading.create("n Int64, s String")
    loading.put({"long.jsonl.gz": long(before, 300, after), "good.jsonl": good})
    with bounded(300):
        report = loading.load(loader="push", format="jsonl")
    assert (report.loaded, report.failed) == (1, 1)
    assert (
        "does not end within 64 MB: divide it, or load with strict_json=False" in loading.reasons()["long.jsonl.gz"]
    )
    gc.collect()  # reports a connection that was not closed


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("form", "before", "after"),
    [("csv", b"n,s", b"\n4,z\n"), ("jsonl", b'{"n": 2, "s": "y"}\n{"n": 3, "s', b'": "z"}\n')],
)
def test_a_very_long_name_of_a_column(loading: Loading, form: str, before: bytes, after: bytes, loader: str) -> None:
    """A file of zeros has such a header. ClickHouse's error quotes all of it, and the client keeps several copies."""
    loading.create("n Int64, s String")
    loading.put({f"long.{form}.gz": long(before, 20, after), f"good.{form}": FORMS[form][2]})
    with bounded(20 * 15):
        report = loading.load(loader=loader, format=form)
    assert (report.loaded, report.failed) == (1, 1)
    reason = loading.reasons()[f"long.{form}.gz"]
    assert reason.startswith("Unknown field found")
    assert len(reason) < 1000


def test_a_statement_takes_half_of_the_servers_memory_unless_the_user_has_a_limit(loading: Loading) -> None:
    def half() -> int:  # the server adjusts its limit to the memory that other processes leave
        text = "SELECT toUInt64(value) FROM system.server_settings WHERE name = 'max_server_memory_usage'"
        return max(loading.query(text)[0][0] // 2, 2 << 30)

    before = half()
    client = loading.client()
    queries.bound_memory(client)
    limit = int(client.get_client_setting("max_memory_usage"))
    least, most = sorted((before, half()))
    assert least <= limit <= most
    assert client.query("SELECT getSetting('max_memory_usage')").first_row[0] == limit
    client.set_client_setting("max_memory_usage", "123456789")
    queries.bound_memory(client)
    assert client.get_client_setting("max_memory_usage") == "123456789"
