"""The Makefile: the files that it deletes, and its installation, with stand-ins for Python and uv."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT

# A python3 of version $VERSION, whose pip installs a uv that records its arguments.
PYTHON = """\
#!/bin/bash
case "$*" in
    *"sys.version_info"*) [[ $VERSION == 3.11 || $VERSION == 3.12 ]] ;;
    *ensurepip*) [[ -z ${NO_VENV:-} ]] ;;
    *native.build*) [[ -z ${NO_HEADERS:-} ]] || { printf 'error: %s\n' "$NO_HEADERS" "second line" >&2; exit 1; } ;;
    "-m venv"*) mkdir -p "$3/bin" && touch "$3/pyvenv.cfg" && ln -s "$(command -v pip)" "$3/bin/pip" ;;
    *) exit 0 ;;
esac
"""
PIP = """\
#!/bin/bash
echo "$*" >> pip-asked
ln -s "$(command -v uv)" "${0%/*}/uv"
"""
UV = """\
#!/bin/bash
echo "$*" >> asked
[[ -z ${NO_NETWORK:-} || $1 != venv ]] || exit 2
[[ $1 != venv ]] || { mkdir -p .venv/bin && ln -sf "$(command -v python3)" .venv/bin/python; }
"""
NATIVE = [f"include/storeside/transformers/native/{name}" for name in ("pcm.c", "signal.c", "signal.h")]
NEEDED = ("bash", "chmod", "ln", "mkdir", "rm", "rmdir", "touch")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with only the files that an installation reads, and a folder of programs for PATH."""
    folder = tmp_path / "checkout"
    for name in ("Makefile", "requirements.lock", *NATIVE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(CHECKOUT / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in NEEDED:
        (programs / name).symlink_to(shutil.which(name) or "")
    for name, text in (("python3", PYTHON), ("pip", PIP), ("uv", UV)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return folder


def make(checkout: Path, *targets: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(checkout.parent / "bin"), "HOME": "/none", **variables}
    command = [shutil.which("make") or "make", *targets]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def put(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


# deletion


def test_clean_leaves_what_is_not_ours(checkout: Path, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "data", tmp_path / "cache"
    theirs = {"photos/1.jpg", "test-results/state/1", "bench/state/1", "cache/mine/1"}
    put(elsewhere / "aisnode-v1" / "aisnode", *(home / path for path in theirs))
    put(home / "state" / "stack.json", home / "uv" / "pyvenv.cfg")
    put(
        *(
            home / "cache" / path
            for path in ("aisnode-v1/aisnode", "aisnode.lock", "airflow-3.db", "hsds-3.11-1/bin/x")
        )
    )
    for name in ("test", "test-gw0", "chaos"):
        put(home / name / "state" / "stack.json")
        (home / name / "cache").symlink_to(elsewhere)
    put(checkout / ".venv" / "lib")
    done = make(checkout, "clean", STORESIDE_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert {str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir()} == theirs
    assert (elsewhere / "aisnode-v1" / "aisnode").exists(), "the link of a cache was followed"
    assert not (checkout / ".venv").exists()


def test_clean_removes_a_folder_that_holds_nothing_else(checkout: Path) -> None:
    put(checkout / ".storeside" / "state" / "stack.json", checkout / ".storeside" / "test" / "state" / "stack.json")
    put(checkout / ".storeside" / "cache" / "aisnode-v1" / "aisnode", checkout / ".storeside" / "uv" / "pyvenv.cfg")
    assert make(checkout, "clean").returncode == 0
    assert not (checkout / ".storeside").exists()


def test_clean_deletes_what_tests_and_options_put_into_the_cache(checkout: Path) -> None:
    names = ("atheris-cp311", "axe", "bench", "celery-3.11-1", "containers", "go-1", "govulncheck-1", "kubernetes")
    cache = checkout / ".storeside" / "cache"
    put(cache / "govulncheck.lock", *(cache / name / "folder" / "file" for name in names))
    assert make(checkout, "clean").returncode == 0
    assert not cache.exists()


def test_clean_removes_the_stacks_of_tests(checkout: Path) -> None:
    for name in ("test", "test-gw1", "test-backends", "chaos"):
        put(checkout / ".storeside" / name / "state" / "stack.json", checkout / ".storeside" / name / "allowed.txt")
    own = checkout / ".storeside" / "allowed.txt"
    put(checkout / ".storeside" / "state" / "stack.json", own)
    assert make(checkout, "clean").returncode == 0
    assert list((checkout / ".storeside").iterdir()) == [own], "the owner wrote it"


def test_clean_does_not_delete_a_stack_that_it_cannot_stop(checkout: Path) -> None:
    record = checkout / ".storeside" / "state" / "stack.json"
    put(record)
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3.0")
    done = make(checkout, "clean")
    assert done.returncode != 0
    assert "error: the Python of .venv was removed: run 'make install' first" in done.stderr
    assert record.exists()


def test_clean_of_a_home_that_was_never_used_deletes_nothing(checkout: Path, tmp_path: Path) -> None:
    theirs = [tmp_path / "data" / name / "mine" for name in ("cache", "state", "uv", "test", "bench")]
    put(*theirs)
    assert make(checkout, "clean", STORESIDE_HOME=str(tmp_path / "data")).returncode == 0
    assert all(path.exists() for path in theirs)


def test_a_folder_of_the_name_of_uv_is_not_replaced(checkout: Path, tmp_path: Path) -> None:
    put(tmp_path / "data" / "uv" / "mine")
    done = make(checkout, "install", STORESIDE_HOME=str(tmp_path / "data"), VERSION="3.12")
    assert done.returncode != 0
    assert (
        f"error: {tmp_path}/data/uv exists and was not created by Storeside: set STORESIDE_HOME to a new"
        in done.stderr
    )
    assert (tmp_path / "data" / "uv" / "mine").exists()


def test_a_home_with_spaces_is_refused_before_anything_is_deleted(checkout: Path, tmp_path: Path) -> None:
    put(tmp_path / "my" / "photo", tmp_path / "my data" / "state" / "stack.json")
    done = make(checkout, "clean", STORESIDE_HOME=str(tmp_path / "my data"))
    assert done.returncode != 0
    assert "make cannot work in a path with spaces, choose another folder" in done.stderr
    assert (tmp_path / "my" / "photo").exists()
    assert (tmp_path / "my data" / "state" / "stack.json").exists()


# installation


@pytest.mark.parametrize(("version", "wanted"), [("3.12", "python3"), ("3.11", "python3"), ("3.13", "3.12")])
def test_uv_brings_a_python_where_none_fits(checkout: Path, version: str, wanted: str) -> None:
    done = make(checkout, "install", VERSION=version)
    assert done.returncode == 0, done.stderr
    assert "--require-hashes" in (checkout / "pip-asked").read_text()
    first = (checkout / "asked").read_text().splitlines()[0]
    assert first == f"venv --quiet --clear --python {wanted} .venv"
    assert os.path.exists(checkout / ".venv" / ".installed")


def test_an_interpreter_without_venv_is_no_obstacle_where_another_has_it(checkout: Path) -> None:
    programs = checkout.parent / "bin"
    (programs / "python3.12").write_text('#!/bin/bash\nVERSION=3.12 NO_VENV=1 exec python3 "$@"\n')
    (programs / "python3.12").chmod(0o755)
    done = make(checkout, "install", VERSION="3.13")
    assert done.returncode == 0, done.stderr
    assert (checkout / "asked").read_text().startswith("venv --quiet --clear --python python3.12 .venv\n")


def test_an_environment_that_moved_or_lost_its_python_is_created_again(checkout: Path) -> None:
    moved = checkout.with_name("moved")
    for expected in (1, 1):
        assert make(checkout, "install", VERSION="3.12").returncode == 0
        assert (checkout / "asked").read_text().count("venv --quiet --clear") == expected
    checkout.rename(moved)
    assert make(moved, "install", VERSION="3.12").returncode == 0
    assert (moved / "asked").read_text().count("venv --quiet --clear") == 2
    (moved / ".venv" / "bin" / "python").unlink()
    (moved / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3.0")
    assert make(moved, "status", VERSION="3.12").returncode == 0
    assert (moved / "asked").read_text().count("venv --quiet --clear") == 3


def test_a_copied_checkout_imports_its_own_code(checkout: Path) -> None:
    uv = checkout.parent / "bin" / "uv"
    uv.write_text(f"#!/bin/bash\n[[ $1 != venv ]] || {sys.executable} -m venv --without-pip --clear .venv\n")
    assert make(checkout, "install", VERSION="3.12").returncode == 0
    copy = checkout.with_name("copy")
    shutil.copytree(checkout, copy, symlinks=True)
    for folder in (checkout, copy):
        asked = [folder / ".venv" / "bin" / "python", "-c", "import storeside; print(*storeside.__path__)"]
        done = subprocess.run(asked, env={}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(folder / "include" / "storeside")


def test_what_is_missing_is_said(checkout: Path) -> None:
    done = make(checkout, "install", VERSION="3.13", NO_VENV="1")
    assert done.returncode != 0
    assert "error: python3 is absent or has no module venv: apt-get install python3 python3-venv" in done.stderr
    done = make(checkout, "install", VERSION="3.13", NO_NETWORK="1")
    assert done.returncode != 0
    assert (
        "error: Python 3.11 or 3.12 is not installed, and uv cannot download it: install it, or set BASE"
        in done.stderr
    )


def test_a_missing_library_is_one_line_and_no_obstacle(checkout: Path) -> None:
    missing = "headers are missing for libavformat: apt-get install libavformat-dev"
    done = make(checkout, "install", VERSION="3.11", NO_HEADERS=missing)
    assert done.returncode == 0, done.stderr
    (note,) = [line for line in done.stderr.splitlines() if "audio" in line]
    assert note.startswith("note: without the native audio library, audio is transcoded 5 to 9 times slower.")
    assert f". {missing}; then run .venv/bin/python -m storeside.transformers.native.build" in note
    assert "second line" not in done.stderr
    (checkout / ".venv" / ".installed").unlink()
    assert "native" not in make(checkout, "install", VERSION="3.11").stderr


def test_open_is_a_choice_of_up(checkout: Path) -> None:
    assert "stack up" in (default := make(checkout, "--dry-run", "up").stdout)
    assert "--open" not in default
    assert "--open" in make(checkout, "--dry-run", "up", OPEN="1").stdout


# help


def test_targets_are_listed_in_groups_and_benchmarks_apart(checkout: Path) -> None:
    (checkout.parent / "bin" / "awk").symlink_to(shutil.which("awk") or "")
    usual, benchmarks = make(checkout, "help").stdout, make(checkout, "help-bench").stdout
    assert re.findall(r"^\S.*:$", usual, re.MULTILINE) == [
        "Try it:",
        "Use it:",
        "Test it:",
        "Measure it:",
        "Change it:",
    ]
    listed = {name for text in (usual, benchmarks) for name in re.findall(r"^  (\S+) ", text, re.MULTILINE)}
    described = re.findall(r"^([a-z]\S*):.* ## ", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(described)
    assert {"k8s-test", "upload", "help-bench", "bench"} <= set(re.findall(r"^  (\S+) ", usual, re.MULTILINE))
    assert not re.search("^  bench-", usual, re.MULTILINE)
    assert set(re.findall(r"^  (\S+)", benchmarks, re.MULTILINE)) == {n for n in described if n.startswith("bench-")}
