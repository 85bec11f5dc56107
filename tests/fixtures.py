"""Fixtures of several folders: loads, queues of events, buckets, and Airflow's API.

The session's servers and their clients are in conftest.py. A fixture has the scope of a module where a test leaves
nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.settings import Stack
from tests.support import administrator, contents, unique, unpause

if TYPE_CHECKING:
    from pathlib import Path

    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

    from storeside.aistore.buckets import Bucket
    from storeside.stack.airflow.api import AirflowApi
    from tests.mailboxes import Mailbox
    from tests.transfers import Loading


@pytest.fixture
def loading(request: pytest.FixtureRequest, stack: Stack, clickhouse: Any, s3_client: S3Client) -> Loading:
    """The test's own bucket and table; the bucket is one of AIStore with the mark `tests.transfers.each_storage`."""
    from tests.transfers import FromAIStore, Loading

    if getattr(request, "param", "s3") == "ais":
        return FromAIStore(stack, clickhouse, request.getfixturevalue("aistore"))
    return Loading(stack, clickhouse, s3_client)


@pytest.fixture
def mailbox(stack: Stack, clickhouse: Any, s3_client: S3Client, sqs_client: SQSClient) -> Mailbox:
    """The test's own bucket, table, and queue of the bucket's events."""
    from tests.mailboxes import Mailbox

    return Mailbox(stack, clickhouse, s3_client, sqs_client)


@pytest.fixture
def bucket(aistore: Any) -> Iterator[Bucket]:
    """The test's own bucket of AIStore, empty."""
    from storeside.aistore.buckets import Bucket

    made = Bucket("ais", unique("own"))
    made.handle(aistore).create()
    yield made
    made.handle(aistore).delete(missing_ok=True)


@pytest.fixture(scope="module")
def api(request: pytest.FixtureRequest, airflow: Stack) -> AirflowApi:
    """Airflow's API for its administrator; the DAGs that the module's mark `dags` names are unpaused."""
    return unpause(administrator(airflow), *(dag for mark in request.node.iter_markers("dags") for dag in mark.args))


@pytest.fixture(scope="session")
def bad(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Names and contents of objects that are no recordings."""
    from storeside.stack import speech_corpus

    folder: Path = tmp_path_factory.mktemp("bad")
    return contents(folder, speech_corpus.make_bad(folder))
