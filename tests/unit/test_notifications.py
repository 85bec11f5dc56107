from __future__ import annotations

import contextlib
import copy
import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.events.errors import NotificationError
from storeside.events.notifications import S3Event, newest, parse

# The example of AWS, "Event message structure" (S3 user guide).
SAMPLE: dict[str, Any] = {
    "Records": [
        {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "awsRegion": "us-west-2",
            "eventTime": "1970-01-01T00:00:00.000Z",
            "eventName": "ObjectCreated:Put",
            "userIdentity": {"principalId": "AIDAJDPLRKLG7UEXAMPLE"},
            "requestParameters": {"sourceIPAddress": "172.16.0.1"},
            "responseElements": {
                "x-amz-request-id": "C3D13FE58DE4C810",
                "x-amz-id-2": "FMyUVURIY8/IgAtTv8xRjskZQpcIZ9KG4V5Wp6S7S/JRWeUWerMUE5JgHvANOjpD",
            },
            "s3": {
                "s3SchemaVersion": "1.0",
                "configurationId": "testConfigRule",
                "bucket": {
                    "name": "amzn-s3-demo-bucket",
                    "ownerIdentity": {"principalId": "A3NL1KOZZKExample"},
                    "arn": "arn:aws:s3:::amzn-s3-demo-bucket",
                },
                "object": {
                    "key": "HappyFace.jpg",
                    "size": 1024,
                    "eTag": "d41d8cd98f00b204e9800998ecf8427e",
                    "versionId": "096fKKXTRTtl3on89fVO.nfljtsv6qko",
                    "sequencer": "0055AED6DCD90281E5",
                },
            },
        }
    ]
}
EVENT = S3Event(
    name="ObjectCreated:Put",
    bucket="amzn-s3-demo-bucket",
    key="HappyFace.jpg",
    etag="d41d8cd98f00b204e9800998ecf8427e",
    time=datetime(1970, 1, 1, tzinfo=UTC),
    size=1024,
    version_id="096fKKXTRTtl3on89fVO.nfljtsv6qko",
    sequencer="0055AED6DCD90281E5",
)

# The examples of AWS, "EventBridge event message structure" (S3 user guide).
BRIDGED: dict[str, Any] = {
    "version": "0",
    "id": "17793124-05d4-b198-2fde-7ededc63b103",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "account": "111122223333",
    "time": "2021-11-12T00:00:00Z",
    "region": "ca-central-1",
    "resources": ["arn:aws:s3:::amzn-s3-demo-bucket1"],
    "detail": {
        "version": "0",
        "bucket": {"name": "amzn-s3-demo-bucket1"},
        "object": {
            "key": "example-key",
            "size": 5,
            "etag": "b1946ac92492d2347c6235b4d2611184",
            "version-id": "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e",
            "sequencer": "617f08299329d189",
        },
        "request-id": "N4N7GDK58NMKJ12R",
        "requester": "123456789012",
        "source-ip-address": "1.2.3.4",
        "reason": "PutObject",
    },
}
BRIDGED_EVENT = S3Event(
    name="ObjectCreated:Put",
    bucket="amzn-s3-demo-bucket1",
    key="example-key",
    etag="b1946ac92492d2347c6235b4d2611184",
    time=datetime(2021, 11, 12, tzinfo=UTC),
    size=5,
    version_id="IYV3p45BT0ac8hjHg1houSdS1a.Mro8e",
    sequencer="617f08299329d189",
)

TEST_EVENT = {
    "Service": "Amazon S3",
    "Event": "s3:TestEvent",
    "Time": "2014-10-13T15:57:02.089Z",
    "Bucket": "amzn-s3-demo-bucket",
    "RequestId": "5582815E1AEA5ADF",
    "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR+YstdA6Knx4Ip8EXAMPLE",
}


