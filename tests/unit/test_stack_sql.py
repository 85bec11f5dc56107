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
