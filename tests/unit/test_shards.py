"""Members of shards through real worker and decoder processes, without AIStore."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec import EtlSpec
from storeside.transformers.contract.failures import Failure, LeftOut, Shard, parse, parse_left_out, parse_shards
from storeside.transformers.contract.job import Job
from storeside.transformers.contract.journal import Journal
from storeside.transformers.contract.members import Members, line
from storeside.transformers.settings import Settings
from storeside.transformers.shards import shard_pool
from storeside.transformers.workers import worker_process
from storeside.transformers.workers.pool import Content, Outcome, Pool
from tests.shards import entry, files, tar

TXT = Members(("*.txt",), {"txt": "out"})
LINES = Members(("*.txt",), results="jsonl")


class Told(Journal):
    """A journal that keeps its lines."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.shards: list[Shard] = []
        self.left_out: list[LeftOut] = []

    def record(self, failure: Failure) -> None:
        self.failures.append(failure)

    def record_left_out(self, left_out: LeftOut) -> None:
        self.left_out.append(left_out)

    def record_shard(self, shard: Shard) -> None:
        self.shards.append(shard)

    @property
    def reasons(self) -> dict[str, str]:
        return {failure.member: failure.reason for failure in self.failures}


def transform(
    archive: bytes | Job,
    members: Members = TXT,
    function: str = "upper",
    journal: Told | None = None,
    **settings: Any,
) -> Outcome:
    """Transform one shard, given by its content or as a job for a file."""
    job, content = (archive, b"") if isinstance(archive, Job) else (Job("train.tar", "in"), archive)

    async def outcome() -> Outcome:
        name = f"tests.transformers:{function}"
        worker_process.prepare(name)
        given = Settings(**{"workers": 2, **settings})
        pool = shard_pool.ShardPool(Pool(name, given), members, given, journal or Told())
        running = asyncio.create_task(pool.run())
        await pool.ready()
        try:
            return await (await pool.submit(job, content))
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    return asyncio.run(outcome())


def result(outcome: Outcome) -> bytes:
    assert isinstance(outcome, Content), outcome
    return bytes(outcome.data)


def test_members_keep_their_order_and_the_rest_of_the_shard_its_bytes() -> None:
    metadata = os.urandom(700_000)
    shard = [("a.txt", b"one"), ("a.json", b'{"n": 1}'), ("b.json", metadata), ("b.txt", b"two"), ("c.bin", b"")]
    shard += [(f"many/{n}.txt", b"%d" % n) for n in range(40)]
    journal = Told()
    made = files(result(transform(tar(shard), journal=journal)))
    expected = [("a.out", b"ONE"), ("a.json", b'{"n": 1}'), ("b.json", metadata), ("b.out", b"TWO"), ("c.bin", b"")]
    assert made == expected + [(f"many/{n}.out", b"%d" % n) for n in range(40)]
    (told,) = journal.shards
    assert (told.object, told.bucket, told.transformed, told.kept, told.failed) == ("train.tar", "in", 42, 3, 0)


def test_a_shard_of_which_no_member_matches_has_no_lines() -> None:
    outcome = transform(tar([("a.bin", b"x")]), LINES)
    assert isinstance(outcome, Failure)
    assert outcome.reason == "no member of it has a result: their names match no pattern"


@pytest.mark.parametrize(("members", "made"), [(TXT, bytes(1024)), (LINES, b"\n")])
def test_a_shard_without_members_has_a_result_without_members(members: Members, made: bytes) -> None:
    journal = Told()
    assert result(transform(tar([]), members, journal=journal)) == made
    assert [(told.object, told.transformed, told.failed) for told in journal.shards] == [("train.tar", 0, 0)]


def test_a_bad_member_fails_alone() -> None:
    journal = Told()
    made = transform(
        tar([("a.txt", b"one"), ("b.txt", b"bad"), ("b.json", b"{}"), ("c.txt", b"three")]), journal=journal
    )
    assert files(result(made)) == [("a.out", b"ONE"), ("b.json", b"{}"), ("c.out", b"THREE")]
    assert journal.reasons == {"b.txt": "this object is bad"}
    (failure,) = journal.failures
    assert (failure.object, failure.bucket, failure.final, failure.time) == (
        "train.tar",
        "in",
        True,
        journal.shards[0].time,
    )


