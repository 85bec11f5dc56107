from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storeside.aistore.buckets import PROVIDERS, Bucket
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.names import unfit
from storeside.speech.manifest import facts_naming, facts_prefix, facts_url
from storeside.transform.naming import Naming
from storeside.transform.reasons import _object_name
from storeside.transformers.audio.formats import CODECS, EXTENSIONS, AudioFormat
from tests.hostile_names import HOSTILE_NAMES

MP3 = {"flac": "wav", "mp3": ".wav", "two.part": "never"}


SPEECH = Bucket.parse("ais://speech")


def to_name(name: str, ext: dict[str, str] | None, prepend: str) -> str:
    """AIStore's `TCBMsg.ToName` (api/apc/tcbtco.go of v1.5.0), statement by statement."""
    if ext is not None:
        idx = name.rfind(".")
        if idx >= 0 and name[idx + 1 :] in ext:
            name = name[: idx + 1] + re.sub(r"^\.+", "", ext[name[idx + 1 :]])
    if prepend != "":
        name = prepend + name
    return name


@pytest.mark.parametrize(
    ("name", "prepend", "expected"),
    [
        ("a.flac", "", "a.wav"),
        ("a.mp3", "", "a.wav"),
        ("a.FLAC", "", "a.FLAC"),
        ("a.wav", "", "a.wav"),
        ("a.b.flac", "", "a.b.wav"),
        ("a.flac.txt", "", "a.flac.txt"),
        ("flac", "", "flac"),
        (".flac", "", ".wav"),
        ("dir/.flac", "", "dir/.wav"),
        ("a.", "", "a."),
        ("a.flac/b", "", "a.flac/b"),
        ("a.two.part", "", "a.two.part"),
        ("", "", ""),
        ("a.flac", "run/", "run/a.wav"),
        ("flac", "x.", "x.flac"),
        ("a/b.flac", "p", "pa/b.wav"),
    ],
)
def test_destination(name: str, prepend: str, expected: str) -> None:
    assert Naming(MP3, prepend).destination(name) == expected == to_name(name, MP3, prepend)


def test_without_anything_the_name_stays() -> None:
    assert Naming().destination("a.flac") == "a.flac"


@given(
    st.text(alphabet="a./fF", max_size=12),
    st.dictionaries(st.text("afF.", max_size=3), st.text("w.", max_size=4), max_size=4),
    st.text(alphabet="p/.", max_size=4),
)
@example("a/..fF", {"fF": "."}, "")
@example("a/.fF", {"fF": "w"}, "..")
def test_destination_is_aistores_rule_and_stays_where_it_is(
    name: str, extensions: dict[str, str], prepend: str
) -> None:
    try:
        naming = Naming(extensions, prepend)
    except AIStoreInputError:
        return
    assert naming.destination(name) == to_name(name, extensions, prepend)
    if unfit(name) is None:  # also if AIStore alone applies the rule, to an object that was stored after the listing
        assert unfit(naming.destination(name)) is None


@pytest.mark.parametrize("name", ["a.flac", "a.FLAC", "a.Flac", "a.opus", "a.OGG", "a.txt", "a.wav", "a.WAV"])
def test_recordings_are_named_after_the_container(name: str) -> None:
    result = Naming(AudioFormat().extensions).destination(name)
    assert result == ("a.wav" if name not in ("a.Flac", "a.txt") else name)  # AIStore's mapping has no mixed case


def test_recordings_that_differ_in_their_extensions_have_results_of_their_own_when_extensions_are_kept() -> None:
    names = ["a.flac", "a.FLAC", "a.wav", "a.WAV", "a.mp3", "a.m4a", "a"]
    naming = Naming(AudioFormat(keep_extension=True).extensions)
    results = [naming.destination(name) for name in names]
    assert results == ["a.flac.wav", "a.FLAC.wav", "a.wav", "a.WAV.wav", "a.mp3.wav", "a.m4a.wav", "a"]
    assert len({Naming(AudioFormat().extensions).destination(name) for name in names}) == 2


# --- facts

ENDINGS = [*EXTENSIONS, *(e.upper() for e in EXTENSIONS), "Flac", "json", "wav.json", "txt", ""]


@given(
    st.sampled_from(sorted(CODECS)),
    st.text(alphabet="a./é", max_size=6),
    st.sampled_from(ENDINGS),
    st.sampled_from(["", "run/"]),
    st.booleans(),
)
def test_a_transcode_names_facts_as_the_probe_of_its_results_does(
    container: str, stem: str, ending: str, prepend: str, keep_extension: bool
) -> None:
    name = f"{stem}.{ending}" if ending else stem
    audio = AudioFormat(container, next(iter(CODECS[container])), 48_000, keep_extension=keep_extension)
    result = Naming(audio.extensions, prepend).destination(name)
    assert facts_prefix("run", SPEECH) + prepend + audio.facts_name(name) == facts_naming("run", SPEECH).destination(
        result
    )


@pytest.mark.parametrize(
    ("bucket", "prepend", "expected"),
    [
        ("ais://facts", "", "http://p:1/v1/objects/facts/{}?provider=ais"),
        ("ais://facts", "a ?/%", "http://p:1/v1/objects/facts/{}a%20%3F/%25?provider=ais"),
        ("s3://facts", "", "http://p:1/v1/objects/facts/{}?provider=aws"),
        ("ais://@uuid#space/facts", "", "http://p:1/v1/objects/facts/{}?provider=ais&namespace=%40uuid%23space"),
    ],
)
def test_the_address_of_facts(bucket: str, prepend: str, expected: str) -> None:
    found = facts_url("http://p:1/", Bucket.parse(bucket), "run", SPEECH, prepend)
    assert found == expected.format(facts_prefix("run", SPEECH))


