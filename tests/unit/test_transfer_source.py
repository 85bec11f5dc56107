"""Keys, patterns and the text of table functions."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.aistore_urls import objects_url
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source, pattern, place_of, unmatched, wild

NAMES = st.text(st.sampled_from("ab01/.{},*?[]()|^$+\\ \nü"), max_size=8)


def expand(keys: str) -> list[str]:
    """Return all keys that a pattern's braces expand to."""
    found = re.search(r"\{([^{}]*)\}", keys)
    if not found:
        return [keys]
    choices = []
    for choice in found.group(1).split(","):
        bounds = re.fullmatch(r"(\d+)\.\.(\d+)", choice, re.ASCII)
        if bounds:
            low, high = bounds.groups()
            width = len(low) if low[0] == "0" else 0
            choices += [str(n).zfill(width) for n in range(int(low), int(high) + 1)]
        else:
            choices.append(choice)
    before, after = keys[: found.start()], keys[found.end() :]
    # The alternatives in braces are literal.
    return [before + "".join(f"\0{c}" for c in choice) + rest for choice in choices for rest in expand(after)]


def matches(keys: str, key: str) -> bool:
    """Whether a key fits a pattern: the reference, which tries everything. A NUL makes the next character literal."""

    @cache
    def fits(i: int, j: int) -> bool:
        if i == len(keys):
            return j == len(key)
        if keys[i] == "\0":
            return j < len(key) and key[j] == keys[i + 1] and fits(i + 2, j + 1)
        if keys.startswith("**", i):
            return any(fits(i + 2, n) for n in range(j, len(key) + 1))
        if keys[i] == "*":
            return fits(i + 1, j) or (j < len(key) and key[j] != "/" and fits(i, j + 1))
        if keys[i] == "?":
            return j < len(key) and key[j] != "/" and fits(i + 1, j + 1)
        return j < len(key) and key[j] == keys[i] and fits(i + 1, j + 1)

    return fits(0, 0)


@given(
    st.text(st.sampled_from("ab/.*?"), max_size=6),
    st.sampled_from(["", "{a,b}", "{0..3}", "{07..11}", "{a,,*}"]),
    st.text(st.sampled_from("ab/.*?"), max_size=4),
    st.text(st.sampled_from("ab/.*?0173\n"), max_size=8),
)
def test_patterns_choose_what_they_say(before: str, braces: str, after: str, key: str) -> None:
    keys = before + braces + after
    # To RE2 "$" is the end; to Python also the position before a last line feed.
    found = re.search(re.sub(r"\$$", r"\\Z", pattern(keys)), key) is not None
    if any(c in keys for c in "*?{"):
        assert found == any(matches(one, key) for one in expand(keys))
    else:
        assert found == key.startswith(keys)


@given(NAMES, NAMES)
def test_a_hostile_key_chooses_itself(name: str, other: str) -> None:
    """A name without the special characters of patterns is a prefix, whatever else is in it."""
    plain = re.sub(r"[*?{}]", "", name)
    assert re.search(pattern(plain), plain + other)
    assert bool(re.search(pattern(plain), other)) == other.startswith(plain)
    # As an alternative in braces, everything but a comma is literal.
    choice = name.replace(",", "").replace("{", "").replace("}", "")
    if not re.fullmatch(r"\d+\.\.\d+", choice):
        assert bool(re.search(pattern(f"{{{choice},x}}"), other)) == (other in (choice, "x"))


@pytest.mark.parametrize("keys", ["{", "a}", "{a", "{a{b}}", "{3..1}", "{0..10000}", "a{b}}"])
def test_patterns_that_are_none_are_refused(keys: str) -> None:
    with pytest.raises(TransferInputError, match="keys"):
        pattern(keys)


@pytest.mark.parametrize("bucket", ["", "ab", "a/b", "-ab", "a b", "b" * 64, "a{b}c", "bucket?"])
def test_buckets_that_are_none_are_refused(bucket: str) -> None:
    with pytest.raises(TransferInputError, match="bucket"):
        Source(bucket)


@pytest.mark.parametrize(
    ("uri", "bucket", "keys"),
    [
        ("s3://trips/", "trips", ""),
        ("s3://trips/2026/{01..06}/**", "trips", "2026/{01..06}/**"),
        ("ais://results/a//b", "ais://results", "a//b"),
    ],
)
def test_a_uri_is_a_bucket_and_keys(uri: str, bucket: str, keys: str) -> None:
    assert place_of(uri) == (bucket, keys)
    assert Source(bucket, keys).uri == uri
    assert Source(bucket).in_aistore == uri.startswith("ais")


@pytest.mark.parametrize(
    "uri", ["trips", "s3://", "hdfs://trips/a", "gs://", "ais://", "ais://@other/results", "ais://#ns/x"]
)
def test_other_uris_are_refused(uri: str) -> None:
    with pytest.raises(TransferInputError, match="write s3://bucket/prefix, or ais://bucket/prefix"):
        place_of(uri)


