"""The results of a suite's expectations over all rows of a load."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

LONGEST_KEY = 1024
LONGEST_VALUE = 200


@dataclass(frozen=True)
class Check:
    """One expectation of a suite; it reads `columns`, and its `severity` is critical, warning or info."""

    expectation: str
    columns: tuple[str, ...]
    severity: str
    description: str

    @property
    def column(self) -> str:
        """Return the columns' names as one text."""
        return ", ".join(self.columns)


@dataclass(frozen=True)
class ExpectationOutcome(Check):
    """The result of one expectation over all rows.

    `element_count` is the number of rows to which it applies. `missing_count` of them have no value and are
    skipped. `examples` are (key, value) of the first unexpected rows; a value of several columns is a list.
    `observed` is the value that Great Expectations has compared, such as a mean; None for an expectation of rows.
    """

    success: bool
    element_count: int
    missing_count: int
    unexpected_count: int
    examples: tuple[tuple[str, Any], ...]
    observed: Any = None

    @property
    def shortfall(self) -> str:
        """How far an expectation is not met: the observed value, or the number of unexpected rows."""
        if self.observed is not None:
            return f"not met by {self.observed}"
        return f"not met in {self.unexpected_count} of {self.element_count}"


@dataclass(frozen=True)
class Verdict:
    """The result of a suite for `rows` rows; `success` tells whether every critical expectation is met."""

    success: bool
    rows: int
    expectations: tuple[ExpectationOutcome, ...]

    @property
    def failed(self) -> tuple[ExpectationOutcome, ...]:
        """Return the expectations of every severity that are not met."""
        return tuple(outcome for outcome in self.expectations if not outcome.success)

    def __str__(self) -> str:
        found = "; ".join(
            f"{outcome.severity}: {outcome.description or outcome.expectation}"
            f"{f' ({outcome.column})' if outcome.columns else ''}, {outcome.shortfall}"
            for outcome in self.failed
        )
        rows = f"{self.rows} rows" if self.rows else "0 rows, so nothing was checked row by row"
        return f"{'passed' if self.success else 'failed'}, {rows}{': ' + found if found else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as values for JSON; numbers that JSON lacks become texts such as ``NaN``."""
        return {**asdict(self), "summary": str(self)}