def sample(**changes: Any) -> dict[str, Any]:
    """The sample with changes to one record; the object's fields and ``bucket`` are those below ``s3``."""
    document = copy.deepcopy(SAMPLE)
    record = document["Records"][0]
    for name, value in changes.items():
        if name in ("key", "eTag", "size", "versionId", "sequencer"):
            record["s3"]["object"][name] = value
        elif name == "bucket":
            record["s3"]["bucket"]["name"] = value
        else:
            record[name] = value
    return document


def without(*path: str) -> dict[str, Any]:
    document = copy.deepcopy(SAMPLE)
    place = document["Records"][0]
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return document


def bridged(detail_type: str = "Object Created", **detail: Any) -> dict[str, Any]:
    document = copy.deepcopy(BRIDGED)
    document["detail-type"] = detail_type
    document["detail"].update(detail)
    return document


def by_sns(document: Any) -> dict[str, Any]:
    return {
        "Type": "Notification",
        "MessageId": "dc1e94d9-56c5-5e96-808d-cc7f68faa162",
        "TopicArn": "arn:aws:sns:us-east-2:111122223333:ExampleTopic1",
        "Subject": "Amazon S3 Notification",
        "Message": json.dumps(document),
        "Timestamp": "2021-02-16T21:41:19.978Z",
    }


def one(document: Any) -> S3Event:
    (event,) = parse(json.dumps(document))
    return event


def refusal(document: Any) -> str:
    with pytest.raises(NotificationError) as raised:
        parse(json.dumps(document))
    return str(raised.value)


# Shapes


@pytest.mark.guarantee("notifications")
def test_the_sample_of_aws() -> None:
    assert parse(json.dumps(SAMPLE)) == [EVENT]
    assert EVENT.created


@pytest.mark.guarantee("notifications")
def test_the_sample_of_eventbridge() -> None:
    assert parse(json.dumps(BRIDGED)) == [BRIDGED_EVENT]
    assert BRIDGED_EVENT.created


@pytest.mark.guarantee("notifications")
@pytest.mark.parametrize(("document", "event"), [(SAMPLE, EVENT), (BRIDGED, BRIDGED_EVENT)])
def test_wrapped_by_sns(document: dict[str, Any], event: S3Event) -> None:
    assert parse(json.dumps(by_sns(document))) == [event]


@pytest.mark.guarantee("notifications")
def test_test_events_are_no_objects() -> None:
    assert parse(json.dumps(TEST_EVENT)) == []
    assert parse(json.dumps(by_sns(TEST_EVENT))) == []
    versitygw = {"Service": "S3", "Event": "s3:TestEvent", "Time": "2026-01-02T03:04:05Z", "Bucket": "Test-Bucket"}
    assert parse(json.dumps(versitygw)) == []


def test_several_records_keep_their_order() -> None:
    document = copy.deepcopy(SAMPLE)
    document["Records"] += sample(key="second", eventName="ObjectRemoved:Delete")["Records"]
    document["Records"] += sample(key="third", bucket="other")["Records"]
    events = parse(json.dumps(document))
    assert [(e.bucket, e.key, e.created) for e in events] == [
        ("amzn-s3-demo-bucket", "HappyFace.jpg", True),
        ("amzn-s3-demo-bucket", "second", False),
        ("other", "third", True),
    ]


def test_no_records_are_no_events() -> None:
    assert parse('{"Records": []}') == []


def test_fields_that_aws_may_add_are_passed_over() -> None:
    assert parse(json.dumps({**sample(eventVersion="2.6", annotationEventData={"x": [1]}), "new": 1})) == [EVENT]


# Other servers


