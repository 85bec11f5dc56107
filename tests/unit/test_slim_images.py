"""The files that `slim.py` removes from the environment of an image, and those that it keeps."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT

SLIM = CHECKOUT / "include" / "storeside" / "stack" / "images" / "slim.py"
KEPT = (
    "flask_appbuilder/translations/de/messages.po",
    "babel/locale-data/root.dat",
    "babel/locale-data/en_GB.dat",
    "babel/locale-data/de_AT.dat",
    "future/moves/test/support.py",
    "werkzeug/test.py",
    "jinja2/tests.py",
    "kubernetes/client/api.py",
    "pyarrow/libarrow.so.2600",
    "pyarrow/libarrow_substrait.so.2600",  # other libraries link to it
    "pyarrow/flight.py",
    "tests/top.py",  # no package's own tests
)
REMOVED = (
    "babel/locale-data/sw.dat",
    "h5py/tests/test_file.py",
    "scipy/stats/tests/data/values.npy",
    "kubernetes/aio/client.py",
    "pyarrow/_flight.cpython-311-x86_64-linux-gnu.so",
    "pyarrow/libarrow_flight.so.2600",
    "pyarrow/libarrow_python_flight.so",
    "pyarrow/include/arrow/api.h",
    "pyarrow/_s3fs.cpython-311-x86_64-linux-gnu.so",
    "pyarrow/libarrow_s3.so.2600",
    "Cython/Compiler/Code.py",
    "hive_metastore/ttypes.py",
    "numpy/__init__.pyi",
    "numpy/random/lib/libnpyrandom.a",
)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    for name in KEPT + REMOVED:
        path = tmp_path / "lib" / "python3.11" / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    return tmp_path


def test_the_image_keeps_what_programs_use(environment: Path) -> None:
    packages = environment / "lib" / "python3.11" / "site-packages"
    slim = runpy.run_path(str(SLIM))
    gone = {str(path.relative_to(packages)) for path in slim["unneeded"](packages)}
    for name in REMOVED:
        assert any(name == path or name.startswith(f"{path}/") for path in gone), name
    for name in KEPT:
        assert not any(name == path or name.startswith(f"{path}/") for path in gone), name


@pytest.mark.skipif(not shutil.which("strip"), reason="needs binutils, as the stage of the Dockerfile has")
def test_a_slimmed_environment_is_compiled_and_its_modules_load(tmp_path: Path) -> None:
    import msgspec

    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    shutil.copytree(Path(msgspec.__file__).parent, packages / "msgspec", ignore=shutil.ignore_patterns("__pycache__"))
    before = sum(path.stat().st_size for path in packages.rglob("*.so"))
    runpy.run_path(str(SLIM))["main"](str(tmp_path))
    assert sum(path.stat().st_size for path in packages.rglob("*.so")) < before
    assert list(packages.rglob("*.pyc"))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import msgspec as m; print(m.__file__, m.json.encode(1))"
    done = subprocess.run([sys.executable, "-c", code, packages], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{packages}/msgspec/__init__.py b'1'"


def test_auditwheels_libraries_are_not_stripped(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "numpy.libs").mkdir(parents=True)
    library = packages / "numpy.libs" / "libopenblas.so"
    library.write_text("no ELF file: strip would fail")
    runpy.run_path(str(SLIM))["strip"](packages)
    assert library.read_text()
