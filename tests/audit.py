"""``make audit``: known vulnerabilities in the installed packages, by the pinned versions and hashes, and in AIStore.

A vulnerability passes only with a written reason, a line of docs/advisories.txt. Exit status 1: at least one has no
reason; 2: the advisories are not available.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storeside.stack.building import nodes
from storeside.stack.settings import CHECKOUT, default_folder
from tests import audit_go

_STACK = CHECKOUT / "include" / "storeside" / "stack"
# The first of these contains all packages of the other images in the same versions: tests/unit/test_compose.py.
LOCKS = (
    CHECKOUT / "requirements.lock",
    _STACK / "images" / "airflow.lock",
    _STACK / "images" / "celery.lock",
    _STACK / "servers" / "hsds_requirements.txt",
    CHECKOUT / "tests" / "fuzz" / "atheris.lock",
    CHECKOUT / "tests" / "readers" / "requirements.lock",
)
REASONS = CHECKOUT / "docs" / "advisories.txt"
PIP_AUDIT = "pip-audit==2.10.1"


@dataclass(frozen=True)
class Advisory:
    """A vulnerability of a pinned package; `names` are all its identifiers."""

    package: str
    version: str
    names: tuple[str, ...]
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        fixed = f"mended in {', '.join(self.fixed)}" if self.fixed else "not mended yet"
        return f"{self.package} {self.version}: {' '.join(self.names)}: {fixed}"


def reasons(text: str) -> dict[str, str]:
    """Read the written reasons: ``IDENTIFIER package: why``. Raises ValueError for a line that has no reason."""
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"((?:GHSA|CVE|PYSEC|OSV|GO)-\S+) ([A-Za-z0-9._-]+): (\S.{20,})", line)
        if match is None:
            raise ValueError(f"{line!r}: write an advisory, its package and a reason: GHSA-… package: why")
        found[match[1]] = match[3]
    return found


def advisories(report: str) -> list[Advisory]:
    """Read pip-audit's JSON report. Raises ValueError if it is not one, or if it lacks some packages."""
    packages = json.loads(report)["dependencies"]
    skipped = [package["skip_reason"] for package in packages if "skip_reason" in package]
    if skipped or not packages:
        raise ValueError(f"{len(skipped)} of {len(packages)} packages were not looked at: {' '.join(skipped[:1])}")
    found = []
    for package in packages:
        for one in package["vulns"]:
            names = (one["id"], *one["aliases"])
            found.append(Advisory(package["name"], package["version"], names, tuple(one["fix_versions"])))
    return found


def judge(found: Sequence[Advisory], accepted: Mapping[str, str]) -> tuple[list[Advisory], set[str]]:
    """Return the advisories without a reason, and the reasons without an advisory."""
    left = [advisory for advisory in found if not accepted.keys() & set(advisory.names)]
    return left, accepted.keys() - {name for advisory in found for name in advisory.names}


def audit(uv: str, lock: Path) -> list[Advisory]:
    """Request the advisories of all packages of a lock file. Raises ValueError if there is no answer."""
    command = [
        uv, "tool", "run", "--quiet", "--from", PIP_AUDIT, "pip-audit", "--requirement", str(lock),
        "--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "60",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        said = done.stderr.strip().splitlines()
        raise ValueError(said[-1] if said else f"pip-audit ended with {done.returncode}")
    return advisories(done.stdout)


def main(uv: str) -> int:
    """Audit all lock files; return the exit status."""
    try:
        accepted = reasons(REASONS.read_text())
        found = list(dict.fromkeys(advisory for lock in LOCKS for advisory in audit(uv, lock)))
        for binary, names in audit_go.check(default_folder() / "cache").items():
            found += [Advisory(binary, nodes.VERSION, (name,), ()) for name in names]
    except (ValueError, KeyError, TypeError, OSError) as e:
        print(f"error: there are no advisories: {e}", file=sys.stderr)
        return 2
    left, outdated = judge(found, accepted)
    for advisory in left:
        print(advisory)
    for name in sorted(outdated):
        print(f"{name}: has a reason in {REASONS.name} and is no advisory of these packages any more: take it out")
    print(f"{len(found)} advisories, {len(found) - len(left)} with a reason, {len(left)} without")
    return 1 if left or outdated else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