@pytest.mark.parametrize("scheme", ["gs", "az", "oci", "oc"])
def test_a_bucket_of_another_cloud_is_loaded_from_its_copy(scheme: str) -> None:
    with pytest.raises(TransferInputError, match=r"AISCopyBucketOperator, and load the copy, ais://trips/2026/\*"):
        place_of(f"{scheme}://trips/2026/*")


@pytest.mark.parametrize(("option", "value"), [("loader", "pull"), ("overlap_seconds", 9.0)])
def test_options_that_aistore_cannot_serve_are_refused(option: str, value: Any) -> None:
    with pytest.raises(TransferInputError, match=option):
        Request(Source("ais://results"), "d.t", **{option: value})


def test_a_collection_is_a_name() -> None:
    with pytest.raises(TransferInputError, match="named collection"):
        Source("bucket", collection="s3, url = 'http://x'")


@pytest.mark.parametrize(
    ("keys", "prefix"),
    [("", ""), ("a/b", "a/b"), ("a/*.csv", "a/"), ("a/x{1,2}", "a/x"), ("?", ""), ("a**b", "a")],
)
def test_prefix_of_a_pattern(keys: str, prefix: str) -> None:
    assert Source("bucket", keys).prefix == prefix


@pytest.mark.parametrize(
    "key",
    [
        "a?b",
        "a*b",
        "{a}",
        "a//b",
        "a\nb",
        "\x7f",
        "x.zip",
        "x.tar.gz",
        "x.tgz",
        "x.7z",
        "x.csv.zst",
        "x.LZ4",
        "x.bz2",
    ],
)
def test_what_clickhouse_would_misread_is_left_to_a_worker(key: str) -> None:
    assert wild(key)


@pytest.mark.parametrize(
    "key", ["a b", "a%20b", "a+b", "a#b", "ü", "'", '"', "\\", "a,b", "x.csv.gz", "x.zipper", "zip", "x.zst/y", "[a]"]
)
def test_what_clickhouse_reads_is_left_to_it(key: str) -> None:
    assert not wild(key)


def test_keys_are_quoted_in_the_table_function() -> None:
    source = Source("bucket", collection="c")
    assert source.objects(["a b,c#d?".replace("?", "")], "CSV") == (
        "s3(c, filename = 'bucket/a%20b%2Cc%23d', format = 'CSV')"
    )
    assert source.objects(["a", "b'"], "CSV", "n Int8", "gzip") == (
        "s3(c, filename = 'bucket/{a,b%27}', format = 'CSV', structure = 'n Int8', compression_method = 'gzip')"
    )
    assert (
        Source("bucket", endpoint="http://h/").objects(["a"], "CSV")
        == "s3('http://h/bucket/a', 'CSV', 'auto', 'auto')"
    )


@given(st.lists(NAMES.filter(bool), min_size=1, max_size=4))
def test_urls_of_aistore_have_no_patterns(names: list[str]) -> None:
    source = Source("ais://results", endpoint="http://proxy:51080/")
    url = objects_url(source.endpoint, source.bucket, names)
    begin, end = "http://proxy:51080/v1/objects/results/", "?provider=ais"
    assert (url.startswith(begin), url.endswith(end)) == (True, True)
    listed = url[len(begin) : -len(end)]
    parts = [listed] if len(names) == 1 else listed[1:-1].split(",")
    assert [source.key_named(f"{begin}{part}{end}") for part in parts] == names
    assert not re.search(r"[*?{}|,#]|\.\.", "".join(parts))
    assert [source.path_of(name) for name in names] == [f"/v1/objects/results/{part}" for part in parts]


def test_clickhouse_reads_aistore_with_an_endpoint() -> None:
    assert Source("ais://results").only_by_worker
    source = Source("ais://results", collection="objects", endpoint="http://proxy:51080/s3")
    assert not source.only_by_worker
    assert source.objects(["a", "b c"], "CSV", "n Int8") == (
        "url(objects, url = 'http://proxy:51080/v1/objects/results/{a,b%20c}?provider=ais', format = 'CSV',"
        " structure = 'n Int8', compression = 'auto')"
    )
    assert Request(source, "d.t", loader="pull").source.by_url


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("s3://trips/2026/", ""),
        (
            "s3://trips/s3://trips/2026/",
            ": the keys begin with a bucket, which has a separate argument or field",
        ),
        ("s3://trips//2026/", ": the keys begin with a slash; write them without it"),
        ("s3://trips/2026/*.csv ", ": the keys begin or end with a space"),
    ],
)
def test_keys_that_match_nothing_come_with_their_likely_mistake(uri: str, hint: str) -> None:
    assert unmatched(uri) == f"no object matches {uri}{hint}"
