"""Base class of operators that select objects or messages: how a task ends that finds none."""

from __future__ import annotations

from typing import Any, Literal, get_args

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from storeside.operators.arguments import check_literals
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import OperatorInputError
from storeside.operators.restrictions import FormOperator
from storeside.transfer.request.template import Template

OnNothing = Literal["succeed", "skip", "fail"]
POLICIES: tuple[OnNothing, ...] = get_args(OnNothing)


class SelectingArguments(TaskArguments, total=False):
    """Arguments of operators that select objects or messages."""

    on_nothing: OnNothing | Template
    """if no object, or no message, matches: ``succeed``, ``skip`` the task and so the tasks after it, or ``fail`` the
    task without a retry
    """


def check_on_nothing(value: str) -> None:
    """Raise OperatorInputError unless the value of `on_nothing` is one of `POLICIES`."""
    if value not in POLICIES:
        raise OperatorInputError(f"on_nothing {value!r}: use 'succeed', 'skip' or 'fail'")


class SelectingOperator(FormOperator):
    """Ends a task without objects as `on_nothing` says.

    Unchanged objects count, too, so a repeated task does not end as if there were none.
    """

    def __init__(self, *, on_nothing: OnNothing | Template = "succeed", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.on_nothing = on_nothing
        check_literals(self, on_nothing=check_on_nothing)

    def end_without(self, what: str) -> None:
        """End a task that found nothing; `what` is the reason, such as ``s3://in/2026/* has no object``.

        Raises AirflowSkipException or AirflowFailException as `on_nothing` says.
        """
        check_on_nothing(self.on_nothing)
        if self.on_nothing == "skip":
            raise AirflowSkipException(what)
        if self.on_nothing == "fail":
            raise AirflowFailException(
                f"{what}: check the source, or set on_nothing to 'skip' or 'succeed' if this is expected"
            )
        self.log.info("%s: there was nothing to do", what)
