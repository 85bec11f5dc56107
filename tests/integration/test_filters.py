"""Suites over facts on a real cluster: audio that they leave out, its facts in the ledger and in tables, hours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.ledger.objects import Ledger
from storeside.pages import corpus, objects
from storeside.pages.objects import Search
from storeside.pages.tables import Tables
from storeside.speech.export import export
from storeside.speech.filters import filter_of
from storeside.stack.settings import CHECKOUT, Stack
from storeside.transfer.request.source import Source
from storeside.transform.bucket_job import BucketJob
from storeside.transform.state import Options, Summary
from tests.integration.test_given_segments import line, noise
from tests.support import IMAGE, INIT_SECONDS, put, sizes, task_context, unique
from tests.unit.test_audio import s16, sine, wav
from tests.unit.test_filters import LONG, suite

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

Drive = Callable[[BucketJob], Summary]


def recorded(clickhouse: Any, bucket: Bucket) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return the status, the reason and the facts of each object in the ledger."""
    rows = clickhouse.query(
        "SELECT object, toString(status), reason, facts FROM storeside.objects FINAL"
        " WHERE destination = {destination:String}",
        parameters={"destination": str(bucket)},
    ).result_rows
    return {name: (status, reason, json.loads(facts or "{}")) for name, status, reason, facts in rows}


@pytest.mark.guarantee("suites")
@pytest.mark.parametrize("communication", ["ws", "hpush", "hpull"])
def test_a_transcode_records_the_facts_of_what_it_keeps_and_leaves_out(
    aistore: Any, clickhouse: Any, drive: Drive, communication: str
) -> None:
    source, destination = Bucket("ais", unique("recordings")), Bucket("ais", unique("speech"))
    put(aistore, source, {
        "long.wav": wav(s16(sine(1.5))), "short.wav": wav(s16(sine(0.25))), "other.wav": wav(s16(sine(0.5))),
        "bad.wav": b"no recording",
    })  # fmt: skip
    spec = EtlSpec(
        "transcode", IMAGE, transformer_command("audio_transcode"), communication=communication,
        environment=filter_of(suite(LONG), "recordings"), tuning={"NUM_WORKERS": "1"}, init_timeout=INIT_SECONDS,
    )  # fmt: skip

    def job(run: str, **options: Any) -> BucketJob:
        return BucketJob(
            aistore, Ledger(clickhouse), source, destination, run_id=run, spec=spec, options=Options(**options)
        )

    summary = drive(job("dag/first", keep_etl=True))
    assert (summary.done, summary.failed, summary.left_out_reasons) == (1, 1, {"not met: at least 1 s": 2})
    assert sizes(aistore, destination).keys() == {"long.wav"}
    for _ in range(2):
        found = recorded(clickhouse, destination)
        assert found["long.wav"] == ("done", "", {"duration_seconds": 1.5})
        assert found["bad.wav"][::2] == ("failed", {})
        left = {name: found[name] for name in ("short.wav", "other.wav")}
        assert {one[:2] for one in left.values()} == {("left_out", "not met: at least 1 s")}
        assert {name: one[2]["duration_seconds"] for name, one in left.items()} == {
            "short.wav": 0.25,
            "other.wav": 0.5,
        }
        assert left["other.wav"][2].keys() >= {"snr_db", "bandwidth_hz", "clipped_share", "silence_share"}
        summary = drive(job("dag/second"))
        assert (summary.done, summary.failed, summary.left_out) == (0, 0, 2), "nothing is judged again"
    (funnel,) = corpus.funnels(Tables(clickhouse), destination.name)
    assert [(name, step.objects, round(step.hours * 3600, 3)) for name, step, _ in funnel.rows()] == [
        ("not met: at least 1 s", 2, 0.75), ("failed", 1, 0), ("kept", 1, 1.5)
    ]  # fmt: skip
    assert funnel.unknown == 1
    wanted = Search(source=str(source), destination=str(destination), reason="not met: at least 1 s")
    assert [row["object"] for row in objects.search(Tables(clickhouse), wanted).rows] == ["other.wav", "short.wav"]


def test_the_documented_suite_leaves_segments_out_of_shards_and_manifests(
    stack: Stack, clickhouse: Any, aistore: Any, s3_client: Any, connections: None
) -> None:
    page = (CHECKOUT / "docs" / "filters.md").read_text()
    (job,) = re.findall(r"```python\n(# dags/kept.py\n.*?)```", page, re.DOTALL)
    (query,) = re.findall(r"```sql\n(SELECT left_out.*?);\n```", page, re.DOTALL)
    own = unique("x")
    for name in ("ais://lectures", "ais://lecture-segments", "ais://lecture-facts"):
        job = re.sub(rf"{name}\b(?!-)", f"{name}-{own}", job)
    table = f"data.lectures_{own.replace('-', '_')}"
    job, query = job.replace("data.lectures", table), query.replace("data.lectures", table)
    job = job.replace('"min_value": 15', '"min_value": 0')  # noise has no pauses
    given = [
        line("2026/talk.wav", 0, 1.5, text="a tale", language="en"), line("2026/talk.wav", 1.5, 2, language="en"),
        line("2026/talk.wav", 1, 3, text="un conte de fées", language="fr"),
        line("2026/talk.wav", 2, 3, text="far too many words for one second", language="en"),
        line("2026/rest.wav", 0, 0.5, text="ja", language="de"),
    ]  # fmt: skip
    lectures = {"2026/talk.wav": wav(noise(5)), "2026/rest.wav": wav(noise(6)), "2026/none.wav": wav(noise(7))}
    put(aistore, Bucket("ais", f"lectures-{own}"), {**lectures, "segments.jsonl": "".join(given).encode()})
    made: dict[str, Any] = {}
    exec(job, made)  # noqa: S102 - our own page
    first = task_context("cut")
    for name in ("cut", "facts", "load"):
        task = made[name]
        task.deferrable, task.outlets = False, []
        if hasattr(task, "image"):
            task.image = IMAGE
        task.execute(task_context(name, first["dag_run"]))
    counts = {reason: (count, round(hours * 3600, 3)) for reason, count, hours in clickhouse.query(query).result_rows}
    assert counts == {
        None: (1, 1.5), "not met: duration is 1 to 20 s": (2, 1.0),
        "not met: language is German or English": (1, 2.0), "not met: 0.5 to 6 words per second": (1, 1.0),
    }  # fmt: skip
    shards = Bucket("ais", f"lecture-segments-{own}")
    (funnel,) = corpus.funnels(Tables(clickhouse), shards.name)
    steps = {name: (step.objects, step.parts, round(step.hours * 3600, 3)) for name, step, _ in funnel.rows()}
    assert steps == {
        "not met: language is German or English": (1, 1, 2.0), "not met: duration is 1 to 20 s": (2, 2, 1.0),
        "not met: 0.5 to 6 words per second": (1, 1, 1.0), "no segments are given": (1, 1, 0.0), "kept": (1, 1, 1.5),
    }  # fmt: skip
    wanted = Search(destination=str(shards), reason="not met: duration is 1 to 20 s")
    found = [row["object"] for row in objects.search(Tables(clickhouse), wanted).rows]
    assert found == ["2026/rest.wav", "2026/talk.wav"]
    target = Source(f"datasets-{own}", "talks.jsonl", "storeside_s3")
    s3_client.create_bucket(Bucket=target.bucket)
    assert export(clickhouse, target, "nemo", str(shards), table=table) == 1
