"""Listings of a bucket in ranges of keys, against a server that pages any keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st
from types_boto3_s3 import S3Client

from storeside.transfer.base.errors import TransferTransientError
from storeside.transfer.objects.content import s3_error
from storeside.transfer.objects.listing import OutOfOrderError, between, list_in_ranges, list_objects
from tests.listing_double import Bucket, serve

# Characters of keys that sort next to each other, of several bytes, and above those that UTF-16 represents in one.
CHARACTERS = "/09AZaz~-.é一\ufffd😀"
KEYS = st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Bucket, S3Client]]:
    bucket = Bucket([], 1)
    with serve(bucket) as client:
        yield bucket, client


def _keys(pages: Iterator[list[object]]) -> list[str]:
    return [o.key for page in pages for o in page]  # type: ignore[attr-defined]


@settings(max_examples=25, deadline=None)
@given(keys=st.sets(KEYS, max_size=120), page=st.integers(1, 9), prefix=st.sampled_from(["", "a", "9/"]), after=KEYS)
def test_ranges_contain_each_key_once(
    served: tuple[Bucket, S3Client], keys: set[str], page: int, prefix: str, after: str
) -> None:
    bucket, client = served
    bucket.keys, bucket.page = sorted(prefix + key for key in keys), page
    for start in ("", prefix + after):
        wanted = [key for key in bucket.keys if key > start and not key.endswith("/")]
        assert sorted(_keys(list_in_ranges(client, "bucket", prefix, start))) == wanted
        assert _keys(list_objects(client, "bucket", prefix, start)) == wanted


@pytest.mark.parametrize(
    "name",
    [
        lambda n: f"{n:06}.csv",
        lambda n: f"trips/2022/{n // 100:06}/yellow-{n:010}.parquet",
        lambda n: f"{n * 0x9E3779B97F4A7C15 % (1 << 64):016x}",
        lambda n: f"2026/11/{n % 28 + 1:02}/{n:08}",
    ],
    ids=["numbers", "folders", "digests", "days"],
)
def test_several_ranges_are_listed_at_the_same_time(served: tuple[Bucket, S3Client], name: object) -> None:
    bucket, client = served
    bucket.keys, bucket.page, bucket.begins = sorted(map(name, range(1600))), 40, []  # type: ignore[call-overload]
    assert sorted(_keys(list_in_ranges(client, "bucket", ""))) == bucket.keys
    last = bucket.keys[-1]
    useful = [start for start in bucket.begins if start < last]
    assert len(useful) - len(set(useful)) < 10
    position = {key: n for n, key in enumerate(bucket.keys)}
    sequential = sum(position.get(start, -2) == n * 40 - 1 for n, start in enumerate(bucket.begins))
    assert sequential < 25, "one range was listed after the other"
    assert len(bucket.begins) < 80, "40 pages needed more than 40 further requests"


def test_a_bucket_of_one_page_needs_one_request(served: tuple[Bucket, S3Client]) -> None:
    bucket, client = served
    bucket.keys, bucket.page, bucket.begins = ["a", "b"], 2, []
    assert _keys(list_in_ranges(client, "bucket", "")) == ["a", "b"]
    assert bucket.begins == [""]


@pytest.mark.parametrize("answer", ["", "<html>", "<html><body>sign in</body></html>"])
def test_an_answer_that_is_no_listing_shows_no_empty_bucket(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    bucket = Bucket([], 1)
    monkeypatch.setattr(bucket, "answer", lambda _: answer)
    with serve(bucket) as client, pytest.raises(ClientError, match="500") as refused:
        _keys(list_objects(client, "bucket", ""))
    assert isinstance(s3_error(refused.value, "bucket", ""), TransferTransientError)


def test_directory_buckets_are_listed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_DISABLE_EXPRESS_SESSION_AUTH", "true")
    bucket = Bucket([f"{n:03}" for n in range(100)], 5)
    with serve(bucket) as client:
        assert _keys(list_in_ranges(client, "name--use1-az4--x-s3", "")) == bucket.keys
    assert set(bucket.begins) == {""}


def test_keys_in_another_order_are_listed_page_by_page() -> None:
    bucket = Bucket([f"{n * 37 % 100:03}" for n in range(100)], 5)
    with serve(bucket) as client:
        assert _keys(list_in_ranges(client, "bucket", "")) == bucket.keys
    assert set(bucket.begins) == {""}


@settings(max_examples=40, deadline=None)
@given(keys=st.sets(KEYS, max_size=60), page=st.integers(1, 9), data=st.data())
def test_any_order_is_complete_or_noticed(
    served: tuple[Bucket, S3Client], keys: set[str], page: int, data: st.DataObject
) -> None:
    """The server begins after the place that a key would have in its own order."""
    bucket, client = served
    fold = data.draw(st.sampled_from([str.lower, lambda key: key[::-1], lambda key: key.replace("/", "\0"), hash]))
    bucket.keys, bucket.page, bucket.order = sorted(keys, key=lambda key: (fold(key), key)), page, fold
    try:
        found = _keys(list_in_ranges(client, "bucket", ""))
    except OutOfOrderError:
        found = _keys(list_objects(client, "bucket", ""))
    finally:
        bucket.order = None
    assert sorted(found) == sorted(key for key in keys if not key.endswith("/"))


def test_objects_that_are_written_meanwhile_do_not_matter(served: tuple[Bucket, S3Client]) -> None:
    bucket, client = served
    bucket.keys, bucket.page, bucket.begins = [f"{n:04}.csv" for n in range(2000)], 20, []
    wanted = list(bucket.keys)
    found: list[str] = []
    for n, page in enumerate(list_in_ranges(client, "bucket", "")):
        found += [o.key for o in page]
        bucket.keys = sorted({*bucket.keys, f"{n * 97 % 2000:04}.new", f"9{n}"})
    assert set(wanted) <= set(found)
    assert len(found) == len(set(found))


def test_a_server_that_does_not_know_ranges_is_noticed() -> None:
    bucket = Bucket([f"{n:03}" for n in range(100)], 5, takes_start=False)
    with serve(bucket) as client, pytest.raises(OutOfOrderError, match="other keys than those after '004'"):
        _keys(list_in_ranges(client, "bucket", ""))


def test_keys_between_two_ranges_are_noticed(served: tuple[Bucket, S3Client]) -> None:
    """The keys alone look sorted, but the server puts 7 where S3 has 5, and ranges may begin after 5."""
    bucket, client = served
    bucket.keys, bucket.page = [f"{n}{m:02}" for n in (0, 1, 2, 3, 4, 7, 8, 9) for m in range(100)], 10
    bucket.order = lambda key: {"5": "7", "7": "5"}.get(key[:1], key[:1]) + key[1:]
    try:
        with pytest.raises(OutOfOrderError, match=r"bucket lists '700' after '4.*', but not after '5'"):
            _keys(list_in_ranges(client, "bucket", ""))
    finally:
        bucket.order = None


@given(KEYS, KEYS, KEYS)
def test_the_middle_is_between(prefix: str, one: str, other: str) -> None:
    low, high = sorted((prefix + one, prefix + other))
    for end in ("", high):
        if (middle := between(low, end, prefix)) and low != high:
            assert low < middle
            assert middle < end or not end
            assert middle.encode().decode() == middle
    if low == high:
        assert not between(low, high, prefix) or between(low, high, prefix) > low
