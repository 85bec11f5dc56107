"""The trigger that waits until a queue has messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from storeside.errors import StoresideError
from storeside.operators.errors import is_final
from storeside.operators.hooks.transfer import sqs_client
from storeside.operators.triggers.engine import SETTLE_SECONDS, in_thread

if TYPE_CHECKING:
    from storeside.events.queue import Queue


class SqsMessagesTrigger(BaseTrigger):
    """Fires once when a queue has visible messages, at the deadline, or with an error that no retry can cure.

    It receives no message, so it changes nothing in the queue.

    :param queue: name or URL of an SQS queue
    :param deadline: seconds since 1970
    :param poll_interval: seconds between two requests
    :param wait: seconds before the first request
    """

    def __init__(
        self,
        queue: str,
        deadline: float,
        poll_interval: float = 5,
        aws_conn_id: str = "aws_default",
        wait: float = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queue = queue
        self.deadline = deadline
        self.poll_interval = poll_interval
        self.aws_conn_id = aws_conn_id
        self.wait = wait

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "queue": self.queue,
                "deadline": self.deadline,
                "poll_interval": self.poll_interval,
                "aws_conn_id": self.aws_conn_id,
                "wait": self.wait,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the queue; a server that does not answer counts as an empty queue."""
        await asyncio.sleep(max(SETTLE_SECONDS, min(self.wait, self.deadline - time.time())))
        aws = await BaseHook.aget_connection(self.aws_conn_id)
        queue = None
        while (left := self.deadline - time.time()) > 0:
            try:
                queue = queue or await in_thread(self._queue, aws)
                visible = (await in_thread(queue.depth)).visible
            except StoresideError as e:
                if is_final(e):
                    yield TriggerEvent({"error": str(e)})
                    return
                self.log.warning("queue %s does not answer, trying again: %s", self.queue, e)
                visible = 0
            if visible:
                yield TriggerEvent({"messages": visible})
                return
            await asyncio.sleep(min(self.poll_interval, left))
        yield TriggerEvent({"messages": 0})

    def _queue(self, aws: Any) -> Queue:
        from storeside.events.queue import Queue

        return Queue.find(sqs_client(aws), self.queue)

    @staticmethod
    def require_no_error(event: Mapping[str, Any]) -> None:
        """Raise EventInputError for an event with an error."""
        from storeside.events.errors import EventInputError

        if event.get("error"):
            raise EventInputError(event["error"])
