"""The prompt of ``make sql``."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from storeside.stack import sql
from storeside.stack.settings import HOST, Stack


def test_the_prompt_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = Stack.create(tmp_path, 0)
    lines = iter(["exit"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert sql.run(stack, "", as_json=False) == 0
    shown = capsys.readouterr().out
    assert stack.secrets["clickhouse"] not in shown
    assert str(stack.state / "stack.json") in shown


def test_another_program_at_the_port_gets_no_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = Stack.create(tmp_path, 0)
    with socket.create_server((HOST, stack.ports["clickhouse_http"])) as foreign:
        foreign.settimeout(0)
        assert sql.run(stack, "SELECT 1", as_json=False) == 1
        with pytest.raises(BlockingIOError):
            foreign.accept()
    assert capsys.readouterr().err == "error: ClickHouse does not run: see 'make status'\n"


@pytest.mark.parametrize(
    ("statement", "answer", "shown", "told"),
    [
        ("SELECT 1 WHERE 0;", "", "", "0 rows\n"),
        (" select 1", "1\n", "1\n", ""),
        ("CREATE TABLE t (n Int8) ENGINE = Memory", "", "", ""),
        ("INSERT INTO t SELECT 1", "", "", ""),
    ],
)
def test_a_query_without_rows_says_so_beside_its_output(
    statement: str, answer: str, shown: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sql._print(lambda _: answer, statement) == 0
    assert capsys.readouterr() == (shown, told)


def test_clickhouse_answers_with_nothing_if_there_are_no_rows() -> None:
    from chdb import query

    assert str(query("SELECT 1 WHERE 0", "PrettyCompactMonoBlock")) == ""
