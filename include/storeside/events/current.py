"""Finds the current state of the objects in events, because events may be duplicated, late and out of order."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from storeside.aistore.buckets import common_prefix
from storeside.transfer.base.errors import (
    BUSY,
    BusyObjectError,
    LoadObjectError,
    TransferError,
    TransferTransientError,
    classify,
    is_of_storage,
)
from storeside.transfer.objects.content import head_of, s3_error
from storeside.transfer.objects.listing import list_objects
from storeside.transfer.request.source import Listed, Source, wild
from storeside.transfer.state.loads import LONG_STATEMENT

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from types_boto3_s3 import S3Client

log = logging.getLogger(__name__)

_PARALLEL = 8
# For _MANY keys or more, the load first lists the objects below their common prefix, up to _PER_KEY objects per key.
# A page of a thousand objects costs about as much as 40 requests for single objects, so a listing that finds none of
# the keys adds a third at most.
_MANY, _PER_KEY = 20, 8

# The object, the reason why it cannot be examined, or None if it does not exist.
Found = Listed | LoadObjectError | None


@dataclass(frozen=True)
class Around:
    """The listed objects of some keys, and the number of all objects below the keys' common prefix.

    `count` is 0 if the listing is incomplete.
    """

    objects: Mapping[str, Listed] = field(default_factory=dict)
    count: int = 0


NOT_LISTED = Around()


def listed_around(source: Source, keys: Sequence[str], s3: S3Client) -> Around:
    """List the objects below the common prefix of these keys, if that is probably faster than a request for each.

    The listing stops when it has too many other objects, or when S3 refuses it.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    if len(keys) < _MANY:
        return NOT_LISTED
    wanted, found, count = set(keys), {}, 0
    try:
        for page in list_objects(s3, source.bucket, common_prefix(keys)):
            count += len(page)
            # `look_at` requests an object that is listed without an ETag.
            found.update({o.key: o for o in page if o.key in wanted and o.etag})
            if count > _PER_KEY * len(keys):
                return Around(found)
    except (BotoCoreError, ClientError) as e:
        log.info("s3://%s cannot be listed, so each object is requested: %s", source.bucket, e)
        return Around(found)
    return Around(found, count)


def look_at(
    source: Source, keys: Sequence[str], client: Client, s3: S3Client, around: Around = NOT_LISTED, *, pull: bool
) -> dict[str, Found]:
    """Return the current object for each of these keys; `around` has objects from a new listing.

    With `pull`, ClickHouse requests the objects, except for keys that it would read as patterns. Only a 404 of S3 to
    the worker proves that an object does not exist, because the event of such an object is deleted. If S3 answers for
    some objects only, the others have a BusyObjectError. Raises TransferInputError when the bucket does not exist,
    and TransferTransientError when S3 answers for no object.
    """
    found: dict[str, Found] = {key: around.objects[key] for key in keys if key in around.objects}
    pulled = [key for key in keys if pull and key not in found and not wild(key)]
    if pulled and (seen := _by_clickhouse(source, pulled, client)) is not None:
        found.update(seen)
    rest = [key for key in keys if key not in found]
    with ThreadPoolExecutor(_PARALLEL) as threads:
        found.update(zip(rest, threads.map(lambda key: _head(s3, source.bucket, key), rest), strict=True))
    if None in found.values():
        _require_bucket(s3, source.bucket)
    busy = [answer for answer in found.values() if isinstance(answer, BusyObjectError)]
    if busy and len(busy) == len(found) and not _answers(s3, source.bucket, keys):
        raise TransferTransientError(str(busy[0]))
    return found


def _require_bucket(s3: S3Client, bucket: str) -> None:
    """Raise if the bucket does not exist: S3 then answers 404 for its objects, which proves nothing about them."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        s3.list_objects_v2(Bucket=bucket, MaxKeys=1)
    except (BotoCoreError, ClientError) as e:
        raise s3_error(e, bucket, "") from e


def _answers(s3: S3Client, bucket: str, keys: Sequence[str]) -> bool:
    """Return whether S3 answers for some other objects of the bucket than these; False if it does not list any."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        page = s3.list_objects_v2(Bucket=bucket)
    except (BotoCoreError, ClientError):
        return False
    others = [o["Key"] for o in page.get("Contents", []) if o["Key"] not in set(keys)][:_PARALLEL]
    with ThreadPoolExecutor(_PARALLEL) as threads:
        answers = list(threads.map(lambda key: _head(s3, bucket, key), others))
    return any(not isinstance(answer, BusyObjectError) for answer in answers)


def _by_clickhouse(source: Source, keys: Sequence[str], client: Client) -> dict[str, Listed] | None:
    """Return the objects that exist, according to ClickHouse; None if it cannot examine one of them."""
    from clickhouse_connect.driver.exceptions import DatabaseError

    try:
        rows = client.query(
            f"SELECT _path, _etag, _size, toUnixTimestamp(_time) FROM {source.objects(keys, 'One')}",
            settings={
                "s3_ignore_file_doesnt_exist": 1,
                "use_hive_partitioning": 0,
                "max_query_size": LONG_STATEMENT,
            },
        ).result_rows
    except DatabaseError as e:
        if isinstance(error := classify(e), LoadObjectError) or is_of_storage(e):
            return None
        raise error from e
    start = len(source.bucket) + 1
    return {
        path[start:]: Listed(path[start:], etag.strip('"'), size, _iso(datetime.fromtimestamp(seconds, UTC)))
        for path, etag, size, seconds in rows
    }


def _head(s3: S3Client, bucket: str, key: str) -> Found:
    try:
        head = head_of(s3, bucket, key)
    except TransferError as e:
        return _object_error(e)
    return head and Listed(key, head["ETag"].strip('"'), head["ContentLength"], _iso(head["LastModified"]))


def _object_error(error: TransferError) -> LoadObjectError:
    if isinstance(error, LoadObjectError):
        return error
    if isinstance(error, TransferTransientError):
        return BusyObjectError(f"{BUSY}: {error}")
    raise error


def _iso(time: datetime) -> str:
    """Return a time in the format of S3's listings."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
