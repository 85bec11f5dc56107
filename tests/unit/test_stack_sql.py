"""The prompt of ``make sql``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from storeside.stack import sql
from storeside.stack.settings import Stack


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