def test_minio() -> None:
    """In the form of cmd/event-notification.go."""
    document = {
        "EventName": "s3:ObjectCreated:Put",
        "Key": "anze/a b/hello.jpg",
        "Records": [
            {
                "eventVersion": "2.0",
                "eventSource": "minio:s3",
                "awsRegion": "",
                "eventTime": "2019-10-22T09:27:27.000Z",
                "eventName": "s3:ObjectCreated:Put",
                "userIdentity": {"principalId": "EXAMPLE"},
                "requestParameters": {"region": "", "sourceIPAddress": "172.16.118.255"},
                "responseElements": {"x-minio-origin-endpoint": "http://172.17.0.2:9000"},
                "s3": {
                    "s3SchemaVersion": "1.0",
                    "configurationId": "Config",
                    "bucket": {
                        "name": "anze",
                        "ownerIdentity": {"principalId": "EXAMPLE"},
                        "arn": "arn:aws:s3:::anze",
                    },
                    "object": {
                        "key": "a+b%2Fhello.jpg",
                        "size": 224662,
                        "eTag": "5fc7298143efe1276d39a3466d4e255f-1",
                        "contentType": "image/jpeg",
                        "userMetadata": {"content-type": "image/jpeg"},
                        "sequencer": "15CFEDF8D5304D1A",
                    },
                },
                "source": {"host": "172.16.118.255", "port": "", "userAgent": "Mozilla/5.0"},
            }
        ],
    }
    assert one(document) == S3Event(
        name="ObjectCreated:Put",
        bucket="anze",
        key="a b/hello.jpg",
        etag="5fc7298143efe1276d39a3466d4e255f-1",
        time=datetime(2019, 10, 22, 9, 27, 27, tzinfo=UTC),
        size=224662,
        sequencer="15CFEDF8D5304D1A",
    )


def test_moto() -> None:
    """In the form of moto/s3/notifications.py: no version, no sequencer, a time without zone."""
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "us-east-1",
        "eventTime": "2026-01-02T03:04:05.678901",
        "eventName": "ObjectCreated:Copy",
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "x",
            "bucket": {"name": "b", "arn": "arn:aws:s3:::b"},
            "object": {"key": "in%2Fa+b", "size": 3, "eTag": "abc"},
        },
    }
    time = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
    assert one({"Records": [record]}) == S3Event("ObjectCreated:Copy", "b", "in/a b", "abc", time, 3)
    through_eventbridge = bridged(reason="ObjectCreated", object={"key": "in/a b", "size": 3, "eTag": "abc"})
    event = one(through_eventbridge)
    assert (event.name, event.created, event.key, event.etag) == ("ObjectCreated", True, "in/a b", "abc")


def test_versitygw() -> None:
    """In the form of s3event/event.go: keys are not encoded, the sequencer counts from 1 at each start."""
    document = sample(
        eventName="s3:ObjectCreated:Put", eventTime="2026-01-02T05:04:05+02:00", key="a+b %41.wav", versionId=None,
        sequencer="A", eTag=None, glacierEventData={"restoreEventData": {}},
    )  # fmt: skip
    document["Records"][0]["s3"]["configurationId"] = "webhook-global"
    event = one(document)
    assert (event.name, event.key, event.version_id, event.etag) == ("ObjectCreated:Put", "a+b %41.wav", "", "")
    assert event.time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert event.sequence == ""
    document["Records"][0]["eventName"] = "s3:ObjectRemoved:DeleteObjects"
    assert one(document).removed


# Fields


@pytest.mark.guarantee("notifications")
@pytest.mark.parametrize(
    ("encoded", "key"),
    [
        ("in/a+b%2B%C3%BC.wav", "in/a b+\u00fc.wav"),
        ("percent%2520space.flac", "percent%20space.flac"),
        ("a%2Fb", "a/b"),
        ("hash%23question%3F", "hash#question?"),
        ("new%0Aline", "new\nline"),
        ("%E9%9F%B3", "\u97f3"),
    ],
)
def test_keys_are_decoded(encoded: str, key: str) -> None:
    assert one(sample(key=encoded)).key == key
    assert one(bridged(object={"key": encoded})).key == encoded  # EventBridge does not encode keys


@given(st.text(min_size=1, max_size=60))
def test_keys_round_trip(key: str) -> None:
    for safe in ("", "/"):
        assert one(sample(key=quote_plus(key, safe=safe))).key == key
    assert one(bridged(object={"key": key})).key == key


