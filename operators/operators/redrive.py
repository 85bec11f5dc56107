"""The operator that lists the dead letters of a queue, and sends them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk.exceptions import AirflowFailException

from storeside.operators.bases.queue import QueueArguments, QueueOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.shared import as_bool, as_list

if TYPE_CHECKING:
    from airflow.sdk import Context


class SqsRedriveDeadLettersOperator(QueueOperator):
    """Lists the dead letters of a queue with their reasons, and sends them back if `redrive` is set.

    Returns the number of dead letters, the first 20 of them with reasons, and the number of messages sent back.

    :param redrive: send the dead letters back to the queue; otherwise only list them
    :param message_ids: send back only these messages: a list, or ids separated by spaces; empty means all. If one of
        them does not exist, the task sends the others back and fails
    """

    template_fields = (*QueueOperator.template_fields, "redrive", "message_ids")

    def __init__(
        self, *, redrive: bool | str = False, message_ids: Sequence[str] | str = (), **kwargs: Unpack[QueueArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.redrive = redrive
        self.message_ids = message_ids

    def execute(self, context: Context) -> Mapping[str, Any]:
        """List and log dead letters, and send them back if `redrive` is set.

        Raises AirflowFailException if one of `message_ids` is not a dead letter of the queue.
        """
        from storeside.events.dead_letters import DeadLetters

        with airflow_errors():
            queue, _ = self.conn()
            dead_letters = DeadLetters(queue)
            found = dead_letters.listed()
            for letter in found:
                objects = ", ".join(f"s3://{event.bucket}/{event.key}" for event in letter.events)
                self.log.info("%s %r: %r", letter.message_id, objects, letter.reason)
            redrive, wanted = as_bool(self.redrive, "redrive"), set(as_list(self.message_ids))
            sent = dead_letters.redrive(wanted or None) if redrive else 0
        self.log.info("%d dead letters of %s, %d sent back", len(found), queue.name, sent)
        if redrive and sent < len(wanted):
            absent = sorted(wanted - {letter.message_id for letter in found}) or sorted(wanted)
            raise AirflowFailException(
                f"{sent} of {len(wanted)} messages were sent back: {', '.join(absent[:20])} not among the dead"
                f" letters of {queue.name}; use ids that this log lists, unless an earlier try has sent them back"
            )
        first = [{"message_id": letter.message_id, "reason": letter.reason} for letter in found[:20]]
        return {"dead_letters": len(found), "redriven": sent, "first": first}
