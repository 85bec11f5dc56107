"""Names that lead elsewhere, against AIStore itself: canary objects, buckets and folders stay as they are.

The attacker fills in forms, chooses arguments that templates render, or uploads objects to S3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.operators import (
    AISCopyBucketOperator,
    AISCutUtterancesOperator,
    AISGetObjectOperator,
    AISMakeShardsOperator,
    AISPrefetchBucketOperator,
    AISSplitShardsOperator,
    AISTranscodeAudioOperator,
    AISTransformBucketOperator,
    AISTransformObjectOperator,
    AISTransformObjectsOperator,
    StorageCopyBucketOperator,
)
from storeside.stack.airflow import airflow
from storeside.stack.servers import aistore
from storeside.stack.settings import Stack
from tests.attacks.forms import task_of
from tests.support import put, read, small_spec, task_context, unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

CONTENT = b"canary"


class Canaries:
    """A source, a destination, and a canary bucket in AIStore; what is below AIStore's folders."""

    def __init__(self, stack: Stack, client: Any) -> None:
        self.client = client
        self.folder = aistore.folder(stack)
        self.source, self.destination, self.canary = (Bucket("ais", unique(n)) for n in ("in", "out", "canary"))
        put(client, self.canary, {"x.txt": CONTENT})
        put(client, self.source, {"a.txt": b"text", "a.tar": b"tar", "a.wav": b"wav"})
        put(client, self.destination, {})

    @property
    def uris(self) -> dict[str, str]:
        return {"source": str(self.source), "destination": str(self.destination)}

    @property
    def way(self) -> str:
        """The end of a name that leads from the destination to the canary, and to a new object beside it."""
        return f"../../../{self.canary.name}/%ob/x.txt"

    def require_unchanged(self) -> None:
        assert read(self.client, self.canary, "x.txt") == CONTENT
        assert [found.name for found in self.canary.handle(self.client).list_all_objects()] == ["x.txt"]
        canaries = [path for path in self.folder.rglob("*canary*") if path.is_file() or "%ob" in path.parts]
        assert canaries == []


@pytest.fixture
def canaries(stack: Stack, aistore: Any, clickhouse: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canaries]:
    for name, connection in airflow.connections(stack).items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    for module in ("operators.aistore", "bases.bucket_job", "operators.prefetch", "operators.shards"):
        monkeypatch.setattr(f"storeside.operators.{module}.ledger", lambda _: Ledger(clickhouse))
    found = Canaries(stack, aistore)
    yield found
    found.require_unchanged()


def rendered(task: Any, **arguments: Any) -> Any:
    """Return a task with arguments as templates render them: after the check of literals."""
    for name, value in arguments.items():
        setattr(task, name, value)
    return task


