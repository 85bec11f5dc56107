"""Packages that are installed into the cache when they are first needed, and verified by hash."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from storeside.stack.settings import StackError, default_folder


def uv(what: str) -> str:
    """Return the path of uv. Raises StackError, which states `what` needs it, if uv is absent."""
    own = default_folder() / "uv" / "bin" / "uv"
    command = str(own) if own.exists() else shutil.which("uv")
    if command is None:
        raise StackError(f"uv is needed to install {what} and is not at {own}: run 'make install'")
    return command


def install(what: str, lock: Path, folder: Path) -> Path:
    """Install the packages of a lock file into `folder` and return it; `folder` appears only when it is complete.

    Raises:
        StackError: uv is absent, a download fails, or a package has another hash.
    """
    if folder.exists():
        return folder
    command = uv(what)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    step = ("pip", "install", "--quiet", "--require-hashes", "--no-deps", "--target", str(new), "-r", str(lock))
    try:
        done = subprocess.run([command, *step], capture_output=True, text=True, check=False)
        if done.returncode:
            raise StackError(f"{what} cannot be installed: {' '.join(done.stderr.split())[-500:]}")
        with suppress(OSError):  # another process has installed it meanwhile
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder
