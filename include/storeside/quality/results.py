"""Results of checks in Great Expectations' own format, which its Data Docs show.

They are written without Great Expectations, as `ExpectationSuiteValidationResult.to_json_dict` of version 1.24 does.
"""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from storeside.quality.given import Expectation, GivenSuite
from storeside.quality.verdict import ExpectationOutcome


def validation_result(
    suite: GivenSuite, outcomes: Sequence[ExpectationOutcome], table: str, run_id: str
) -> dict[str, Any]:
    """Return the outcomes of a suite's expectations as an ExpectationSuiteValidationResult, as values for JSON.

    Its `success` has Great Expectations' meaning: every expectation is met, of any severity. `table` is the
    destination, and `run_id` names the run.
    """
    now = datetime.datetime.now(datetime.UTC)
    met = sum(o.success for o in outcomes)
    return {
        "success": met == len(outcomes),
        "results": [_result(e, o) for e, o in zip(suite.expectations, outcomes, strict=True)],
        "suite_name": suite.name,
        "suite_parameters": {},
        "statistics": {
            "evaluated_expectations": len(outcomes),
            "successful_expectations": met,
            "unsuccessful_expectations": len(outcomes) - met,
            "success_percent": 100 * met / len(outcomes),
        },
        "meta": {
            "great_expectations_version": importlib.metadata.version("great_expectations"),
            "run_id": {"run_name": run_id, "run_time": now.isoformat()},
            "active_batch_definition": {
                "datasource_name": "clickhouse", "data_connector_name": "storeside", "data_asset_name": table,
                "batch_identifiers": {"run": run_id},
            },
            "validation_time": now.isoformat(),
        },
        "id": None,
    }  # fmt: skip


def _result(e: Expectation, o: ExpectationOutcome) -> dict[str, Any]:
    return {
        "success": o.success,
        "expectation_config": e.configuration,
        "result": _numbers(e, o),
        "meta": {},
        "exception_info": {"raised_exception": False, "exception_traceback": None, "exception_message": None},
    }


def _numbers(e: Expectation, o: ExpectationOutcome) -> Mapping[str, Any]:
    if not e.columns or o.observed is not None or e.is_of_columns:
        return {"observed_value": o.element_count if o.observed is None and not e.by_gx else o.observed}
    present = o.element_count - o.missing_count
    found = {
        "element_count": o.element_count,
        "unexpected_count": o.unexpected_count,
        "unexpected_percent": _percent(o.unexpected_count, present),
        "partial_unexpected_list": [value for _, value in o.examples],
    }
    if not e.type.endswith("be_null"):  # where a missing value is skipped
        found |= {
            "missing_count": o.missing_count,
            "missing_percent": _percent(o.missing_count, o.element_count),
            "unexpected_percent_total": _percent(o.unexpected_count, o.element_count),
            "unexpected_percent_nonmissing": _percent(o.unexpected_count, present),
        }
    return found | {
        "partial_unexpected_index_list": [{"object": key, "value": value} for key, value in o.examples],
    }


def _percent(part: int, whole: int) -> float | None:
    return part / whole * 100 if whole else None
