"""Names of objects beside folders, and a check that listings of an S3 server have each of them."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from storeside.aistore.stored_objects import list_s3
from storeside.transfer.objects.listing import list_in_ranges, list_objects

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# Before and after the slash in the order of characters.
PARTS = ("part", "part-2", "part.csv", "part3", "2026", "2026-01", "2026.01")
NAMES = [f"{a}/{b}/{n}" for a, b in itertools.product(PARTS, PARTS) for n in range(6)]
NAMES += [f"{part}{end}" for part in PARTS for end in ("-x.csv", ".x.csv", "+", "0.csv", "é")]
NAMES += [f"{a}/{b}{end}" for a, b in itertools.product(PARTS, PARTS) for end in ("-x", ".txt", "0")]
# More than a page has, before a folder and in it.
WIDE = [f"wide{after}{n:04}" for after in "-/" for n in range(1020)] + ["wide0"]


def prefixes() -> list[str]:
    """Return beginnings of the names, among them whole folders, folders without their slash, and all names."""
    beginnings = sorted({name[:end] for name in NAMES for end in range(1, len(name) + 1)})
    return ["", *PARTS, *(f"{part}/" for part in PARTS), "wide", "wide/", "wide-", *beginnings[::37]]


def put_all(client: S3Client, bucket: str) -> None:
    """Put objects with all these names into a new bucket."""
    client.create_bucket(Bucket=bucket)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: client.put_object(Bucket=bucket, Key=name, Body=b"x"), [*NAMES, *WIDE]))


def check(client: S3Client, bucket: str, there: list[str], chosen: list[str]) -> None:
    """Assert that each way of listing the bucket finds exactly the objects `there` for each of these prefixes."""
    for prefix in chosen:
        expected = sorted(name for name in there if name.startswith(prefix))
        assert sorted(found.name for found in list_s3(client, bucket, prefix)) == expected, prefix
        for listing in (list_objects, list_in_ranges):
            found = sorted(one.key for page in listing(client, bucket, prefix) for one in page)
            assert found == expected, f"{listing.__name__} of {prefix!r}"


def check_server(client: S3Client, bucket: str) -> None:
    """Check listings of a new bucket with all these names, and after the last object below a folder was deleted."""
    put_all(client, bucket)
    check(client, bucket, [*NAMES, *WIDE], prefixes())
    gone = [name for name in NAMES if name.startswith(("part/", "2026/"))]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: client.delete_object(Bucket=bucket, Key=name), gone))
    check(client, bucket, sorted({*NAMES, *WIDE} - set(gone)), ["", "part", "part/", "2026"])
