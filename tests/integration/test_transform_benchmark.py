"""Variants of a transform and the client, measured on a real cluster, and the end of its buckets and ETLs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout

from storeside.aistore import etl as etls
from storeside.aistore import jobs, lock
from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.measure.errors import MeasureCancelled, MeasureInputError, MeasureTransientError
from storeside.measure.transforms import scratch as scratches
from storeside.measure.transforms.benchmark import Benchmark
from storeside.measure.transforms.plan import Plan
from storeside.measure.transforms.rounds import Rounds
from storeside.measure.transforms.scratch import Scratch
from storeside.measure.transforms.variants import Variant
from storeside.operators.operators import transform_benchmark
from storeside.operators.shared import task_key
from storeside.stack import authn
from storeside.stack.demo import RECORDINGS
from storeside.stack.settings import Stack
from storeside.transformers.audio.formats import AudioFormat
from tests.support import (
    IMAGE,
    INIT_SECONDS,
    left_of_benchmarks,
    put,
    read,
    sizes,
    small_spec,
    task_context,
    unique,
    until,
    versions,
)

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

AUDIO = AudioFormat(sample_rate=44_100, channels=2, keep_extension=True)
# Direct put in all, because AIStore waits at the end of jobs without it.
THREE = [
    Variant("storeside", "ws", True, True),
    Variant("flask", "hpush", False, True),
    Variant("http", "hpull", True, True),
]


def spec(transform: str = "audio_transcode", audio: AudioFormat = AUDIO) -> EtlSpec:
    return EtlSpec(
        "bench", IMAGE, transformer_command(transform), audio.environment(), {"NUM_WORKERS": "1"},
        init_timeout=INIT_SECONDS,
    )  # fmt: skip


@pytest.fixture
def source(aistore: Any) -> Iterator[Bucket]:
    """Recordings, and objects that are none; the measurement must leave all of them as they are."""
    bucket = Bucket("ais", unique("speech"))
    objects = {f"in/{path.name}": path.read_bytes() for path in sorted(RECORDINGS.glob("*.flac"))}
    put(aistore, bucket, {**objects, "in/README.md": b"no recording", "in/empty.flac": b""})
    before = versions(aistore, bucket)
    yield bucket
    assert versions(aistore, bucket) == before
    bucket.handle(aistore).delete()


def plan(source: Bucket, **options: Any) -> Plan:
    given: dict[str, Any] = {
        "prefix": "in/", "objects": 300, "spec": spec(), "audio": AUDIO, "variants": THREE,
        "rounds": 1, "parallel": 3, **options,
    }  # fmt: skip
    return Plan(source, **given)


def benchmark(stack: Stack, plan: Plan, scope: str, **options: Any) -> Benchmark:
    return Benchmark(authn.cluster(stack), plan, scope=scope, **options)


def test_all_variants_and_the_client_are_measured(
    stack: Stack, aistore: Any, clickhouse: Any, source: Bucket
) -> None:
    run = unique("dag/run")
    four = [*THREE, Variant("fastapi", "ws", False, True)]
    report = benchmark(stack, plan(source, rounds=2, variants=four), run).run()
    assert report.failed == {}
    assert [result.variant for result in report.results] == [None, *four]
    assert {len(result.seconds) for result in report.results} == {2}
    assert (report.objects, report.targets) == (5, stack.targets), "neither the text nor the empty object"
    assert report.size == sum(path.stat().st_size for path in RECORDINGS.glob("*.flac"))
    assert left_of_benchmarks(aistore) == []
    report.record(clickhouse, run)
    rows = clickhouse.query(
        "SELECT server, channel, file_access, direct_put, count(), min(objects), min(processes), source,"
        " min(seconds) > 0, min(abs(objects_per_second * seconds - 5) < 1e-6)"
        " FROM storeside.transform_benchmark WHERE run_id = {run:String} GROUP BY ALL ORDER BY ALL",
        parameters={"run": run},
    ).result_rows
    assert rows == [
        ("client", "", "", "", 2, 5, 1, str(source), True, 1),
        ("fastapi", "ws", "", "direct put", 2, 5, 1, str(source), True, 1),
        ("flask", "hpush", "", "direct put", 2, 5, 1, str(source), True, 1),
        ("http", "hpull", "file access", "direct put", 2, 5, 1, str(source), True, 1),
        ("storeside", "ws", "file access", "direct put", 2, 5, 1, str(source), True, 1),
    ]


def test_results_of_the_client_equal_those_of_all_servers(
    stack: Stack, aistore: Any, source: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, bytes]] = []
    reconcile = Rounds._reconcile

    def keep(self: Rounds, to: Bucket, *reasons: Any) -> None:
        reconcile(self, to, *reasons)
        seen.append({name: read(aistore, to, name) for name in versions(aistore, to)})

    monkeypatch.setattr(Rounds, "_reconcile", keep)
    audio = AudioFormat("flac", "flac", sample_rate=22_050, keep_extension=True)
    benchmark(stack, plan(source, objects=2, audio=audio, spec=spec(audio=audio)), "run").run()
    client, *servers = seen
    assert servers == [client] * 3
    names = sorted(path.name for path in RECORDINGS.glob("*.flac"))[:2]
    assert sorted(client) == [f"in/{name}" for name in names]


def test_a_variant_that_fails_has_its_reason_and_the_others_go_on(stack: Stack, aistore: Any, source: Bucket) -> None:
    broken = replace(THREE[0], file_access=False)
    chosen = plan(source, spec=spec("tests.unit.transforms_for_tests:OnlyFiles"), variants=[broken, THREE[2]])
    # the pod runner of the tests allows this transform without variables
    chosen = replace(chosen, spec=replace(chosen.spec, environment={}), parallel=0, rounds=2)
    report = benchmark(stack, chosen, "run").run()
    assert [result.variant for result in report.results] == [THREE[2]]
    assert len(report.results[0].seconds) == 2
    (reason,) = report.failed.values()
    assert reason.startswith("5 of 5 objects have no result, such as 'in/sense")
    assert "its content was sent" in reason
    assert f"| {broken} | failed: 5 of 5" in report.table()
    assert left_of_benchmarks(aistore) == []


def test_recordings_that_no_variant_can_decode_fail_with_all_reasons(
    stack: Stack, aistore: Any, source: Bucket
) -> None:
    put(aistore, bucket := Bucket("ais", unique("bad")), {"in/a.flac": b"no audio", "in/b.flac": b"neither"})
    with pytest.raises(
        MeasureInputError, match=r"client: 2 of 2 objects .*: not an audio.*; storeside ws .*: 2 of 2 "
    ):
        benchmark(stack, plan(bucket, variants=THREE[:1], parallel=1), "run").run()
    assert left_of_benchmarks(aistore) == []
    bucket.handle(aistore).delete()


@pytest.mark.parametrize(("first", "parallel"), [(THREE[0], 0), (THREE[1], 3)], ids=str)
def test_broken_recordings_are_left_out(
    stack: Stack, aistore: Any, caplog: pytest.LogCaptureFixture, first: Variant, parallel: int
) -> None:
    good = {f"in/{path.name}": path.read_bytes() for path in sorted(RECORDINGS.glob("*.flac"))}
    bad = {"in/a b.flac": b"no audio", "in/z.wav": b"RIFF"}
    put(aistore, mixed := Bucket("ais", unique("mixed")), {**good, **bad})
    second = next(variant for variant in THREE if variant != first)
    report = benchmark(stack, plan(mixed, variants=[first, second], parallel=parallel), "run").run()
    assert report.failed == {}
    assert (report.objects, report.size) == (len(good), sum(map(len, good.values())))
    assert sorted(report.left_out) == sorted(bad)
    assert all(report.left_out.values())
    table = report.table()
    assert "not measured, because they cannot be transcoded: 2 recordings" in table
    assert f"- 'in/a b.flac': {report.left_out['in/a b.flac']}" in table
    told = report.to_dict()
    assert (told["left_out"], told["reasons"]) == (2, report.left_out)
    assert "2 of 7 objects have no result" in caplog.text
    assert left_of_benchmarks(aistore) == []
    assert len(versions(aistore, mixed)) == 7, "the source is only read"
    mixed.handle(aistore).delete()


def test_a_server_of_the_sdk_does_not_tell_which_recordings_are_broken(stack: Stack, aistore: Any) -> None:
    good = {path.name: path.read_bytes() for path in sorted(RECORDINGS.glob("*.flac"))}
    put(aistore, mixed := Bucket("ais", unique("mixed")), {**good, "z.wav": b"RIFF"})
    with pytest.raises(
        MeasureInputError, match=r"1 of 6 objects .*'z.wav': .*: choose a prefix without such objects"
    ):
        benchmark(stack, plan(mixed, prefix="", variants=THREE[1:2], parallel=0), "run").run()
    assert left_of_benchmarks(aistore) == []
    mixed.handle(aistore).delete()


def test_a_bucket_without_recordings_is_refused(stack: Stack, aistore: Any, source: Bucket) -> None:
    with pytest.raises(MeasureInputError, match=r"has no recordings below 'out/': choose a bucket with objects"):
        benchmark(stack, plan(source, prefix="out/"), "run").run()
    with pytest.raises(ValueError, match="there is no bucket ais://absent"):
        benchmark(stack, plan(Bucket("ais", "absent")), "run").run()
    assert left_of_benchmarks(aistore) == []


@pytest.mark.parametrize("parallel", [0, 1])
def test_a_cancelled_measurement_leaves_nothing(stack: Stack, aistore: Any, source: Bucket, parallel: int) -> None:
    stop = threading.Event()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            benchmark(stack, plan(source, rounds=100, parallel=parallel), "run", stop=stop).run()
        except MeasureCancelled as e:
            failure.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: any(name.endswith("-out-1") for name in left_of_benchmarks(aistore)), 30, "the first round")
    stop.set()
    thread.join(30)
    assert failure
    assert left_of_benchmarks(aistore) == []


def test_a_timeout_ends_the_job_and_leaves_nothing(stack: Stack, aistore: Any, source: Bucket) -> None:
    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if jobs.running_transforms(aistore):
                raise AirflowTaskTimeout
            return super().wait(timeout)

    slow = small_spec("slow", environment={"SECONDS": "1000"})
    began = time.monotonic()
    with pytest.raises(AirflowTaskTimeout):
        benchmark(stack, plan(source, parallel=0, spec=slow, variants=THREE[:1]), "run", stop=Stop()).run()
    assert time.monotonic() - began < 500, "the job went on"
    assert left_of_benchmarks(aistore) == []


def test_what_a_killed_try_left_is_removed(stack: Stack, aistore: Any, source: Bucket) -> None:
    scratch = Scratch(aistore, "run")
    put(aistore, scratch.source, {"a.flac": b"a"})
    scratch.destination()
    own = THREE[1].of(spec(), scratch.label)
    etls.ensure(aistore, own)
    held = aistore.bucket(f"{lock._prefix(etls._lock(own.name))}0123456789abcdef")
    held.create()  # the lock of a task that was killed while it started the ETL
    others = Bucket("ais", unique("others"))
    put(aistore, others, {})
    assert len(left_of_benchmarks(aistore)) == 4
    assert scratch.remove()
    assert left_of_benchmarks(aistore) == []
    assert not scratch.remove()
    assert others.name in {bucket.name for bucket in aistore.cluster().list_buckets()}
    others.handle(aistore).delete()


@pytest.mark.usefixtures("connections")
def test_the_teardown_waits_for_the_end_of_a_task_that_still_runs(
    aistore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = task_context("measure")
    scratch = Scratch(aistore, task_key(measured, "measure"))
    put(aistore, scratch.source, {"a.flac": b"a"})
    others = Scratch(aistore, "another")
    others.destination()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:  # the task starts another round before it ends
            scratch.destination()

    monkeypatch.setattr(scratches, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    task = transform_benchmark.AISRemoveMeasurementOperator(task_id="remove", measured="measure")
    task.execute(task_context("remove", measured["dag_run"]))
    assert slept == [scratches.LEAVING_SECONDS] * 2
    assert [name.startswith(others._prefix) for name in left_of_benchmarks(aistore)] == [True]
    assert others.remove()


def test_no_transform_of_another_task_is_measured_or_aborted(stack: Stack, aistore: Any, source: Bucket) -> None:
    slow, to = small_spec("slow", environment={"SECONDS": "3"}), Bucket("ais", unique("slow"))
    put(aistore, to, {})
    (name,) = etls.ensure(aistore, slow)
    job = source.handle(aistore).transform(name, to.handle(aistore), cont_on_err=True, timeout="60s")
    with pytest.raises(MeasureTransientError, match=r"etl-bck\[.*runs and would distort the figures: try later"):
        benchmark(stack, plan(source), "run").run()
    scratch = Scratch(aistore, "run", patience_seconds=0)
    own = THREE[0].of(spec(), scratch.label)
    etls.ensure(aistore, own)
    with pytest.raises(
        MeasureTransientError, match=rf"stopping ETL {own.name} would abort etl-bck\[.*clear the task"
    ):
        scratch.remove()
    follower = jobs.Follower(aistore, job)
    until(lambda: follower.poll().finished, 60, "end of the job")
    assert follower.poll().error == ""
    assert sum(size > 0 for size in sizes(aistore, to).values()) == 6
    scratch.remove()
    assert left_of_benchmarks(aistore) == []
    to.handle(aistore).delete()
