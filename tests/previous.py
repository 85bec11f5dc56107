"""The code of the released version before this one, from the history of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT

VERSION = "0.1.0"
# Its last commit, which has no tag.
COMMIT = "602208ea1e74b5d97b871e13715b02be066d0676"


def unpack(folder: Path, *parts: str) -> Path:
    """Return `folder` with these folders of the version, or all of its checkout; skip the tests if there is none."""
    git = ["git", "-C", str(CHECKOUT)]
    known = shutil.which("git") and not subprocess.run(
        [*git, "cat-file", "-e", f"{COMMIT}^{{commit}}"], capture_output=True, check=False
    ).returncode  # fmt: skip
    if not known:
        pytest.skip(f"the history has no commit {COMMIT[:7]}, version {VERSION}: use a clone with history")
    folder.mkdir(exist_ok=True)
    archive = folder.with_suffix(".tar")
    subprocess.run([*git, "archive", "--output", str(archive), COMMIT, *parts], check=True, capture_output=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    return folder
