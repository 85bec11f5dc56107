"""Operators that find no object, or no message, on the real stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from storeside.aistore.buckets import Bucket
from storeside.operators import (
    AfterLoad,
    AISCopyBucketOperator,
    AISInspectBucketOperator,
    AISPrefetchBucketOperator,
    AISTransformBucketOperator,
    S3EventsToClickHouseOperator,
    S3ToClickHouseOperator,
    SqsLeaseS3EventsOperator,
    StorageCopyBucketOperator,
)
from tests.mailboxes import Mailbox
from tests.support import put, small_spec, task_context, unique

pytestmark = pytest.mark.usefixtures("connections")


def test_a_task_without_objects_is_skipped(mailbox: Mailbox, aistore: Any) -> None:
    mailbox.silence()
    mailbox.s3.put_object(Bucket=mailbox.bucket, Key="in/a.jsonl", Body=b'{"a": 1}\n')
    source, upper = Bucket("ais", unique("in")), small_spec("upper")
    put(aistore, source, {"in/a.txt": b"a"})
    remote = f"s3://{mailbox.bucket}"

    def pair() -> dict[str, str]:
        return {"source": str(source), "destination": f"ais://{unique('out')}", "prefix": "absent/"}

    absent: dict[str, Callable[..., BaseOperator]] = {
        "copy": lambda **more: AISCopyBucketOperator(**pair(), **more),
        "transform": lambda **more: AISTransformBucketOperator(**pair(), etl=upper, keep_etl=True, **more),
        "inspect": lambda **more: AISInspectBucketOperator(
            source=str(source), etl=upper, prefix="absent/", deferrable=False, **more
        ),
        "prefetch": lambda **more: AISPrefetchBucketOperator(bucket=remote, prefix="absent/", **more),
        "worker": lambda **more: StorageCopyBucketOperator(
            source=remote, destination=f"ais://{unique('out')}", prefix="absent/", **more
        ),
        "load": lambda **more: S3ToClickHouseOperator(
            source=f"{remote}/*.absent", table=mailbox.table, format="jsonl", **more
        ),
        "events": lambda **more: S3EventsToClickHouseOperator(
            sqs_queue=mailbox.name, bucket=mailbox.bucket, table=mailbox.table, deferrable=False, **more
        ),
        "lease": lambda **more: SqsLeaseS3EventsOperator(sqs_queue=mailbox.name, **more),
    }
    for name, operator in absent.items():
        with pytest.raises(AirflowSkipException, match=r"no object|no messages"):
            operator(task_id=name, on_nothing="skip").execute(task_context())
    with pytest.raises(AirflowFailException, match=r"no messages"):
        absent["lease"](task_id="lease", on_nothing="fail").execute(task_context())
    assert absent["lease"](task_id="lease").execute(task_context()) == {"messages": 0}


def test_a_repeated_load_that_has_deleted_its_objects_did_something(mailbox: Mailbox) -> None:
    mailbox.silence()
    mailbox.s3.put_object(Bucket=mailbox.bucket, Key="in/a.jsonl", Body=b'{"a": 1}\n')
    task = S3ToClickHouseOperator(
        task_id="load", source=f"s3://{mailbox.bucket}/in/", table=mailbox.table, format="jsonl", on_nothing="fail",
        after_load=AfterLoad("delete"),
    )  # fmt: skip
    run = task_context()
    assert task.execute(run)["handled"] == 1
    assert task.execute(run)["handled"] == 0
    with pytest.raises(AirflowFailException, match="no object"):
        task.execute(task_context())


def test_unchanged_objects_are_objects(mailbox: Mailbox, aistore: Any) -> None:
    mailbox.silence()
    mailbox.s3.put_object(Bucket=mailbox.bucket, Key="in/a.jsonl", Body=b'{"a": 1}\n')
    to = f"ais://{unique('out')}"
    tasks = [
        AISCopyBucketOperator(
            task_id="copy", source=f"s3://{mailbox.bucket}", destination=to, on_nothing="fail", deferrable=False
        ),
        S3ToClickHouseOperator(
            task_id="load", source=f"{to}/", table=mailbox.table, format="jsonl", on_nothing="fail"
        ),
    ]  # fmt: skip
    for task in tasks:
        task.execute(task_context())
        task.execute(task_context())
    assert mailbox.query(f"SELECT count() FROM {mailbox.table}") == [(1,)]
