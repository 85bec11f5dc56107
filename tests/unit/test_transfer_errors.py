"""Errors of ClickHouse and S3, and which of them a retry may fix."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from botocore.exceptions import ClientError
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.events.current import look_at
from storeside.transfer.base import damage
from storeside.transfer.base.errors import (
    BusyObjectError,
    DriftError,
    GoneError,
    LoadObjectError,
    NoAccessError,
    TransferError,
    TransferInputError,
    TransferTransientError,
    by_size,
    classify,
    kind_of,
    lacks,
    named_file,
    plain,
)
from storeside.transfer.objects.content import s3_error
from storeside.transfer.request.source import Source

S3_ERROR = 499
MEMORY = 241


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OperationalError("connection refused"), TransferTransientError),
        (DatabaseError("HTTP driver received HTTP status 502, server response: Bad Gateway"), TransferTransientError),
        (DatabaseError("HTTP driver received HTTP status 404"), LoadObjectError),
        (DatabaseError("The provided token has expired. (S3_ERROR)", code=S3_ERROR), TransferTransientError),
        (DatabaseError("RequestTimeTooSkewed (S3_ERROR)", code=S3_ERROR), TransferTransientError),
        (DatabaseError("HTTP response code: 503 (S3_ERROR)", code=S3_ERROR), TransferTransientError),
        (DatabaseError("HTTP response code: 403 (S3_ERROR)", code=S3_ERROR), NoAccessError),
        (
            DatabaseError("InvalidObjectState ... HTTP response code: 403 (S3_ERROR)", code=S3_ERROR),
            NoAccessError,
        ),
        (
            DatabaseError("Not found address of host: s3 (DNS_ERROR),. (S3_ERROR)", code=S3_ERROR),
            TransferTransientError,
        ),
        (DatabaseError("Not found address of host: s3 (DNS_ERROR)", code=198), TransferTransientError),
        (DatabaseError("Table is shut down (ABORTED)", code=236), TransferTransientError),
        (DatabaseError("No space left (NOT_ENOUGH_SPACE)", code=243), TransferTransientError),
        (DatabaseError("errno: 28 (CANNOT_WRITE_TO_FILE_DESCRIPTOR)", code=75), TransferTransientError),
        (DatabaseError("Quota for user has been exceeded (QUOTA_EXCEEDED)", code=201), TransferTransientError),
        (DatabaseError("Cannot get ZooKeeper (NO_ZOOKEEPER)", code=225), TransferTransientError),
        (DatabaseError("alive replicas 1/2 (TOO_FEW_LIVE_REPLICAS)", code=285), TransferTransientError),
        (DatabaseError("CPU is overloaded (SERVER_OVERLOADED)", code=745), TransferTransientError),
        (
            DatabaseError("Query with id = a is already running (QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING)", code=216),
            TransferTransientError,
        ),
        (DatabaseError("not allowed (ACCESS_DENIED)", code=497), TransferInputError),
        (DatabaseError("cannot parse (CANNOT_PARSE_TEXT)", code=6), LoadObjectError),
    ],
)
def test_errors_of_clickhouse(error: Exception, kind: type[TransferError]) -> None:
    assert type(classify(error)) is kind


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "ExpiredToken", TransferTransientError),
        (403, "RequestTimeTooSkewed", TransferTransientError),
        (400, "RequestTimeout", TransferTransientError),
        (503, "SlowDown", TransferTransientError),
        (503, "SlowDownRead", TransferTransientError),  # MinIO's
        (429, "TooManyRequests", TransferTransientError),
        (502, "502", TransferTransientError),  # from a proxy in front of S3
        (403, "AccessDenied", NoAccessError),
        (403, "InvalidObjectState", NoAccessError),
        (404, "NoSuchKey", GoneError),
        (404, "NoSuchBucket", TransferInputError),
    ],
)
def test_errors_of_s3(status: int, code: str, kind: type[TransferError]) -> None:
    error = s3_error(refusal(status, code), "bucket", "key")
    assert type(error) is kind
    assert (not kind_of(error).is_final) == (code in ("AccessDenied", "InvalidObjectState", "NoSuchKey"))


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "AccessDenied", "s3://bucket cannot be listed: .*: allow s3:ListBucket on s3://bucket$"),
        (400, "InvalidArgument", "s3://bucket cannot be listed: .*it says$"),
        (404, "NoSuchBucket", "there is no bucket 'bucket'"),
    ],
)
def test_refused_listings_name_the_bucket(status: int, code: str, says: str) -> None:
    error = s3_error(refusal(status, code, "ListObjectsV2"), "bucket", "some/prefix")
    assert type(error) is TransferInputError
    assert re.match(says, str(error))


def refusal(status: int, code: str, operation: str = "GetObject") -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "it says"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)


class Refusing:
    """S3 that answers HEAD with only a status, and other requests with the reason."""

    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code

    def head_object(self, **_: Any) -> Any:
        raise refusal(self.status, str(self.status), "HeadObject")

    def get_object(self, **_: Any) -> Any:
        raise refusal(self.status, self.code)

    def list_objects_v2(self, **_: Any) -> Any:
        raise refusal(self.status, self.code, "ListObjectsV2")


@pytest.mark.parametrize(
    ("status", "code", "passes"),
    [
        (400, "ExpiredToken", True),
        (403, "RequestTimeTooSkewed", True),
        (429, "TooManyRequests", True),
        (503, "SlowDownRead", True),
        (400, "InvalidRequest", False),
        (403, "AccessDenied", False),
    ],
)
def test_what_s3_refuses_to_say_of_an_events_object(status: int, code: str, passes: bool) -> None:
    s3: Any = Refusing(status, code)

    def look() -> Any:
        return look_at(Source("bucket"), ["key"], None, s3, pull=False)["key"]

    if passes:
        with pytest.raises(TransferTransientError, match=str(status) if status in (429, 503) else code):
            look()
    else:
        assert type(look()) is (NoAccessError if code == "AccessDenied" else LoadObjectError)


@pytest.mark.parametrize("pull", [True, False])
def test_one_object_that_cannot_be_read_now_holds_no_other_up(pull: bool) -> None:
    class Busy(Refusing):
        objects = ("busy", "good")

        def head_object(self, **asked: Any) -> Any:
            if asked["Key"] == "busy":
                raise refusal(503, "503", "HeadObject")
            return {"ETag": '"e"', "ContentLength": 1, "LastModified": datetime(2026, 1, 1, tzinfo=UTC)}

        def list_objects_v2(self, **_: Any) -> Any:
            if not self.objects:
                raise refusal(403, "AccessDenied", "ListObjectsV2")
            return {"Contents": [{"Key": key} for key in self.objects]}

    class Client:
        def query(self, *_: Any, **__: Any) -> Any:
            raise DatabaseError("HTTP response code: 503: while reading 'busy' in bucket", code=499)

    s3: Any = Busy(503, "SlowDown")
    client: Any = Client()
    found = look_at(Source("bucket"), ["good", "busy"], client, s3, pull=pull)
    assert getattr(found["good"], "etag", "") == "e"
    assert isinstance(found["busy"], BusyObjectError)
    assert str(found["busy"]) == "it cannot be read at the moment: s3://bucket/busy: 503"
    # S3 answers for another object of the bucket, which is not one of the keys.
    assert isinstance(look_at(Source("bucket"), ["busy"], client, s3, pull=pull)["busy"], BusyObjectError)
    for objects in (("busy",), ()):
        s3.objects = objects
        with pytest.raises(TransferTransientError, match="s3://bucket/busy: 503"):
            look_at(Source("bucket"), ["busy"], client, s3, pull=pull)


@pytest.mark.parametrize(
    ("error", "by_itself"),
    [
        (DatabaseError("Query memory limit exceeded: would use 2 GiB", code=MEMORY), True),
        (DatabaseError("(total) memory limit exceeded: would use 9 GiB", code=MEMORY), False),
        (DatabaseError("User memory limit exceeded: would use 9 GiB", code=MEMORY), False),
        (DatabaseError("Timeout exceeded (TIMEOUT_EXCEEDED)", code=159), True),
        (OperationalError("connection refused"), False),
    ],
)
def test_what_one_object_may_be_to_blame_for(error: Exception, by_itself: bool) -> None:
    assert by_size(error) == by_itself
    pushed = TransferTransientError("as a pushed object has it")
    pushed.__cause__ = error
    assert by_size(pushed) == by_itself


def test_an_error_that_quotes_a_very_long_name() -> None:
    name = "x" * (50 << 20)
    text = f"Unknown field found in format header: '{name}': (in file/uri b/k): (INCORRECT_DATA)"
    error = DatabaseError(f"Code: 117. DB::Exception: {text}", code=117)
    found = classify(error)
    assert type(found) is DriftError
    assert str(found).startswith("Unknown field found in format header: 'xxx")
    assert len(str(found)) < 1000
    assert named_file(error) == "b/k"


REFUSAL = (
    "Received ClickHouse exception, code: 86, server response: Code: 86. DB::Exception: Received error from remote"
    " server http://10.0.0.2:51081/v1/objects/results/a.csv?provider=ais&pid=p1&u={signature}&utm=d&vpams=6&x=r."
    ' HTTP status code: {status} \'No\', body length: 9 bytes, body: \'{{"message":"it is so","status":{status}}}\':'
    " (in file/uri http://proxy:51080/v1/objects/results/a%20b.csv?provider=ais): While executing URL."
)


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (404, GoneError, "deleted after it was listed"),
        (401, NoAccessError, "renew the token"),
        (403, NoAccessError, "renew the token"),
        (416, LoadObjectError, "AIStore answered 416: it is so"),
        (429, TransferTransientError, "429"),
        (503, TransferTransientError, "503"),
    ],
)
def test_errors_of_aistore_that_clickhouse_reads(status: int, kind: type[TransferError], says: str) -> None:
    """They contain the address of a redirect, with a signature."""
    error = DatabaseError(REFUSAL.format(status=status, signature="Aa0_-" * 17 + "A"), code=86)
    found = classify(error)
    assert type(found) is kind
    assert says in str(found)
    assert "Aa0_-" not in str(found) + plain(error)
    source = Source("ais://results", endpoint="http://proxy:51080")
    assert source.key_named(named_file(error)) == "a b.csv"


def test_columns_that_the_table_lacks_come_with_the_options_that_accept_them() -> None:
    assert str(lacks("data.trips", ["tip", "toll"])) == (
        "columns 'tip', 'toll' are not in data.trips: set `on_drift` to \"add\" or \"rest\", or leave them out with"
        " `columns.drop`"
    )


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (b"2\n", "a row has 1 instead of 2 fields: 2: correct its rows; `on_bad_rows` cannot leave them out"),
        (b"2,\xf6\n", "column number 2 has invalid UTF-8: set csv.encoding"),
        (b"x,y\n", "column number 1 has 'x', which is no int64"),
    ],
)
def test_errors_of_pyarrow_about_csv_name_column_and_remedy(rows: bytes, reason: str) -> None:
    types = pa.csv.ConvertOptions(column_types={"a": pa.int64(), "b": pa.string()})
    with pytest.raises(pa.ArrowInvalid) as error:
        pa.csv.read_csv(pa.BufferReader(b"a,b\n1,z\n" + rows), convert_options=types)
    assert damage.words(error.value).startswith(reason)
