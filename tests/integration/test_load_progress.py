"""`storeside load` shows its progress while ClickHouse reads."""

from __future__ import annotations

from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.__main__ import main
from tests.transfers import Loading, environment


def test_the_command_shows_lines_of_progress(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("storeside.transfer.run.batch_threads._SHOW_SECONDS", 0)
    monkeypatch.setattr("storeside.transfer.printing._LINE_SECONDS", 0)
    loading.put({f"{n}.csv": b"n\n1\n" for n in range(2)})
    for name, value in environment(loading.stack).items():
        monkeypatch.setenv(name, value)
    assert main([f"s3://{loading.bucket}/", loading.table, "--collection", "storeside_s3"]) == 0
    said = capsys.readouterr()
    assert " of 2 objects, " in said.err
    assert "loaded   2" in said.out


def test_a_question_about_progress_that_fails_ends_no_load(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as with MEMORY_LIMIT_EXCEEDED, while the load itself takes the memory."""
    monkeypatch.setattr("storeside.transfer.run.batch_threads._LOG_SECONDS", 0)
    loading.put({f"{n}.csv": b"n\n%d\n" % n for n in range(3)})
    transfer = loading.transfer(batch_objects=1)
    asked: list[str] = []

    def fails(*_: Any) -> str:
        asked.append("")
        raise DatabaseError("Code: 241. DB::Exception: (total) memory limit exceeded (MEMORY_LIMIT_EXCEEDED)")

    monkeypatch.setattr("storeside.transfer.run.batch_threads.queries.being_read", fails)
    assert transfer.run(transfer.prepare()).loaded == 3
    assert asked
