"""S3 events whose objects are checked against a suite: an object fails, or its rows go to the quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from storeside.events.__main__ import main as command
from storeside.operators import S3EventsToClickHouseOperator
from storeside.quality.errors import QualityError
from storeside.transfer.request.options import Expectations
from storeside.transfer.state import lock
from tests.integration.test_transfer_crashes import Killed, mortal
from tests.mailboxes import Mailbox
from tests.support import task_context
from tests.transfers import SMALL, jsonl

MOSTLY = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "text", "mostly": 0.5}}


@pytest.fixture
def mailbox(mailbox: Mailbox) -> Mailbox:
    mailbox.create("n UInt32, text Nullable(String)")
    return mailbox


def rows(start: int, stop: int) -> bytes:
    return jsonl({"n": n, "text": f"value {n}" if n % 2 else None} for n in range(start, stop))


def quarantined(mailbox: Mailbox) -> list[tuple[Any, ...]]:
    return mailbox.query(f"SELECT key, row FROM {mailbox.table}_quarantine ORDER BY ALL")


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_an_object_that_breaks_expectations_is_a_dead_letter_and_the_others_are_loaded(
    mailbox: Mailbox, suite: Callable[..., str], loader: str
) -> None:
    mailbox.put({"good.jsonl": rows(0, 50), "bad.jsonl": rows(80, 100), "also.jsonl": rows(50, 60)})
    mailbox.arrive(3)
    given = Expectations(suite(SMALL, MOSTLY))
    found = mailbox.drain(expectations=given, loader=loader)
    assert (found.messages, found.loaded, found.dead, found.deleted, found.rows) == (3, 2, 1, 2, 60)
    assert mailbox.rows("n") == [(n,) for n in range(60)]
    reason = mailbox.dead()["bad.jsonl"]
    assert "its rows break expectations of" in reason
    assert "(max_value: 89): n: not met in 10 of 20 rows, such as" in reason
    assert "text" not in reason  # half of its values suffice
    assert mailbox.ledger()["bad.jsonl"][0] == "failed"
    assert found.verdict
    assert (found.verdict["success"], found.verdict["rows"], found.verdict["invalid"]) == (False, 80, 45)
    assert (found.verdict["by_object"], found.verdict["quarantine"]) == (True, False)
    mailbox.put({"bad.jsonl": rows(80, 90)})
    mailbox.arrive(1)
    again = mailbox.drain(expectations=given, loader=loader)
    assert (again.loaded, again.dead, mailbox.depth()) == (1, 0, (0, 0))
    assert len(mailbox.rows("n")) == 70


def test_rows_go_to_the_quarantine_and_messages_are_deleted(mailbox: Mailbox, suite: Callable[..., str]) -> None:
    mailbox.put({"a.jsonl": rows(0, 50), "b.jsonl": rows(85, 95)})
    mailbox.arrive(2)
    given = Expectations(suite(), "quarantine")
    found = mailbox.drain(expectations=given, limits={"batch_messages": 1})
    assert (found.loaded, found.dead, found.rows, found.rejected) == (2, 0, 55, 5)
    assert [(key, json.loads(row)["n"]) for key, row in quarantined(mailbox)] == [
        ("b.jsonl", n) for n in range(90, 95)
    ]
    assert found.verdict
    assert (found.verdict["rows"], found.verdict["invalid"], found.verdict["quarantine"]) == (60, 5, True)
    mailbox.send(mailbox.record("b.jsonl"), mailbox.record("a.jsonl"))  # the events arrive again
    again = mailbox.drain(expectations=given)
    assert (again.loaded, again.rows, again.verdict) == (2, 0, None)
    assert (len(quarantined(mailbox)), len(mailbox.rows("n"))) == (5, 55)
    assert mailbox.depth() == (0, 0)


def test_a_suite_that_needs_all_rows_is_refused_before_a_message_is_received(
    mailbox: Mailbox, suite: Callable[..., str]
) -> None:
    mailbox.put({"a.jsonl": rows(0, 5)})
    mailbox.arrive(1)
    unique_ = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "n"}}
    for policy in ("fail", "quarantine"):
        with pytest.raises(QualityError, match="expect_column_values_to_be_unique"):
            mailbox.drain(expectations=Expectations(suite(unique_), policy))
    assert mailbox.depth() == (1, 0)


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
def test_a_kill_after_any_statement_leaves_each_row_once(
    mailbox: Mailbox, suite: Callable[..., str], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    given = Expectations(suite(), policy)
    good = {"fail": 0, "quarantine": 5}[policy]
    for survived in (14, 34):
        mailbox.truncate()
        base = 1000 * survived
        mailbox.put({f"{base}/a.jsonl": rows(0, 10), f"{base}/b.jsonl": rows(85, 95)})
        mailbox.arrive(2)
        load = mailbox.events_load(limits={"lease_seconds": 3}, expectations=given)
        left = [survived]
        dying = mortal(mailbox.client(), left)
        load.objects.client = load.objects.ledger = load._tables = load.ledger.client = dying
        with pytest.raises(Killed):
            load.run()
        mailbox.drain(expectations=given, limits={"idle_seconds": 1})
        assert len(mailbox.rows("n")) == 10 + good, survived
        assert mailbox.depth() == (0, 0)
    if policy == "quarantine":
        assert len(quarantined(mailbox)) == 2 * 5
    else:
        assert len(mailbox.dead()) == 2


def test_the_operator_and_the_command_check_rows(
    mailbox: Mailbox, suite: Callable[..., str], connections: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.put({"a.jsonl": rows(80, 100)})
    mailbox.arrive(1)
    operator = S3EventsToClickHouseOperator(
        task_id="events", sqs_queue=mailbox.name, bucket=mailbox.bucket, table=mailbox.table, format="jsonl",
        suite=suite(), on_failed_expectations="quarantine",
    )  # fmt: skip
    report = operator.execute(task_context())  # although the default is to defer
    assert (report["loaded"], report["rows"], report["rejected"]) == (1, 10, 10)
    assert report["verdict"] == {"success": False, "rows": 20, "invalid": 10, "suite": "numbers"}
    ((detail,),) = mailbox.query(
        "SELECT detail FROM storeside.runs FINAL WHERE kind = 'events' AND state != 'running' AND"
        " destination = {d:String}",
        d=f"clickhouse://{mailbox.table}",
    )
    assert json.loads(detail)["verdict"]["expectations"]
    for name, value in mailbox.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", mailbox.stack.url("s3"))
    mailbox.put({"b.jsonl": rows(95, 96)})
    mailbox.arrive(1)
    arguments = ["--queue", mailbox.name, f"s3://{mailbox.bucket}/", mailbox.table, "--suite", suite()]
    assert command([*arguments, "--collection", "storeside_s3", "--format", "jsonl"]) == 1
    assert "dead" in capsys.readouterr().out
    assert "b.jsonl" in mailbox.dead()
