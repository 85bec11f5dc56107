"""Each ORC object is read by a separate process, the fork of one that has imported pyarrow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import orc

from storeside.transfer.base.errors import LoadObjectError, TransferTransientError
from storeside.transfer.formats import orc_rows
from tests.support import until


class Object:
    """An object's content."""

    key = "in/a.orc"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def stream(self) -> Iterator[bytes]:
        for at in range(0, len(self.content), 1000):
            yield self.content[at : at + 1000]


def written(table: pa.Table, **options: Any) -> Object:
    sink = pa.BufferOutputStream()
    orc.write_table(table, sink, **options)
    return Object(sink.getvalue().to_pybytes())


def numbers(rows: int, start: int = 0) -> pa.Table:
    return pa.table({"n": range(start, start + rows), "s": [str(n) * 20 for n in range(rows)]})


def read(content: Object) -> pa.Table:
    return pa.Table.from_batches(orc_rows.stripes(content))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def readers() -> Iterator[list[Any]]:
    """The readers that are idle; none at first."""
    orc_rows._end()
    yield orc_rows._idle
    assert all(reader.runs for reader in orc_rows._idle)
    orc_rows._end()


def test_objects_are_read_by_forks_of_one_reader(readers: list[Any]) -> None:
    for start in range(20):
        table = numbers(100, start)
        assert read(written(table)) == table
    assert len(readers) == 1
    assert not psutil.Process(readers[0]._process.pid).children()


def test_all_stripes_in_order() -> None:
    table = numbers(200_000)
    content = written(table, stripe_size=64_000)
    batches = list(orc_rows.stripes(content))  # type: ignore[arg-type]
    assert len(batches) > 3
    assert pa.Table.from_batches(batches) == table


def test_a_broken_object_leaves_the_reader_as_it_was(readers: list[Any]) -> None:
    whole = written(numbers(100))
    for broken in (Object(b""), Object(b"ORC"), Object(whole.content[:-30])):
        with pytest.raises(LoadObjectError, match=r"its ORC content is corrupt: .+ \(status 1\)"):
            read(broken)
    assert read(whole).num_rows == 100
    assert len(readers) == 1


def test_a_moment_that_orc_can_hold_is_no_corruption() -> None:
    last = pa.table({"t": pa.array([253402300799], pa.timestamp("s"))})
    with pytest.raises(LoadObjectError, match=r"it has a value that cannot be loaded: ORC timestamp .* out of range"):
        read(written(last))


def test_a_reading_that_stops_early_leaves_no_process(readers: list[Any]) -> None:
    content = written(numbers(500_000), stripe_size=64_000)
    for _ in range(3):
        batches = orc_rows.stripes(content)  # type: ignore[arg-type]
        next(batches)
        batches.close()
    assert not psutil.Process(readers[0]._process.pid).children()
    assert read(content).num_rows == 500_000
    assert len(readers) == 1


def test_threads_have_separate_readers(readers: list[Any]) -> None:
    tables = [numbers(50_000, start) for start in range(12)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda table: read(written(table)), tables)) == tables
    assert 1 <= len(readers) <= 3


@pytest.mark.parametrize(
    ("victim", "sent", "error", "message"),
    [
        ("fork", signal.SIGKILL, LoadObjectError, "was killed, perhaps because the worker has too little memory"),
        ("fork", signal.SIGTERM, TransferTransientError, "'in/a.orc': the process that reads it was stopped"),
        (
            "reader",
            signal.SIGKILL,
            TransferTransientError,
            "'in/a.orc': it cannot be read in a separate process: the reader has ended",
        ),
    ],
)
def test_only_an_object_whose_process_is_killed_fails(
    victim: str, sent: int, error: type[Exception], message: str
) -> None:
    """Its rows may need too much memory: the other objects must be loaded nevertheless."""
    content = written(numbers(500_000), stripe_size=64_000)
    before = set(psutil.Process().children())
    batches = orc_rows.stripes(content)  # type: ignore[arg-type]
    next(batches)
    (reader,) = set(psutil.Process().children()) - before
    (reader.children()[0] if victim == "fork" else reader).send_signal(sent)
    with pytest.raises(error, match=message):
        list(batches)
    assert read(content).num_rows == 500_000


def test_a_full_temporary_folder_is_not_the_objects_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = written(numbers(2000))
    (tmp_path / "object.orc").symlink_to("/dev/full")
    with monkeypatch.context() as full:
        full.setattr(tempfile, "TemporaryDirectory", lambda: nullcontext(tmp_path))
        with pytest.raises(TransferTransientError, match=r"No space left on device: free some space .* TMPDIR"):
            read(content)
    assert read(content).num_rows == 2000


def test_a_killed_worker_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "a.orc").write_bytes(written(numbers(500_000), stripe_size=64_000).content)
    program = (
        "import pathlib, sys, time, types\n"
        "from storeside.transfer.formats import orc_rows\n"
        "content = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "next(orc_rows.stripes(types.SimpleNamespace(key='a', stream=lambda: [content])))\n"
        "batches = orc_rows.stripes(types.SimpleNamespace(key='a', stream=lambda: [content]))\n"
        "next(batches)\n"
        "print('reads', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.orc")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "reads\n"
        started = psutil.Process(worker.pid).children(recursive=True)
        assert len(started) >= 2, "a reader and its fork"
        worker.kill()
    until(lambda: not any(one.is_running() for one in started), 10, "the end of the processes", interval=0.1)


def test_a_reader_that_died_while_idle_is_replaced(readers: list[Any]) -> None:
    content = written(numbers(10))
    read(content)
    (dead,) = readers
    dead._process.kill()
    until(lambda: not dead.runs, 5, "the end of the reader")
    assert read(content).num_rows == 10
    assert readers != [dead]


def test_no_descriptor_is_left(readers: list[Any]) -> None:
    content = written(numbers(10))
    read(content)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read(content)
        with pytest.raises(LoadObjectError):
            read(Object(b"no ORC"))
    assert len(os.listdir("/proc/self/fd")) == before