def test_the_longest_key() -> None:
    key = "\u00fc" * 512
    assert one(sample(key=quote_plus(key))).key == key
    assert "at most 1024 bytes" in refusal(sample(key=quote_plus(key[1:] + "abc")))
    assert "at most 3072 bytes" in refusal(sample(key=quote_plus(key + "a")))
    assert "at most 1024 bytes" in refusal(bridged(object={"key": key + "a"}))


@pytest.mark.parametrize(("etag", "expected"), [('"abc"', "abc"), ("abc-2", "abc-2"), ("", ""), (None, "")])
def test_etags(etag: str | None, expected: str) -> None:
    assert one(sample(eTag=etag)).etag == expected


def test_fields_that_may_be_missing() -> None:
    assert one(without("s3", "object", "eTag")) == replace(EVENT, etag="")
    assert one(without("s3", "object", "versionId")) == replace(EVENT, version_id="")
    assert one(without("s3", "object", "sequencer")) == replace(EVENT, sequencer="")
    assert one(without("s3", "object", "size")) == replace(EVENT, size=None)
    assert one(without("awsRegion")) == EVENT
    assert one(without("eventVersion")) == EVENT


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("2026-01-02T03:04:05.678Z", datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, 0, UTC)),
        ("2026-01-02T05:04:05+02:00", datetime(2026, 1, 2, 3, 4, 5, 0, UTC)),
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, 0, UTC)),
    ],
)
def test_times_are_instants(time: str, expected: datetime) -> None:
    assert one(sample(eventTime=time)).time == expected


# An event's statements about the content


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("ObjectCreated:Put", "created"),
        ("ObjectCreated:Post", "created"),
        ("ObjectCreated:Copy", "created"),
        ("s3:ObjectCreated:CompleteMultipartUpload", "created"),
        ("ObjectCreated:SomethingNew", "created"),
        ("ObjectRemoved:Delete", "removed"),
        ("ObjectRemoved:DeleteMarkerCreated", "removed"),
        ("LifecycleExpiration:Delete", "removed"),
        ("LifecycleExpiration:DeleteMarkerCreated", "removed"),
        ("ReducedRedundancyLostObject", "removed"),
        ("ObjectRestore:Post", "ignored"),
        ("ObjectRestore:Completed", "ignored"),
        ("ObjectRestore:Delete", "ignored"),
        ("Replication:OperationFailedReplication", "ignored"),
        ("ObjectTagging:Put", "ignored"),
        ("ObjectTagging:Delete", "ignored"),
        ("ObjectAcl:Put", "ignored"),
        ("ObjectAnnotation:Put", "ignored"),
        ("IntelligentTiering", "ignored"),
        ("LifecycleTransition", "ignored"),
        # MinIO
        ("s3:ObjectCreated:PutTagging", "ignored"),
        ("s3:ObjectCreated:PutRetention", "ignored"),
        ("s3:ObjectRemoved:NoOP", "ignored"),
        ("s3:ObjectRemoved:DeleteAllVersions", "removed"),
        ("s3:ObjectAccessed:Get", "ignored"),
    ],
)
def test_event_names(name: str, effect: str) -> None:
    event = one(sample(eventName=name))
    assert event.name == name.removeprefix("s3:")
    assert event.effect == effect
    assert (event.created, event.removed) == (effect == "created", effect == "removed")


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (bridged(reason="POST Object"), "ObjectCreated:Post"),
        (bridged(reason="CopyObject"), "ObjectCreated:Copy"),
        (bridged(reason="CompleteMultipartUpload"), "ObjectCreated:CompleteMultipartUpload"),
        (bridged(reason="SomethingNew"), "ObjectCreated"),
        (
            bridged("Object Deleted", reason="DeleteObject", **{"deletion-type": "Permanently Deleted"}),
            "ObjectRemoved:Delete",
        ),
        (
            bridged("Object Deleted", reason="DeleteObject", **{"deletion-type": "Delete Marker Created"}),
            "ObjectRemoved:DeleteMarkerCreated",
        ),
        (
            bridged("Object Deleted", reason="Lifecycle Expiration", **{"deletion-type": "Permanently Deleted"}),
            "LifecycleExpiration:Delete",
        ),
        (
            bridged("Object Deleted", reason="Lifecycle Expiration", **{"deletion-type": "Delete Marker Created"}),
            "LifecycleExpiration:DeleteMarkerCreated",
        ),
        (bridged("Object Restore Initiated"), "ObjectRestore:Post"),
        (bridged("Object Restore Completed"), "ObjectRestore:Completed"),
        (bridged("Object Restore Expired"), "ObjectRestore:Delete"),
        (bridged("Object Storage Class Changed"), "LifecycleTransition"),
        (bridged("Object Access Tier Changed"), "IntelligentTiering"),
        (bridged("Object ACL Updated"), "ObjectAcl:Put"),
        (bridged("Object Tags Added"), "ObjectTagging:Put"),
        (bridged("Object Tags Deleted"), "ObjectTagging:Delete"),
    ],
)
def test_eventbridge_gives_the_names_of_s3(document: dict[str, Any], name: str) -> None:
    event = one(document)
    assert event.name == name
    assert event.effect == one(sample(eventName=name)).effect