@pytest.mark.guarantee("left-out")
def test_a_member_that_is_left_out_is_no_failure() -> None:
    journal = Told()
    members = [("a.txt", b"one"), ("b.txt", b"bad"), ("c.txt", b"2"), ("c.json", b"{}"), ("d.txt", b"leave me out")]
    made = transform(tar(members), function="sieve", journal=journal)
    assert files(result(made)) == [("a.out", b"ONE"), ("c.json", b"{}")]
    assert journal.reasons == {"b.txt": "this object is bad"}
    (told,) = journal.shards
    assert [(o.bucket, o.object, o.member, o.reason, o.time) for o in journal.left_out] == [
        ("in", "train.tar", "c.txt", "shorter than 3 bytes", told.time),
        ("in", "train.tar", "d.txt", "it wishes so", told.time),
    ]
    assert (told.transformed, told.kept, told.failed, told.left_out) == (1, 1, 1, 2)


@pytest.mark.parametrize(("members", "made"), [(TXT, bytes(1024)), (LINES, b"\n")])
@pytest.mark.parametrize("other", [b"2", b"bad"])
def test_a_shard_whose_members_are_left_out_has_a_result_without_members(
    members: Members, made: bytes, other: bytes
) -> None:
    journal = Told()
    shard = tar([("a.txt", b"1"), ("b.txt", other)])
    assert result(transform(shard, members, "sieve", journal)) == made
    assert len(journal.left_out) + len(journal.failures) == 2


def _same_name(name: str) -> str:
    return f"an earlier member has the same name in the result, {name!r}: choose another extension for results"


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (entry("../escape.txt", b"x"), "its name leads out of the shard"),
        (
            entry("link.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
            "it is a symbolic link, not a regular file",
        ),
        (entry("pipe", type=tarfile.FIFOTYPE), "it is a pipe, not a regular file"),
        (
            entry("./first.txt", b"x"),
            _same_name("./first.out"),
        ),
        (
            entry("first.out", b"x"),
            _same_name("first.out"),
        ),
        (entry("large.txt", b"x" * 60_000), "it has more than 50000 bytes (MAX_BODY)"),
        (entry("empty.txt"), "the transform returned nothing"),
    ],
)
def test_hostile_members_fail_alone(member: bytes, reason: str) -> None:
    journal = Told()
    shard = entry("first.txt", b"1") + member + tar([("last.txt", b"2")])
    made = result(transform(shard, journal=journal, most_body=50_000))
    assert files(made) == [("first.out", b"1"), ("last.out", b"2")]
    assert list(journal.reasons.values()) == [reason]


def test_lines_of_names_that_are_not_unicode_are_utf8() -> None:
    shard = tar([(b"caf\xe9.txt".decode("utf-8", "surrogateescape"), b'{"n": 12345678901234567.891}')])
    made = result(transform(shard, LINES, "echo"))
    assert made == b'{"object": "train.tar/caf\\\\udce9.txt", "n": 12345678901234567.891}\n'


def test_names_of_any_bytes_and_lengths_stay() -> None:
    names = ["long/" * 60 + "a.txt", "ü.txt", b"caf\xe9.txt".decode("utf-8", "surrogateescape"), "new\nline.txt"]
    made = files(result(transform(tar([(name, b"x") for name in names]))))
    assert made == [(name.removesuffix("txt") + "out", b"X") for name in names]


