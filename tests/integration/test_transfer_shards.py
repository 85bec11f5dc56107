"""Loads into Distributed tables of a cluster of two shards, with the users of Airflow's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from storeside.stack.settings import Stack
from tests.cluster import Cluster, ShardedLoading, proxy_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

ROWS = 50


@pytest.fixture
def loading(cluster: Cluster, stack: Stack, s3_client: S3Client) -> ShardedLoading:
    return ShardedLoading(cluster, stack, s3_client)


def csv(number: int) -> bytes:
    return b"object,row\n" + b"\n".join(b"%d,%d" % (number, number * ROWS + n) for n in range(ROWS)) + b"\n"


def test_rows_reach_their_shards_and_every_server_shows_all_of_them(loading: ShardedLoading) -> None:
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32")
    report = loading.load(format="csv", loader="pull", batch_objects=2)
    assert (report.loaded, report.rows) == (3, 3 * ROWS)
    assert loading.on_shards("groupUniqArray(row % 2)") == [[0], [1]]
    assert loading.load(format="csv", loader="pull").skipped == 3
    with proxy_of(loading.cluster.http) as port:
        through = loading.cluster.client(port=port)
        servers = {
            tuple(through.query(f"SELECT tcpPort(), count() FROM {loading.table}").first_row) for _ in range(4)
        }
    assert servers == {(port, 3 * ROWS) for port in loading.cluster.tcp}
