"""Alerts: conditions and their memory in ClickHouse's own engine, and the messages, whose names are hostile."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from storeside.alerts.conditions import FailedObjects, Freshness, KnownFailures, Lag, Volume
from storeside.alerts.errors import AlertInputError, AlertTransientError
from storeside.alerts.evaluation import evaluate, send
from storeside.alerts.facts import MOST_TASKS, Example, Facts, Problem, Task
from storeside.alerts.memory import Memory
from storeside.alerts.message import MOST_PROBLEMS, Alert, printable
from storeside.events.errors import NoQueueError
from storeside.events.queue import Queue
from storeside.operators import DeadLetters, FailedTasks, SendAlertsOperator, alert_callback
from storeside.operators.arguments import LiteralArgumentError
from storeside.sql.migrate import RECORD
from storeside.stack.settings import CHECKOUT
from tests.receivers import html_of, mailbox, webhook
from tests.unit import test_sql
from tests.unit.test_queue_depth import URL, Sqs
from tests.unit.test_sql import Engine, every_statement, record_migrations

HOSTILE = "a\r\nBcc: x@evil.example\u202egpj.<img src=x onerror=y> {{ 7 * 7 }} `<!channel>` @everyone"
BASE = "https://airflow.example/storeside"
LOAD = Task("load", 300, 7, 0, 42_000_000, 1000, 0)


class Client(test_sql.Client):
    """A client that also inserts times."""

    def insert(self, table: str, rows: Any, column_names: list[str], **_: Any) -> None:
        plain = [[value.timestamp() if isinstance(value, datetime) else value for value in row] for row in rows]
        super().insert(table, plain, column_names)


@pytest.fixture(scope="module")
def whole_engine() -> Iterator[Engine]:
    engine = Engine()
    for statement in (*RECORD, *every_statement()):
        engine.run(statement)
    record_migrations(engine)
    yield engine
    engine.session.close()


@pytest.fixture
def engine(whole_engine: Engine) -> Engine:
    for table in ("alerts", "events", "failures", "loads", "queue_depths", "runs"):
        whole_engine.run(f"TRUNCATE TABLE storeside.{table}")
    return whole_engine


@pytest.fixture
def facts(engine: Engine) -> Callable[..., Facts]:
    """The facts of a run of the DAG d."""

    def no_queue(name: str) -> Any:
        raise NoQueueError(f"there is no queue {name}")

    def connect() -> Any:
        return Client(engine)

    return lambda run, **failed: Facts("d", f"d/{run}", connect, no_queue, failed)


def record(engine: Engine, run: str, *failed: str, done: int = 1, rows: int | None = None, **detail: Any) -> None:
    """Record the end of the task load of a run."""
    text = json.dumps({**detail, **({} if rows is None else {"rows": rows})})
    engine.run(
        "INSERT INTO storeside.runs (run_id, dag_id, task_id, kind, state, done, failed, detail) VALUES"
        f" ('d/{run}', 'd', 'load', 'load', 'done', {done}, {len(failed)}, '{text}')"
    )
    for name in failed:
        engine.run(
            "INSERT INTO storeside.failures (run_id, source, destination, object, state, reason, recorded_at) VALUES"
            f" ('d/{run}', 's3://b', 'clickhouse://d.t', '{name}', 'failed', 'broken', now64(3))"
        )


def sent(facts: Facts, *conditions: Any, repeat_hours: float = 0, fails: bool = False) -> list[str]:
    """Evaluate the conditions for two notifiers, and return what the first of them is sent."""
    texts: list[str] = []

    def broken(alert: Alert) -> None:
        if fails:
            raise ConnectionError("no route")

    found = evaluate(conditions, facts, lambda text: text)
    senders = {"first": lambda alert: texts.extend(p.what for p in alert.problems), "second": broken}
    send(found, facts, senders, BASE, Memory(facts, "d/alert", repeat_hours))
    return texts


# --- conditions and memory


@pytest.mark.guarantee("alerts-once")
def test_failed_objects_are_told_once_and_new_ones_again(engine: Engine, facts: Callable[..., Facts]) -> None:
    for run, failed, is_sent in (
        ("1", "a", True), ("2", "a", False), ("3", "ab", True), ("4", "b", False), ("5", "c", True), ("6", "", False),
        ("7", "c", True),
    ):  # fmt: skip
        record(engine, run, *failed)
        assert bool(sent(facts(run), FailedObjects())) is is_sent, run
        assert sent(facts(run), FailedObjects()) == [], f"{run} again"


def test_a_run_without_records_ends_no_problem(engine: Engine, facts: Callable[..., Facts]) -> None:
    record(engine, "1", "a")
    assert sent(facts("1"), FailedObjects()) == ["1 of 2 objects failed"]
    assert sent(facts("2"), FailedObjects()) == []  # its task was killed
    record(engine, "3", "a")
    assert sent(facts("3"), FailedObjects()) == []


def test_a_task_that_fails_each_time_is_sent_until_it_succeeds(facts: Callable[..., Facts]) -> None:
    assert sent(facts("1", load="no bucket"), FailedTasks()) == ["task load failed: no bucket"]
    assert sent(facts("2", load="no bucket", other=""), FailedTasks()) == ["task other failed"]
    assert sent(facts("3"), FailedTasks()) == []
    assert sent(facts("4", load=""), FailedTasks()) == ["task load failed"]


def test_a_standing_problem_is_sent_again_only_if_asked(engine: Engine, facts: Callable[..., Facts]) -> None:
    assert sent(facts("1", load=""), FailedTasks())
    engine.run(
        "ALTER TABLE storeside.alerts UPDATE sent_at = sent_at - INTERVAL 25 HOUR WHERE 1 SETTINGS mutations_sync = 2"
    )
    assert sent(facts("2", load=""), FailedTasks()) == []
    assert sent(facts("3", load=""), FailedTasks(), repeat_hours=26) == []
    assert sent(facts("4", load=""), FailedTasks(), repeat_hours=24)
    assert sent(facts("5", load=""), FailedTasks(), repeat_hours=24) == []


@pytest.mark.guarantee("alerts-once")
def test_a_retry_sends_only_through_the_notifier_that_failed(engine: Engine, facts: Callable[..., Facts]) -> None:
    record(engine, "1", "a")
    with pytest.raises(AlertTransientError, match="1 of 2 notifiers could not send: second: no route"):
        sent(facts("1"), FailedObjects(), fails=True)
    assert engine.run("SELECT notifier FROM storeside.alerts") == [["first"]]
    assert sent(facts("1"), FailedObjects()) == []
    assert len(engine.run("SELECT notifier FROM storeside.alerts FINAL WHERE state = 'sent'")) == 2


@pytest.mark.parametrize("method", ["is_due", "record"])
def test_all_notifiers_send_if_the_ledger_stops_to_answer(
    method: str, facts: Callable[..., Facts], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> Any:
        raise ConnectionError("no route")

    told: list[str] = []
    run = facts("1", load="no bucket")
    memory = Memory(run, "d/alert")
    monkeypatch.setattr(memory, method, stopped)
    senders = {name: lambda _, name=name: told.append(name) for name in ("first", "second")}
    assert send(evaluate((FailedTasks(),), run, str), run, senders, BASE, memory) == 2
    assert told == ["first", "second"]


def test_known_failures(engine: Engine, facts: Callable[..., Facts]) -> None:
    known = [["bad.csv", "broken"]]
    record(engine, "1", known_bad=2, known_failures=known)
    found = KnownFailures().look(facts("1"))
    assert found is not None
    assert found[0].what.startswith("2 objects left out, because they failed for good in earlier runs")
    assert found[0].examples == (Example("bad.csv", "broken"),)
    assert KnownFailures(at_least=3).look(facts("1")) == []
    assert KnownFailures().look(facts("none")) is None
    assert sent(facts("1"), KnownFailures())
    record(engine, "2", known_bad=2, known_failures=known)
    assert sent(facts("2"), KnownFailures()) == []
    record(engine, "3", known_bad=3, known_failures=known)
    assert sent(facts("3"), KnownFailures())


def test_all_tasks_of_a_run_count(engine: Engine, facts: Callable[..., Facts]) -> None:
    engine.run(
        "INSERT INTO storeside.runs (run_id, dag_id, task_id, kind, state, done, failed, detail, recorded_at) SELECT"
        " 'd/1', 'd', format('load[data.t{0}]', toString(number)), 'load', 'partial', 2, number = 29, if(number < 28,"
        """ '{}', '{"known_bad": 3, "known_failures": [["a", "broken"], ["b", "broken"], ["c", "broken"]]}'),"""
        " now64(3) + toIntervalSecond(number) FROM numbers(30)"
    )
    run = facts("1")
    failed, known = FailedObjects().look(run), KnownFailures().look(run)
    assert len(run.tasks) == MOST_TASKS
    assert failed is not None
    assert failed[0].what == "1 of 61 objects failed"
    assert known is not None
    assert known[0].level == 6
    assert [example.name for example in known[0].examples] == ["a", "b", "c", "a", "b"]


def test_freshness(engine: Engine, facts: Callable[..., Facts]) -> None:
    def load(table: str, hours: int, rows: int = 1) -> None:
        engine.run(
            "INSERT INTO storeside.loads (destination, bucket, key, version, state, rows, recorded_at) VALUES"
            f" ('{table}', 'b', 'k{hours}', 'v', 'loaded', {rows}, now64(6) - INTERVAL {hours} HOUR)"
        )

    load("d.t", 30)
    load("d.t", 1, rows=0)
    load("d.other", 1)
    assert sent(facts("1"), Freshness("d.t", 24)) == ["d.t got no new rows for 30 h, and may be 24 h old"]
    assert sent(facts("1"), Freshness("d.other", 24)) == []
    (missing,) = sent(facts("1"), Freshness("d.typo", 24))
    assert "d.typo never got rows from a load" in missing
    load("d.t", 0)
    assert sent(facts("2"), Freshness("d.t", 24)) == []


def test_a_condition_that_cannot_be_checked_is_a_problem(facts: Callable[..., Facts]) -> None:
    (what,) = sent(facts("1"), DeadLetters("gone"))
    assert what == "cannot check dead letters of gone: there is no queue gone"


# --- queues


def test_dead_letters_are_sent_again_when_there_are_more(engine: Engine, facts: Callable[..., Facts]) -> None:
    engine.run(
        "INSERT INTO storeside.events (queue, message_id, bucket, key, state, reason)"
        f" VALUES ('{URL}', 'm', 'b', 'bad.csv', 'dead', 'broken')"
    )
    for run, dead, is_sent in (("1", 0, False), ("2", 1, True), ("3", 1, False), ("4", 3, True), ("5", 2, False)):
        given = facts(run)
        given.queue = lambda name, dead=dead: Queue(Sqs(9, 9, 9, dead=dead), URL)
        found = DeadLetters("events").look(given)
        assert found is not None
        assert [problem.examples for problem in found] == [(Example("s3://b/bad.csv", "broken"),)] * bool(dead)
        assert bool(sent(given, DeadLetters("events"))) is is_sent, run
        assert DeadLetters("events", more_than=3).look(given) == []


def test_lag_counts_from_when_the_queue_was_first_seen(engine: Engine, facts: Callable[..., Facts]) -> None:
    def age(minutes: int) -> None:
        earlier = f"toString(recorded_at - toIntervalMinute({minutes}))"
        rows = engine.run(f"SELECT * EXCEPT recorded_at, {earlier} FROM storeside.queue_depths")
        engine.run("TRUNCATE TABLE storeside.queue_depths")
        values = ", ".join(str(tuple(row)) for row in rows)
        engine.run(f"INSERT INTO storeside.queue_depths VALUES {values}")

    waiting, empty = facts("1"), facts("1")
    waiting.queue = lambda name: Queue(Sqs(5, 0, 0), URL)
    empty.queue = lambda name: Queue(Sqs(0, 0, 0), URL)
    lag = Lag("events", minutes=30)
    assert lag.look(empty) == []
    age(60)
    assert lag.look(waiting) == []  # its messages may have come now
    age(20)
    assert lag.look(waiting) == []
    age(20)
    (what,) = sent(waiting, lag)
    assert what == (
        "queue events: the oldest message waits for 40 min, and may wait for 30 min; 5 messages can be received"
    )
    assert sent(waiting, lag) == []
    assert sent(empty, lag) == []
    assert lag.look(waiting) == []


# --- volume


def test_volume_reads_rows_or_objects_of_the_last_runs(engine: Engine, facts: Callable[..., Facts]) -> None:
    for n in range(12):
        record(engine, str(n), rows=1000 + n, done=5)
    record(engine, "low", rows=100, done=5)
    assert sent(facts("low"), Volume(runs=10)) == [
        "task load: 100 rows, while the median of the last 10 runs is 1,006"
    ]
    assert Volume(task_id="other").look(facts("low")) is None
    record(engine, "high", rows=5000, done=5)
    assert sent(facts("high"), Volume(runs=10)) == [
        "task load: 5,000 rows, while the median of the last 10 runs is 1,006"
    ]


@pytest.mark.parametrize(
    ("volume", "before", "found"),
    [
        (1000, [1000] * 10, None), (499, [1000] * 10, "low"), (501, [1000] * 10, None), (3001, [1000] * 10, "high"),
        (0, [1000] * 10, "low"), (0, [1000] * 8 + [0] * 2, None), (0, [1000] * 9 + [0], "low"),
        (0, [1000] * 4, None), (0, [0] * 10, None), (9000, [0] * 6 + [1000] * 4, None),
        (0, [2, 1, 3, 2, 2, 1, 4, 2, 2, 1], None), (0, [20] * 10, "low"), (6, [2, 1, 3, 2, 2, 1, 4, 2, 2, 1], None),
        (400, [300, 2000, 900, 1000, 1100, 3000, 500, 1500, 700, 1000], None),
    ],
)  # fmt: skip
def test_volume_compares_with_the_median(volume: int, before: Sequence[int], found: str | None) -> None:
    assert (Volume().compare(volume, before) or (None,))[0] == found


def test_healthy_runs_of_different_sizes_are_no_problem() -> None:
    rng, wrong = random.Random(40), 0  # noqa: S311 - sizes, not secrets
    before: list[int] = []
    for n in range(2000):
        size = int(1000 * 1.002**n * rng.lognormvariate(0, 0.3))
        wrong += Volume().compare(size, before[-30:]) is not None
        before.append(size)
    assert wrong <= 1


# --- messages


@pytest.mark.parametrize("form", ["subject", "text", "html", "slack", "json"])
def test_hostile_names_stay_names(form: str) -> None:
    what = f"cannot check: {HOSTILE}"
    alert = Alert("d", "run\n1", [LOAD], [Problem("", what, (Example(HOSTILE, HOSTILE),), condition="c")], BASE)
    text = str(getattr(alert, form))
    assert "\u202e" not in text
    assert "\r" not in text
    if form == "json":
        assert json.loads(text)["problems"][0]["examples"][0]["object"] == HOSTILE
        with pytest.raises(ValueError, match="malformed"):  # otherwise Airflow's native templates make it an object
            ast.literal_eval(text)
        return
    lines = text.splitlines()
    assert len(lines) == {"subject": 1}.get(form, 5)
    assert not any(line.startswith("Bcc:") for line in lines)
    assert "@everyone" not in text
    if form == "html":
        assert "<img" not in text
    if form == "slack":
        assert "<!channel>" not in text
        assert lines[2].count("`") == 2 + HOSTILE.count("`")  # the name has none; the reason is no code
    if form == "subject":
        assert len(text) <= 100


def test_a_message_is_bounded() -> None:
    many = [Problem(str(n), "x" * 9999, tuple([Example("n" * 9999, "r" * 9999)] * 5)) for n in range(500)]
    alert = Alert("d", "r", [LOAD] * 20, many, BASE)
    assert len(alert.text) < 50_000
    assert f"and {500 - MOST_PROBLEMS} other problems" in alert.text
    assert alert.subject.endswith(", and 499 other problems")
    assert len(alert.subject) <= 100
    assert "other task" not in alert.text
    assert "\nand 3 other tasks\npage of the run: " in replace(alert, other_tasks=3).text


def test_the_text() -> None:
    problem = Problem("", "7 of 307 objects failed", (Example("bad/empty.flac", "the object is empty"),), queue="q")
    alert = Alert("d", "r", [LOAD], [problem], BASE, reminder=True)
    assert alert.subject == "Still: d: 7 of 307 objects failed"
    assert alert.text.splitlines() == [
        "Still: DAG d, run r",
        "- 7 of 307 objects failed",
        "  'bad/empty.flac': the object is empty",
        f"  page of the queue: {BASE}/queues?queue=q",
        "load: 300 objects done, 7 failed, 1,000 rows, 42.0 MB",
        f"page of the run: {BASE}/run?dag=d&run=r",
    ]
    assert printable("someone@example.com/a @all", 99) == "someone@example.com/a \\x40all"


# --- the operator


def context_of(run: str, states: dict[str, str]) -> Any:
    instance = SimpleNamespace(
        dag_id="d", run_id=run, task_id="alert", map_index=-1,
        get_task_states=lambda dag_id, run_ids: {run_ids[0]: states},
    )  # fmt: skip
    return {"ti": instance}


@pytest.mark.parametrize("native", [False, True])
def test_airflows_notifiers_send_to_real_servers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    from airflow.providers.http.notifications import HttpNotifier
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2-the-password")
    monkeypatch.setattr("storeside.operators.operators.alerts.clickhouse", lambda conn_id: Client(engine))
    record(engine, "1", "x", known_bad=0)
    reason = "key hunter2-the-password {{ 7*7 }}"
    engine.run(f"ALTER TABLE storeside.failures UPDATE reason = '{reason}' WHERE 1 SETTINGS mutations_sync = 2")
    with webhook() as hook, mailbox() as mails:
        monkeypatch.setenv("AIRFLOW_CONN_HTTP_DEFAULT", f"http://127.0.0.1:{hook.port}")
        extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com"}
        smtp = {"conn_type": "smtp", "host": "127.0.0.1", "port": mails.port, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(smtp))
        with DAG("d", render_template_as_native_obj=native):
            alert = SendAlertsOperator(
                task_id="alert", notifiers=[SmtpNotifier(to="team@example.com"), HttpNotifier(endpoint="sent")]
            )
        context = context_of("1", {"load": "failed", "alert": "running"})
        assert alert.execute({**context, "dag": alert.dag}) == {"problems": 2, "sent": 2}
        (mail,), (body,) = mails.taken(), hook.taken()
        assert alert.execute({**context, "dag": alert.dag}) == {"problems": 2, "sent": 0}
    assert mail["Subject"] == "d: task load failed, and 1 other problem"
    assert mail["To"] == "team@example.com"
    assert "<code>x</code>: key *** {{ 7*7 }}" in html_of(mail)
    assert body["problems"][1]["examples"] == [{"object": "x", "reason": "key *** {{ 7*7 }}"}]
    assert body["link"].endswith("/storeside/run?dag=d&run=1")


def test_without_the_ledger_it_tells_what_it_knows_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(conn_id: str) -> None:
        raise ConnectionError("ClickHouse is down")

    monkeypatch.setattr("storeside.operators.operators.alerts.clickhouse", refuse)
    alerts: list[Alert] = []
    operator = SendAlertsOperator(
        task_id="alert", notifiers=[lambda context: alerts.append(context["alert"])],
        conditions=[FailedTasks(), FailedObjects(), Freshness("d.t", 1)],
    )  # fmt: skip
    for run in ("1", "2"):
        states = {"load": "failed", "report": "upstream_failed"}
        assert operator.execute(context_of(run, states)) == {"problems": 3, "sent": 1}
    assert [problem.what for problem in alerts[1].problems] == [
        "task load failed",
        "task report failed: it did not run, because a task before it failed",
        "the ledger in ClickHouse does not answer, so that objects and tables are not checked: ClickHouse is down",
    ]


def test_a_callback_sends_each_failure_with_its_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.operators.operators.alerts.clickhouse", lambda conn_id: Client(engine))
    alerts: list[Alert] = []

    def broken(context: Any) -> None:
        raise ConnectionError("no route")

    call = alert_callback(broken, lambda context: alerts.append(context["alert"]))
    for run in ("1", "2"):
        record(engine, run, "x")
        context = {"ti": SimpleNamespace(dag_id="d", run_id=run, task_id="load"), "exception": ValueError("too bad")}
        with pytest.raises(AirflowException, match="1 of 2 notifiers could not send: broken 1: no route"):
            call(context)
    assert [[problem.what for problem in alert.problems] for alert in alerts] == [
        ["task load failed: too bad", "1 of 2 objects failed"]
    ] * 2
    assert engine.run("SELECT count() FROM storeside.alerts") == [[0]]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"notifiers": []}, "notifiers: name at least one"),
        ({"notifiers": ["team@example.com"]}, "notifiers: name at least one"),
        ({"conditions": []}, "conditions: name at least one"),
        ({"conditions": [FailedObjects]}, "write FailedObjects()"),
        ({"conditions": [Volume(), Volume(below=0.1)]}, "volume occurs twice"),
        ({"repeat_hours": -1}, "repeat_hours -1: write a number from 0"),
    ],
)
def test_wrong_arguments_prevent_the_import(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(LiteralArgumentError, match=error.replace("(", r"\(").replace(")", r"\)")):
        SendAlertsOperator(**{"task_id": "alert", "notifiers": [print], **arguments})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Freshness("trips", 1), lambda: Freshness("d.t", 0), lambda: KnownFailures(0), lambda: Volume(below=1),
        lambda: Volume(above=1), lambda: Volume(runs=4), lambda: DeadLetters(""), lambda: DeadLetters("q", -1),
        lambda: Lag("", 1), lambda: Lag("q", float("nan")),
    ],
)  # fmt: skip
def test_wrong_conditions(make: Callable[[], object]) -> None:
    with pytest.raises(AlertInputError, match="write "):
        make()


# --- Airflow's deadlines


def test_a_missed_deadline_sends_the_mail_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler adds this context to the callback's arguments, and the triggerer runs its trigger."""
    from airflow.triggers.callback import CallbackTrigger

    page = (CHECKOUT / "docs" / "alerts.md").read_text()
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "DeadlineAlert" in code)
    made: dict[str, Any] = {}
    exec(code, made)  # noqa: S102 - our own documentation
    (deadline,) = made["dag"].deadline
    sent = json.loads(json.dumps(deadline.callback.serialize()))
    context = {"dag_run": {"dag_id": "hourly_rides", "run_id": "scheduled__2026-01-01T00:00:00+00:00"}}

    async def run() -> list[Any]:
        trigger = CallbackTrigger(sent["path"], {**sent["kwargs"], "context": context})
        return [event.payload async for event in trigger.run()]

    with mailbox() as mails:
        extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com"}
        smtp = {"conn_type": "smtp", "host": "127.0.0.1", "port": mails.port, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(smtp))
        assert [event["state"] for event in asyncio.run(run())] == ["running", "success"]
        (mail,) = mails.taken()
    assert mail["Subject"] == "hourly_rides is late"
    assert "run?dag=hourly_rides&run=scheduled__2026-01-01T00%3A00%3A00%2B00%3A00" in html_of(mail)