WAYS: dict[str, Callable[[Canaries], Any]] = {
    "form": lambda c: task_of("transform_bucket", "transform", **c.uris, extensions={"txt": f"x/{c.way}"}),
    "form of members": lambda c: task_of(
        "transform_bucket", "transform", **c.uris, members="*.txt", extensions={"txt": f"x/{c.way}"}
    ),
    "extensions": lambda c: rendered(
        AISTransformBucketOperator(task_id="t", **c.uris, etl=small_spec("upper")),
        extensions=json.dumps({"txt": f"x/{c.way}"}),
    ),
    "extensions of objects": lambda c: rendered(
        AISTransformObjectsOperator(task_id="t", **c.uris, etl=small_spec("upper"), objects="a.txt"),
        extensions=json.dumps({"txt": f"x/{c.way}"}),
    ),
    "extensions in place": lambda c: rendered(
        AISTransformBucketOperator(
            task_id="t", source=str(c.source), destination=str(c.source), in_place=True, etl=small_spec("upper")
        ),
        extensions=json.dumps({"txt": f"x/{c.way}"}),
    ),
    "extensions of recordings": lambda c: rendered(
        AISTranscodeAudioOperator(task_id="t", **c.uris), extensions={"wav": f"x/{c.way}"}
    ),
    "extensions of utterances": lambda c: rendered(
        AISCutUtterancesOperator(task_id="t", **c.uris), extensions={"wav": f"x/{c.way}"}
    ),
    "prefix of copies": lambda c: rendered(
        AISCopyBucketOperator(task_id="t", **c.uris), prepend=f"../../{c.canary.name}/%ob/"
    ),
    "prefix of facts": lambda c: rendered(
        AISTranscodeAudioOperator(task_id="t", **c.uris, facts=str(c.destination)),
        prepend=f"../../../{c.canary.name}/",
    ),
    "prefix of split shards": lambda c: rendered(
        AISSplitShardsOperator(task_id="t", **c.uris), prepend=f"../{c.canary.name}/"
    ),
    "name of made shards": lambda c: rendered(
        AISMakeShardsOperator(task_id="t", **c.uris), name=f"../{c.canary.name}/x-{{}}.tar"
    ),
    "name of a result": lambda c: rendered(
        AISTransformObjectOperator(task_id="t", **c.uris, etl=small_spec("upper"), name="a.txt"),
        result=f"../{c.canary.name}/x.txt",
    ),
    "name of an object": lambda c: rendered(
        AISTransformObjectOperator(task_id="t", **c.uris, etl=small_spec("upper"), name="a.txt", result="b.txt"),
        name=f"../{c.canary.name}/x.txt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_result_that_leads_to_another_bucket(canaries: Canaries, way: str) -> None:
    with pytest.raises(AirflowFailException):
        WAYS[way](canaries).execute(task_context())
    assert canaries.destination.handle(canaries.client).list_all_objects() == []


def test_an_object_of_another_bucket_is_not_read(canaries: Canaries, tmp_path: Path) -> None:
    task = AISGetObjectOperator(task_id="t", source=str(canaries.source), name="a.txt", path=str(tmp_path / "x"))
    with pytest.raises(AirflowFailException, match="component"):
        rendered(task, name=f"../{canaries.canary.name}/x.txt").execute(task_context())
    assert not list(tmp_path.iterdir())


def test_a_prefix_of_copies_through_the_worker(canaries: Canaries, s3_client: S3Client) -> None:
    bucket = unique("uploads")
    s3_client.create_bucket(Bucket=bucket)
    s3_client.put_object(Bucket=bucket, Key="x.txt", Body=b"stolen")
    task = StorageCopyBucketOperator(
        task_id="t", source=f"s3://{bucket}", destination=str(canaries.destination), on_failed_objects="report"
    )
    with pytest.raises(AirflowFailException, match="component"):
        rendered(task, prepend=f"../{canaries.canary.name}/").execute(task_context())


@pytest.fixture
def uploads(canaries: Canaries, s3_client: S3Client) -> str:
    """A bucket of S3 with a good object, and one whose name leads out of AIStore's folder of the bucket."""
    bucket = unique("uploads")
    s3_client.create_bucket(Bucket=bucket)
    s3_client.put_object(Bucket=bucket, Key="good.txt", Body=b"good")
    s3_client.put_object(Bucket=bucket, Key="../../canary.txt", Body=b"stolen")
    return f"s3://{bucket}"


def test_an_uploaded_name_in_a_prefetch(canaries: Canaries, uploads: str) -> None:
    task = AISPrefetchBucketOperator(
        task_id="t", bucket=uploads, on_failed_objects="report", deferrable=False, outlets=[]
    )
    with pytest.raises(AirflowFailException, match="would leave the bucket's folder"):
        task.execute(task_context())


def test_an_uploaded_name_in_a_copy(canaries: Canaries, uploads: str) -> None:
    task = AISCopyBucketOperator(
        task_id="t", source=uploads, destination=str(canaries.destination), on_failed_objects="report",
        deferrable=False, outlets=[],
    )  # fmt: skip
    found = task.execute(task_context())
    assert (found["done"], found["failed"]) == (1, 1)


def test_an_uploaded_name_in_a_transform_that_follows_a_bucket(canaries: Canaries, uploads: str) -> None:
    """With `sync`, AIStore lists the bucket itself."""
    task = AISTransformBucketOperator(
        task_id="t", source=uploads, destination=str(canaries.destination), sync=True, etl=small_spec("upper"),
        deferrable=False, outlets=[],
    )  # fmt: skip
    with pytest.raises(AirflowFailException, match="it cannot store"):
        task.execute(task_context())
