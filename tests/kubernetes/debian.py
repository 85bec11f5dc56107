"""Debian's packages that need not be installed: downloaded by apt, and unpacked below the cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from storeside.stack.settings import StackError

PACKAGES = ("containernetworking-plugins",)


def unpack(cache: Path) -> Path:
    """Return a folder with the files of `PACKAGES`; raises StackError if apt has them not."""
    folder = cache / f"debian-{hashlib.sha256(repr(PACKAGES).encode()).hexdigest()[:10]}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="debian-", dir=cache))
    try:
        _run(work, "apt-get", "download", "--quiet", *PACKAGES)
        for archive in work.glob("*.deb"):
            _run(work, "dpkg-deb", "--extract", str(archive), "root")
        (work / "root").rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}: run apt-get update and try again")