# Refusals


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "message is not JSON"),
        ("hello", "message is not JSON"),
        ("{", "message is not JSON"),
        ("[]", "message is a list, expected an object"),
        ("null", "message is null, expected an object"),
        ("true", "message is true, expected an object"),
        ("1", "message is a number, expected an object"),
        ('"text"', "message is 'text', expected an object"),
        ("{}", "message.Records is missing, expected a list (S3), or"),
        ('{"Records": {}}', "message.Records is an object, expected a list"),
        ('{"Records": null}', "message.Records is null, expected a list"),
        ('{"Type": "Notification"}', "message.Message is missing, expected text"),
        ('{"Type": "Notification", "Message": {}}', "message.Message is an object, expected text"),
        ('{"Type": "Notification", "Message": "hello"}', "SNS message is not JSON"),
        ('{"Type": "Notification", "Message": "{}"}', "SNS message.Records is missing"),
        ('{"Type": "SubscriptionConfirmation", "Message": "x"}', "message.Records is missing"),
        (json.dumps(by_sns(by_sns(SAMPLE))), "SNS message.Records is missing"),
        ('{"Records": ["text"]}', "message.Records[0] is 'text', expected an object"),
        ('{"Records": [null]}', "message.Records[0] is null"),
        ('{"Records": [{}]}', "message.Records[0].s3 is missing, expected an object"),
        (json.dumps(without("eventName")), "message.Records[0].eventName is missing"),
        (json.dumps(without("eventTime")), "message.Records[0].eventTime is missing"),
        (json.dumps(without("s3", "bucket")), "message.Records[0].s3.bucket is missing"),
        (json.dumps(without("s3", "bucket", "name")), "message.Records[0].s3.bucket.name is missing"),
        (json.dumps(without("s3", "object")), "message.Records[0].s3.object is missing"),
        (json.dumps(without("s3", "object", "key")), "message.Records[0].s3.object.key is missing"),
        (json.dumps(sample(s3=[])), "message.Records[0].s3 is a list"),
        (json.dumps({"Records": [*SAMPLE["Records"], {}]}), "message.Records[1].s3 is missing"),
        (json.dumps(sample(eventVersion="3.0")), "eventVersion is '3.0', expected 2.x"),
        (json.dumps(sample(eventVersion=2.1)), "eventVersion is a number, expected text"),
        (json.dumps(sample(eventTime="yesterday")), "eventTime is 'yesterday', expected a time in ISO 8601"),
        (json.dumps(sample(eventTime="0001-01-01T00:00:00+14:00")), "expected a time in ISO 8601"),
        (json.dumps(sample(eventTime=0)), "eventTime is a number, expected text"),
        (json.dumps(sample(eventName="ObjectMoved:Put")), "eventName is 'ObjectMoved:Put', expected an event of S3"),
        (json.dumps(sample(eventName="ObjectCreated:" + "x" * 99)), "expected an event of S3"),
        (json.dumps(sample(eventName="BucketCreated:*")), "expected an event of S3"),
        (json.dumps(sample(key="")), "key is '', expected text"),
        (json.dumps(sample(key=7)), "key is a number, expected text"),
        (json.dumps(sample(key="%FF")), "key is '%FF', expected URL-encoded UTF-8"),
        (json.dumps(sample(key="a\ud800")), r"key is 'a\ud800', expected text without half of a surrogate pair"),
        (json.dumps(sample(key="%ED%A0%80")), "expected URL-encoded UTF-8"),
        (json.dumps(sample(size="1024")), "size is '1024', expected a number of bytes"),
        (json.dumps(sample(size=True)), "size is true, expected a number of bytes"),
        (json.dumps(sample(size=-1)), "size is a number, expected a number of bytes"),
        (json.dumps(sample(size=2**63)), "expected a number of bytes"),
        (json.dumps(sample(size=float("nan"))), "expected a number of bytes"),
        ('{"Records": [{"size": ' + "9" * 5000 + "}]}", "message is not JSON"),
        (
            json.dumps(bridged("AWS API Call via CloudTrail")),
            "is 'AWS API Call via CloudTrail', expected one of S3's",
        ),
        (json.dumps({**BRIDGED, "source": "aws.ec2"}), "message.Records is missing"),
        (json.dumps({**BRIDGED, "detail": None}), "message.detail is null, expected an object"),
        (json.dumps(bridged(bucket="b")), "message.detail.bucket is 'b', expected an object"),
        (json.dumps(BRIDGED["detail"]), "message.Records is missing"),
    ],
)
def test_anything_else_is_refused_with_what_and_where(body: str, why: str) -> None:
    with pytest.raises(NotificationError) as raised:
        parse(body)
    assert why in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "document",
    [
        sample(eventTime="password " * 29_000),
        sample(eventName="password " * 29_000),
        sample(key="password " * 29_000),
        sample(size="password " * 29_000),
        sample(s3="password " * 29_000),
        "password " * 29_000,
        {"Records": "password " * 29_000},
        {"password " * 29_000: 1},
        by_sns("password " * 29_000),
        bridged("password " * 29_000),
    ],
)
def test_a_refusal_shows_little_of_256_kilobytes(document: Any) -> None:
    why = refusal(document)
    assert len(why) < 300
    assert why.count("password") <= 3


