"""The suite that decides which audio is kept: expectations in Great Expectations' format about facts.

The operator checks the suite before it starts the ETL, and passes it in a variable. Each expectation means what it
means in Great Expectations: a missing value meets all of them except the one that it is not null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from storeside.transformers.words import WORD

VARIABLE: Final = "AUDIO_SUITE"
WORDS_PER_SECOND: Final = "words_per_second"
LEFT_OUT: Final = "left_out"

_Test = Callable[[Any, Mapping[str, Any]], bool]
_NOT_NULL = "expect_column_values_to_not_be_null"


def _is_between(value: Any, given: Mapping[str, Any]) -> bool:
    least, most = given.get("min_value"), given.get("max_value")
    if least is not None and (value < least or (given.get("strict_min") and value == least)):
        return False
    return most is None or value < most or (value == most and not given.get("strict_max"))


_TESTS: Final[Mapping[str, _Test]] = {
    "expect_column_values_to_be_between": _is_between,
    "expect_column_values_to_be_in_set": lambda value, given: value in given["value_set"],
    "expect_column_values_to_not_be_in_set": lambda value, given: value not in given["value_set"],
}
EXPECTATIONS: Final = frozenset({*_TESTS, _NOT_NULL})


class Suite:
    """Expectations in their order: the first that a piece of audio does not meet is the reason to leave it out."""

    def __init__(self, expectations: Sequence[Mapping[str, Any]] = ()) -> None:
        self._expectations = expectations

    @classmethod
    def from_environment(cls) -> Suite:
        """Read the suite from `VARIABLE`; without it, all audio is kept."""
        return cls(json.loads(os.environ.get(VARIABLE) or "[]"))

    def __bool__(self) -> bool:
        return bool(self._expectations)

    def reason(self, facts: Mapping[str, Any]) -> str:
        """Return the description of the first expectation that these facts do not meet; empty if they meet all.

        Alone, a description such as "duration is 1 to 20 s" would read as a fact about the audio.
        """
        return next((f"not met: {e['description']}" for e in self._expectations if not _meets(facts, e)), "")


def _meets(facts: Mapping[str, Any], expectation: Mapping[str, Any]) -> bool:
    kind, given = expectation["type"], expectation["kwargs"]
    value = facts.get(given["column"])
    return kind != _NOT_NULL if value is None else kind == _NOT_NULL or _TESTS[kind](value, given)


class Sieve:
    """Judges the parts of one recording, and counts them."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._kept: tuple[int, float] = (0, 0.0)
        self._left_out: dict[str, tuple[int, float]] = {}

    def judged(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts of a part with its words per second, and `LEFT_OUT`: the reason, or None."""
        seconds, words = facts["duration_seconds"], len(WORD.findall(facts.get("text", "")))
        told = {**facts, WORDS_PER_SECOND: words / seconds if words else None}
        reason = self._suite.reason(told)
        told[LEFT_OUT] = reason or None
        if reason:
            self._left_out[reason] = _plus(self._left_out.get(reason, (0, 0.0)), seconds)
        else:
            self._kept = _plus(self._kept, seconds)
        return told

    def facts(self) -> dict[str, Any]:
        """Return the numbers and the seconds of the parts that are kept, and of the others by reason."""
        return {"kept": self._kept, LEFT_OUT: self._left_out}


def _plus(one: tuple[int, float], seconds: float) -> tuple[int, float]:
    return one[0] + 1, one[1] + seconds
