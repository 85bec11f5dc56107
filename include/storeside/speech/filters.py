"""Suites of Great Expectations that decide which recordings, utterances and segments are kept.

The transformer evaluates them beside the storage, where the audio is decoded, and so without Great Expectations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from storeside.quality.errors import QualityError
from storeside.quality.given import Expectation, check_suite, load_suite
from storeside.speech.columns import FILTER_COLUMNS, RECORDING_COLUMNS, SEGMENT_COLUMNS, UTTERANCE_COLUMNS
from storeside.transformers.audio.suite import EXPECTATIONS, VARIABLE, WORDS_PER_SECOND
from storeside.transformers.contract.failures import LONGEST_LEFT_OUT

Audio = Literal["recordings", "utterances", "segments"]
# The facts that a suite may be about, with their types in ClickHouse.
FACTS: Final[Mapping[Audio, Mapping[str, str]]] = {
    "recordings": RECORDING_COLUMNS,
    "utterances": UTTERANCE_COLUMNS,
    "segments": {**SEGMENT_COLUMNS, WORDS_PER_SECOND: FILTER_COLUMNS[WORDS_PER_SECOND]},
}
# The pages count this number of reasons one by one.
_MOST = 20
_BETWEEN = "expect_column_values_to_be_between"


def check_filter(given: str | Mapping[str, Any], audio: Audio) -> None:
    """Raise QualityError unless a suite can filter this audio by its facts; one that is named is not loaded."""
    if isinstance(given, str):
        check_suite(given)
    else:
        filter_of(given, audio)


def filter_of(given: str | Mapping[str, Any], audio: Audio) -> dict[str, str]:
    """Return the variable that passes a suite's critical expectations to a transformer.

    `given` is a suite as `load_suite` takes it. Raises QualityError if it cannot be loaded, or is not about facts of
    this audio.
    """
    suite, facts = load_suite(given), FACTS[audio]

    def checked(e: Expectation) -> dict[str, Any]:
        try:
            return _checked(e, facts) | {
                "description": (e.description or f"{e.check.column}: {e.check.description}")[:LONGEST_LEFT_OUT]
            }
        except QualityError as error:
            raise QualityError(f"suite {suite.name}: {e.type}: {error}") from error

    critical = [checked(e) for e in suite.expectations if e.severity == "critical"]
    if not 0 < len(critical) <= _MOST:
        raise QualityError(
            f"suite {suite.name}: it has {len(critical)} expectations of severity critical, which leave audio out:"
            f" write 1 to {_MOST}"
        )
    return {VARIABLE: json.dumps(critical, ensure_ascii=False, allow_nan=False)}


def _checked(e: Expectation, facts: Mapping[str, str]) -> dict[str, Any]:
    if e.type not in EXPECTATIONS or e.by_gx:
        raise QualityError(f"a filter takes only {', '.join(sorted(EXPECTATIONS))}, without a row_condition")
    if e.mostly < 1:
        raise QualityError("each recording or part is judged alone: leave mostly out")
    if (column := e.kwargs["column"]) not in facts:
        raise QualityError(f"there is no fact {column!r}: choose from {', '.join(sorted(facts))}")
    is_text = "String" in facts[column]
    if e.type == _BETWEEN and is_text:
        raise QualityError(f"{column} is a text: use expect_column_values_to_be_in_set")
    bounds = (e.kwargs[name] for name in ("min_value", "max_value") if name in e.kwargs)
    values = [*e.kwargs.get("value_set", ()), *bounds]
    for value in values:
        if not isinstance(value, str if is_text else int | float) or isinstance(value, bool):
            raise QualityError(f"{column} has {'texts' if is_text else 'numbers'}, and {value!r} is none")
    return {"type": e.type, "kwargs": dict(e.kwargs)}
