"""``python slim.py VENV``, after the packages of an image were installed: removes what no program of the image uses.

It removes packages' own tests, sources and stubs for compilers, symbols that only debuggers read, and the parts in
`UNUSED`; then it compiles the rest to bytecode, because the image's user may not write it. The stage needs binutils.
``tests/containers/test_compose.py`` imports what is left, in the images.
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Parts that no module imports, except on a user's request.
UNUSED = (
    "Cython",  # compiles HSDS when its wheel is built; it does not even import without its C sources
    "cython.py",
    "pyximport",
    "hive_metastore",  # pyiceberg's client of Hive's catalog
    "kubernetes/aio",  # a second client; Airflow's provider uses kubernetes_asyncio, Storeside kubernetes.client
    "pyarrow/_flight.*.so",  # the client and server of Arrow Flight
    "pyarrow/libarrow_flight.so*",
    "pyarrow/libarrow_python_flight.so*",
    "pyarrow/_s3fs.*.so",  # Arrow's own client of S3; Airflow uses s3fs, Storeside boto3
    "pyarrow/libarrow_s3.so*",
)
# For C compilers, Cython and type checkers.
SUFFIXES = frozenset((".a", ".c", ".cc", ".cpp", ".h", ".hpp", ".pxd", ".pyi", ".pyx"))
_LOCALES = "babel/locale-data"
_TRANSLATIONS = "flask_appbuilder/translations"


def main(environment: str) -> None:
    """Slim an environment and compile it; print how much was removed."""
    (packages,) = Path(environment).glob("lib/python3*/site-packages")
    before = _size(packages)
    for path in unneeded(packages):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    strip(packages)
    print(f"{environment}: {before} MB without bytecode, now {_size(packages)} MB")
    compileall.compile_dir(packages, quiet=2, workers=0)


def unneeded(packages: Path) -> Iterator[Path]:
    """Yield the files and folders that `main` removes."""
    for part in UNUSED:
        yield from packages.glob(part)
    yield from _unused_locales(packages)
    folders = [packages]
    while folders:
        for path in list(folders.pop().iterdir()):
            if path.is_dir() and not path.is_symlink():
                if path.name == "tests" and path.parent != packages:
                    yield path
                else:
                    folders.append(path)
            elif path.suffix in SUFFIXES:
                yield path


def _unused_locales(packages: Path) -> Iterator[Path]:
    """Yield the locales of languages into which Airflow's pages of users and roles are not translated."""
    translations = packages / _TRANSLATIONS
    if not translations.is_dir():
        return
    used = {"root", "en", *(path.name.partition("_")[0] for path in translations.iterdir() if path.is_dir())}
    yield from (p for p in (packages / _LOCALES).glob("*.dat") if p.stem.partition("_")[0] not in used)


def strip(packages: Path) -> None:
    """Remove the symbols of extension modules.

    Folders such as ``numpy.libs`` stay as they are: auditwheel changed their libraries, and some do not load after
    ``strip``.
    """
    found = [path for path in packages.rglob("*.so*") if path.is_file() and not _is_repaired(path, packages)]
    for start in range(0, len(found), 200):
        subprocess.run(["strip", "--strip-unneeded", *map(str, found[start : start + 200])], check=True)


def _is_repaired(path: Path, packages: Path) -> bool:
    return path.relative_to(packages).parts[0].endswith(".libs")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000


if __name__ == "__main__":
    main(sys.argv[1])