@pytest.mark.parametrize(
    ("shard", "reason"),
    [
        (b"RIFF" + bytes(2000), "it is not a tar archive"),
        (tar([("a.txt", b"x" * 900)])[:1200], "it ends within the member 'a.txt'"),
        (tar([("a.txt", b"x"), ("b.txt", b"x")])[:2048], "without an end mark: it is truncated"),
        (entry("a.txt", b"x") + bytes(512) + tar([("c.txt", b"x")]), "header at byte 1024 is empty, and data follow"),
        (
            tar([("a.txt", b"bad"), ("b.txt", b"bad")]),
            "all its 2 members failed, such as 'a.txt': this object is bad",
        ),
    ],
)
def test_a_shard_that_is_damaged_has_no_result(shard: bytes, reason: str) -> None:
    journal = Told()
    outcome = transform(shard, journal=journal)
    assert isinstance(outcome, Failure)
    assert reason in outcome.reason
    assert (outcome.object, outcome.member, outcome.final) == ("train.tar", "", True)
    assert not journal.shards
    assert not journal.failures, "members without a shard have not failed"


def test_a_member_that_kills_its_decoder_fails_alone_and_is_tried_again(tmp_path: Path) -> None:
    once, always = f"die {tmp_path}/once".encode(), f"die {tmp_path}/never".encode()
    journal = Told()
    made = transform(
        tar([("a.txt", b"1"), ("once.txt", once), ("always.txt", always), ("b.txt", b"4")]),
        function="obedient",
        journal=journal,
    )
    assert files(result(made)) == [("a.out", b"1"), ("once.out", b"die"), ("b.out", b"4")]
    assert journal.reasons == {"always.txt": "the worker process died: signal 11 (SIGSEGV)"}
    assert not journal.failures[0].final


def test_a_shard_is_tried_again_if_its_members_failed_for_a_temporary_reason() -> None:
    outcome = transform(tar([("a.txt", b"sleep never")]), function="obedient")
    assert isinstance(outcome, Failure)
    assert "all its 1 members failed, such as 'a.txt': ValueError" in outcome.reason
    assert not outcome.final


# the event loop ends before the pool has noticed the end of the worker that it killed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_member_that_takes_too_long_fails_alone() -> None:
    journal = Told()
    made = transform(
        tar([("a.txt", b"sleep 100"), ("b.json", b"{}")]), function="obedient", journal=journal, object_timeout=2
    )
    assert files(result(made)) == [("b.json", b"{}")]
    assert "longer than 2 s (OBJECT_TIMEOUT)" in journal.reasons["a.txt"]


def test_lines_have_the_name_of_their_member() -> None:
    journal = Told()
    shard = tar([("a.txt", b"one"), ("a.json", b"{}"), ("./b.txt", b"two"), ("c.txt", b"\xff")])
    made = result(transform(shard, LINES, "wrap", journal))
    assert [json.loads(text) for text in made.splitlines()] == [
        {"object": "train.tar/a.txt", "content": "one"},
        {"object": "train.tar/b.txt", "content": "two"},
    ]
    assert list(journal.reasons) == ["c.txt"]


