"""The failure journal: written by servers, read by jobs."""

from __future__ import annotations

from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest
from aistore.sdk.errors import AISError
from hypothesis import given
from hypothesis import strategies as st

from storeside.aistore import jobs
from storeside.aistore.errors import AIStoreInputError
from storeside.transform import reasons
from storeside.transform.journal import failures, readable
from storeside.transform.state import Phase
from storeside.transformers.contract.failures import Facts, Failure, Unlisted, parse

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(TEXT, TEXT, TEXT, st.booleans(), st.floats(0, 4e9))
def test_any_failure_is_one_line_that_reads_back(bucket: str, name: str, why: str, final: bool, time: float) -> None:
    failure = Failure(time, bucket, name, why, final)
    line = failure.line()
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert list(parse(f"INFO: other\nprefix {line}\n")) == [failure]


def test_reasons_are_bounded() -> None:
    assert len(next(parse(Failure(0, "", "n", "x" * 10_000, True).line())).reason) == 500


@given(st.text(max_size=80))
def test_anything_else_is_passed_over(text: str) -> None:
    assert not list(parse(f"storeside-failure {text}\nstoreside-failure {{}}\nstoreside-failure [1]"))


class Client:
    """A cluster whose targets each have a log."""

    def __init__(self, logs: dict[str, str | None]) -> None:
        self.logs = logs
        self.client = self

    def cluster(self) -> Client:
        return self

    def request(self, method: str, path: str) -> Any:
        assert (method, path) == ("get", "etl/etl-1/logs")
        logs = {t: b64encode(log.encode()).decode() if log else None for t, log in self.logs.items()}
        return SimpleNamespace(json=lambda: [{"target_id": t, "logs": log} for t, log in logs.items()])


def test_only_failures_of_this_job_on_this_bucket_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "starts", lambda _client, _job: {"t1": 100.0, "t2": 200.0})
    told = [
        Failure(99, "b", "old", "x", True),
        Failure(100.5, "b", "mine", "x", True),
        Failure(150, "", "unnamed", "x", False),
        Failure(150, "c", "others", "x", True),
    ]
    log = "\n".join(f.line() for f in told)
    found = list(failures(Client({"t1": log, "t2": log, "t3": None}), ["etl-1"], "job", "b"))
    assert [f.object for f in found] == ["mine", "unnamed"]


def test_an_etl_that_is_gone_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_client: Any, _job: str) -> Any:
        raise AISError(404, "no such job", "", None)

    monkeypatch.setattr(jobs, "starts", gone)
    found = failures(Client({}), ["etl-1"], "job", "b")
    assert not list(readable("job", found))
    with pytest.raises(AISError, match="no such job"):
        list(failures(Client({}), ["etl-1"], "job", "b"))


@pytest.mark.parametrize(("marked", "complete"), [(99.0, True), (101.0, False)])
def test_a_journal_that_leaves_out_failures_of_this_job_is_incomplete(
    monkeypatch: pytest.MonkeyPatch, marked: float, complete: bool
) -> None:
    monkeypatch.setattr(jobs, "starts", lambda _client, _job: {"t1": 100.0})
    told = Failure(100.5, "b", "mine", "x", True)
    client = Client({"t1": f"{told.line()}\n{Unlisted(marked).line()}"})
    assert list(readable("job", failures(client, ["etl-1"], "job", "b"))) == [told]
    if not complete:
        with pytest.raises(AIStoreInputError, match="do not list all objects of b that failed"):
            list(failures(client, ["etl-1"], "job", "b"))


def test_aistores_error_of_an_object_does_not_replace_the_reason_of_its_transformer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger's clock has seconds, and the latest reason counts: with both, it would depend on the second."""
    told = [Failure(1.0, "in", "a", "KeyError: 'x'", final=False), Facts(1.0, "in", "b", "{}")]
    errors = {"a": "ETL error: KeyError: 'x' (words.py, line 3)", "b": "unexpected EOF"}
    monkeypatch.setattr(reasons, "reported", lambda *_: iter(told))
    monkeypatch.setattr(reasons, "object_errors", lambda *_: iter(errors.items()))
    recorded: list[Any] = []
    ledger: Any = SimpleNamespace(
        record_outcomes=lambda _, found: recorded.extend((name, why) for name, why, *_ in found),
        record_reasons=lambda _, found: recorded.extend((name, why) for name, why, _ in found),
    )
    anything: Any = SimpleNamespace(name="in", in_shards=False, communication="hpush")
    state: Any = SimpleNamespace(phase=Phase.BUCKET, job_id="job", etl_names=["etl"])
    reasons.record_reasons(anything, ledger, anything, anything, anything, state)
    assert recorded == [("a", "KeyError: 'x'"), ("b", ""), ("b", "unexpected EOF")]
