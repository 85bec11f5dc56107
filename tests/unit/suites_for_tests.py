"""Suites that tests name as ``tests.unit.suites_for_tests:function``."""

from __future__ import annotations

from typing import Any


def made_by_gx() -> Any:
    import great_expectations.expectations as gxe
    from great_expectations.core.expectation_suite import ExpectationSuite

    return ExpectationSuite(
        name="by_gx",
        expectations=[
            gxe.ExpectColumnValuesToBeBetween(column="n", max_value=9, mostly=0.5, severity="warning"),
            gxe.ExpectColumnValuesToNotBeNull(column="n", description="n is there"),
        ],
    )


def made_as_dict() -> dict[str, Any]:
    return {"name": "plain", "expectations": [{"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}]}


def broken() -> Any:
    raise LookupError("no\nsuch thing")


def another_type() -> int:
    return 7
