"""The end of a task whose plan left out objects that failed for good before."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from storeside.operators.outcome import finish
from storeside.transform.state import Summary


@pytest.mark.parametrize("known", [(("a.wav", "no audio"),), ()], ids=["still", "processed by another run meanwhile"])
def test_known_failures_fail_a_task_unless_it_only_reports_them(known: tuple[tuple[str, str], ...]) -> None:
    rows: list[dict[str, Any]] = []
    warned: list[str] = []
    log = SimpleNamespace(info=lambda *_: None, warning=lambda text, *given, **_: warned.append(text % given))
    operator: Any = SimpleNamespace(record_end=lambda context, tables, row: rows.append(row), log=log)
    summary = Summary("ais://a", "ais://b", "e", 30, 2, 25, 0, 0, 0, 0, 1.0, known_failures=known, ignored={"_*": 1})

    def end(policy: str) -> dict[str, Any]:
        return finish(operator, {}, None, "transform", summary, policy)  # type: ignore[arg-type]

    assert end("report")["known_failures"] == [list(one) for one in known]
    with pytest.raises(
        AirflowFailException, match=r"25 of 30 objects are not done.*in earlier runs(, such as 'a.wav': no)?"
    ):
        end("fail")
    assert [row["state"] for row in rows] == ["partial"] * 2
    assert json.loads(rows[0]["detail"])["known_bad"] == 25
    said = "failed before, and not tried again: "
    named = [f"{said}{name!r}: {reason}" for name, reason in known]
    assert "left_out" not in json.loads(rows[0]["detail"])
    assert warned[: len(known) + 1] == [*named, f"{said}{25 - len(known)} objects more"]


def test_left_out_objects_are_counted_by_reason_and_fail_no_task() -> None:
    rows: list[dict[str, Any]] = []
    told: list[str] = []
    log = SimpleNamespace(info=lambda text, *given, **_: told.append(text % given))
    operator: Any = SimpleNamespace(record_end=lambda context, tables, row: rows.append(row), log=log)
    reasons = {"shorter than 1 s": 4, "no speech": 1}
    summary = Summary(
        "ais://a", "ais://b", "e", 7, 0, 0, 2, 0, 0, 0, 1.0, left_out_reasons=reasons
    )  # fmt: skip
    result = finish(operator, {}, None, "transform", summary, "fail")  # type: ignore[arg-type]
    assert (result["left_out"], result["left_out_reasons"]) == (5, reasons)
    assert rows[0]["state"] == "done"
    detail = json.loads(rows[0]["detail"])
    assert (detail["left_out"], detail["left_out_reasons"]) == (5, reasons)
    assert "2 objects done, 5 left out" in told[0]
    assert told[1:] == ["left out: 4 objects: shorter than 1 s", "left out: 1 object: no speech"]
