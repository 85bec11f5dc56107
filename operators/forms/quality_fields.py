"""Form fields, and arguments that read them, for the suite that checks the rows of a load."""

from __future__ import annotations

from typing import Final, TypedDict

from airflow.sdk import Param

from storeside.operators.restrictions import described, form_choices
from storeside.transfer.request.options import Expectations
from storeside.transfer.request.template import Template

# The suite that checks the rows of `S3ToClickHouseOperator`.
EXPECTATIONS: Final = {
    "suite": Param(
        None,
        type=["null", "string"],
        title="Suite",
        section="Quality",
        **form_choices(
            "suite",
            description="Great Expectations suite that checks the rows before they are published; empty checks"
            " nothing",
        ),
    ),
    "on_failed_expectations": Param(
        Expectations.on_failed,
        type="string",
        enum=[*Expectations.CHOICES["on_failed"]],
        title="Unexpected rows",
        section="Quality",
        values_display={
            "fail": "Fail the task and publish nothing",
            "quarantine": "Put them into <table>_quarantine and publish the others",
        },
        description="What happens when rows break expectations of severity critical",
    ),
}
# The same for `S3EventsToClickHouseOperator`, which fails objects one by one.
OBJECTS_EXPECTATIONS: Final = {
    **EXPECTATIONS,
    "on_failed_expectations": described(
        EXPECTATIONS["on_failed_expectations"],
        "What happens to an object whose rows break expectations of severity critical",
        values_display={
            **EXPECTATIONS["on_failed_expectations"].schema["values_display"],
            "fail": "Fail the object; its messages go to the dead-letter queue",
        },
    ),
}


class CheckedTemplates(TypedDict):
    """The arguments in `CHECKED`."""

    suite: str
    on_failed_expectations: Template


# Arguments of the load operators that read the fields of `EXPECTATIONS`.
CHECKED: Final[CheckedTemplates] = {
    "suite": "{{ params.suite or '' }}",
    "on_failed_expectations": Template("{{ params.on_failed_expectations }}"),
}
