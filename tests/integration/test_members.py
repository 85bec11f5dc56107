"""Transforms of the members of shards on a real cluster: each member has a result, or a reason in the ledger."""

from __future__ import annotations

import hashlib
import json
import wave
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from storeside.aistore.buckets import Bucket, objects_url
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger
from storeside.speech.manifest import facts_prefix, facts_url
from storeside.stack.settings import Stack
from storeside.transform import journal, submit
from storeside.transform.bucket_job import BucketJob
from storeside.transform.in_place import InPlaceJob
from storeside.transform.inspection import Inspection
from storeside.transform.naming import Naming
from storeside.transform.single import transform_object
from storeside.transform.state import Options, Summary
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.signal import SignalFacts
from storeside.transformers.audio.transcoding import probe
from tests.shards import entry, files, tar
from tests.support import failures, put, read, sizes, small_spec, transcode_spec, unique

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

Drive = Callable[[BucketJob], Summary]


@dataclass
class Pair:
    """A test's buckets, and the jobs between them."""

    client: Any
    ledger: Ledger
    source: Bucket
    destination: Bucket

    def job(self, run: str, spec: EtlSpec, naming: Naming | None = None, **options: Any) -> BucketJob:
        return BucketJob(
            self.client, self.ledger, self.source, self.destination,
            run_id=run, spec=spec, naming=naming, options=Options(**options),
        )  # fmt: skip

    def put(self, **shards: bytes) -> None:
        put(self.client, self.source, {f"{name}.tar": content for name, content in shards.items()})

    def read(self, name: str) -> list[tuple[str, bytes]]:
        return files(read(self.client, self.destination, name))

    def failures(self, run: str) -> dict[str, str]:
        return failures(self.ledger.client, run, self.destination)


@pytest.fixture
def pair(aistore: Any, clickhouse: Any) -> Pair:
    source = Bucket("ais", unique("shards"))
    source.handle(aistore).create()
    return Pair(aistore, Ledger(clickhouse), source, Bucket("ais", unique("out")))


@pytest.mark.parametrize(
    ("communication", "options"),
    [("ws", {}), ("hpush", {"file_access": False}), ("hpull", {})],
)
def test_members_over_every_channel(pair: Pair, drive: Drive, communication: str, options: dict[str, Any]) -> None:
    large = b"x" * 3_000_000
    # a part of the result is sent before the damage is found
    cut = entry("large.bin", bytes(300_000)) + b"".join(entry(f"{n}.txt", b"x") for n in range(6))
    cut += entry("5.txt", b"five" * 500)[:1500]
    hostile = entry("../x'); DROP TABLE storeside.objects; --.txt", b"x")
    hostile += entry(b"caf\xe9.txt".decode("utf-8", "surrogateescape"), b"bad")
    hostile += entry("new\nstoreside-failure {}.txt", b"bad") + tar([("good.txt", b"x")])
    pair.put(
        a=tar([("1.txt", b"one"), ("1.json", b"{}"), ("2.txt", b"bad"), ("2.json", b"{}"), ("3.txt", large)]),
        b=tar([("sub/4.txt", b"four")]),
        hostile=hostile,
        **{f"cut{n}": cut for n in range(8)},
    )
    spec = small_spec("upper", communication=communication, **options).of_members("*.txt", {"txt": "out"})
    run = unique("run")
    summary = drive(pair.job(run, spec))
    assert (summary.listed, summary.done, summary.failed) == (11, 3, 12)
    assert pair.read("a.tar") == [("1.out", b"ONE"), ("1.json", b"{}"), ("2.json", b"{}"), ("3.out", large.upper())]
    assert pair.read("b.tar") == [("sub/4.out", b"FOUR")]
    assert pair.read("hostile.tar") == [("good.out", b"X")]
    stored = sizes(pair.client, pair.destination).keys()
    # over WebSocket, AIStore leaves an empty object where shard and result are on one target
    assert stored == {"a.tar", "b.tar", "hostile.tar"}, "a result that broke off is not stored"
    reasons = pair.failures(run)
    for n in range(8):
        assert "ends within the member '5.txt'" in reasons.pop(f"cut{n}.tar")
    assert reasons == {
        "a.tar/2.txt": "this object is bad",
        "hostile.tar/../x'); DROP TABLE storeside.objects; --.txt": "its name leads out of the shard",
        "hostile.tar/caf\\udce9.txt": "this object is bad",
        "hostile.tar/new\nstoreside-failure {}.txt": "this object is bad",
    }
    assert {name for name, _ in summary.examples} == {*(f"cut{n}.tar" for n in range(8)), *reasons}