# --- names that AIStore cannot store


@pytest.mark.guarantee("names-refused")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("..", "'..' component"),
        ("../a", "'..' component"),
        ("a/../b", "'..' component"),
        ("a/..", "'..' component"),
        ("a//b", "empty component"),
        ("/a", "empty component"),
        ("a/", "empty component"),
        ("/", "empty component"),
        ("", "empty component"),
        (".", "'.' component"),
        ("./a", "'.' component"),
        ("a/./b", "'.' component"),
        ("a/.", "'.' component"),
        ("a\nb", "control characters"),
        ("a\0b", "control characters"),
        ("a\x7fb", "control characters"),
        ("tab\t", "control characters"),
        ("~/a", "begins with '~/'"),
        ("a\ud800", "not Unicode"),
        ("n" * 256, "longer than 255 bytes"),
        ("a/" + "é" * 128 + "/b", "longer than 255 bytes"),
    ],
)
def test_unfit_says_why(name: str, why: str) -> None:
    assert why in (unfit(name) or "")


@pytest.mark.parametrize(
    "name",
    [
        "a", "a.b", "...", "a/...", ".hidden", "..hidden", "hidden..", "a..b", "a/.b/c", "~", "*", "?", "%2e%2e/a",
        " a", "a ", "a\\..\\b", "CON", "#", "{}", "'\"", "\u00e9\u97f3\U0001f50a", "a\u2028b", "\u202ea", "-",
        "n" * 255, "é" * 127 + "n", "/".join(["n" * 255] * 4),
        *(name for name in HOSTILE_NAMES if "//" not in name and ".." not in name),
    ],
)  # fmt: skip
def test_odd_names_are_fit(name: str) -> None:
    assert unfit(name) is None


@pytest.mark.guarantee("names-refused")
def test_hostile_names_are_refused_for_what_they_are() -> None:
    refused = {name: unfit(name) for name in HOSTILE_NAMES if unfit(name)}
    assert set(refused) == {"hostile/a//b.flac", "../escape.flac"}


PARTS = st.sampled_from(["", ".", "..", "...", "a", "b.c", "%2e%2e", "\\", " "]) | st.text(max_size=4)


@given(st.lists(PARTS, min_size=1, max_size=6).map("/".join) | st.text(max_size=12))
@example("a/../../b")
@example("//a")
def test_fit_names_stay_where_they_are(name: str) -> None:
    if unfit(name) is not None:
        return
    folder = "/mountpath/bucket"
    joined = posixpath.join(folder, name)
    assert posixpath.normpath(joined) == joined == f"{folder}/{name}"


@given(st.lists(PARTS, min_size=1, max_size=6).map("/".join), st.sampled_from(["", "run/"]))
def test_only_what_a_path_loses_is_refused(name: str, prepend: str) -> None:
    """The reverse: no name is refused that a file system would store unchanged."""
    kept = posixpath.normpath(name) == name and name not in (".", "..") and not name.startswith(("/", "../"))
    if kept and name.isprintable():
        assert unfit(prepend + name) is None


# --- buckets


@pytest.mark.parametrize("scheme", PROVIDERS)
def test_bucket_round_trip(scheme: str) -> None:
    bucket = Bucket.parse(f"{scheme}://speech-1_a.b")
    assert (bucket.scheme, bucket.name, str(bucket)) == (scheme, "speech-1_a.b", f"{scheme}://speech-1_a.b")
    assert Bucket.parse(str(bucket)) == bucket
    assert Bucket.parse(f"{bucket}/") == bucket


def test_providers_are_aistores() -> None:
    assert [Bucket.parse(f"{s}://b").provider for s in ("ais", "s3", "gs", "az", "oci")] == [
        "ais", "aws", "gcp", "azure", "oci",
    ]  # fmt: skip


def test_aistores_own_scheme_for_oci_is_oci() -> None:
    bucket = Bucket.parse("oc://recordings")
    assert bucket == Bucket.parse("oci://recordings")
    assert (str(bucket), bucket.own_uri, bucket.provider) == ("oci://recordings", "oc://recordings", "oci")
    assert Bucket.parse("ais://@far#team/speech").own_uri == "ais://@far#team/speech"


@pytest.mark.parametrize("reported", ["oc://b/d/a.txt", "oci://b/d/a.txt", "b/d/a.txt", "d/a.txt"])
def test_names_in_aistores_errors(reported: str) -> None:
    assert _object_name(reported, Bucket.parse("oci://b")) == "d/a.txt"


@pytest.mark.parametrize("provider", PROVIDERS.values())
def test_the_sdk_knows_the_providers(provider: str) -> None:
    from aistore.sdk.provider import Provider

    assert Provider.parse(provider).value == provider


@pytest.mark.parametrize(
    "uri", ["", "speech", "/data/speech", "s3:speech", "s3:/speech", "ftp://a", "S3://a", "://a"]
)
def test_a_uri_of_no_bucket_names_the_ways_to_write_it(uri: str) -> None:
    with pytest.raises(ValueError, match=r"write it as one of ais://name, s3://name, .*oci://name") as caught:
        Bucket.parse(uri)
    assert repr(uri) in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://", "s3:///", "s3://a/b", "s3://a/b/", "s3:///a", "ais://a//b"])
def test_a_bucket_with_a_prefix_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="set a prefix as a separate argument") as caught:
        Bucket.parse(uri)
    assert repr(uri) in str(caught.value)


def test_an_extension_has_no_dot_before_it() -> None:
    with pytest.raises(AIStoreInputError, match=r"extension '\.txt': write it without the dot before it, as 'txt'"):
        Naming({".txt": "json"})
