"""The sensor that waits for S3 events on SQS and leases them for its run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from storeside.operators.arguments import between, check_literals
from storeside.operators.bases.deferring import WaitingArguments, WaitingOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.operators.lease_events import LeaseArguments, LeaseOperator
from storeside.operators.triggers.sqs import SqsMessagesTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from clickhouse_connect.driver.httpclient import HttpClient

    from storeside.events.queue import Queue


# Longest wait of the trigger after leases without messages: those that are visible may be of blocked groups of a FIFO
# queue.
_LONGEST_WAIT = 60.0


class SensorArguments(LeaseArguments, WaitingArguments, total=False):
    """Arguments that `SqsS3EventsSensor` shares with other operators."""


class SqsS3EventsSensor(WaitingOperator, LeaseOperator):
    """Waits until a queue has messages and leases them for the tasks of this run; for DAGs without an `AssetWatcher`.

    While the task waits, it leases nothing. Sensors of several DAGs may wait for one queue: each
    message is leased for one of them, and the others wait on. Give the DAG ``max_active_runs=1``, because a run takes
    over messages that another run of its DAG did not settle. Nothing extends the lease later, so set `lease_seconds`
    longer than the run. A teardown task such as `SqsSettleS3EventsOperator` then deletes the messages of
    finished objects. Returns the number of messages.

    :param timeout: seconds to wait; after them the task fails, or is skipped with `soft_fail`
    :param soft_fail: skip the task, and so the tasks after it, instead of failing it after `timeout`
    :param poke_interval: seconds between two requests for the number of messages
    """

    def __init__(
        self,
        *,
        timeout: float = 3600,
        soft_fail: bool = False,
        poke_interval: float = 5,
        **kwargs: Unpack[SensorArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.timeout = timeout
        self.soft_fail = soft_fail
        self.poke_interval = poke_interval
        check_literals(self, timeout=between("timeout", 0), poke_interval=between("poke_interval", 0.1))

    def execute(self, context: Context) -> dict[str, int]:
        """Lease messages, or wait for some."""
        return self._lease(context, time.time() + self.timeout)

    def resume(self, context: Context, event: dict[str, Any], deadline: float, wait: float = 0) -> dict[str, int]:
        """Lease the messages that the trigger has seen; if SQS delivers none, wait on, each time twice as long."""
        with airflow_errors():
            SqsMessagesTrigger.require_no_error(event)
        return self._lease(context, deadline, min(max(self.poke_interval, 2 * wait), _LONGEST_WAIT))

    def conn_if_any(self) -> tuple[Queue, HttpClient]:
        """Return the result of `conn`: unlike a run that events start, a run that waits for them needs the queue."""
        return self.conn()

    def _lease(self, context: Context, deadline: float, wait: float = 0) -> dict[str, int]:
        while not (leased := self.lease(context))["messages"]:
            if (left := deadline - time.time()) <= 0:
                self._give_up()
            if self.deferrable:
                self.defer(
                    trigger=SqsMessagesTrigger(self.sqs_queue, deadline, self.poke_interval, self.aws_conn_id, wait),
                    method_name="resume",
                    kwargs={"deadline": deadline, "wait": wait},
                )
            time.sleep(min(self.poke_interval, left))
        return leased

    def _give_up(self) -> None:
        message = f"the queue {self.sqs_queue} had no messages for {self.timeout:.0f} s"
        if self.soft_fail:
            raise AirflowSkipException(message)
        raise AirflowSensorTimeout(f"{message}: raise `timeout`, or check the bucket's notifications")
