"""Checks the rows of staging tables against a suite, and moves rows that break expectations to the quarantine.

ClickHouse evaluates the expectations: the worker receives counts and a few examples, so its memory does not depend on
the number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.quality.errors import QualityError
from storeside.quality.given import OF_ALL_ROWS, Expectation, load_suite
from storeside.quality.results import validation_result
from storeside.quality.verdict import LONGEST_KEY, Check, ExpectationOutcome, Verdict
from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import (
    NO_SUCH_COLUMN,
    UNKNOWN_IDENTIFIER,
    UNKNOWN_TABLE,
    ExpectationsError,
    FailureKind,
    StaleError,
    TransferInputError,
    TransferTransientError,
    classify,
    code_of,
    shown,
)
from storeside.transfer.base.staging_tables import STAGING, bad_table
from storeside.transfer.staging.expectations import Rule, rules
from storeside.transfer.staging.gx_counts import EXAMPLES, Counts, GxCounts, jsonable
from storeside.transfer.state.loads import LONG, Planned, ids_text, slices
from storeside.transfer.state.validations import record
from storeside.transfer.tables.quarantine import COLUMNS, DEFINITION
from storeside.transfer.tables.table import LOAD_ID, Destination

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from storeside.transfer.staging.staging import Staged, Staging

log = logging.getLogger(__name__)

T = TypeVar("T")

# ClickHouse's errors if a column was added to the table after the staging table was made, or the latter was dropped.
_CHANGED = (NO_SUCH_COLUMN, UNKNOWN_IDENTIFIER, UNKNOWN_TABLE)
# Expectations in an error.
_NAMED = 10


@dataclass(frozen=True)
class _Result:
    """The result for one staging table; `invalid` counts rows that break at least one critical expectation."""

    rows: int
    invalid: int
    counts: tuple[Counts, ...]


class Validation:
    """The suite of a run and its results, which the threads of the run share."""

    def __init__(
        self, given: str | Mapping[str, Any], bucket: str, *, quarantine: bool, by_object: bool = False,
        key_column: str = "",
    ) -> None:  # fmt: skip
        self.suite = load_suite(given)
        self.text = text = given if isinstance(given, str) else self.suite.name
        self.bucket = bucket
        self.quarantine = quarantine
        self.by_object = by_object and not quarantine
        self.key_column = key_column
        self._results: dict[str, _Result] = {}
        self._shown = [0] * len(self.suite.expectations)
        unfit = ", ".join(sorted({e.type for e in self.suite.expectations if e.needs_all_rows}))
        if unfit and self.by_object:
            raise QualityError(
                f"suite {text}: {unfit} needs all rows of a load, and a queue of events has no end: leave it out"
            )
        if unfit and quarantine:
            raise QualityError(
                f"suite {text}: {unfit} cannot choose rows for the quarantine, because the batches of a load are"
                " published separately: leave it out, or use on_failed_expectations='fail'"
            )
        unfit = ", ".join(sorted({e.type for e in self.suite.expectations if e.by_gx and e.severity == "critical"}))
        if unfit and (self.by_object or quarantine):
            raise QualityError(
                f"suite {text}: Great Expectations evaluates {unfit}, and cannot choose single rows or objects: set"
                " their severity to warning" + (", or use on_failed_expectations='fail'" if quarantine else "")
            )
        by_gx = [e for e in self.suite.expectations if e.by_gx]
        self._by_gx = GxCounts(by_gx) if by_gx else None

    def examine(self, staging: Staging, staged: Staged) -> Staged:
        """Check the rows of a staging table; return the table without the rows that the quarantine receives.

        If objects fail one by one, the table is returned without those that fail, and the ledger has their reasons.
        Raises ExpectationsError if rows break expectations and there is no quarantine, QualityError if the suite
        cannot be applied to the table, and StaleError if the objects must be read again.
        """
        table = _Table(
            staging.client, staging.destination, staged, self.suite.expectations, self._by_gx,
            key_column=self.key_column,
        )  # fmt: skip
        found = _stale_if_transient(table.check)
        self._results[staged.table] = self._bounded(found)
        verdict = self._verdict([found])
        log.info("%s: %s", self.suite.name, shown(str(verdict)))
        if self.by_object:
            return self._without_broken(staging, table, staged) if found.invalid else staged
        if not self.quarantine and not verdict.success:
            raise ExpectationsError(
                f"rows break expectations of {self.text}, so nothing is published: {_explained(verdict)}",
                self.verdict() or {},
            )
        if not self.quarantine or not found.invalid:
            return staged
        staging.destination.quarantine.create()
        return _stale_if_transient(lambda: table.divided(self.bucket))

    def _without_broken(self, staging: Staging, table: _Table, staged: Staged) -> Staged:
        """Record the objects that do not meet the suite as failed, and remove their rows."""
        failed = {}
        for load_id, result in _stale_if_transient(table.by_load).items():
            verdict = self._verdict([result])
            if not verdict.success:
                failed[load_id] = f"its rows break expectations of {self.text}: {_explained(verdict)}"
        if not failed:
            return staged
        broken = [o.planned for o in staged.loaded if o.planned.load_id in failed]
        staging.work.loads.record_failed((o, FailureKind.OBJECT, failed[o.load_id]) for o in broken)
        return _stale_if_transient(lambda: table.without(broken))

    def _bounded(self, found: _Result) -> _Result:
        """Return a result without examples that no verdict shows, because earlier staging tables have enough."""
        counts = []
        for n, c in enumerate(found.counts):
            counts.append(replace(c, examples=c.examples[: max(0, EXAMPLES - self._shown[n])]))
            self._shown[n] += len(counts[-1].examples)
        return replace(found, counts=tuple(counts))

    def forget(self, table: str) -> None:
        """Forget the result for a staging table that is not published, because its objects are read again."""
        if (found := self._results.pop(table, None)) is not None:
            self._shown = [count - len(c.examples) for count, c in zip(self._shown, found.counts, strict=True)]

    def verdict(self) -> dict[str, Any] | None:
        """Return the verdict on all checked rows, of bounded size, as values for JSON; None without a check."""
        if not (results := list(self._results.values())):
            return None
        return {
            **self._verdict(results).to_dict(),
            "suite": self.suite.name,
            "given": self.text,
            "invalid": sum(r.invalid for r in results),
            "quarantine": self.quarantine,
            "by_object": self.by_object,
        }

    def record(self, client: Client, table: str, run_id: str) -> None:
        """Record the results for a table and a run in Great Expectations' own format, unless no rows were checked."""
        if results := list(self._results.values()):
            verdict = self._verdict(results)
            result = validation_result(self.suite, verdict.expectations, table, run_id)
            record(client, table, run_id, verdict, result)

    def _verdict(self, results: Sequence[_Result]) -> Verdict:
        """Return one verdict on the rows of several staging tables: `mostly` applies to their total."""
        outcomes = tuple(
            _outcome(e, [result.counts[n] for result in results]) for n, e in enumerate(self.suite.expectations)
        )
        success = all(outcome.success for outcome in outcomes if outcome.severity == "critical")
        return Verdict(success, sum(result.rows for result in results), outcomes)


