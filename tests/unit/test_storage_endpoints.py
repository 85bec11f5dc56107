"""Stores over real connections: OCI's double, small S3 servers, and a link that breaks."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.response import StreamingBody
from botocore.stub import Stubber

from storeside.aistore.cluster import Cluster
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.copying.errors import (
    ChangedError,
    CopyCancelled,
    CopyInputError,
    CopyObjectError,
    CopyTransientError,
    DeniedError,
)
from storeside.copying.mover import Mover
from storeside.copying.multipart import MIB, S3_LIMITS, Profile, Settings
from storeside.copying.oci import OCIStore, oci_client
from storeside.copying.s3 import AIStoreStore, S3Store, client_config
from storeside.copying.samples import Samples
from storeside.copying.store import Head
from storeside.ledger.scope import Pending
from storeside.measure.backends import Benchmark
from storeside.measure.tuner import Measurement, Recommendations, Tuner, recommend, scratch
from storeside.stack.settings import CHECKOUT, HOST, free_ports
from tests.link import linked
from tests.oci_double import NAMESPACE, Double, config, new_key, served

NAMES = ("plain", "x/y z+ü?#%20", "a//b", "../up", "q&r=s;t:u'\"\\", "*{a,b}", "\u200f\u05e9\u05dc", "n" * 200)
PARTS = Profile.of(Settings(threshold=200_000, part_size=100_000, concurrency=4))
NOTHING = Head(0, "", "")


@pytest.fixture(scope="module")
def oci() -> Iterator[tuple[Double, int, dict[str, str]]]:
    with served("a", "b") as found:
        yield found


@pytest.fixture
def double(oci: tuple[Double, int, dict[str, str]]) -> Double:
    double = oci[0]
    for bucket in double.buckets.values():
        bucket.clear()
    double.begun.clear()
    double.faults.clear()
    double.requests.clear()
    return double


def bucket(oci: tuple[Double, int, dict[str, str]], name: str, port: int = 0) -> OCIStore:
    return OCIStore(oci_client(oci[2], 8, f"http://{HOST}:{port or oci[1]}"), NAMESPACE, name)


def everything(store: OCIStore) -> list[Pending]:
    return [Pending(o.name, o.name, o.size, o.version) for o in store.list()]


# --- OCI


def test_oci_objects_arrive_with_their_names_and_metadata(oci: Any, double: Double) -> None:
    a, b = bucket(oci, "a"), bucket(oci, "b")
    body = os.urandom(250_001)
    for n, name in enumerate(NAMES):
        a.put(
            name, body if n % 2 else body[:1000], Head(0, "", "", content_type="audio/flac", metadata={"k": f"{n}"})
        )
    assert sorted(o.name for o in a.list()) == sorted(NAMES)
    outcomes = list(Mover(a, b, PARTS).copy(everything(a)))
    assert [o.error for o in outcomes] == [None] * len(NAMES)
    for name in NAMES:
        assert double.buckets["b"][name].body == double.buckets["a"][name].body
        assert b.head(name).content_type == "audio/flac"
        assert b.head(name).metadata == {"k": f"{NAMES.index(name)}"}
    versions = {o.name: o.version for o in b.list()}
    assert versions == {o.wanted.object: o.version for o in outcomes}
    assert versions["a//b"] == a.head("a//b").version  # one piece: the same MD5
    assert versions["plain"] == a.head("plain").version
    assert versions["../up"].endswith("-3")
    assert double.begun == {}


def test_oci_answers_with_errors_are_tried_again(oci: Any, double: Double) -> None:
    a, b = bucket(oci, "a"), bucket(oci, "b")
    a.put("o", os.urandom(500_000), NOTHING)
    double.faults += [("PUT", "/u/o", 503, "ServiceUnavailable"), ("PUT", "/u/o", 429, "TooManyRequests")]
    double.faults += [("GET", "/o/o", 500, "InternalServerError"), ("POST", "/u/o", 503, "ServiceUnavailable")]
    (outcome,) = Mover(a, b, PARTS).copy(everything(a))
    assert outcome.error is None
    assert double.faults == []
    assert double.buckets["b"]["o"].body == double.buckets["a"]["o"].body


def test_oci_object_that_is_overwritten_while_it_is_read(oci: Any, double: Double) -> None:
    a, b = bucket(oci, "a"), bucket(oci, "b")
    for name in ("good", "changing"):
        a.put(name, os.urandom(500_000), NOTHING)

    def overwrite(request: Any) -> None:
        if request.path.endswith("/b/u/changing") and request.query.get("uploadPartNum") == "2":
            stored = double.buckets["a"]["changing"]
            double.buckets["a"]["changing"] = type(stored)(bytes(500_000), stored.md5)

    double.before = overwrite
    try:
        mover = Mover(a, b, Profile.of(Settings(200_000, 100_000, 1)))
        outcomes = {o.wanted.object: o for o in mover.copy(everything(a))}
    finally:
        double.before = lambda request: None
    assert outcomes["good"].error is None
    assert isinstance(outcomes["changing"].error, ChangedError)
    assert "oci://storeside/a/changing was overwritten" in str(outcomes["changing"].error)
    assert sorted(double.buckets["b"]) == ["good"]
    assert double.begun == {}


def test_oci_upload_that_somebody_aborts_fails_alone(
    oci: Any, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeside.copying.mover.DELAY", 0.001)
    a, b = bucket(oci, "a"), bucket(oci, "b")
    a.put("o", os.urandom(500_000), NOTHING)
    double.before = lambda request: double.begun.clear() if request.query.get("uploadPartNum") == "3" else None
    try:
        (outcome,) = Mover(a, b, PARTS).copy(everything(a))
    finally:
        double.before = lambda request: None
    assert isinstance(outcome.error, CopyTransientError)
    assert "another client aborted its upload" in str(outcome.error)


@pytest.mark.parametrize(
    ("name", "namespace", "said"),
    [("none", NAMESPACE, "has no bucket none"), ("a", "elsewhere", "namespace elsewhere has no bucket a")],
)
def test_oci_bucket_that_is_missing(oci: Any, name: str, namespace: str, said: str) -> None:
    with pytest.raises(CopyInputError, match=said):
        OCIStore(bucket(oci, "a").client, namespace, name).check()


def test_oci_refuses_another_key(oci: Any) -> None:
    client = oci_client(config(new_key()[1]), 2, f"http://{HOST}:{oci[1]}")
    with pytest.raises(
        CopyInputError, match=r"the signature does not fit .*: correct user, tenancy, fingerprint, key"
    ):
        OCIStore(client, NAMESPACE, "a").check()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tenancy": None}, "tenancy missing"),
        ({"key_content": None}, "key_content or key_file missing"),
        ({"fingerprint": "x"}, "malformed"),
        ({"key_content": "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----"}, "private key"),
        ({"key_content": None, "key_file": "/none"}, "/none"),
    ],
)
def test_oci_connection_that_is_not_complete(oci: Any, change: dict[str, Any], said: str) -> None:
    with pytest.raises(CopyInputError, match=said):
        oci_client({**oci[2], **change}, 2)


def test_without_the_sdk_the_error_has_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oci", None)
    with pytest.raises(CopyInputError, match="pip install oci; or use OCI's S3 API"):
        oci_client({}, 1)


def test_modules_of_storage_import_without_the_sdk() -> None:
    script = "import sys; sys.modules['oci'] = None; import storeside.copying.oci, storeside.copying.job"
    subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, check=True)


# --- connections that break


def test_a_connection_that_breaks_is_made_again(oci: Any, double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.copying.mover.DELAY", 0.01)
    with linked(oci[1], rtt=0.002) as link:
        a, b = bucket(oci, "a"), bucket(oci, "b", link.port)
        for n in range(4):
            a.put(f"o{n}", os.urandom(500_000), NOTHING)
        link.cut_after, link.cuts = 150_000, 5
        outcomes = list(Mover(a, b, PARTS).copy(everything(a)))
        assert link.cuts == 0
    assert [o.error for o in outcomes] == [None] * 4
    assert {k: v.body for k, v in double.buckets["b"].items()} == {k: v.body for k, v in double.buckets["a"].items()}
    assert double.begun == {}


def test_a_server_that_is_gone_says_so(oci: Any) -> None:
    (port,) = free_ports(1)
    client = boto3.client(
        "s3", endpoint_url=f"http://{HOST}:{port}", region_name="x", aws_access_key_id="a", aws_secret_access_key="b",
        config=client_config(1, {"retries": {"total_max_attempts": 1}}),
    )  # fmt: skip
    with pytest.raises(CopyTransientError, match=f"no server answers at http://{HOST}:{port}"):
        S3Store(client, "b").check()


# --- S3's refusals, in AWS' words; its own servers are not available to tests


class Refusing:
    """A server that answers every request with one error."""

    def __init__(self) -> None:
        refusing = self
        self.status, self.code, self.to_heads = 500, "", 0
        self.requests: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # botocore asks for a 100 Continue first

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                refusing.requests.append(self.command)
                self.send_response(refusing.to_heads if self.command == "HEAD" else refusing.status)
                self.send_header("x-amz-bucket-region", "eu-west-3")
                self.send_header("ETag", '"e"')
                body = f"<Error><Code>{refusing.code}</Code><Message>why</Message></Error>".encode()
                body = b"" if self.command == "HEAD" else body if refusing.code else b"x"
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((HOST, 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture(scope="module")
def refusing() -> Iterator[Refusing]:
    refusing = Refusing()
    yield refusing
    refusing.server.shutdown()
    refusing.server.server_close()


@pytest.fixture(scope="module")
def refused(refusing: Refusing) -> S3Store:
    return s3(f"http://{HOST}:{refusing.server.server_port}")


def s3(endpoint: str, **given: Any) -> S3Store:
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret",
        config=client_config(2, given),
    )  # fmt: skip
    return S3Store(client, "bucket")


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        (301, "PermanentRedirect", CopyInputError, "set the connection's region_name to eu-west-3"),
        (400, "AuthorizationHeaderMalformed", CopyInputError, "set the connection's region_name to eu-west-3"),
        (403, "SignatureDoesNotMatch", CopyInputError, "correct the connection's keys"),
        (400, "ExpiredToken", CopyTransientError, "ExpiredToken"),
        (403, "RequestTimeTooSkewed", CopyTransientError, "RequestTimeTooSkewed"),
        (403, "InvalidAccessKeyId", CopyInputError, "correct the connection's keys"),
        (404, "NoSuchBucket", CopyInputError, "create it at http"),
        (400, "EntityTooSmall", CopyInputError, "raise part_size"),
        (307, "", CopyInputError, "S3-Reverse-Proxy"),
        (403, "AccessDenied", DeniedError, "give the connection's keys the permission s3:PutObject"),
        (412, "PreconditionFailed", ChangedError, "was overwritten"),
        (404, "NoSuchKey", ChangedError, "was overwritten or deleted"),
        (400, "BadDigest", CopyTransientError, "BadDigest"),
        (404, "NoSuchUpload", CopyTransientError, "another client aborted its upload"),
        (400, "MetadataTooLarge", CopyObjectError, "MetadataTooLarge"),
    ],
)
def test_refusals_of_s3_say_what_to_do(
    refusing: Refusing, refused: S3Store, status: int, code: str, kind: type[Exception], said: str
) -> None:
    refusing.status, refusing.code = status, code
    with pytest.raises(kind, match=said) as error:
        refused.put_part("the/object", "upload", 1, b"x")
    assert type(error.value) is kind
    assert str(error.value).startswith(refused.name)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("head", "status", "code", "kind", "said"),
    [
        (403, 403, "AccessDenied", DeniedError, r"why \(AccessDenied\): .* permission s3:GetObject"),
        (403, 403, "RequestTimeTooSkewed", CopyTransientError, "RequestTimeTooSkewed"),
        (400, 400, "ExpiredToken", CopyTransientError, "ExpiredToken"),
        (403, 200, "", CopyTransientError, "Forbidden"),
        (400, 200, "", CopyTransientError, "Bad Request"),
        (404, 200, "", ChangedError, "was overwritten or deleted"),
    ],
)
def test_a_head_that_is_refused_says_what_a_get_says(
    refusing: Refusing, refused: S3Store, head: int, status: int, code: str, kind: type[Exception], said: str
) -> None:
    refusing.to_heads, refusing.status, refusing.code = head, status, code
    with pytest.raises(kind, match=said) as error:
        refused.head("the/object")
    assert type(error.value) is kind


def test_a_bucket_that_is_denied_says_which_permission_lists_it(refusing: Refusing, refused: S3Store) -> None:
    refusing.status, refusing.code = 403, "AccessDenied"
    with pytest.raises(CopyInputError, match="permission s3:ListBucket"):
        refused.check()


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, CopyInputError, r"give the connection a token"),
        (403, CopyInputError, "a token"),
        (503, CopyTransientError, "did not create it"),
    ],
)
def test_a_cluster_that_does_not_let_in_says_so(
    status: int, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aistore.sdk.bucket import Bucket
    from aistore.sdk.errors import AISError

    def refuse(*_: Any, **__: Any) -> None:
        raise AISError(status, "no", "http://proxy/v1", None)

    monkeypatch.setattr(Bucket, "create", refuse)
    with pytest.raises(kind, match=said) as error:
        AIStoreStore(Cluster("http://proxy:51080"), "b", 2).check()
    assert type(error.value) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AIStoreTransientError("AuthN at a: no answer"), CopyTransientError),
        (AIStoreInputError("AuthN at a: refused"), CopyInputError),
    ],
)
def test_an_authn_that_issues_no_token_is_no_fault_of_an_object(
    error: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> str:
        raise error

    monkeypatch.setattr("storeside.aistore.login.Login._request", refuse)
    store = AIStoreStore(Cluster("http://proxy:51080", authn=f"http://{kind.__name__}"), "b", 2)
    with pytest.raises(kind, match="AuthN at a") as raised:
        store.fetch("key", 1)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("given", "certificate"),
    [
        ({"client_cert": "/cert.pem", "client_key": "/key.pem"}, ("/cert.pem", "/key.pem")),
        ({"client_cert": "/both.pem"}, "/both.pem"),
        ({}, None),
    ],
)
def test_a_clusters_s3_api_is_entered_with_its_certificate(given: dict[str, str], certificate: object) -> None:
    store = AIStoreStore(Cluster("https://proxy:51080", **given), "b", 2)  # type: ignore[arg-type]
    config: Any = store.client.meta.config
    assert config.client_cert == certificate


def test_virtual_host_style_where_only_path_style_works() -> None:
    store = s3("http://storage.invalid", s3={"addressing_style": "virtual"}, retries={"total_max_attempts": 1})
    with pytest.raises(
        CopyInputError, match=r"no server at bucket\.storage\.invalid.*set addressing_style to 'path'"
    ):
        store.check()


def test_a_style_that_does_not_exist() -> None:
    with pytest.raises(CopyInputError, match=r"config_kwargs of the connection: .*style host is invalid"):
        client_config(1, {"s3": {"addressing_style": "host"}})


# --- the tuner


@pytest.mark.exhaustive
def test_the_tuner_finds_parts_where_connections_are_slow(oci: Any, double: Double) -> None:
    with linked(oci[1], rtt=0.01, rate=0.4e6) as link:  # much slower than a busy machine
        store = bucket(oci, "a", link.port)
        tuner = Tuner(store, seconds=60, sizes=(100_000, MIB), part_sizes=(MIB // 8,), concurrencies=(8, 2))
        put, get = tuner.sweep("put"), tuner.sweep("get")
    for found in (put, get):
        assert [(one.object_size, one.multipart) for one in found] == [(100_000, False), (MIB, True)], found
        assert found[1].single_seconds / found[1].seconds > 1.5
        profile = recommend(found)
        assert profile.for_size(200_000).parts(200_000, store.limits) == []
        assert len(profile.for_size(9 * MIB).parts(9 * MIB, store.limits)) == 72
    assert double.buckets["a"] == {}
    assert link.most <= 8


def test_the_tuner_keeps_to_its_bounds(oci: Any, double: Double) -> None:
    store = bucket(oci, "a")
    found = Tuner(store, seconds=60, most_bytes=20 * MIB, sizes=(MIB, 64 * MIB)).sweep("put")
    assert [one.object_size for one in found] == [MIB]
    assert [one.object_size for one in Tuner(store, seconds=0.001, sizes=(MIB, 8 * MIB)).sweep("put")] == [MIB]
    with pytest.raises(CopyInputError, match="not enough for one measurement"):
        Tuner(store, seconds=0)


def test_an_object_is_treated_as_the_nearest_measured_size() -> None:
    whole, parts = Settings(1 << 62, MIB, 1), Settings(MIB, MIB, 4)
    found = [Measurement("put", 64 * MIB, True, parts, 1, 3), Measurement("put", 4 * MIB, False, whole, 1, 1)]
    profile = recommend(found)
    assert [start for start, _ in profile.steps] == [0, 4 * MIB, 16 * MIB]
    assert [profile.for_size(size * MIB) == parts for size in (4, 15, 17, 63, 900)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_recommendations_start_at_nothing() -> None:
    one = Measurement("put", MIB, True, Settings(MIB // 4, MIB // 4, 4), 1, 3)
    profile = recommend([one])
    assert profile.steps[0][0] == 0
    assert profile.for_size(MIB - 1).parts(MIB - 1, S3_LIMITS) == []
    assert profile.concurrency >= 8
    assert "4 parts of 0.25 MiB at once, 1.00 s (3.0x)" in str(one)


WHOLE = Settings(1 << 62, MIB, 1)


@pytest.mark.parametrize(
    ("measured", "whole_to"),
    [
        ([(MIB, False)], 16 * MIB - 1),  # no time was left for larger ones
        ([(MIB, False), (64 * MIB, False)], 64 * MIB),
        ([(MIB, True), (64 * MIB, False)], 64 * MIB),
    ],
)
def test_what_is_larger_than_all_that_was_measured_goes_in_parts(
    measured: list[tuple[int, bool]], whole_to: int
) -> None:
    found = [Measurement("put", size, parts, Settings(5 * MIB) if parts else WHOLE, 1, 1) for size, parts in measured]
    profile = recommend(found)
    assert profile.for_size(whole_to).parts(whole_to, S3_LIMITS) == []
    for size in (whole_to + 1, 5 << 30):
        parts = profile.for_size(size).parts(size, S3_LIMITS)
        assert len(parts) > 1
        assert max(part.size for part in parts) <= 8 * MIB
    assert all(settings.memory <= (64 * MIB + 1) * 8 for _, settings in profile.steps)


def test_recommendations_of_earlier_versions_are_bounded_as_well() -> None:
    rows = [(64 * MIB, False, 5 * MIB, 1, 1.0, 1.0)]
    client: Any = SimpleNamespace(query=lambda *_, **__: SimpleNamespace(result_rows=rows))
    profile = Recommendations(client).find("s3 x", "put")
    assert profile is not None
    assert len(profile.for_size(5 << 30).parts(5 << 30, S3_LIMITS)) == 640


# --- a tuner and a benchmark that are stopped


def test_a_killed_try_is_cleaned_up_by_the_next(oci: Any, double: Double) -> None:
    store = bucket(oci, "a")
    for scope in ("run/tune", "run/another"):
        with scratch(store, scope) as key:
            pass
        store.put(key, b"left", NOTHING)
        store.put_part(key, store.begin(key, NOTHING), 1, b"left")
    with scratch(store, "run/tune"):
        assert list(double.buckets["a"]) == [key]
        assert [upload.object for upload in double.begun.values()] == [key]
    with scratch(store) as one, scratch(store) as two:
        assert one != two


def test_what_cannot_be_cleaned_up_does_not_end_the_next(
    oci: Any, double: Double, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = bucket(oci, "a")

    def denied(key: str) -> None:
        raise DeniedError("may not list uploads")

    monkeypatch.setattr(store, "uploads", denied)
    with scratch(store, "run/tune"):
        assert "may not list uploads" in caplog.text


@pytest.mark.parametrize("kind", ["tuner", "benchmark"])
def test_a_stopped_measurement_leaves_nothing(oci: Any, double: Double, kind: str) -> None:
    store, stop = bucket(oci, "a"), threading.Event()
    seen: list[str] = []

    def measure() -> None:
        if kind == "tuner":
            Tuner(store, sizes=(4 * MIB,), part_sizes=(MIB,), scope="run/tune", stop=stop).sweep("put")
        else:
            Benchmark([store], put_bytes=40_000_000, get_bytes=1000, scope="run/measure", stop=stop).run()

    def watch(request: Any) -> None:
        if request.query.get("uploadPartNum") == "2":
            seen.append(request.path)
            stop.set()

    double.before = watch
    try:
        with pytest.raises(CopyCancelled):
            measure()
    finally:
        double.before = lambda request: None
    assert len({path for path in seen}) == 1
    assert double.buckets["a"] == double.begun == {}


def test_a_range_of_another_version_releases_its_connection() -> None:
    client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    content = io.BytesIO(b"ab")
    with Stubber(client) as stub:
        stub.add_response("get_object", {"ETag": '"new"', "Body": StreamingBody(content, 2)})
        with pytest.raises(ChangedError, match="was overwritten"):
            S3Store(client, "b").fetch_range("k", Head(2, "old", '"old"'), 0, 2)
    assert content.closed


class Unread(io.RawIOBase):
    """The body of an answer that must not be read."""

    def read(self, size: int = -1) -> bytes:
        raise AssertionError("the body was read")


def test_an_object_that_has_grown_is_not_read_into_memory() -> None:
    client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    content = Unread()
    answer = {"ETag": '"new"', "ContentLength": 1 << 40, "Body": StreamingBody(content, 1 << 40)}
    with Stubber(client) as stub:
        stub.add_response("get_object", answer)
        with pytest.raises(ChangedError, match="s3://b/k was overwritten"):
            Mover(S3Store(client, "b"), Samples()).copy_one(Pending("k", "k", 2, ""))
    assert content.closed


def test_an_object_of_oci_that_has_grown_is_not_read_into_memory(oci: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bucket(oci, "a")
    store.put("k", b"abc", Head(3, "", ""))
    monkeypatch.setattr(store, "_body", lambda *_: pytest.fail("the body was read"))
    with pytest.raises(ChangedError, match="/a/k was overwritten"):
        Mover(store, Samples()).copy_one(Pending("k", "k", 2, ""))
    store.delete("k")
