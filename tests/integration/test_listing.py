"""Listings of a bucket through a client that threads share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from storeside.transfer.objects.listing import list_objects
from storeside.transfer.request.source import Source
from storeside.transfer.run.plan_input import record_source
from storeside.transfer.state.loads import Loads
from storeside.transfer.state.plan import Plan
from tests.listing_double import Bucket, serve
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

KEYS = [f"{n:03}.csv" for n in range(100)]


@pytest.fixture
def bucket(s3_client: S3Client) -> str:
    name = unique("listing")
    s3_client.create_bucket(Bucket=name)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: s3_client.put_object(Bucket=name, Key=key, Body=b"n\n1\n"), KEYS))
    return name


def test_listings_at_the_same_time_are_whole(stack: Stack, bucket: str) -> None:
    """A listing without objects would say that there is nothing to load."""

    def listed(client: S3Client) -> list[str]:
        return [o.key for page in list_objects(client, bucket, "") for o in page]

    for _ in range(20):
        client = s3.of_stack("s3", stack)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(listed, [client] * 8)) == [KEYS] * 8


def test_other_users_of_the_client_get_whole_responses(s3_client: S3Client, bucket: str) -> None:
    pages = list_objects(s3_client, bucket, "")
    next(pages)
    assert [o["Key"] for o in s3_client.list_objects_v2(Bucket=bucket)["Contents"]] == KEYS
    assert next(pages, None) is None
    assert [o["Key"] for o in s3_client.list_objects_v2(Bucket=bucket)["Contents"]] == KEYS


@pytest.mark.parametrize("takes_start", [True, False])
def test_each_object_is_recorded_once_in_ranges_and_page_by_page(clickhouse: Any, takes_start: bool) -> None:
    source = Source("listed")
    loads = Loads(clickhouse, unique("listing"), "data.listed", source, "run")
    loads.create()
    plan = Plan(loads)
    keys = [f"{n:04}.csv" for n in range(500)]
    with serve(Bucket(keys, 20, takes_start=takes_start)) as client:
        record_source(plan, client, source)
    recorded = clickhouse.query(
        "SELECT key FROM storeside.load_listings WHERE transfer = {transfer:String} ORDER BY key",
        parameters=loads.parameters,
    ).result_rows
    plan.forget("load_listings")
    assert [key for (key,) in recorded] == keys