def test_a_refusal_brings_no_other_error_into_the_log() -> None:
    with pytest.raises(NotificationError) as raised:
        parse(json.dumps(sample(eventTime="password " * 5)))
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("opening", ["[", '{"Records":', '{"Records": [{"s3":', '{"source": "aws.s3", "detail":'])
def test_depth_beyond_the_interpreter_is_refused(opening: str) -> None:
    """A RecursionError would end the task at the same message again and again."""
    for body in (opening * 30_000, json.dumps({"Type": "Notification", "Message": opening * 30_000})):
        with pytest.raises(NotificationError, match="nested too deeply"):
            parse(body)


def test_a_deep_value_where_text_belongs() -> None:
    deep = "[" * 400 + "]" * 400
    with pytest.raises(NotificationError, match="key is a list, expected text"):
        parse(json.dumps(sample(key="DEEP")).replace('"DEEP"', deep))


# Half of a surrogate pair and NUL are JSON, and so are numbers that no other type can hold.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.text(st.sampled_from("\ud800\udfff\0%+/Fé0Z:-"), max_size=8)
    | st.sampled_from(["Notification", "s3:TestEvent", "aws.s3", "Object Created", "{}", "9999-12-31"])
)
NAMES = st.sampled_from(
    ["Records", "s3", "object", "bucket", "key", "name", "Type", "Message", "Event", "eventTime", "eventName",
     "source", "detail-type", "detail", "time", "size", "sequencer", "configurationId", "eventVersion"]
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=15,
)


