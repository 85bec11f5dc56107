"""Each row of the guarantees has a test in the first tier that proves it; it lists the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import durations, guarantees


def test_each_row_has_a_marked_test() -> None:
    assert set(guarantees.marked()) == set(guarantees.rows())


def test_rows_name_the_files_of_their_tests() -> None:
    rows = guarantees.rows()
    missing = {row: files - rows[row] for row, files in guarantees.marked().items() if files - rows[row]}
    assert missing == {}


@pytest.mark.parametrize("broken", ["| `load-once` | x | `unit/test_a.py` |\n", ""])
def test_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(guarantees, "CHECKOUT", tmp_path)
    (tmp_path / "docs").mkdir()
    other = "| row |\n|---|\n| `other-row` | `make chaos`, `e2e/test_b.py` |\n"
    text = f"| `dags` | x |\n\n| row | what |\n|---|---|\n{broken}\n{other}"
    (tmp_path / "docs/guarantees.md").write_text(text)
    expected = {"other-row": {"e2e/test_b.py"}} | ({"load-once": {"unit/test_a.py"}} if broken else {})
    assert guarantees.rows() == expected


def test_seconds_are_added_up_by_file() -> None:
    assert durations.by_file({"a.py::x": 1.0, "a.py::y[1]": 2.25, "b.py::z": 3}) == {"a.py": 3.2, "b.py": 3}
