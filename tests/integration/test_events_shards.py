"""S3 events drained into a Distributed table of two shards, with the users of Airflow's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from storeside.events.drained import Drained
from storeside.events.intake import Limits
from storeside.events.load import EventLoad
from storeside.events.queue import Queue
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER
from storeside.stack.settings import Stack
from storeside.transfer.request.source import Source
from storeside.transfer.state import lock
from tests.cluster import SHARDS, Cluster, ShardedLoading
from tests.mailboxes import Mailbox
from tests.support import unique
from tests.transfers import request_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

OBJECTS, ROWS = 12, 10


class ShardedMailbox(ShardedLoading):
    """One test's own bucket and Distributed table, and the queue of the bucket's events."""

    def __init__(self, cluster: Cluster, stack: Stack, s3: S3Client, sqs: SQSClient, clickhouse: Any) -> None:
        super().__init__(cluster, stack, s3)
        self.mailbox = Mailbox(stack, clickhouse, s3, sqs, notified=False)

    def send(self, key: str) -> None:
        record = self.mailbox.record(key)
        record["s3"]["bucket"]["name"] = self.bucket
        self.mailbox.send(record)

    def drain(self, wrap: Any = lambda client: client) -> Drained:
        request = request_of(Source(self.bucket, collection="storeside_s3"), self.table, "csv")
        return EventLoad(
            Queue(self.mailbox.sqs, self.mailbox.url), request, self.cluster.client(user=LOADER), self.s3,
            unique("run"), Limits(batch_messages=10), self.cluster.client(user=LEDGER),
            self.cluster.servers(LOADER, wrap),
        ).run()  # fmt: skip


@pytest.fixture
def sharded(
    cluster: Cluster, stack: Stack, s3_client: S3Client, sqs_client: SQSClient, clickhouse: Any
) -> ShardedMailbox:
    return ShardedMailbox(cluster, stack, s3_client, sqs_client, clickhouse)


def test_each_event_is_loaded_once_although_a_shard_does_not_answer_once(
    sharded: ShardedMailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fifth event comes twice, and two batches are loaded at the same time."""
    monkeypatch.setattr("storeside.events.object_loads._DELAYS", (0.5,) * 4)
    monkeypatch.setattr("storeside.transfer.staging.staging.Staging.wait", lambda *_: None)
    monkeypatch.setattr(lock, "STALE_SECONDS", 1.0)
    keys = [f"{n}.csv" for n in range(OBJECTS)]
    sharded.put(
        {
            key: b"object,row\n" + b"".join(b"%d,%d\n" % (n, n * ROWS + row) for row in range(ROWS))
            for n, key in enumerate(keys)
        }
    )
    sharded.create("object UInt32, row UInt32")
    for key in [*keys, *keys[::5]]:
        sharded.send(key)
    failed: list[str] = []

    def breaks(client: Any) -> Any:
        """Lose the connection of the first statement that makes rows of the second shard visible."""
        command = client.command

        def lost(statement: str, *args: Any, **kwargs: Any) -> Any:
            if "ATTACH PARTITION" in statement and not failed:
                failed.append(statement)
                raise OperationalError("the connection was lost")
            return command(statement, *args, **kwargs)

        client.command = lost
        return client

    found = sharded.drain(breaks)
    assert len(failed) == 1
    assert (found.loaded, found.deleted, found.dead, found.released) == (15, 15, 0, 0)
    whole = OBJECTS * ROWS
    assert sharded.query(f"SELECT count(), uniqExact(row) FROM {sharded.table}") == [(whole, whole)]
    assert sharded.on_shards("groupUniqArray(row % 2)") == [[number] for number in range(SHARDS)]
    assert sharded.mailbox.depth() == (0, 0)
    states = sharded.client().query(
        "SELECT toString(state), count() FROM storeside.events FINAL WHERE queue = {q:String} GROUP BY 1",
        parameters={"q": sharded.mailbox.url},
    )
    assert [tuple(row) for row in states.result_rows] == [("loaded", 15)]
    assert sharded.mailbox.dead() == {}