def paths(value: Any) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((name, *rest) for name, below in inner for rest in paths(below))]


def assert_events_or_refusal(body: str) -> None:
    """The result of parse can be stored and compared, or the reason is short; other exceptions fail the test."""
    events: list[S3Event] = []
    why = "none"
    try:
        events = parse(body)
    except NotificationError as e:
        why = str(e)
    assert 0 < len(why.encode()) < 500
    for event in events:
        for value in vars(event).values():
            assert not isinstance(value, str) or len(value.encode()) <= 1024
        assert event.bucket
        assert event.key
        assert event.time.tzinfo is UTC
        assert event.size is None or 0 <= event.size < 2**63
    newest(events)


@given(ANYTHING)
def test_any_json_is_events_or_a_refusal(document: Any) -> None:
    assert_events_or_refusal(json.dumps(document))
    assert_events_or_refusal(json.dumps(by_sns(document)))


@given(st.data())
def test_a_notification_with_anything_anywhere_in_it_is_events_or_a_refusal(data: st.DataObject) -> None:
    document = {"": copy.deepcopy(data.draw(st.sampled_from([SAMPLE, BRIDGED, TEST_EVENT])))}
    *way, last = ("", *data.draw(st.sampled_from(paths(document[""]))))
    place: Any = document
    for step in way:
        place = place[step]
    place[last] = data.draw(ANYTHING)
    assert_events_or_refusal(json.dumps(document[""]))
    assert_events_or_refusal(json.dumps(by_sns(document[""])))


@given(st.text(st.characters()) | st.text(st.sampled_from('{}[]",:\\0123456789eE+-NaInfity \ud800\0')))
def test_any_text_is_events_or_a_refusal(body: str) -> None:
    with contextlib.suppress(NotificationError):
        assert parse(body) == []


# The last event of each object

START = datetime(2026, 1, 1, tzinfo=UTC)


def event(effect: str, at: int, sequencer: str = "", key: str = "k", version: str = "", bucket: str = "b") -> S3Event:
    name = {
        "put": "ObjectCreated:Put",
        "delete": "ObjectRemoved:Delete",
        "mark": "ObjectRemoved:DeleteMarkerCreated",
        "tag": "ObjectTagging:Put",
    }[effect]
    time = START + timedelta(seconds=at)
    return S3Event(name, bucket, key, f"etag{at}", time, version_id=version, sequencer=sequencer)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("0055AED6DCD90281E5", "0055AED6DCD90281E6"),
        ("0055AED6DCD90281E5", "0055aed6dcd90281e6"),
        ("0055AED6DC", "0055AED6DCD90281E5"),  # the shorter is padded on the right
        ("0055AED6DCD90281E5", "0055AED6DD"),
        ("1", "10000001"),
        ("9", "a"),
        ("10", "2"),
    ],
)
def test_sequencers_compare_as_aws_says(earlier: str, later: str) -> None:
    first, last = event("put", 2, earlier), event("put", 1, later)
    assert first.sequence < last.sequence
    assert newest([first, last]) == newest([last, first]) == [last]


@given(st.text("0123456789abcdef", min_size=1, max_size=20), st.text("0123456789ABCDEF", min_size=1, max_size=20))
def test_sequence_is_right_padding(a: str, b: str) -> None:
    x, y = a.lower().ljust(20, "0"), b.lower().ljust(20, "0")
    first, second = event("put", 0, a).sequence, event("put", 0, b).sequence
    assert (first < second, first == second) == (x < y, x == y)


@pytest.mark.parametrize("sequencer", ["", "0", "xyz", "12-34", "\u0663"])
def test_what_is_no_sequencer_gives_no_sequence(sequencer: str) -> None:
    assert event("put", 0, sequencer).sequence == ""