def _outcome(e: Expectation, parts: Sequence[Counts]) -> ExpectationOutcome:
    rows, missing, broken = (sum(getattr(c, name) for c in parts) for name in ("rows", "missing", "broken"))
    present = rows - missing
    share = (present - broken) / present if present else 1.0
    examples = tuple(example for c in parts for example in c.examples)[:EXAMPLES]
    decided = [c for c in parts if c.success is not None]
    is_met = share >= e.mostly if e.columns else not broken
    return ExpectationOutcome(
        **vars(e.check), success=all(c.success for c in decided) if decided else is_met, element_count=rows,
        missing_count=missing, unexpected_count=broken, examples=examples,
        observed=decided[0].observed if decided else None,
    )  # fmt: skip


def _stale_if_transient(work: Callable[[], T]) -> T:
    """Call `work`. Raises StaleError if an error left a staging table in which rows or columns may be missing."""
    try:
        return work()
    except (DatabaseError, OperationalError) as e:
        error = classify(e)
        if isinstance(error, TransferTransientError) or code_of(e) in _CHANGED:
            raise StaleError(str(error)) from e
        raise TransferInputError(f"the rows cannot be checked: {error}") from e


def reason_of(check: Check) -> str:
    """Return the reason for which rows that break an expectation are in the quarantine."""
    return f"{check.description}: {check.column}" if check.column else check.description


