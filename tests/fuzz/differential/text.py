"""What the families of text share: files through the product's loaders into ClickHouse, many in one load."""

from __future__ import annotations

import contextlib
import logging
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from include.stack import cli, demo, s3
from include.stack.settings import Stack, default_folder
from include.stack.supervisor import Supervisor
from include.transfer.engine import MOST_FAILURES
from include.transfer.source import identifier
from include.transform.ledger import Ledger
from tests.fuzz.differential.outcome import Outcome
from tests.transfers import Loading

Rows = list[tuple[Any, ...]]
# Files that share a table and a load.
TOGETHER = 200
# The worker sends each object in a statement of its own, which takes ten times as long:
# one of so many files goes there.
_PUSHED = 4


class Refused(Exception):
    """A reader does not take a file; the message says why."""


@dataclass(frozen=True)
class Group:
    """Files of one shape: their columns with ClickHouse types, how they are loaded, and how Python reads them."""

    columns: Mapping[str, str]
    request: Mapping[str, Any]
    files: Mapping[str, bytes]
    expected: Callable[[bytes], Rows]
    same: Callable[[Any, Any, str], bool]
    # Returns the title of the section of docs/differences.md that explains a difference; empty where none does.
    intended: Callable[[bytes, Rows | None, Rows], str]
    notes: str = ""


@dataclass
class Found:
    """What the product has made of the files of a group."""

    rows: dict[str, Rows] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def server() -> Iterator[tuple[Stack, Any, Any]]:
    """Run ClickHouse and S3 for a comparison."""
    logging.getLogger("include").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=default_folder()) as name:
        folder = Path(name)
        (folder / "cache").symlink_to(default_folder() / "cache", target_is_directory=True)
        stack = cli.up(folder, only=("s3", "clickhouse"))
        try:
            client = demo.clickhouse_client(stack)
            Ledger(client).create()
            yield stack, client, s3.client("s3", stack.url("s3"), *s3.keys(stack))
        finally:
            Supervisor(stack).stop()


def compare_groups(
    outcome: Outcome, groups: Iterator[Group], stack: Stack, client: Any, store: Any, *, pushed: int = _PUSHED
) -> Outcome:
    """Load each group with both loaders, and add to the outcome how that compares with what Python reads."""
    for group in groups:
        some = dict(list(group.files.items())[::pushed])
        for loader, files in (("pull", group.files), ("push", some)):
            found = _loaded(group, files, loader, Loading(stack, client, store))
            for key, content in files.items():
                _judge(outcome, group, loader, key, content, found)
        outcome.files += len(group.files)
    return outcome


def _loaded(group: Group, files: Mapping[str, bytes], loader: str, loading: Loading) -> Found:
    loading.create(", ".join(f"{identifier(name)} {kind}" for name, kind in group.columns.items()))
    loading.put(files)
    transfer = loading.transfer(loader=loader, system_columns=("_object", "_row_number"), **group.request)
    report = transfer.run(transfer.prepare())
    assert len(report.failures) <= MOST_FAILURES
    found = Found(refused=loading.reasons())
    names = ", ".join(map(identifier, group.columns))
    for key, _, *values in loading.rows(f"_object, _row_number, {names}", "_object, _row_number"):
        found.rows.setdefault(key, []).append(tuple(values))
    loading.clickhouse.command(f"DROP TABLE {loading.table} SYNC")
    return found


def _judge(outcome: Outcome, group: Group, loader: str, key: str, content: bytes, found: Found) -> None:
    expected, why = None, ""
    try:
        expected = group.expected(content)
    except Refused as e:
        why = str(e)
    if key in found.refused:
        outcome.refused += 1
        if expected is not None:
            outcome.stricter[found.refused[key][:100]] += 1
        return
    rows = found.rows.get(key, [])
    if expected is not None and _are_same(group, expected, rows):
        outcome.equal += 1
    elif title := group.intended(content, expected, rows):
        outcome.intended[title] += 1
    else:
        what = f"Python refuses it: {why}" if expected is None else f"Python has {expected!r}"
        outcome.silent.append(f"{key} by {loader} ({group.notes}): {content!r}: {what}; loaded as {rows!r}")


def _are_same(group: Group, expected: Sequence[tuple[Any, ...]], rows: Sequence[tuple[Any, ...]]) -> bool:
    return len(expected) == len(rows) and all(
        len(one) == len(other)
        and all(group.same(a, b, kind) for a, b, kind in zip(one, other, group.columns.values(), strict=True))
        for one, other in zip(expected, rows, strict=True)
    )


def damaged(rng: random.Random, content: bytes, letters: Sequence[bytes]) -> bytes:
    """Return a file with one to three small faults."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(content) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            content = content[:at] + content[at + 1 :]
        elif kind == 1:
            content = content[:at] + rng.choice(letters) + content[at:]
        elif kind == 2:
            content = content[:at] + rng.choice(letters) + content[at + 1 :]
        else:
            end = at + rng.randrange(8)
            content = content[:at] + content[at:end] + content[at:end] + content[end:]
    return content
