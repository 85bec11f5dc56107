"""``storeside events --queue NAME s3://bucket/prefix table``: drain S3 events into a table without Airflow.

The environment variables of ``storeside load`` configure ClickHouse, S3 and SQS; AWS_ENDPOINT_URL applies to S3 and
SQS. ``storeside setup-queue s3://bucket/prefix queue`` makes a queue for a bucket.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from storeside.transfer.cli import (
    add_on_nothing,
    aws,
    clickhouse,
    end_without,
    exit_code,
    ledger,
    reader_of,
    request,
    run_of,
    servers,
    transfer_arguments,
)
from storeside.transfer.printing import report_text

_EXAMPLE = "storeside events --queue trips-events s3://trips/ analytics.trips"
_CODES = """1 for dead letters, or if S3 refused to change objects; 2 if the load cannot finish; 99 with
--on-nothing skip and no message"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Drain a queue once; return 1 for dead letters and objects that S3 refused to change, 2 if it cannot finish."""
    parser = transfer_arguments(
        "storeside events", "Loads the objects that the S3 events in a queue name, each exactly once.",
        example=_EXAMPLE, codes=_CODES,
    )  # fmt: skip
    parser.add_argument("--queue", required=True, help="name or URL of the queue, which needs a dead-letter queue")
    parser.add_argument(
        "--messages", type=int, default=100_000, help="maximum number of messages; default: %(default)s"
    )
    parser.add_argument("--bytes", type=int, default=0, help="approximate maximum bytes of new objects; 0: no limit")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="seconds for which to receive messages; default: %(default)s"
    )
    parser.add_argument("--idle-seconds", type=float, default=0.0, help="seconds to wait when the queue is empty")
    parser.add_argument(
        "--batch-messages", type=int, default=2500, help="maximum messages per batch; default: %(default)s"
    )
    parser.add_argument(
        "--lease-seconds",
        type=int,
        default=120,
        help="seconds until messages of a killed run are visible again; default: %(default)s",
    )
    add_on_nothing(parser)
    given = parser.parse_args(arguments)
    return exit_code(lambda: _drain(given))


def _drain(given: argparse.Namespace) -> int:
    from storeside.events.intake import Limits
    from storeside.events.load import EventLoad
    from storeside.events.queue import Queue

    names = ("messages", "bytes", "seconds", "idle_seconds", "batch_messages", "lease_seconds")
    limits = Limits(**{name: getattr(given, name) for name in names})
    queue = Queue.find(aws("sqs"), given.queue)
    wanted = request(given)
    reader = reader_of(wanted.source, given.sse_kms_key_id)
    drained = EventLoad(queue, wanted, clickhouse(), reader, run_of(given), limits, ledger(), servers()).run()
    print(report_text(drained, as_json=given.json))
    if not drained.messages and not drained.handled:
        return end_without(f"the queue {given.queue} has no messages", given.on_nothing)
    return 1 if drained.dead or drained.left else 0


if __name__ == "__main__":
    sys.exit(main())
