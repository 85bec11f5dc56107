"""A bucket that does not exist is the same error everywhere: final, with the bucket's name and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.aistore.stored_objects import list_s3
from storeside.copying.prefetch import Prefetch
from storeside.copying.s3 import AIStoreStore
from storeside.errors import BadInput
from storeside.ledger.objects import Ledger
from storeside.operators.errors import is_final
from storeside.stack import authn
from storeside.stack.settings import Stack
from storeside.transfer.objects.content import s3_error
from storeside.transform.bucket_job import BucketJob
from storeside.transform.inspection import Inspection
from tests.support import transcode_spec, unique


@pytest.mark.parametrize("scheme", ["s3", "ais"])
def test_no_bucket_is_one_error_for_every_job(
    stack: Stack, aistore: Any, clickhouse: Any, s3_client: Any, scheme: str
) -> None:
    absent, there = Bucket(scheme, unique("absent")), Bucket("ais", unique("there"))
    there.handle(aistore).create()
    ledger, spec = Ledger(clickhouse), transcode_spec()

    def job(source: Bucket, destination: Bucket, **options: Any) -> BucketJob:
        return BucketJob(aistore, ledger, source, destination, run_id=unique("run"), **options)

    by_s3 = {"list_source": lambda: list_s3(s3_client, absent.name)}
    tries: list[Callable[[], Any]] = [
        lambda: job(absent, there).begin(),
        lambda: job(absent, there, spec=spec).begin(),
        lambda: job(absent, there, spec=spec).preview(),
        lambda: Inspection(aistore, absent, spec).submit(),
    ]
    if scheme == "s3":
        tries += [
            lambda: job(absent, there, **by_s3).begin(),
            lambda: job(there, absent).begin(),
            lambda: Prefetch(aistore, absent).check(),
        ]
    else:
        store = AIStoreStore(authn.cluster(stack), absent.name, 2)
        tries.append(lambda: store.check(is_source=True))
    said = f"^there is no bucket {re.escape(str(absent))}: create it, or correct its name"
    for attempt in tries:
        with pytest.raises(BadInput, match=said):
            attempt()
    assert absent.name not in {bucket.name for bucket in aistore.cluster().list_buckets("ais")}, "none was created"


def test_a_load_names_the_bucket_too(s3_client: Any) -> None:
    name = unique("absent")
    with pytest.raises(s3_client.exceptions.NoSuchBucket) as error:
        s3_client.list_objects_v2(Bucket=name)
    ours = s3_error(error.value, name, "")
    assert is_final(ours)
    assert str(ours) == f"there is no bucket '{name}' at this endpoint: create it, or correct its name"
