"""Builds the native audio library: ``python -m storeside.transformers.native.build``.

The build needs a C compiler, pkg-config and the headers of FFmpeg 5.1 or newer. It runs again only after the source
or a libav library has changed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

LIBRARIES = ("libavformat", "libavcodec", "libswresample", "libavutil")
# The first release with AVChannelLayout, FFmpeg 5.1 (doc/APIchanges).
OLDEST_LIBAVUTIL = "57.28"
SOURCE = Path(__file__).with_name("pcm.c")
PARTS = tuple(SOURCE.with_name(name) for name in ("signal.c", "signal.h"))
PACKAGES = "apt-get install gcc libc6-dev pkg-config " + " ".join(f"{name}-dev" for name in LIBRARIES)
FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra",
    "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-Wl,-z,relro,-z,now",
)  # fmt: skip


class BuildError(Exception):
    """The library cannot be built; the message states what is missing and how to install it."""


def library_path() -> Path:
    """Return the library's path: in ``STORESIDE_NATIVE_DIR``, by default next to its source."""
    return Path(os.environ.get("STORESIDE_NATIVE_DIR") or SOURCE.parent) / "libstoreside_pcm.so"


@cache
def source_digest() -> str:
    """Return the SHA-256 of the source files, in hex."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in (SOURCE, *PARTS))).hexdigest()


def build() -> bool:
    """Build the library unless it is up to date; return whether it was built. Raises BuildError."""
    compiler, pkg_config = _tool(os.environ.get("CC") or "cc"), _tool("pkg-config")
    _require_headers(pkg_config)
    versions = _run(pkg_config, "--modversion", *LIBRARIES).split()
    built_from = " ".join([source_digest(), *map("=".join, zip(LIBRARIES, versions, strict=True))])
    path = library_path()
    if _built_from(path) == built_from:
        return False
    libraries = [*_run(pkg_config, "--cflags", "--libs", *LIBRARIES).split(), "-lm"]
    defined = (f'-DBUILT_FROM="{built_from}"', f"-I{PARTS[0].parent}")
    sources = [str(path) for path in (SOURCE, *PARTS) if path.suffix == ".c"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(".so", dir=path.parent)
    except OSError as e:
        raise BuildError(f"{path.parent} cannot be written ({e.strerror}): set STORESIDE_NATIVE_DIR") from e
    os.close(handle)
    try:
        _run(compiler, *FLAGS, *defined, *sources, "-o", unfinished, *libraries)
        os.chmod(unfinished, 0o755)  # noqa: S103 - usual for libraries; another user may run the server
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return True


def _tool(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise BuildError(f"there is no {name}: {PACKAGES}")
    return found


def _require_headers(pkg_config: str) -> None:
    missing = [name for name in LIBRARIES if subprocess.run([pkg_config, "--exists", name], check=False).returncode]
    if missing:
        raise BuildError(f"headers are missing for {', '.join(missing)}: {PACKAGES}")
    if subprocess.run([pkg_config, f"--atleast-version={OLDEST_LIBAVUTIL}", "libavutil"], check=False).returncode:
        raise BuildError("libavutil is too old: install the headers of FFmpeg 5.1 or newer")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def _built_from(path: Path) -> str | None:
    """Return the source and libraries that the library at `path` was built from; None if it cannot be loaded."""
    try:
        library = ctypes.CDLL(str(path))
        library.storeside_built_from.restype = ctypes.c_char_p
        text: bytes = library.storeside_built_from()
    except (OSError, AttributeError):
        return None
    return text.decode()


def main() -> None:
    """Build the library and print the result, or the reason why it cannot be built."""
    try:
        built = build()
    except BuildError as e:
        sys.exit(f"error: {e}")
    print(f"{library_path()} {'is built' if built else 'is up to date'}")


if __name__ == "__main__":
    main()
