"""Operators that lease messages of S3 events for the tasks of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk.exceptions import AirflowFailException

from storeside.amounts import counted
from storeside.operators.arguments import between, check_literals
from storeside.operators.bases.ahead import is_mapped, skip
from storeside.operators.bases.queue import QueueArguments, QueueOperator, batches_of, lease_time
from storeside.operators.bases.selecting import SelectingArguments, SelectingOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.shared import run_key

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions._internal.abstractoperator import AbstractOperator


class LeaseArguments(QueueArguments, total=False):
    """Arguments of the operators that lease messages for the tasks of a run."""

    max_messages: int
    """maximum number of messages to receive"""
    lease_seconds: int
    """seconds that messages stay invisible unless their lease is extended"""


class LeaseOperator(QueueOperator):
    """Base class of the operators that lease messages for the tasks of a run."""

    def __init__(self, *, max_messages: int = 10_000, lease_seconds: int = 300, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_messages = max_messages
        self.lease_seconds = lease_seconds
        check_literals(self, max_messages=between("max_messages", 1), lease_seconds=lease_time)

    def prepare_template(self) -> None:
        """Check, when Airflow parses the DAG, that the tasks which settle the messages are teardowns.

        Raises AirflowFailException with the line that is missing in the DAG; the import error of the file.
        """
        super().prepare_template()
        self._check_teardowns(self)

    def pre_execute(self, context: Context) -> None:
        """Check the same for a mapped task and in `dag.test()`, before a message is leased."""
        super().pre_execute(context)
        self._check_teardowns(context["task"])

    def _check_teardowns(self, lease: AbstractOperator) -> None:
        for task in lease.get_flat_relatives(upstream=False):
            if getattr(getattr(task, "operator_class", type(task)), "settles", False) and not task.is_teardown:
                raise AirflowFailException(
                    f"task {task.task_id!r} is no teardown of {self.task_id!r}: a run that fails would not settle its"
                    f" messages. Add {task.task_id}.as_teardown(setups={self.task_id}) to the DAG"
                )

    def lease(self, context: Context) -> dict[str, int]:
        """Take over the trigger's batches, or receive messages; return the number of messages that this run has."""
        from storeside.events.lease import take_or_receive

        with airflow_errors():
            if (found := self.conn_if_any()) is None:
                return {"messages": 0}
            queue, client = found
            count = take_or_receive(
                queue, client, run_key(context), batches_of(context, queue), self.max_messages, self.lease_seconds
            )
        self.log.info("%s of %s leased for this run", counted(count, "message"), queue.name)
        return {"messages": count}


class LeaseSelectionArguments(LeaseArguments, SelectingArguments, total=False):
    """Arguments of `SqsLeaseS3EventsOperator`."""


class SqsLeaseS3EventsOperator(LeaseOperator, SelectingOperator):
    """Leases the messages of a queue for the tasks of this run; a setup task.

    A teardown task, `SqsSettleS3EventsOperator`, deletes the messages of objects that are done.

    If an `S3EventsTrigger` started the run, the task takes over the trigger's batches; otherwise it receives messages
    from the queue. The trigger of an `AssetWatcher` on the queue extends their lease until the teardown has ended.
    Without such a trigger, set `lease_seconds` longer than a run. If the queue does not exist, the run has no events.
    `SqsS3EventsSensor` also waits for messages. Returns the number of messages; without any, its teardown is skipped.
    """

    template_fields = (*LeaseOperator.template_fields, "on_nothing")

    def __init__(self, **kwargs: Unpack[LeaseSelectionArguments]) -> None:
        super().__init__(**kwargs)
        # Airflow's scheduler then skips a task again that a user clears alone.
        self._can_skip_downstream = True

    def execute(self, context: Context) -> dict[str, int]:
        """Lease messages; end as `on_nothing` says if there are none, and skip the tasks that would settle them."""
        leased = self.lease(context)
        if not leased["messages"]:
            self.end_without(f"the queue {self.sqs_queue} has no messages for this run")
            if (settling := self._settling()) and not is_mapped(context):
                skip(self, context, leased, settling)
        return leased

    def _settling(self) -> list[str]:
        """Return the names of the tasks that settle the messages of this task, and of no other."""
        in_dag: bool = self.has_dag()  # type: ignore[no-untyped-call]
        tasks = self.get_direct_relatives(upstream=False) if in_dag else ()
        settling = [task for task in tasks if task.is_teardown and getattr(task, "settles", False)]
        return [task.task_id for task in settling if _setups(task) == {self.task_id}]


def _setups(task: Any) -> set[str]:
    return {one.task_id for one in task.get_direct_relatives(upstream=True) if one.is_setup}