def test_a_corrected_shard_corrects_its_failed_members(pair: Pair, drive: Drive) -> None:
    spec = small_spec("upper").of_members("*.txt")
    pair.put(a=tar([("1.txt", b"bad"), ("2.txt", b"bad"), ("3.txt", b"x")]), b=tar([("1.txt", b"y")]))
    assert drive(pair.job("first", spec, keep_etl=True)).failed == 2
    second = drive(pair.job("second", spec, keep_etl=True))
    assert (second.skipped, second.done, second.failed) == (2, 0, 0), "a run transforms only new and changed shards"
    assert pair.failures("first").keys() == {"a.tar/1.txt", "a.tar/2.txt"}
    pair.put(a=tar([("1.txt", b"good"), ("2.txt", b"bad"), ("3.txt", b"x")]))
    third = drive(pair.job("third", spec))
    assert (third.skipped, third.done, third.failed) == (1, 1, 1)
    assert not pair.failures("first")
    assert pair.failures("third").keys() == {"a.tar/2.txt"}
    assert pair.read("a.tar") == [("1.txt", b"GOOD"), ("3.txt", b"X")]


def test_a_result_counts_only_when_its_server_reported_it(
    pair: Pair, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs of a pod that died are lost: the shards that it delivered are transformed again."""
    spec = small_spec("upper").of_members("*.txt")
    pair.put(a=tar([("1.txt", b"bad"), ("2.txt", b"x")]))
    read_logs, calls = journal.shards, []

    def lost(*given: Any) -> Any:
        calls.append(given)
        return iter(()) if len(calls) == 1 else read_logs(*given)

    monkeypatch.setattr("storeside.transform.members.shards", lost)
    run = unique("run")
    summary = drive(pair.job(run, spec))
    assert len(calls) == 2, "the shard was transformed again"
    assert (summary.done, summary.failed) == (1, 1)
    assert pair.failures(run).keys() == {"a.tar/1.txt"}


@pytest.mark.parametrize("always", [False, True])
def test_a_shard_with_failed_members_that_no_log_lists_is_not_done(
    pair: Pair, drive: Drive, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """Its pod's log was rotated between two failures, or the server listed as many failures as it may."""
    read_logs, calls = journal.shards, []

    def rotated(*given: Any) -> Any:
        calls.append(given)
        lacks = "1.txt" if always or len(calls) == 1 else ""
        return (entry for entry in read_logs(*given) if not lacks or getattr(entry, "member", "") != lacks)

    spec = small_spec("upper").of_members("*.txt")
    pair.put(
        a=tar([("1.txt", b"bad"), ("2.txt", b"bad"), ("3.txt", b"x")]), b=tar([("2.txt", b"bad"), ("3.txt", b"x")])
    )
    assert drive(pair.job("first", spec, keep_etl=True)).failed == 3
    pair.put(a=tar([("1.txt", b"bad!"), ("2.txt", b"bad"), ("3.txt", b"x")]))
    monkeypatch.setattr("storeside.transform.members.shards", rotated)
    summary = drive(pair.job("second", spec))
    assert len(calls) > 1, "the shard was transformed again"
    if not always:
        assert (summary.done, summary.failed) == (1, 2)
        assert pair.failures("second").keys() == {"a.tar/1.txt", "a.tar/2.txt"}
        return
    assert (summary.done, summary.failed) == (0, 1)
    assert "2 of its members failed, and the log of its server lacks 1 of them" in pair.failures("second")["a.tar"]
    assert pair.failures("first").keys() == {"a.tar/1.txt", "a.tar/2.txt", "b.tar/2.txt"}, (
        "no failure counts as mended"
    )


def test_a_try_that_follows_the_job_of_a_killed_one_knows_its_failed_members(
    pair: Pair, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec("slow", environment={"SECONDS": "1.5"}).of_members("*.txt")
    pair.put(a=tar([("1.txt", b""), ("2.txt", b"x")]))
    run = unique("run")
    killed = pair.job(run, spec)
    killed.submit(killed.begin())
    with monkeypatch.context() as patched:
        patched.delattr(submit, "objects")  # nothing is transformed again
        assert drive(pair.job(run, spec)).done == 1
    assert pair.failures(run) == {"a.tar/1.txt": "the transform returned nothing"}


def test_a_server_that_does_not_know_members_fails(pair: Pair, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.put(a=tar([("1.txt", b"x")]))
    monkeypatch.setattr(EtlSpec, "of_members", lambda self, _: self)
    monkeypatch.setattr("storeside.transform.bucket_job.RETRIES", 0)
    whole = small_spec("upper").of_members("*.txt")
    monkeypatch.setattr(EtlSpec, "in_shards", True)
    run = unique("run")
    assert drive(pair.job(run, whole)).failed == 1
    assert "members of shards need a server of Storeside" in pair.failures(run)["a.tar"]


def test_recordings_in_shards_and_their_facts(
    pair: Pair, drive: Drive, recordings: Callable[[int], list[Path]], stack: Stack
) -> None:
    sounds = [path.read_bytes() for path in recordings(2)]
    pair.put(a=tar([("x.flac", sounds[0]), ("x.json", b"{}"), ("y.flac", b"noise"), ("z.flac", sounds[1])]))
    facts = Bucket("ais", unique("facts"))
    facts.handle(pair.client).create()
    run = unique("run")
    tuning = {"SIDECAR_URL": facts_url(stack.url("ais_proxy"), facts, run, pair.destination)}
    spec = replace(transcode_spec(), tuning=tuning).of_members("*.flac", AudioFormat().extensions)
    assert drive(pair.job(run, spec)).failed == 1
    assert pair.failures(run).keys() == {"a.tar/y.flac"}
    made = dict(pair.read("a.tar"))
    assert list(made) == ["x.wav", "x.json", "z.wav"]
    with wave.open(BytesIO(made["z.wav"])) as opened:
        assert (opened.getframerate(), opened.getnchannels()) == (16_000, 1)
    lines = [
        json.loads(text)
        for text in read(pair.client, facts, f"{facts_prefix(run, pair.destination)}a.tar.jsonl").splitlines()
    ]
    assert [found["object"] for found in lines] == ["a.tar/x.flac", "a.tar/z.flac"]
    assert lines[0]["sample_rate"] == 16_000
    signal = SignalFacts.__dataclass_fields__
    for found, sound in zip(lines, sounds, strict=True):
        known = probe(sound)
        assert [found[name] for name in signal] == [getattr(known, name) for name in signal]


def test_a_split_stores_each_member_as_an_object(pair: Pair, drive: Drive, stack: Stack) -> None:
    shard = [("x.flac", b"sound" * 40_000), ("./x.json", b"{}"), ("sub/ü?#%41.flac", b"1"), ("empty.flac", b"")]
    shard.append(("y.md", b"#"))
    hostile = entry("../../other/escaped.flac", b"x") + entry("link.flac", type=b"2", linkname="/etc/passwd")
    pair.put(a=hostile + tar(shard), cut=tar([("1.flac", b"1" * 2000)])[:1500])
    put(pair.client, pair.source, {"other.txt": b"no shard"})
    url = objects_url(stack.url("ais_proxy"), pair.destination, "p/")
    spec = small_spec("upper").splitting("*.flac,*.json", url)
    naming, run = Naming({"tar": "jsonl"}, "p/"), unique("run")
    summary = drive(pair.job(run, spec, naming))
    assert (summary.done, summary.failed) == (1, 4)
    assert pair.failures(run).keys() == {
        "a.tar/../../other/escaped.flac", "a.tar/link.flac", "cut.tar", "other.txt",
    }  # fmt: skip
    names = {f"p/a/{member}": member for member in ("x.flac", "x.json", "sub/ü?#%41.flac", "empty.flac")}
    assert sizes(pair.client, pair.destination).keys() == {"p/a.jsonl", *names}
    content = dict(shard)
    for name, member in names.items():
        assert read(pair.client, pair.destination, name) == content.get(member, b"{}")
    lines = [json.loads(text) for text in read(pair.client, pair.destination, "p/a.jsonl").splitlines()]
    assert [found["object"] for found in lines] == [f"a.tar/{member}" for member in names.values()]
    assert lines[0]["bytes"] == 200_000
    assert lines[0]["sha256"] == hashlib.sha256(content["x.flac"]).hexdigest()
    assert drive(pair.job(unique("run"), spec, naming)).skipped == 1


def test_a_split_lets_no_shard_overwrite_members_of_another(pair: Pair, drive: Drive, stack: Stack) -> None:
    spec = small_spec("upper").splitting("*", objects_url(stack.url("ais_proxy"), pair.destination, ""))
    naming = Naming({"tar": "jsonl"})
    pair.put(**{
        "x": tar([("y/z.flac", b"of x"), ("y.jsonl", b"of x")]), "x/y": tar([("z.flac", b"of x/y")]),
        "x-1": tar([("z.flac", b"of x-1")]), "d/x": tar([("z.flac", b"of d/x")]),
    })  # fmt: skip
    run = unique("run")
    summary = drive(pair.job(run, spec, naming))
    assert (summary.listed, summary.done, summary.failed) == (4, 3, 1)
    reason = "its members would be stored in the folder x/, in which x/y.tar is: they could overwrite each other"
    assert pair.failures(run) == {"x.tar": f"{reason}, so rename this shard"}
    assert read(pair.client, pair.destination, "x/y/z.flac") == b"of x/y"
    assert json.loads(read(pair.client, pair.destination, "x/y.jsonl"))["object"] == "x/y.tar/z.flac"

    # the second shard comes after the first one was split
    put(pair.client, pair.source, {"d/x/new.tar": tar([("z.flac", b"new")])})
    assert pair.job(unique("run"), spec, naming).preview() == {
        "listed": 5,
        "pending": 1,
        "known_bad": 1,
        "refused": 1,
    }
    run = unique("run")
    assert drive(pair.job(run, spec, naming)).done == 1
    assert pair.failures(run).keys() == {"d/x.tar"}


@pytest.mark.parametrize("kind", ["in place", "single", "inspection"])
def test_work_that_needs_aistores_own_errors_excludes_members(pair: Pair, kind: str) -> None:
    spec = small_spec("upper").of_members("*.txt")
    work = {
        "in place": lambda: InPlaceJob(pair.client, pair.ledger, pair.source, run_id="run", spec=spec),
        "single": lambda: transform_object(pair.client, pair.source, "a.tar", pair.destination, "a.tar", spec),
        "inspection": lambda: Inspection(pair.client, pair.source, spec).submit(),
    }[kind]
    with pytest.raises(AIStoreInputError, match="which members of a shard fail"):
        work()
