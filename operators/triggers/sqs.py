"""Waiting for messages on SQS without taking them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent


class SqsQueueDepthTrigger(BaseEventTrigger):
    """Fires when a queue has messages. It receives none, so whatever happens to it loses none.

    An event is a hint that there is work: the run finds out by itself what is new, and deletes messages only after
    their objects are done. While messages stay it fires again every `repeat_seconds`, so that a run which failed
    or was too early is followed by another.
    """

    def __init__(
        self,
        queue_name: str,
        aws_conn_id: str = "aws_default",
        poll_interval: float = 5.0,
        repeat_seconds: float = 300.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queue_name = queue_name
        self.aws_conn_id = aws_conn_id
        self.poll_interval = poll_interval
        self.repeat_seconds = repeat_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "queue_name": self.queue_name,
                "aws_conn_id": self.aws_conn_id,
                "poll_interval": self.poll_interval,
                "repeat_seconds": self.repeat_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the queue's depth; a queue or a service that does not answer is tried again."""
        from airflow.providers.amazon.aws.hooks.sqs import SqsHook
        from botocore.exceptions import BotoCoreError, ClientError

        quiet_until = 0.0
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with await SqsHook(aws_conn_id=self.aws_conn_id).get_async_conn() as sqs:
                    url = (await sqs.get_queue_url(QueueName=self.queue_name))["QueueUrl"]
                    while True:
                        answer = await sqs.get_queue_attributes(
                            QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"]
                        )
                        depth = int(answer["Attributes"]["ApproximateNumberOfMessages"])
                        if not depth:
                            quiet_until = 0.0
                        elif loop.time() >= quiet_until:
                            quiet_until = loop.time() + self.repeat_seconds
                            yield TriggerEvent({"queue": self.queue_name, "messages": depth})
                        await asyncio.sleep(self.poll_interval)
            except (BotoCoreError, ClientError, OSError) as e:
                self.log.warning("queue %s does not answer, trying again: %s", self.queue_name, e)
                await asyncio.sleep(self.poll_interval)
