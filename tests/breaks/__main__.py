"""``make test-the-tests``: break the product on purpose, and see whether the tests of the guarantee notice.

Each break changes a temporary copy of the checkout so that one row of the guarantees is false. Then the tests of that
row run in the copy, and at least one of them must fail; an error at collection or set-up does not count. The tests
share one stack, which starts with the first test that needs it. Prints a line per break, and BENCH lines at the end.
Exit status 1: a row has no break, or a break is not found, has no test, or does not apply any more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from storeside.stack.settings import CHECKOUT, Stack, default_folder
from storeside.stack.supervision.supervisor import Supervisor
from storeside.transformers.native.build import SOURCE
from tests import guarantees
from tests.breaks.breaks import BREAKS, Break

_NOT_FOUND = "NOT FOUND"
# Variables that lead to another stack, to other options of pytest, or to slower starts.
_OTHERS = ("STORESIDE_HOME", "PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Copy:
    """A copy of the checkout with uncommitted changes, its own stack, and the cache and uv of the checkout."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Copy:
        """Copy the files that git knows or does not ignore, and the native library beside its source."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=CHECKOUT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        libraries = (str(path.relative_to(CHECKOUT)) for path in SOURCE.parent.glob("*.so"))
        for name in filter(None, [*listed.split("\0"), *libraries]):
            source, target = CHECKOUT / name, folder / name
            if source.is_symlink() or source.exists():  # a deleted file is still in the index
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        (folder / ".storeside").mkdir()
        for name in ("cache", "uv"):  # tests may install what the cache lacks
            shared = default_folder() / name
            shared.mkdir(parents=True, exist_ok=True)
            (folder / ".storeside" / name).symlink_to(shared, target_is_directory=True)
        return cls(folder)

    @contextmanager
    def broken(self, it: Break) -> Iterator[None]:
        """Apply a break meanwhile. Raises ValueError when it does not apply."""
        whole = {self.folder / edit.file: (self.folder / edit.file).read_text() for edit in it.edits}
        for edit in it.edits:
            path = self.folder / edit.file
            path.write_text(edit.applied(path.read_text()))
        try:
            yield
        finally:
            for path, text in whole.items():
                path.write_text(text)

    def run(self, row: str) -> str:
        """Run the tests of a row until one fails; return its name, or `_NOT_FOUND` with the reason."""
        names = sorted(guarantees.marked().get(row, ()), reverse=True)  # unit tests first
        if not names:
            return f"{_NOT_FOUND}: no test has the marker"
        report = self.folder / ".storeside" / "report.xml"
        report.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if name not in _OTHERS}
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", *(f"tests/{name}" for name in names), "--guarantee", row,
                "--keep-stack", "--maxfail=1", "-p", "no:cacheprovider",
                f"--junit-xml={report}", "-o", "junit_family=xunit1",
            ],
            cwd=self.folder,
            env={**environment, "PYTHONPATH": str(self.folder / "include")},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314 - it is ours
        for case in cases:
            if case.find("failure") is not None:
                return f"{case.get('file')}::{case.get('name')}"
        return f"{_NOT_FOUND}: {_summary(done.stdout)}"

    def stop(self) -> None:
        """Stop the stack of the tests, if it runs."""
        stack = Stack.load(self.folder / ".storeside" / "test")
        if stack is not None:
            Supervisor(stack).stop()


def _summary(output: str) -> str:
    """Return pytest's line about an error at collection or set-up, or its last line, such as `1 passed in 2.10s`."""
    lines = output.strip().splitlines() or ["pytest printed nothing"]
    return next((line for line in lines if line.startswith("ERROR ")), lines[-1].strip("= "))


@contextmanager
def _copy() -> Iterator[Copy]:
    with tempfile.TemporaryDirectory(prefix="storeside-breaks-", ignore_cleanup_errors=True) as folder:
        copy = Copy.make(Path(folder))
        try:
            yield copy
        finally:
            copy.stop()


def found(copy: Copy, it: Break) -> str:
    """Return the test that finds a break, or `_NOT_FOUND` with the reason."""
    if it.restart:  # servers run the code that is broken
        copy.stop()
    try:
        with copy.broken(it):
            return copy.run(it.row)
    except ValueError as e:
        return f"{_NOT_FOUND}: {e}"
    finally:
        if it.restart:
            copy.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the chosen breaks; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="make test-the-tests", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    known = list(guarantees.rows())
    parser.add_argument(
        "--only", nargs="+", default=known, choices=known, metavar="ROW", help="rows of the guarantees"
    )
    parser.add_argument("--list", action="store_true", help="print the breaks and try none")
    given = parser.parse_args(arguments)
    chosen = [it for it in BREAKS if it.row in given.only]
    if given.list:
        for it in chosen:
            files = ", ".join(edit.file for edit in it.edits)
            print(f"{it.row:22} {it.what}: {files}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the stack is stopped
    missed = set(given.only) - {it.row for it in chosen}
    for row in sorted(missed):
        print(f"{row:22} {_NOT_FOUND}: the row has no break")
    with _copy() as copy:
        for it in chosen:
            began = time.monotonic()
            test = found(copy, it)
            print(f"{it.row:22} {time.monotonic() - began:6.1f} s  {it.what}: {test}", flush=True)
            if test.startswith(_NOT_FOUND):
                missed.add(it.row)
    print(f"BENCH tests.rows_of_guarantees {len(given.only)} rows")
    print(f"BENCH tests.broken_promises_found {len(set(given.only) - missed)} rows")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
