"""Fixtures of the tests of the engine against the real stack."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.sql.migrate import migrate
from storeside.stack.airflow import airflow
from storeside.stack.settings import Stack
from tests.cluster import Cluster, ShardedLoading, cluster_of
from tests.support import put, shared_etls, unique, until
from tests.transfers import SMALL, Loading

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


@pytest.fixture(scope="session")
def cluster(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two ClickHouse servers as two shards, beside the stack's own server."""
    with cluster_of(tmp_path_factory.mktemp("cluster"), stack) as cluster:
        migrate(cluster.client())
        yield cluster


@pytest.fixture
def loading(stack: Stack, clickhouse: Any, s3_client: S3Client) -> Loading:
    return Loading(stack, clickhouse, s3_client)


@pytest.fixture
def anywhere(request: pytest.FixtureRequest, stack: Stack, s3_client: S3Client) -> Loading:
    """Loads into a table, or into a Distributed table of two shards."""
    if request.param == "shards":
        return ShardedLoading(request.getfixturevalue("cluster"), stack, s3_client)
    return Loading(stack, request.getfixturevalue("clickhouse"), s3_client)


@pytest.fixture
def connections(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give operators in this process Airflow's connections to the stack."""
    for name, connection in airflow.connections(stack).items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., str]:
    """Write a suite with these expectations, or with `SMALL`; return its path."""

    def write(*expectations: dict[str, Any]) -> str:
        path = tmp_path / "suite.json"
        path.write_text(json.dumps({"name": "numbers", "expectations": list(expectations) or [SMALL]}))
        return str(path)

    return write


@pytest.fixture
def source(aistore: Any) -> Bucket:
    """A bucket with a few small objects, one of which fails."""
    bucket = Bucket("ais", unique("in"))
    put(aistore, bucket, {f"a/{n}.txt": b"object %d" % n for n in range(6)} | {"a/bad.txt": b"bad object"})
    return bucket


@pytest.fixture
def no_etl_is_left(aistore: Any) -> Iterator[None]:
    """End the ETLs of a test, except for those that the next ones use."""
    yield
    until(lambda: not jobs.running_transforms(aistore), 30, "end of the transforms")
    etls.release(aistore, set(etls.ours(aistore)) - shared_etls())
    assert {etl.id for etl in aistore.cluster().list_etls()} <= shared_etls()
