"""Text whose columns a load infers, in the engine in this process, and Python's csv and json modules.

Each file is inferred in all orders of its rows, also divided into two objects. Files with the same columns are then
loaded by one load, each in two orders.
"""

from __future__ import annotations

import logging
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.samples.columns import sample_columns
from storeside.transfer.tables.table import LOAD_ID
from storeside.transfer.types.inference import NoTypeError
from tests.fuzz.differential.inferred_files import File, made
from tests.fuzz.differential.inferred_rules import are_rows_same, shown
from tests.fuzz.differential.outcome import Outcome
from tests.fuzz.tables import Held
from tests.statements import Engine, Files, Statements
from tests.transfers import request_of

# Files of one load; their objects are twice as many.
TOGETHER = 200
# Files that are loaded before the next ones are made.
_AT_ONCE = 10_000
_DIGITS = re.compile(r"\d+")

Columns = tuple[Column, ...]


def compare_csv(files: int, seed: int) -> Outcome:
    """Compare CSV with commas, semicolons and bars."""
    return _compare("csv", files, seed)


def compare_tsv(files: int, seed: int) -> Outcome:
    """Compare CSV with tabs."""
    return _compare("tsv", files, seed)


def compare_jsonl(files: int, seed: int) -> Outcome:
    """Compare JSON Lines."""
    return _compare("jsonl", files, seed)


def _compare(family: str, files: int, seed: int) -> Outcome:
    logging.getLogger("storeside").setLevel(logging.ERROR)
    outcome = Outcome(family, files, refused_though_valid=0)
    engine = Engine()
    try:
        for begin in range(0, files, _AT_ONCE):
            some = [made(family, seed, number) for number in range(begin, min(begin + _AT_ONCE, files))]
            compare_files(outcome, engine, some)
    finally:
        engine.close()
    return outcome


def compare_files(outcome: Outcome, engine: Engine, files: Sequence[File]) -> None:
    """Infer and load these files, and add to the outcome how that compares with what Python reads."""
    groups: dict[tuple[Any, Columns], list[File]] = defaultdict(list)
    for file in files:
        first, *others = _inferred(engine, file)
        other = next(
            (one for one in others if one != first and not isinstance(one, str) & isinstance(first, str)), None
        )
        if other is not None:
            outcome.order_dependent.append(_about(file, f"columns {first} or {other}"))
        elif isinstance(first, str):
            _refused(outcome, file, first)
        else:
            groups[file.options, first].append(file)
    for (_, columns), some in groups.items():
        for begin in range(0, len(some), TOGETHER):
            _load(outcome, engine, columns, some[begin : begin + TOGETHER])


def _inferred(engine: Engine, file: File) -> Iterator[Columns | str]:
    """Yield the columns that a load infers from each order, also divided into two objects, or why it refuses."""
    options = dict(file.options)
    request = request_of(Files("fuzz", "", endpoint="/"), "data.t", **options)
    form = request.form(options["format"])
    orders = file.orders() if file.is_sampled_whole else iter((file.lines,))
    for n, order in enumerate(orders):
        contents = [file.content(order)]
        if n % 2 and len(order) > 1 and not file.tail and "on_bad_rows" not in options:
            cut = 1 + n % (len(order) - 1)
            contents = [file.content(order[:cut]), file.content(order[cut:])]
        try:
            yield tuple(sample_columns(engine, request, form, [Held(f"a.{file.suffix}", c) for c in contents]))
        except (LoadObjectError, TransferInputError, NoTypeError, DatabaseError) as e:
            yield f"refused: {_kind_of(str(e))}"


def _kind_of(reason: str) -> str:
    """Return a reason without what differs from file to file."""
    return _DIGITS.sub("N", reason)[:120]


def _refused(outcome: Outcome, file: File, reason: str) -> None:
    outcome.refused += 1
    if file.is_valid and any(file.rows(file.lines)):
        _count_valid(outcome, reason)


def _count_valid(outcome: Outcome, reason: str) -> None:
    """Count a file of which the product refuses rows that are valid."""
    outcome.refused_though_valid = (outcome.refused_though_valid or 0) + 1
    outcome.stricter[_kind_of(reason)] += 1


