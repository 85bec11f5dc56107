"""The command that tries a transformer on local files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT
from storeside.transformers.contract.failures import parse

TOLD = "tests.unit.transforms_for_tests:Told"


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "storeside.transformers.local", *map(str, arguments)]
    environment = {**{name: os.environ[name] for name in ("PATH", "PYTHONPATH")}, **variables}
    return subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("upper", "echo", "bad", "segv", "kind", "sidecar", "hang", "memory", "arguments", "silent"):
        (folder / name).write_bytes(b"some content")
    return folder


def test_results_are_kept_and_measured(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = run(TOLD, files / "upper", files / "arguments", files / "sidecar", "-o", out, "--arguments", "given")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{files / 'upper'}: 12 bytes in, 12 bytes out, 0.0")
    assert float(lines[0].split(" s, ")[1].split()[0]) > 10, "megabytes of memory"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        "upper": b"SOME CONTENT",
        "arguments": b"given",
        "sidecar": b"some content",
        "sidecar.json": b'{"bytes":12}',
    }


def test_results_have_the_extension_that_is_wished_and_are_told_as_json(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = run(TOLD, files / "upper", "-o", out, "--extension", ".loud", "--json")
    assert [path.name for path in out.iterdir()] == ["upper.loud"]
    said = json.loads(found.stdout)
    assert (said["file"], said["bytes_in"], said["bytes_out"]) == (str(files / "upper"), 12, 12)
    assert said["peak_bytes"] > 10_000_000
    (files / "upper.txt").write_bytes(b"")
    assert "must differ: upper.loud" in run(TOLD, files / "upper", files / "upper.txt", "--extension", "loud").stderr


def test_failures_as_json_read_as_in_the_journal_and_the_others_go_on(files: Path, tmp_path: Path) -> None:
    names = ("bad", "segv", "hang", "memory", "echo")
    limits = {"OBJECT_TIMEOUT": "1", "WORKER_MEMORY_LIMIT": "512Mi", "HANGING": str(tmp_path / "hanging")}
    found = run(TOLD, *(files / name for name in names), files / "missing", "--json", **limits)
    assert found.returncode == 1
    failed = {f.object: (f.reason, f.final) for f in parse(found.stdout)}
    assert failed == {
        "bad": ('no "good" object\nat all', True),
        "segv": ("the worker process died: signal 11 (SIGSEGV)", False),
        "hang": ("it took longer than 1 s (OBJECT_TIMEOUT) and was ended", False),
        "memory": ("the object needs more memory than WORKER_MEMORY_LIMIT allows (512 MiB)", True),
    }
    assert json.loads(found.stdout.splitlines()[-2])["file"] == str(files / "echo")
    assert f"{files / 'missing'}: No such file or directory" in found.stdout


def test_failures_are_told_by_file(files: Path) -> None:
    found = run(TOLD, files / "bad", files / "segv", files / "echo")
    assert found.stdout.splitlines()[:2] == [
        f'{files / "bad"}: failed: no "good" object at all',
        f"{files / 'segv'}: failed, and a job would try again: the worker process died: signal 11 (SIGSEGV)",
    ]


def test_path_and_content_must_give_the_same(files: Path) -> None:
    found = run(TOLD, files / "kind")
    assert found.returncode == 1
    assert "its path yields 3 bytes, its content 5 bytes, which differ" in found.stdout


def test_a_file_that_is_left_out_is_no_failure(files: Path, tmp_path: Path) -> None:
    found = run(TOLD, files / "silent", files / "upper", "-o", tmp_path / "results")
    assert found.returncode == 0
    assert f"{files / 'silent'}: left out: no reason given" in found.stdout
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["upper"]


def test_files_are_not_overwritten(files: Path, tmp_path: Path) -> None:
    found = run(TOLD, files / "upper", "-o", files)
    assert (found.returncode, (files / "upper").read_bytes()) == (1, b"some content")
    assert "choose another folder" in found.stderr
    (tmp_path / "upper").write_bytes(b"")
    assert "which must differ: upper" in run(TOLD, files / "upper", tmp_path / "upper").stderr


def test_a_transformer_that_cannot_be_made(files: Path) -> None:
    found = run("tests.unit.transforms_for_tests:Unmakeable", files / "upper")
    assert found.returncode == 1
    assert found.stderr.strip().startswith("error: RuntimeError: AUDIO_CODEC is not set")
