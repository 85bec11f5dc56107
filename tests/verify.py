"""``make verify``: runs the targets that prove the product one after the other, and writes docs/verified.md.

The page is the record: it is written after each target, so an interrupted run resumes with the targets that have no
result for this tree yet, on any machine. ``--again`` repeats those that failed or could not run. A target cannot run
where the machine lacks something that it needs: it names that, and ends with the status `CANNOT_RUN`, which `make`
prints.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storeside.stack.settings import CHECKOUT, default_folder

CANNOT_RUN = 2
PAGE = CHECKOUT / "docs/verified.md"
TARGETS = (
    "lint", "test-all", "test-the-tests", "secure-test", "backends-test", "celery-test", "sources-test",
    "readers-test", "versions-test", "model", "fuzz", "k8s-test", "compose-test", "chaos",
)  # fmt: skip
_COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")
_PYTEST_END = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s.*$", re.MULTILINE)
_STATUS = re.compile(r"^make.*: \*\*\* \[.*\] Error (\d+)$", re.MULTILINE)
_OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
_ROW = re.compile(r"^\| `make (.+?)` \| `(.+?)` \| " + r" \| ".join([r"(.+?)"] * 7) + r" \|$", re.MULTILINE)
_HEADER = """\
# Verified

`make verify` runs the targets below and writes this page. Each line states the commit on which the target ran last;
tests that were skipped on that machine are counted. The numbers are those of pytest; the targets without tests have
their result only. [Where it was tested](running.md#where-it-was-tested) lists the systems that they cover, and the
gaps.

| target | commit | date | result | passed | failed | skipped | seconds | machine |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Result:
    """One run of a target. `outcome` is ``passed``, ``failed``, or the reason why it could not run."""

    target: str
    commit: str
    date: str
    outcome: str
    passed: int
    failed: int
    skipped: int
    seconds: int
    machine: str

    def row(self) -> str:
        """Return the line of the page."""
        values = (
            f"`{self.commit}`",
            self.date,
            self.outcome,
            self.passed,
            self.failed,
            self.skipped,
            self.seconds,
            self.machine,
        )
        return f"| `make {self.target}` | {' | '.join(map(str, values))} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing; return 1 if a target failed."""
    parser = argparse.ArgumentParser(prog="make verify", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=TARGETS, help="run these targets")
    parser.add_argument("--again", action="store_true", help="repeat targets that failed or could not run")
    options = parser.parse_args(arguments)
    if changed := _git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(CHECKOUT)}"):
        print(
            f"error: commit your changes first, so that the results belong to a commit:\n{changed}", file=sys.stderr
        )
        return 1
    commit = _git("rev-parse", "HEAD")
    results = {result.target: result for result in read(PAGE.read_text())}
    unchanged = {result.commit for result in results.values() if is_same_tree(result.commit)}
    folder = default_folder() / "verify"
    folder.mkdir(parents=True, exist_ok=True)
    for target in options.only:
        if is_done(results.get(target), unchanged, options.again):
            continue
        print(f"{target}: {folder / target}.log", flush=True)
        results[target] = run(target, commit, folder)
        print(f"{target}: {results[target].outcome}", flush=True)
        PAGE.write_text(page(results[target] for target in TARGETS if target in results))
    return int(any(results[target].outcome == "failed" for target in options.only))


def is_done(result: Result | None, unchanged: Collection[str], again: bool) -> bool:
    """Return whether a target has a result that counts: of one of the commits that are `unchanged` since."""
    return result is not None and result.commit in unchanged and (result.outcome == "passed" or not again)


def is_same_tree(commit: str) -> bool:
    """Return whether nothing but the page has changed since a commit; false if this clone does not have it."""
    command = ["git", "diff", "--quiet", commit, "HEAD", "--", ".", f":!{PAGE.relative_to(CHECKOUT)}"]
    return subprocess.run(command, cwd=CHECKOUT, check=False, stderr=subprocess.DEVNULL).returncode == 0


def read(text: str) -> list[Result]:
    """Return the results that a page states."""
    return [
        Result(target, commit, date, outcome, int(passed), int(failed), int(skipped), int(seconds), machine)
        for target, commit, date, outcome, passed, failed, skipped, seconds, machine in _ROW.findall(text)
    ]


def run(target: str, commit: str, folder: Path) -> Result:
    """Run one target; its output goes to a log in `folder`."""
    log = folder / f"{target}.log"
    started = time.monotonic()
    # make hands its variables on, such as the ARGS that belong to `make verify` itself.
    environment = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    with log.open("w") as file:
        done = subprocess.run(
            ["make", target], cwd=CHECKOUT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    seconds = round(time.monotonic() - started)
    return result_of(target, commit, done.returncode, log.read_text(errors="replace"), seconds)


def result_of(target: str, commit: str, status: int, output: str, seconds: int) -> Result:
    """Return the result of a target with this status and output."""
    counts = {"passed": 0, "failed": 0, "error": 0, "skipped": 0}
    for line in _PYTEST_END.findall(output):
        for count, kind in _COUNTS.findall(line):
            counts[kind.removesuffix("s")] += int(count)
    ended = _STATUS.findall(output)
    outcome = "passed" if status == 0 else "failed"
    if status and ended and int(ended[-1]) == CANNOT_RUN:
        why = [line for line in output.splitlines() if "cannot run: " in line]
        if why:
            outcome = "could not run: " + why[-1].partition("cannot run: ")[2].strip(" !")
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    failed = counts["failed"] + counts["error"]
    skipped = counts["skipped"]
    return Result(
        target, commit[:8], date, outcome.replace("|", "/"), counts["passed"], failed, skipped, seconds, machine()
    )


def machine() -> str:
    """Return what the page says of this machine."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def page(results: Iterable[Result]) -> str:
    """Return the text of docs/verified.md."""
    return _HEADER + "\n".join(result.row() for result in results) + "\n"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
