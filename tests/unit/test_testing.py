"""The fixture with which users test their transformers: it shows what a job would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storeside.testing import Outcome, Served, served
from tests.support import files_of_page

__all__ = ["served"]

Start = Callable[..., Served]
TOLD = "tests.unit.transforms_for_tests:Told"


@pytest.mark.parametrize("example", ["words", "calls", "scaled", "speech", "packed"])
def test_the_template_of_the_documentation_passes(tmp_path: Path, example: str) -> None:
    files = files_of_page(rf"(?:my_package/|tests/test_){example}\.py")
    assert len(files) == 2
    for path, text in files.items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "storeside.testing", "-c", "/dev/null", "--rootdir", "."]
    done = subprocess.run([*command, "tests"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_outcomes_are_those_of_a_job(served: Start) -> None:
    told = served(TOLD, object_timeout=1)
    assert told.transform(b"content", "folder/upper") == Outcome(b"CONTENT")
    assert told.transform(b"content", "silent") == Outcome(left_out="no reason given")
    assert told.transform(b"content", "bad") == Outcome(failed='no "good" object\nat all', final=True)
    assert "the worker process died: signal 11" in told.over("hpush", b"content", "segv").failed
    assert "longer than 1 s (OBJECT_TIMEOUT)" in told.over("ws", b"content", "sleep-30").failed
    with pytest.raises(AssertionError, match="'kind' has another outcome"):
        told.transform(b"content", "kind")


def test_a_transformer_has_its_variables(served: Start) -> None:
    assert served("tests.transformers:sieve", {"LEAST": "9"}).transform(b"content").left_out == "shorter than 9 bytes"


def test_a_transformer_that_cannot_start_is_an_error(served: Start) -> None:
    with pytest.raises(AssertionError, match=r"does not start.*no_such_function"):
        served("tests.transformers:no_such_function")