def test_equal_sequencers_go_by_time() -> None:
    first, last = event("put", 1, "0055AED6DCD9"), event("delete", 2, "0055AED6DCD900")
    assert newest([last, first]) == [last]


def test_one_event_without_sequencer_makes_time_decide() -> None:
    events = [event("put", 1, "FF"), event("put", 3, "AA"), event("delete", 2)]
    for order in itertools.permutations(events):
        assert newest(order) == [events[1]]


def test_each_bucket_and_key_has_its_last_event() -> None:
    events = [
        event("put", 1, "A1", "x"),
        event("put", 2, "A2", "y"),
        event("put", 3, "A3", "x", bucket="other"),
        event("delete", 4, "A4", "x"),
    ]
    assert newest(events) == [events[3], events[1], events[2]]
    assert newest([]) == []


def test_tags_hide_no_content() -> None:
    put = event("put", 1, "A1")
    assert newest([put, event("tag", 2)]) == [put]
    assert newest([event("tag", 2)]) == []


def test_a_version_deleted_for_good_leaves_the_others() -> None:
    first, second = event("put", 1, "A1", version="v1"), event("put", 2, "A2", version="v2")
    marker = event("mark", 3, "A3", version="m")
    gone = {e.version_id: replace(event("delete", 4, "A4"), version_id=e.version_id) for e in (first, second, marker)}
    assert newest([first, second, gone["v1"]]) == [second]  # as a lifecycle rule does with old versions
    assert newest([first, second, gone["v2"]]) == [first]
    assert newest([first, marker, gone["m"]]) == [first]
    assert newest([first, marker]) == [marker]
    assert newest([first, gone["v1"]]) == [gone["v1"]]
    assert newest([gone["v1"]]) == [gone["v1"]]


def history(steps: list[tuple[str, str, int]], versioned: bool) -> tuple[list[S3Event], dict[str, str]]:
    """Return a bucket's history as events, and the final ETag of each key, "" if it is gone."""
    events: list[S3Event] = []
    stacks: dict[str, list[S3Event]] = {}
    for n, (step, key, which) in enumerate(steps, start=1):
        stack = stacks.setdefault(key, [])
        version = f"v{n}" if versioned else ""
        if step == "purge" and versioned:
            if not stack:
                continue
            version = stack.pop(which % len(stack)).version_id
        happened = event({"purge": "delete", "delete": "mark" if versioned else "delete"}.get(step, step), n,
                         f"{0x0055AED6DC + n:010X}", key, version)  # fmt: skip
        if not (step == "purge" and versioned):
            stack[:] = [*stack, happened] if versioned else [happened]
        events.append(happened)
    return events, {k: s[-1].etag if s and s[-1].created else "" for k, s in stacks.items()}


@pytest.mark.parametrize("versioned", [False, True])
@given(data=st.data())
def test_the_newest_events_are_what_the_bucket_holds(versioned: bool, data: st.DataObject) -> None:
    """With duplicates and in any order; the test above covers purges of versions older than the messages."""
    step = st.tuples(st.sampled_from(["put", "put", "delete", "purge"]), st.sampled_from("xy"), st.integers(0, 9))
    events, held = history(data.draw(st.lists(step, max_size=12)), versioned)
    again = data.draw(st.lists(st.sampled_from(events), max_size=5)) if events else []
    found = newest(data.draw(st.permutations(events + again)))
    assert {e.key: e.etag if e.created else "" for e in found} == {e.key: held[e.key] for e in events}
    assert newest(found) == found


@pytest.mark.guarantee("notifications")
def test_five_thousand_events_shuffled_with_duplicates() -> None:
    events = [event("put", n, f"{0x0055AED6DC000000 + n:018X}", f"{n % 500}") for n in range(5000)]
    delivered = events + events[::10]
    shuffled = [delivered[n * 7919 % len(delivered)] for n in range(len(delivered))]
    assert sorted(newest(shuffled), key=lambda e: e.time) == events[-500:]
