"""Base of the families of text: files through the product's loaders into ClickHouse, many in one load.

Files that Python accepts are loaded together, the others alone.
"""

from __future__ import annotations

import contextlib
import logging
import random
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storeside.ledger.objects import Ledger
from storeside.sql.quoting import identifier
from storeside.stack import cli, demo
from storeside.stack.servers import s3
from storeside.stack.settings import Stack, default_folder
from storeside.stack.supervision.supervisor import Supervisor
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.tables.table import LOAD_ID
from tests.fuzz.differential.loading import PULL, PUSH, Load, Loading
from tests.fuzz.differential.outcome import Outcome

Rows = list[tuple[Any, ...]]
# Files that share a table and a load.
TOGETHER = 200
# The worker pushes each object in a separate statement, which takes ten times as long:
# it gets one file of this number, and the files that only a worker can read.
_PUSHED = 4
# Groups that are compared at a time.
_AT_ONCE = 2


class Refused(Exception):
    """A reader refuses a file; the message states the reason."""


@dataclass(frozen=True)
class Group:
    """Files of one shape: their columns with ClickHouse types, how they are loaded, and how Python reads them."""

    columns: Mapping[str, str]
    request: Mapping[str, Any]
    files: Mapping[str, bytes]
    expected: Callable[[bytes], Rows]
    same: Callable[[Any, Any, str], bool]
    # Returns the title of the section of docs/differences.md by which these rows come of a file; empty where none is.
    intended: Callable[[bytes, Rows], str]
    notes: str = ""
    # Whether ClickHouse itself can read them.
    pulls: bool = True


@contextlib.contextmanager
def server() -> Iterator[tuple[Stack, Any, Any]]:
    """Run ClickHouse and S3 for a comparison."""
    logging.getLogger("storeside").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=default_folder()) as name:
        folder = Path(name)
        (folder / "cache").symlink_to(default_folder() / "cache", target_is_directory=True)
        stack = cli.up(folder, only=("s3", "clickhouse"))
        try:
            client = demo.clickhouse_client(stack)
            Ledger(client).create()
            yield stack, client, s3.of_stack("s3", stack)
        finally:
            Supervisor(stack).stop()


def compare_groups(
    outcome: Outcome, groups: Iterator[Group], client: Any, store: Any, *, pushed: int = _PUSHED
) -> Outcome:
    """Load each group with its loaders, and add to the outcome how that compares with what Python reads."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for one in pool.map(lambda group: _compared(outcome.family, group, client, store, pushed), groups):
            outcome.add(one)
    return outcome


def _compared(family: str, group: Group, client: Any, store: Any, pushed: int) -> Outcome:
    outcome = Outcome(family, len(group.files))
    expected = {key: _expected(group, content) for key, content in group.files.items()}
    table = f"data.fuzz_{uuid.uuid4().hex[:12]}"
    columns = ", ".join(f"{identifier(name)} {kind}" for name, kind in group.columns.items())
    client.command(f"CREATE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    first = PULL if group.pulls else PUSH
    loading = Loading(
        client, store, group.files, table, loader=first, system_columns=("_row_number",), **group.request
    )
    for loader in (PULL, PUSH) if group.pulls else (PUSH,):
        some = list(group.files)[::pushed] if group.pulls and loader == PUSH else list(group.files)
        load = loading.load(loader)
        rows = _loaded(group, load, loading, [key for key in some if isinstance(expected[key], list)])
        for key in some:
            if key not in rows and key not in load.noted.reasons:
                rows |= _loaded(group, load, loading, [key])
        load.close()
        for key in some:
            _judge(outcome, group, f"{key} by {loader}", group.files[key], expected[key], rows.get(key), load)
    loading.close()
    return outcome


def _expected(group: Group, content: bytes) -> Rows | Refused:
    try:
        return group.expected(content)
    except Refused as e:
        return e


def _loaded(group: Group, load: Load, loading: Loading, keys: Sequence[str]) -> dict[str, Rows]:
    names = ", ".join(map(identifier, group.columns))

    def rows(table: str) -> dict[int, Rows]:
        found: dict[int, Rows] = {}
        for load_id, _, *values in load.client.query(
            f"SELECT {LOAD_ID}, _row_number, {names} FROM {STAGING}.{identifier(table)} ORDER BY 1, 2"
        ).result_rows:
            found.setdefault(load_id, []).append(tuple(values))
        return found

    planned = [loading.planned[key] for key in keys if key in loading.planned]
    empty: dict[str, Rows] = {key: [] for key in keys if key not in loading.planned}
    return empty | load.read(planned, rows)


def _judge(
    outcome: Outcome, group: Group, what: str, content: bytes, expected: Rows | Refused, rows: Rows | None, load: Load
) -> None:
    wanted = None if isinstance(expected, Refused) else expected
    key = what.partition(" ")[0]
    if rows is None:
        outcome.refused += 1
        if wanted is not None:
            outcome.stricter[load.noted.reasons[key][:100]] += 1
    elif wanted is not None and are_same(group, wanted, rows):
        outcome.equal += 1
    elif title := group.intended(content, rows):
        outcome.intended[title] += 1
    else:
        python = f"Python refuses it: {expected}" if wanted is None else f"Python has {wanted!r}"
        outcome.silent.append(f"{what} ({group.notes}): {content!r}: {python}; loaded as {rows!r}")


def are_same(group: Group, expected: Sequence[tuple[Any, ...]], rows: Sequence[tuple[Any, ...]]) -> bool:
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