@pytest.mark.parametrize("facts", [b"", b"7", b"[1]", b"{", b'{"a": NaN}', b"{}\n{}", b"[" * 100_000])
def test_only_one_object_of_json_is_a_line(facts: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        line("name", facts)


def test_a_result_that_is_no_object_of_json_fails_alone() -> None:
    journal = Told()
    outcome = transform(tar([("a.txt", b'{"a": 1}'), ("b.txt", b"text")]), LINES, "echo", journal)
    assert result(outcome) == b'{"object": "train.tar/a.txt", "a": 1}\n'
    assert "its result is not one JSON object" in journal.reasons["b.txt"]


def test_a_shard_that_changes_meanwhile_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "@ais" / "in" / "%ob" / "train.tar"
    path.parent.mkdir(parents=True)
    path.write_bytes(tar([("a.txt", b"1")]))
    job = Job("train.tar", "in", str(path), "ais/@#/in/train.tar")
    roots = {"roots": (str(tmp_path),)}
    assert files(result(transform(job, **roots))) == [("a.out", b"1")]
    monkeypatch.setattr(shard_pool, "_file", lambda _: _changed(path))
    outcome = transform(job, **roots)
    assert isinstance(outcome, Failure)
    assert "the object changed while it was being transformed" in outcome.reason
    assert not outcome.final


def _changed(path: Path) -> io.BytesIO:
    path.write_bytes(tar([("a.txt", b"another content")]))
    return io.BytesIO(tar([("a.txt", b"1")]))


def test_a_large_shard_needs_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 MB of shard go through this process, which is the server; the pieces of the result are dropped."""
    path = tmp_path / "@ais" / "in" / "%ob" / "train.tar"
    path.parent.mkdir(parents=True)
    content = os.urandom(2 << 20)
    with path.open("wb") as file:
        for n in range(256):
            file.write(entry(f"{n}.{'txt' if n % 2 else 'bin'}", content))
        file.write(bytes(1024))
    job = Job("train.tar", "in", str(path), "ais/@#/in/train.tar", pipeline="http://target/put")
    sent = 0

    def deliver(_: Any, __: Job, pieces: Any) -> int:
        nonlocal sent
        for piece in pieces:
            sent += len(piece)
        return 0

    monkeypatch.setattr("storeside.transformers.shards.pieces.DirectPut.deliver", deliver)
    process = psutil.Process()
    Path("/proc/self/clear_refs").write_text("5")
    before = process.memory_info().rss
    transform(job, Members(("*.txt",)), "echo", roots=(str(tmp_path),))
    peak = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    grown = (int(peak.split()[1]) << 10) - before
    assert sent >= 512 << 20
    assert grown < 100 << 20, grown


# ---- the variables and the journal


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        ({}, Members(("*.flac", "a/*.mp3"))),
        ({"flac": "wav"}, Members(("*.flac", "a/*.mp3"), {"flac": "wav"})),
        ({"tar": "jsonl"}, Members(("*.flac", "a/*.mp3"), results="jsonl")),
    ],
)
def test_a_spec_passes_members_to_its_server(extensions: Mapping[str, str], expected: Members) -> None:
    spec = EtlSpec("label", "image:1", environment={"A": "1"}).of_members(" *.flac, a/*.mp3", extensions)
    assert Members.from_environment(spec.environment) == expected
    assert spec.environment == {"A": "1", **expected.environment()}
    assert spec.in_shards
    assert spec.request_timeout == "86400s"


def test_a_spec_without_members_transforms_objects() -> None:
    spec = EtlSpec("label", "image:1")
    assert not spec.in_shards
    assert Members.from_environment(spec.environment) is None


@pytest.mark.parametrize(
    ("spec", "members", "reason"),
    [
        (EtlSpec("a", "i"), " , ", "name members of shards"),
        (EtlSpec("a", "i") >> EtlSpec("b", "i"), "*.txt", "for each stage of a chain"),
        (EtlSpec.existing("running-etl"), "*.txt", "one ETL of ours"),
    ],
)
def test_members_that_no_server_can_transform(spec: EtlSpec, members: str, reason: str) -> None:
    with pytest.raises(AIStoreInputError, match=reason):
        spec.of_members(members)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"SHARD_EXTENSIONS": "{"}, "SHARD_EXTENSIONS is not JSON"),
        ({"SHARD_EXTENSIONS": '{"a": 1}'}, "does not map extensions"),
        ({"SHARD_RESULTS": "zip"}, "use tar, jsonl or objects"),
    ],
)
def test_invalid_variables(variables: Mapping[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Members.from_environment({"SHARD_MEMBERS": "*", **variables})


def test_the_journal_tells_of_shards_and_of_their_members() -> None:
    failure = Failure(1.5, "in", "train.tar", "bad", True, "a\nb.txt")
    shard = Shard(2.5, "in", "train.tar", 3, 4, 1)
    left_out = LeftOut(1.5, "in", "train.tar", "short", "c\nd.txt")
    log = f"noise\n{failure.line()}\n{left_out.line()}\n{shard.line()}\n"
    assert list(parse_left_out(log)) == [left_out]
    assert list(parse(log)) == [failure]
    assert list(parse_shards(log)) == [shard]
    assert "member" not in Failure(1.5, "in", "a", "bad", True).line(), "earlier versions do not know the field"
    assert "left_out" not in shard.line(), "earlier versions do not know the field"
    counted = replace(shard, left_out=2)
    assert list(parse_shards(counted.line())) == [counted]
