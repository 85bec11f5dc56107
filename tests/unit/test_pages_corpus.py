"""The page Corpus: hours by reason, what a visitor may see of them, and the objects behind each step."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from storeside.pages import corpus, objects
from storeside.pages import tables as bounded
from storeside.pages.objects import Search
from tests.unit.test_pages import Tables, airflow, pages, tables  # noqa: F401 (fixtures)
from tests.unit.test_pages_queries import HOSTILE, Client, client, engine  # noqa: F401 (fixtures)

CUT = {"kept": [3, 5400], "left_out": {"too fast": [2, 1800], "it's short": [1, 36]}}


def fill(client: Client, name: str, status: str, facts: Any = None, reason: str = "", **other: Any) -> None:  # noqa: F811
    client.fill(
        "objects", object=name, status=status, reason=reason, facts=json.dumps(facts) if facts else "",
        **{"source": "ais://in", "destination": "ais://out", "effect": "e", "run_id": "d/r", **other},
    )  # fmt: skip


def steps(funnel: corpus.Funnel) -> list[tuple[str, int, int, float, float, int]]:
    return [
        (name, step.objects, step.parts, round(step.hours, 2), round(left, 2), step.unknown)
        for name, step, left in funnel.rows()
    ]


def test_hours_add_up_over_recordings_and_parts_of_them(client: Client) -> None:  # noqa: F811
    fill(client, "old.wav", "left_out", {"duration_seconds": 9e5}, "loud", recorded_at="2026-01-01 00:00:00")
    fill(client, "old.wav", "done", {"duration_seconds": 3600}, recorded_at="2026-01-02 00:00:00")
    fill(client, "cut.wav", "done", CUT)
    for n in range(3):
        fill(client, f"{n}.wav", "left_out", {"duration_seconds": 1200, "snr_db": None}, "too fast")
    fill(client, "none.wav", "left_out", None, "no segments are given")
    fill(client, "bad.wav", "failed", None, "it is broken")
    fill(client, "before.wav", "done")
    fill(client, "copied.wav", "done", effect="")
    fill(client, "before.wav", "done", destination="ais://without-facts")
    (funnel,) = corpus.funnels(bounded.Tables(client))
    assert (round(funnel.hours, 2), funnel.parts, funnel.unknown) == (4.01, 13, 3)
    assert steps(funnel) == [
        ("too fast", 4, 5, 1.5, 2.51, 0), ("it's short", 1, 1, 0.01, 2.5, 0),
        ("no segments are given", 1, 1, 0, 2.5, 1),
        ("failed", 1, 1, 0, 2.5, 1), ("kept", 3, 5, 2.5, 2.5, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "facts",
    [
        '{"duration_seconds": 1e999}', '{"duration_seconds": -9}', '{"duration_seconds": "x"}', '{"kept": 7}',
        '{"kept": [-1, "x"], "left_out": []}', '{"duration_seconds": null}', "no json",
    ],
)  # fmt: skip
def test_facts_of_a_hostile_transformer_disturb_no_others(client: Client, facts: str) -> None:  # noqa: F811
    fill(client, "good.wav", "done", {"duration_seconds": 3600})
    client.fill(
        "objects", object="bad.wav", status="done", facts=facts, source="ais://in", destination="ais://out",
        effect="e", run_id="d/r",
    )  # fmt: skip
    (funnel,) = corpus.funnels(bounded.Tables(client))
    assert 1 <= funnel.kept.hours <= 1 + 1e6 / 3600


@pytest.mark.parametrize("reason", [*HOSTILE, "too fast"])
def test_the_objects_behind_a_step_are_found(client: Client, reason: str) -> None:  # noqa: F811
    fill(client, "a.wav", "done", {"kept": [1, 1], "left_out": {reason: [1, 2]}})
    fill(client, "b.wav", "left_out", {"duration_seconds": 1}, reason)
    fill(client, "c.wav", "left_out", {"duration_seconds": 1}, "other")
    fill(client, "d.wav", "left_out", {"duration_seconds": 1}, reason, destination="ais://out-2")
    found = bounded.Tables(client)
    wanted = Search(source="ais://in", destination="ais://out", reason=reason)
    assert [row["object"] for row in objects.search(found, wanted).rows] == ["a.wav", "b.wav"]
    assert (objects.count(found, wanted), objects.search_loads(found, wanted).rows) == (2, [])
    assert objects.count_loads(found, wanted) == 0
    assert [row["object"] for row in objects.search(found, Search(reason=reason)).rows] == ["a.wav", "b.wav", "d.wav"]
    (first,) = corpus.funnels(found, "OUT-2")
    assert steps(first)[0][:2] == (reason, 1)


def test_only_objects_of_dags_that_one_may_read_count(client: Client) -> None:  # noqa: F811
    fill(client, "a.wav", "done", {"duration_seconds": 3600})
    fill(client, "b.wav", "done", {"duration_seconds": 3600}, run_id="secret/r")
    fill(client, "c.wav", "done", {"duration_seconds": 3600}, run_id="secret/r", destination="ais://secret")
    (funnel,) = corpus.funnels(bounded.Tables(client, ["d"]))
    assert (funnel.destination, funnel.kept.objects) == ("ais://out", 1)


def row(outcome: str, reason: str, **other: Any) -> dict[str, Any]:
    told = {"objects": 2, "parts": 2, "seconds": 3600.0, "unknown": 0}
    return {"source": "ais://in", "destination": "ais://out", "outcome": outcome, "reason": reason, **told, **other}


def test_the_page_links_each_step_to_its_objects(pages: TestClient, tables: Tables) -> None:  # noqa: F811
    reason = '<b>"loud" & é'
    tables.answers["pages_corpus"] = [
        row("left_out", reason),
        row("done", ""),
        row("failed", "", unknown=2, seconds=0),
    ]
    text = pages.get("/corpus").text
    assert "<b>1.0 h</b> of 2.0 h kept (50 %)" in text
    assert "The length of 2 recordings is not known." in text
    assert "&lt;b&gt;&#34;loud&#34; &amp; é" in text
    assert reason not in text
    same = "source=ais%3A%2F%2Fin&amp;destination=ais%3A%2F%2Fout"
    assert f"/objects?reason=%3Cb%3E%22loud%22+%26+%C3%A9&amp;{same}" in text
    assert f"/objects?status=done&amp;{same}" in text
    assert f"/objects?status=failed&amp;{same}" in text
    listed = pages.get("/objects", params={"reason": reason, "source": "ais://in", "destination": "ais://out"}).text
    assert "Only ais://in → ais://out, with the reason" in listed
    assert "No object in the ledger fits the filter." in listed


def test_steps_are_downloaded_with_the_hours_after_them(pages: TestClient, tables: Tables) -> None:  # noqa: F811
    tables.answers["pages_corpus"] = [row("left_out", "=loud"), row("done", "")]
    loud, kept = csv.DictReader(io.StringIO(pages.get("/corpus.csv").text))
    assert loud == {
        "source": "ais://in", "destination": "ais://out", "outcome": "left_out", "reason": "'=loud", "hours": "1.0",
        "hours_after": "1.0", "parts": "2", "recordings": "2", "unknown": "0",
    }  # fmt: skip
    assert (kept["outcome"], kept["hours"]) == ("done", "1.0")


def test_a_page_without_facts_says_what_would_be_there(pages: TestClient) -> None:  # noqa: F811
    assert "No transform has recorded what it kept." in pages.get("/corpus").text
    assert "No transform with facts fits the filter." in pages.get("/corpus?bucket=x").text
    assert pages.get("/corpus?buket=x").status_code == 400
