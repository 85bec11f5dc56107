"""``make versions-test``: the unit tests with the oldest and with the newest packages that ``pyproject.toml`` allows.

Each set of versions has a separate environment in the state folder. Packages that only tests need have the versions
of ``requirements.lock``, unless a dependency of the package decides. At the end the table of docs/versions.md is
printed: for each package that ``pyproject.toml`` names, the version with which the tests ran.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from storeside.stack.settings import CHECKOUT, SOURCES, StackError, default_folder

# By set: how uv chooses versions.
SETS: Mapping[str, str] = {"oldest": "lowest-direct", "newest": "highest"}
# The unit tests import these packages, too. ministack and tools of `make lint` need exact versions of others.
TEST_PACKAGES = (
    "aiofiles", "allpairspy", "chdb-core", "flask", "gunicorn", "hypothesis", "import-linter", "lz4", "pillow",
    "protobuf", "psutil", "pytest", "pytest-timeout", "pytest-xdist", "supervisor", "trustme", "types-boto3[s3,sqs]",
    "webdataset", "zstandard",
)  # fmt: skip
_PIN = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
_NAME = re.compile(r"^[\w.-]+")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests with each set; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="make versions-test", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=SETS, help="run this set alone")
    given, rest = parser.parse_known_args(arguments)
    failed, found = [], {}
    for name in [given.only] if given.only else SETS:
        folder = default_folder() / "versions" / name
        try:
            found[name] = install(folder, SETS[name])
        except StackError as e:
            print(f"error: {name}: {e}", file=sys.stderr)
            return 1
        print(f"{name}: {folder}", flush=True)
        tests = rest or ["tests/unit", "-m", "first", "-n", "3"]
        command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{CHECKOUT}"}
        if subprocess.run(command, cwd=CHECKOUT, env=environment, check=False).returncode:
            failed.append(name)
    print(*table(found), sep="\n")
    for name in found:
        print(f"BENCH versions.{name}_failed {int(name in failed)} runs")
    return int(bool(failed))


def install(folder: Path, resolution: str) -> dict[str, str]:
    """Make the environment of a set, unless it exists; return its versions. Raises StackError."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted, pins = folder / "wanted.txt", folder / "pins.txt"
    _uv("pip", "compile", "pyproject.toml", "--extra", "all", "--resolution", resolution, "-o", str(pins))
    chosen = dict(_PIN.findall(pins.read_text()))
    ours = {re.sub("[-_.]+", "-", d.metadata["Name"]).lower(): d.version for d in distributions()}
    pins.write_text("".join(f"{name}=={version}\n" for name, version in (ours | chosen).items()))
    wanted.write_text("\n".join(TEST_PACKAGES))
    full = folder / "all.txt"
    _uv("pip", "compile", "pyproject.toml", str(wanted), "--extra", "all", "-c", str(pins), "-o", str(full))
    if not (folder / "bin" / "python").exists():
        _uv("venv", "--allow-existing", "--python", sys.executable, str(folder))
    _uv("pip", "sync", "--python", str(folder / "bin" / "python"), str(full))
    return dict(_PIN.findall(full.read_text()))


def table(found: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """Yield the lines of a table: each package that the project names, with its version in each set."""
    yield f"| package | {' | '.join(found)} |"
    yield f"|---{'|---' * len(found)}|"
    for name in direct():
        yield f"| {name} | {' | '.join(versions.get(name, '') for versions in found.values())} |"


def direct() -> list[str]:
    """Return the names of the packages that ``pyproject.toml`` names for users."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(p for extra in project["optional-dependencies"].values() for p in extra)]
    names = {found.group().lower() for text in named if (found := _NAME.match(text))}
    return sorted(names - {"storeside"})


def _uv(*arguments: str) -> None:
    uv = default_folder() / "uv" / "bin" / "uv"
    command = [str(uv), *arguments, "--quiet"]
    if arguments[:2] == ("pip", "compile"):
        command += ["--python", sys.executable, "--no-annotate", "--no-header"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"uv {' '.join(arguments[:2])}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