def _load(outcome: Outcome, engine: Engine, columns: Columns, files: Sequence[File]) -> None:
    """Load each file in two orders into one new table, and judge all of them."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        statements = Statements(engine, Path(folder))
        tried: dict[str, tuple[File, tuple[str, ...]]] = {}
        for file in files:
            rng = random.Random(file.number)  # noqa: S311
            orders = [file.lines, tuple(rng.sample(file.lines, len(file.lines)))]
            for n, order in enumerate(orders[: 1 + file.is_sampled_whole]):
                tried[f"{file.number:06}-{n}.{file.suffix}"] = file, order
        statements.put({key: file.content(order) for key, (file, order) in tried.items()})
        try:
            statements.load(system_columns=("_row_number",), **dict(files[0].options))
            found = _found(statements)
        except TransferInputError as e:
            found = dict.fromkeys(tried, Found(columns, reason=str(e)))
        finally:
            statements.drop()
            engine.command(f"DROP TABLE IF EXISTS {statements.table}_rejected SYNC")
        for file in files:
            keys = [key for key, (tried_file, _) in tried.items() if tried_file is file]
            _judge(outcome, file, [(tried[key][1], found[key]) for key in keys])


@dataclass(frozen=True)
class Found:
    """The rows of an object in a table with these columns, or the reason why it failed.

    `rejected` are the texts and the reasons of the rows that the load has put aside.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str | None]] = ()
    reason: str = ""
    rejected: tuple[tuple[str, str], ...] = ()


def _found(statements: Statements) -> dict[str, Found]:
    """Return what a load has made of each object."""
    columns = tuple(Column(name, kind) for name, kind in statements.types().items() if name != "_row_number")
    values = ", ".join(shown(identifier(c.name), c.type) for c in columns)
    rows = defaultdict(list)
    for load, _, *row in statements.query(
        f"SELECT {LOAD_ID}, _row_number, {values} FROM {statements.table} ORDER BY 1, 2"
        " SETTINGS output_format_json_quote_64bit_integers = 0, output_format_json_quote_denormals = 1"
    ):
        rows[load].append(row)
    rejected = _rejected(statements)
    return {
        key: Found(columns, rows[load], rejected=tuple(rejected[load])) if reason is None
        else Found(columns, reason=reason)
        for load, (key, reason) in statements.newest().items()
    }  # fmt: skip


def _rejected(statements: Statements) -> dict[int, list[tuple[str, str]]]:
    """Return the texts and the reasons of rejected rows by load."""
    found, table = defaultdict(list), f"{statements.table}_rejected"
    if statements.query(f"EXISTS TABLE {table}") == [(1,)]:
        for load, raw, reason in statements.query(f"SELECT load_id, raw, reason FROM {table} ORDER BY 1, row_number"):
            found[load].append((raw, reason))
    return found


def _judge(outcome: Outcome, file: File, tried: Sequence[tuple[tuple[str, ...], Found]]) -> None:
    refused = [found for _, found in tried if found.reason]
    if 0 < len(refused) < len(tried):
        outcome.order_dependent.append(_about(file, f"one order is refused: {refused[0].reason}"))
    elif refused:
        _refused(outcome, file, refused[0].reason)
    elif file.is_unclear:
        outcome.silent.append(_about(file, "it has no header or another delimiter, and is loaded"))
    elif wrong := [(order, found) for order, found in tried if not _is_right(file, order, found)]:
        order, found = wrong[0]
        outcome.silent.append(_about(file, f"{file.content(order)!r} is loaded as {found.rows!r} of {found.columns}"))
    elif len({tuple(sorted(raw for raw, _ in found.rejected)) for _, found in tried}) > 1:
        outcome.order_dependent.append(_about(file, f"rejected rows: {[found.rejected for _, found in tried]}"))
    elif valid := [why for _, found in tried for raw, why in found.rejected if any(file.rows([raw]))]:
        outcome.refused += 1
        _count_valid(outcome, f"a row: {valid[0]}")
    else:
        outcome.equal += 1


def _is_right(file: File, order: Sequence[str], found: Found) -> bool:
    """Return whether the rows of a file are in the table or rejected, each of them once."""
    names = [c.name for c in found.columns]
    others, ends = [*order], [line.rstrip("\r\n") for line in order]
    for raw, _ in found.rejected:
        if raw not in ends:
            return False
        others.pop(at := ends.index(raw))
        ends.pop(at)
    expected = [[row.get(name) for name in names] for row in file.rows(others)]
    return are_rows_same([c.type for c in found.columns], expected, found.rows)


def _about(file: File, what: str) -> str:
    return f"file {file.number} ({file.content(file.lines)!r}, {dict(file.options)}): {what}"
