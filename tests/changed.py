"""The tests of the second tier that belong to a change: ``python -m tests.changed BASE`` prints and runs them.

A test file belongs to a change if the change touches the file itself, a module of `tests` that it imports, or a
module of the product that it or such a module imports, directly or through others. Names in quotes count as imports:
commands that a test starts (``"storeside.transfer"``), DAGs (``"speech_pipeline"``), SQL files that a module reads.
Tests of the first tier are left out, because `make test` runs them.

Almost every test loads something, so that a change of a low module belongs to almost every file. At most
`LIMIT_SECONDS` of recorded durations run; beyond that, the files that are most imports away from the change are left
out and named, of these the dearest first. A file that the change itself touches is never left out.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from storeside.stack.settings import CHECKOUT
from tests import durations

LIMIT_SECONDS = 600
FOLDERS = ("tests/unit", "tests/integration", "tests/attacks", "tests/e2e")
# A folder of the checkout and the package as which its modules are imported.
PACKAGES = {"operators": "storeside.operators", "plugins": "storeside.plugins", "include/storeside": "storeside"}


def main() -> int:
    """Choose, print and run; return pytest's exit status, or 0 if no test belongs to the change."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="the commit before the change")
    parser.add_argument("--list", action="store_true", help="print the tests only")
    options = parser.parse_args()
    changed = changes(options.base)
    chosen, left_out = cut(belonging(changed))
    for kind, files in (("", chosen), ("left out: ", left_out)):
        for file, reason in files.items():
            print(f"{kind}{file}: {reason}; {durations.expected(file):.0f} s")
    total = sum(map(durations.expected, chosen))
    print(
        f"{len(changed)} changed files, {len(chosen)} test files of {total:.0f} s, {len(left_out)} left out",
        flush=True,
    )
    if options.list or not chosen:
        return 0
    command = [sys.executable, "-m", "pytest", *chosen, "-m", "not chaos and not first", "-n", "3"]
    status = subprocess.run(command, cwd=CHECKOUT, check=False).returncode
    return 0 if status == 5 else status  # 5: all tests of these files are of the first tier


def changes(base: str) -> set[str]:
    """Return the paths that differ between a commit and the work tree. Ends the process for an unknown commit."""
    command = ["git", "diff", "--name-only", base, "--"]
    done = subprocess.run(command, cwd=CHECKOUT, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: BASE={base} is no commit of this checkout: {done.stderr.strip()}")
    return set(done.stdout.splitlines())


@dataclass(frozen=True)
class Reason:
    """Why a test file belongs to a change: the changed path, and the imports from the file to it; 0 for itself."""

    imports: int
    path: str

    def __str__(self) -> str:
        return f"{self.imports} imports from {self.path}" if self.imports else "changed"


def belonging(changed: Collection[str]) -> dict[str, Reason]:
    """Return the test files of the second tier that belong to a change."""
    importers = _importers()
    found: dict[str, Reason] = {}
    for path in sorted(changed):
        for module, imports in _distances({module_of(path): 0} | dict.fromkeys(_readers(path), 1), importers).items():
            file = f"{module.replace('.', '/')}.py"
            if _second_tier(file) and (file not in found or imports < found[file].imports):
                found[file] = Reason(imports, path)
    return found


def cut(found: Mapping[str, Reason]) -> tuple[dict[str, Reason], dict[str, Reason]]:
    """Return the test files that fit into `LIMIT_SECONDS`, the nearest first, and those that are left out."""
    total = sum(map(durations.expected, found))
    kept = dict(sorted(found.items(), key=lambda item: (item[1].imports, durations.expected(item[0]))))
    left_out = {}
    while kept and total > LIMIT_SECONDS:
        file, reason = kept.popitem()
        if not reason.imports:
            kept[file] = reason
            break
        left_out[file] = reason
        total -= durations.expected(file)
    return kept, left_out


def _second_tier(file: str) -> bool:
    """Return whether a path is a test file that has tests beyond the first tier."""
    path = CHECKOUT / file
    if not file.startswith(FOLDERS) or not path.name.startswith("test_") or not path.exists():
        return False
    return not file.startswith("tests/unit/") or "exhaustive" in path.read_text()


def module_of(path: str) -> str:
    """Return the module of a path in the checkout; for a data file, the package that contains it."""
    for folder, package in PACKAGES.items():
        if path.startswith(f"{folder}/"):
            path = package.replace(".", "/") + path.removeprefix(folder)
            break
    file = Path(path)
    return ".".join((file.with_suffix("") if file.suffix == ".py" else file.parent).parts).removesuffix(".__init__")


def _distances(start: Mapping[str, int], importers: Mapping[str, set[str]]) -> dict[str, int]:
    """Return these modules and everything that imports them, with the number of imports between."""
    found = dict(start)
    waiting = sorted(found, key=found.__getitem__)
    for module in waiting:  # grows
        for importer in sorted(importers.get(module, set()) - found.keys()):
            found[importer] = found[module] + 1
            waiting.append(importer)
    return found


@cache
def _sources() -> dict[str, ast.Module]:
    """Return the syntax tree of each module of the product, the DAGs and the tests."""
    paths = [
        path.relative_to(CHECKOUT)
        for folder in (*PACKAGES, "dags", "tests") for path in sorted((CHECKOUT / folder).rglob("*.py"))
    ]  # fmt: skip
    return {module_of(str(path)): ast.parse((CHECKOUT / path).read_text()) for path in paths}


@cache
def _importers() -> dict[str, set[str]]:
    """Return the modules that import or name each module."""
    found: dict[str, set[str]] = defaultdict(set)
    modules = _sources()
    dags = {name.removeprefix("dags."): name for name in modules if name.startswith("dags.")}
    for name, tree in modules.items():
        for imported in _names(tree):
            # `from package import name` names a module or an object of the package.
            for target in (imported, imported.rpartition(".")[0], f"{imported}.__main__", dags.get(imported, "")):
                if target in modules and target != name:
                    found[target].add(name)
    return found


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isprintable():
            yield node.value


def _readers(path: str) -> set[str]:
    """Return the modules that name a data file, with or without its ending."""
    file = Path(path)
    if file.suffix == ".py":
        return set()
    wanted = {file.name, path, file.stem if file.suffix == ".sql" else path}
    return {name for name, tree in _sources().items() if not wanted.isdisjoint(_names(tree))}


if __name__ == "__main__":
    sys.exit(main())
