"""The ETL server under a real cluster: every channel, failures and their lines in the log, chunks, sidecars."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest
from aistore.sdk import Bucket as Handle
from aistore.sdk.etl import ETLConfig

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec
from storeside.stack.settings import Stack
from storeside.transformers.contract.failures import Failure, parse
from tests.support import INIT_SECONDS, put, read, sizes, unique

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

GOOD = ["plain/upper", "quote\"'/upper", "ü \U0001f600/upper", "per%cent%41/upper"]
# AIStore 5.0 breaks the URL of a push at a question mark; the server repairs that
GOOD += ["question?mark/upper"]
BAD = {
    "plain/bad": ('no "good" object\nat all', True),
    'quote"/bad': ('no "good" object\nat all', True),
    "ü%41/error": ("KeyError: 'not there'", False),
    "any/empty": ("the transform returned nothing", True),
    "any/segv": ("the worker process died: signal 11 (SIGSEGV)", False),
}
# AIStore keeps the parts of a multipart upload as chunks: no single file contains the whole object
IN_CHUNKS = "in chunks/upper"
PARTS = [os.urandom(3 << 20), os.urandom(3 << 20), b"the end"]


def spec(communication: str, *flags: str, **environment: str) -> EtlSpec:
    command = ["python", "-m", "storeside.transformers.serve", "--transform", "tests.unit.transforms_for_tests:Told"]
    command += ["--host", "0.0.0.0", "--port", "8000", *flags]  # noqa: S104 - the pod runner replaces it
    return EtlSpec(
        unique("server"),
        TRANSFORMER_IMAGE,
        tuple(command),
        environment,
        tuning={"NUM_WORKERS": "2"},
        communication=communication,
        init_timeout=INIT_SECONDS,
    )


@pytest.fixture
def source(aistore: Any) -> Bucket:
    """A bucket of small objects, good and bad, and a large one."""
    bucket = Bucket("ais", unique("in"))
    put(aistore, bucket, {name: b"some content" for name in [*GOOD, *BAD]})
    upload = bucket.handle(aistore).object(IN_CHUNKS).multipart_upload().create()
    for number, part in enumerate(PARTS, 1):
        upload.add_part(number).put_content(part)
    upload.complete()
    return bucket


def transform(aistore: Any, spec: EtlSpec, source: Bucket) -> tuple[Bucket, list[Failure]]:
    """Transform a bucket; return the results' bucket and the journal of all servers."""
    (name,) = etls.ensure(aistore, spec)
    to = Bucket("ais", unique("out"))
    handle: Handle = source.handle(aistore)
    job = handle.transform(name, to_bck=to.handle(aistore), cont_on_err=True)
    aistore.job(job).wait(timeout=60)
    client = aistore.cluster().client
    logs = client.request("get", path=f"etl/{name}/logs").json()
    return to, [f for log in logs for f in parse(base64.b64decode(log["logs"] or "").decode())]


@pytest.mark.parametrize("channel", ["ws", "hpush", "hpull"])
def test_every_object_is_there_or_in_the_log(aistore: Any, source: Bucket, channel: str) -> None:
    to, journal = transform(aistore, spec(channel), source)
    found = {name for name, size in sizes(aistore, to).items() if size}
    assert found == {*GOOD, IN_CHUNKS}
    assert read(aistore, to, IN_CHUNKS) == b"".join(PARTS).upper()
    assert {read(aistore, to, name) for name in GOOD} == {b"SOME CONTENT"}
    told = {f.object: (f.bucket, f.reason.partition(" (trans")[0], f.final) for f in journal}
    assert told == {name: (source.name, reason, final) for name, (reason, final) in BAD.items()}


def test_objects_that_are_sent_instead_of_their_files(aistore: Any, source: Bucket) -> None:
    (name,) = etls.ensure(aistore, spec("ws"))
    content = os.urandom(5 << 20)
    put(aistore, source, {"sent/echo": content})
    found = source.handle(aistore).object("sent/echo").get_reader(etl=ETLConfig(name), latest=True).read_all()
    assert bytes(found) == content


def test_sidecars_go_through_the_proxy(stack: Stack, aistore: Any) -> None:
    source, facts = Bucket("ais", unique("in")), Bucket("ais", unique("facts"))
    names = ["a/sidecar", "ü?/sidecar", "b/sidecar"]
    put(aistore, source, {name: b"some content" for name in names})
    facts.handle(aistore).create()
    url = f"{stack.url('ais_proxy')}/v1/objects/{facts.name}/run%201/?provider=ais"
    to, journal = transform(aistore, spec("ws", SIDECAR_URL=url), source)
    assert not journal
    assert sizes(aistore, to) == {name: 12 for name in names}
    assert sizes(aistore, facts) == {f"run 1/{name}.json": 12 for name in names}
