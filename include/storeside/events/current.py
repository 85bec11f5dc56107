"""The current state of events' objects: events may be duplicated, late and out of order; the bucket is not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from storeside.copying.s3 import head_object
from storeside.transfer.content import s3_error
from storeside.transfer.errors import LoadObjectError, TransferError, classify
from storeside.transfer.loads import LONG_STATEMENT
from storeside.transfer.source import Listed, Source, wild

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from types_boto3_s3 import S3Client

_PARALLEL = 8

# The object, the reason why it cannot be examined, or None if it does not exist.
Found = Listed | LoadObjectError | None


def look_at(source: Source, keys: Sequence[str], client: Client, s3: S3Client, *, pull: bool) -> dict[str, Found]:
    """Return the current object for each of these keys.

    With `pull` ClickHouse asks S3, except for keys that it takes for patterns. Only S3's own answer counts as proof
    that an object is missing, because the event of a missing object is deleted. Raises TransferInputError when the
    bucket does not exist, TransferTransientError when S3 does not answer.
    """
    found: dict[str, Found] = {}
    pulled = [key for key in keys if pull and not wild(key)]
    if pulled and (seen := _by_clickhouse(source, pulled, client)) is not None:
        found.update(seen)
    rest = [key for key in keys if key not in found]
    with ThreadPoolExecutor(_PARALLEL) as threads:
        found.update(zip(rest, threads.map(lambda key: _head(s3, source.bucket, key), rest), strict=True))
    if None in found.values():
        _require_bucket(s3, source.bucket)
    return found


def _require_bucket(s3: S3Client, bucket: str) -> None:
    """Raise if the bucket does not exist: S3 then also answers 404 for objects, which does not prove them missing."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        s3.list_objects_v2(Bucket=bucket, MaxKeys=1)
    except (BotoCoreError, ClientError) as e:
        raise s3_error(e, bucket, "") from e


def _by_clickhouse(source: Source, keys: Sequence[str], client: Client) -> dict[str, Listed] | None:
    """Return the existing objects; None if one of them cannot be examined."""
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
        if isinstance(error := classify(e), LoadObjectError):
            return None
        raise error from e
    start = len(source.bucket) + 1
    return {
        path[start:]: Listed(path[start:], etag.strip('"'), size, _iso(datetime.fromtimestamp(seconds, UTC)))
        for path, etag, size, seconds in rows
    }


def _head(s3: S3Client, bucket: str, key: str) -> Found:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        head = head_object(s3, bucket, key)
    except ClientError as e:
        if e.response["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.NOT_FOUND:
            return None
        return _object_error(s3_error(e, bucket, key))
    except BotoCoreError as e:
        return _object_error(s3_error(e, bucket, key))
    return Listed(key, head["ETag"].strip('"'), head["ContentLength"], _iso(head["LastModified"]))


def _object_error(error: TransferError) -> LoadObjectError:
    if isinstance(error, LoadObjectError):
        return error
    raise error


def _iso(time: datetime) -> str:
    """Return a time in the format of S3's listings."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