def _explained(verdict: Verdict) -> str:
    """Return the expectations that are not met with counts and examples, as one line of bounded length."""
    failed = [e for e in verdict.failed if e.severity == "critical"]
    more = [f"and {len(failed) - _NAMED} more expectations"] if len(failed) > _NAMED else []
    return "; ".join([*map(_example, failed[:_NAMED]), *more])


def _example(e: ExpectationOutcome) -> str:
    if e.expectation in OF_ALL_ROWS and not e.columns:
        return shown(f"{e.expectation}: {e.description}: the load has {e.element_count} rows")
    text = f"{e.expectation}: {reason_of(e)}: {e.shortfall}{' rows' if e.observed is None else ''}"
    such = ", ".join(f"{value!r} in {key!r}" for key, value in e.examples[:2])
    return shown(f"{text}, such as {such}" if such else text)


class _Table:
    """The rows of one staging table: counts those that break expectations, and moves them to another table."""

    def __init__(
        self, client: Client, destination: Destination, staged: Staged, expectations: Sequence[Expectation],
        by_gx: GxCounts | None = None, *, key_column: str = "",
    ) -> None:  # fmt: skip
        self.client = client
        self.destination = destination
        self.staged = staged
        self._table = f"{STAGING}.{identifier(staged.table)}"
        self._key = identifier(key_column) if key_column else LOAD_ID
        self._expectations = expectations
        self._by_gx = by_gx
        self._rules = rules([e for e in expectations if not e.by_gx], destination.columns, self._table)
        self._critical = [rule for rule in self._rules if rule.expectation.severity == "critical"]

    def check(self) -> _Result:
        """Count the rows that break expectations."""
        counts = "".join(f", countIf({rule.missing}), countIf({rule.broken})" for rule in self._rules)
        row = self.client.query(
            f"SELECT count(), countIf({self._any_broken}){counts} FROM {self._table}", settings=LONG
        ).result_rows[0]
        rows, invalid, *numbers = map(int, row)
        found = [Counts(rows, *pair, ()) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
        in_clickhouse = map(self._completed, self._rules, found)
        if self._by_gx is None:
            return _Result(rows, invalid, tuple(in_clickhouse))
        names = {o.planned.load_id: o.planned.key for o in self.staged.loaded}
        of_key = (lambda key: names.get(key, "")) if self._key == LOAD_ID else str
        by_gx = iter(self._by_gx.count(self.client, self._table, self.destination.columns, self._key, of_key, rows))
        merged = tuple(next(by_gx if e.by_gx else in_clickhouse) for e in self._expectations)
        critical = [
            c.broken for e, c in zip(self._expectations, merged, strict=True) if e.by_gx and e.severity == "critical"
        ]
        return _Result(rows, max([invalid, *critical]), merged)

    def by_load(self) -> dict[int, _Result]:
        """Return the results of the loads that have rows which break critical expectations, by their ids."""
        keys = {o.planned.load_id: o.planned.key[:LONGEST_KEY] for o in self.staged.loaded}
        counts = "".join(
            f", countIf({rule.missing}), countIf({rule.broken}), anyIf(toString({rule.shown[0]}), {rule.broken})"
            for rule in self._rules
        )
        rows = self.client.query(
            f"SELECT {LOAD_ID}, count(), countIf({self._any_broken}) AS invalid{counts} FROM {self._table}"
            " GROUP BY 1 HAVING invalid > 0",
            settings=LONG,
        ).result_rows
        found = {}
        for load_id, count, invalid, *numbers in rows:
            triples = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
            in_sql = (Counts(count, m, b, ((keys[load_id], jsonable(v)),) if b else ()) for m, b, v in triples)
            found[load_id] = _Result(
                count,
                invalid,
                tuple(Counts(count, 0, 0, ()) if e.by_gx else next(in_sql) for e in self._expectations),
            )
        return found

    def without(self, objects: Sequence[Planned]) -> Staged:
        """Remove the rows of these loads from the staging table; return it with the others."""
        # Without its comment, no other process adopts the staging table.
        self.client.command(f"ALTER TABLE {self._table} MODIFY COMMENT ''")
        for some in slices(objects):
            self.client.command(
                f"ALTER TABLE {self._table} DELETE WHERE {LOAD_ID} IN ({ids_text(some)})",
                settings={**LONG, "mutations_sync": 1},
            )
        gone = {o.load_id for o in objects}
        loaded = [o for o in self.staged.loaded if o.planned.load_id not in gone]
        if self._count(self._table, LOAD_ID) != {o.planned.load_id: o.rows for o in loaded if o.rows}:
            raise StaleError(f"{self._table} has other rows than expected")
        return replace(self.staged, loaded=loaded)

    def _completed(self, rule: Rule, counts: Counts) -> Counts:
        """Return counts with examples; an expectation about the number of rows has only counts."""
        if rule.shown:
            return replace(counts, examples=self._examples(rule)) if counts.broken else counts
        return counts if _has_rows(rule.expectation.kwargs, counts.rows) else replace(counts, broken=counts.rows or 1)

    def _examples(self, rule: Rule) -> tuple[tuple[str, Any], ...]:
        keys = {o.planned.load_id: o.planned.key[:LONGEST_KEY] for o in self.staged.loaded}
        rows = self.client.query(
            f"SELECT {self._key}, {', '.join(rule.shown)} FROM {self._table} WHERE {rule.broken} LIMIT {EXAMPLES}",
            settings=LONG,
        ).result_rows
        values = [[jsonable(value) for value in row[1:]] for row in rows]
        return tuple(
            (
                keys.get(row[0], "") if self._key == LOAD_ID else str(row[0])[:LONGEST_KEY],
                found[0] if len(found) == 1 else found,
            )
            for row, found in zip(rows, values, strict=True)
        )

    @property
    def _any_broken(self) -> str:
        return " OR ".join(f"({rule.broken})" for rule in self._critical) or "0"

    def divided(self, bucket: str) -> Staged:
        """Move the rows that break expectations to the `bad_table`; return the staging table with the others."""
        bad = f"{STAGING}.{identifier(bad_table(self.staged.table))}"
        self.client.command(f"CREATE OR REPLACE TABLE {bad} ({DEFINITION}) ENGINE = MergeTree ORDER BY load_id")
        reasons = ", ".join(
            f"if({rule.broken}, {literal(reason_of(rule.expectation.check))}, '')" for rule in self._critical
        )
        row = ", ".join(identifier(c.name) for c in self.destination.columns)
        for some in slices([o.planned for o in self.staged.loaded]):
            ids = ids_text(some)
            keys, versions = (", ".join(map(literal, t)) for t in ([o.key for o in some], [o.version for o in some]))
            self.client.command(
                f"INSERT INTO {bad} ({', '.join(COLUMNS)})"
                f" SELECT {LOAD_ID}, {literal(bucket)}, transform({LOAD_ID}, [{ids}], [{keys}], ''),"
                f" transform({LOAD_ID}, [{ids}], [{versions}], ''), arrayFilter(r -> r != '', [{reasons}]),"
                f" formatRowNoNewline('JSONEachRow', {row})"
                f" FROM {self._table} WHERE {LOAD_ID} IN ({ids}) AND ({self._any_broken})",
                settings={**LONG, "async_insert": 0, "output_format_json_quote_denormals": 1},
            )
        counts = self._count(bad, "load_id")
        # Without its comment, no other process adopts the staging table.
        self.client.command(f"ALTER TABLE {self._table} MODIFY COMMENT ''")
        self.client.command(
            f"ALTER TABLE {self._table} DELETE WHERE {self._any_broken}", settings={**LONG, "mutations_sync": 1}
        )
        loaded = [
            replace(o, rows=o.rows - bad_rows, rejected=o.rejected + bad_rows)
            for o in self.staged.loaded
            for bad_rows in [counts.get(o.planned.load_id, 0)]
        ]
        if self._count(self._table, LOAD_ID) != {o.planned.load_id: o.rows for o in loaded if o.rows}:
            raise StaleError(f"{self._table} has other rows than expected")
        return replace(self.staged, loaded=loaded, has_bad=True)

    def _count(self, table: str, column: str) -> dict[int, int]:
        rows = self.client.query(f"SELECT {column}, count() FROM {table} GROUP BY 1").result_rows
        return {load_id: count for load_id, count in rows}


def _has_rows(given: Mapping[str, Any], rows: int) -> bool:
    """Return whether a number of rows is the expected one."""
    if "value" in given:
        return rows == int(given["value"])
    least, most = int(given.get("min_value", rows)), int(given.get("max_value", rows))
    is_strict = [given.get(f"strict_{end}") and f"{end}_value" in given for end in ("min", "max")]
    return least + bool(is_strict[0]) <= rows <= most - bool(is_strict[1])
