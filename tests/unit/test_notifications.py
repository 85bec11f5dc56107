from __future__ import annotations

import contextlib
import copy
import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.events.notifications import NotificationError, S3Event, parse

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
    "ObjectCreated:Put",
    "amzn-s3-demo-bucket",
    "HappyFace.jpg",
    "d41d8cd98f00b204e9800998ecf8427e",
    datetime(1970, 1, 1, tzinfo=UTC),
)


def sample(**changes: Any) -> dict[str, Any]:
    """The sample with one record changed; keys are the record's, ``key``, ``eTag`` and ``bucket`` those below it."""
    document = copy.deepcopy(SAMPLE)
    record = document["Records"][0]
    for name, value in changes.items():
        if name in ("key", "eTag"):
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


def test_the_sample_of_aws() -> None:
    assert parse(json.dumps(SAMPLE)) == [EVENT]
    assert EVENT.created


def test_wrapped_by_sns() -> None:
    envelope = {
        "Type": "Notification",
        "MessageId": "dc1e94d9-56c5-5e96-808d-cc7f68faa162",
        "TopicArn": "arn:aws:sns:us-east-2:111122223333:ExampleTopic1",
        "Subject": "Amazon S3 Notification",
        "Message": json.dumps(SAMPLE),
        "Timestamp": "2021-02-16T21:41:19.978Z",
    }
    assert parse(json.dumps(envelope)) == [EVENT]


def test_test_events_are_no_objects() -> None:
    event = {
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": "2014-10-13T15:57:02.089Z",
        "Bucket": "amzn-s3-demo-bucket",
        "RequestId": "5582815E1AEA5ADF",
        "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR+YstdA6Knx4Ip8EXAMPLE",
    }
    assert parse(json.dumps(event)) == []
    assert parse(json.dumps({"Type": "Notification", "Message": json.dumps(event)})) == []


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
    assert parse(json.dumps(sample(key=encoded)))[0].key == key


@given(st.text(min_size=1, max_size=60))
def test_keys_round_trip(key: str) -> None:
    for safe in ("", "/"):
        assert parse(json.dumps(sample(key=quote_plus(key, safe=safe))))[0].key == key


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


@pytest.mark.parametrize(
    ("name", "created"),
    [
        ("ObjectCreated:Copy", True),
        ("s3:ObjectCreated:CompleteMultipartUpload", True),
        ("ObjectRemoved:DeleteMarkerCreated", False),
        ("ObjectTagging:Put", False),
        ("LifecycleExpiration:Delete", False),
    ],
)
def test_event_names(name: str, created: bool) -> None:
    event = parse(json.dumps(sample(eventName=name)))[0]
    assert event.name == name.removeprefix("s3:")
    assert event.created is created


@pytest.mark.parametrize(("etag", "expected"), [('"abc"', "abc"), ("abc-2", "abc-2"), ("", ""), (None, "")])
def test_etags(etag: str | None, expected: str) -> None:
    assert parse(json.dumps(sample(eTag=etag)))[0].etag == expected


def test_etag_and_version_may_be_missing() -> None:
    assert parse(json.dumps(without("s3", "object", "eTag")))[0].etag == ""
    assert parse(json.dumps(without("s3", "object", "versionId"))) == [EVENT]


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("2026-01-02T03:04:05.678Z", datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, 0, UTC)),
        ("2026-01-02T05:04:05+02:00", datetime(2026, 1, 2, 3, 4, 5, 0, UTC)),
    ],
)
def test_times_are_instants(time: str, expected: datetime) -> None:
    assert parse(json.dumps(sample(eventTime=time)))[0].time == expected


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ("{}", "no Records"),
        ('{"Records": {}}', "no Records"),
        ('{"Records": null}', "no Records"),
        ('{"Type": "Notification"}', "no Records"),
        ('{"Type": "Notification", "Message": "hello"}', "not JSON"),
        ('{"Type": "SubscriptionConfirmation", "Message": "x"}', "no Records"),
        ('{"Records": ["text"]}', "a record without"),
        ('{"Records": [null]}', "a record without"),
        ('{"Records": [{}]}', "a record without 's3'"),
        (json.dumps(without("eventName")), "a record without 'eventName'"),
        (json.dumps(without("eventTime")), "a record without 'eventTime'"),
        (json.dumps(without("s3", "bucket")), "a record without 'bucket'"),
        (json.dumps(without("s3", "bucket", "name")), "a record without 'name'"),
        (json.dumps(without("s3", "object")), "a record without 'object'"),
        (json.dumps(without("s3", "object", "key")), "a record without 'key'"),
        (json.dumps(sample(eventTime="yesterday")), "yesterday"),
        (json.dumps(sample(s3=[])), "a record without"),
        (json.dumps(sample(s3={"bucket": {"name": "b"}, "object": "text"})), "a record without"),
        (json.dumps({"Records": [*SAMPLE["Records"], {}]}), "a record without 's3'"),
    ],
)
def test_anything_else_is_refused(body: str, why: str) -> None:
    with pytest.raises(NotificationError, match=why):
        parse(body)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["Records", "s3", "object", "bucket", "key", "name", "Type", "Message", "eventTime"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=15,
    )
)
def test_any_json_is_events_or_a_notification_error(document: Any) -> None:
    with contextlib.suppress(NotificationError):
        assert parse(json.dumps(document)) == []


def test_depth_beyond_the_interpreter_is_refused() -> None:
    """A RecursionError would end the task at the same message again and again."""
    with pytest.raises(NotificationError, match="not JSON"):
        parse("[" * 100_000)
