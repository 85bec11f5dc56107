"""The operator that sends problems through notifiers, and a callback that sends the failure of a task."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf

from storeside.alerts.conditions import Condition, FailedObjects, FailedTasks
from storeside.alerts.facts import Facts, Problem
from storeside.operators.arguments import LiteralArgumentError
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.links import PREFIX
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import clickhouse

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.alerts.evaluation import Found
    from storeside.alerts.message import Alert
    from storeside.events.queue import Queue

Notifier = Callable[[Any], None]

# The fields of Airflow's notifiers that get the message if a DAG leaves them out. They are templates, not texts:
# notifiers render their fields, and the name of an object must not become a template.
_FIELDS = {"subject": "{{ alert.subject }}", "html_content": "{{ alert.html }}", "title": "{{ alert.subject }}"}
# The states of failed tasks, and the errors that are known of them: Airflow does not pass the errors on.
_FAILED = {"failed": "", "upstream_failed": "it did not run, because a task before it failed"}


class SendAlertsOperator(FormOperator):
    """Checks conditions at the end of a run, and sends the problems through Airflow's notifiers.

    Put it after the tasks that it watches: ``load >> alerts``. It is a teardown task: it runs whether these tasks
    succeed, fail or are skipped, and the state of the run does not depend on it. `SmtpNotifier` and `HttpNotifier`
    get the message in the fields that you leave out. Templates of other notifiers use ``alert.subject``,
    ``alert.text``, ``alert.html``, ``alert.slack``, ``alert.json`` and ``alert.link``.

    An alert sends a problem once while it stands, and again if it gets larger or comes back; the table
    ``storeside.alerts`` has the sent problems. If ClickHouse does not answer, each run sends that and its failed
    tasks. If a notifier fails, the others still send; the task fails, and its retry sends only through that notifier.
    Returns the number of problems, and of messages.

    :param notifiers: Airflow's notifiers, or functions of the task's context, in which ``alert`` is the message
    :param conditions: what to check; by default `FailedTasks` and `FailedObjects`
    :param repeat_hours: hours after which an alert sends a standing problem again; 0 for never
    :param clickhouse_conn_id: connection to ClickHouse
    :param aws_conn_id: connection to SQS, for `DeadLetters` and `Lag`
    """

    ui_color = "#f6dcd6"

    def __init__(
        self,
        *,
        notifiers: Sequence[Notifier],
        conditions: Sequence[Condition] = (FailedTasks(), FailedObjects()),
        repeat_hours: float = 0,
        clickhouse_conn_id: str = "clickhouse_default",
        aws_conn_id: str = "aws_default",
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.notifiers = list(notifiers)
        self.conditions = list(conditions)
        self.repeat_hours = repeat_hours
        self.clickhouse_conn_id = clickhouse_conn_id
        self.aws_conn_id = aws_conn_id
        self._check()
        self.as_teardown()

    def _check(self) -> None:
        place = f"task {self.task_id!r}"
        if not self.notifiers or not all(map(callable, self.notifiers)):
            raise LiteralArgumentError(f"{place}: notifiers: name at least one, such as SmtpNotifier(to=…)")
        for condition in self.conditions:
            if isinstance(condition, type) or not hasattr(condition, "look"):
                raise LiteralArgumentError(f"{place}: conditions: {condition!r} is none: write FailedObjects()")
        names = Counter(condition.name for condition in self.conditions)
        if twice := [name for name, count in names.items() if count > 1]:
            raise LiteralArgumentError(f"{place}: conditions: {twice[0]} occurs twice: keep one")
        if not self.conditions:
            raise LiteralArgumentError(f"{place}: conditions: name at least one, such as FailedObjects()")
        if not self.repeat_hours >= 0:
            raise LiteralArgumentError(f"{place}: repeat_hours {self.repeat_hours!r}: write a number from 0")

    def execute(self, context: Context) -> dict[str, int]:
        """Check the conditions and send the due problems."""
        from storeside.alerts.evaluation import evaluate, send
        from storeside.alerts.memory import Memory

        facts = _facts(context, self.clickhouse_conn_id, self.aws_conn_id, _failed_tasks(context))
        found = evaluate(self.conditions, facts, _hide)
        for problem in found.problems:
            self.log.warning("%s: %s", problem.condition, problem.what)
        memory = None
        try:
            memory = Memory(facts, f"{facts.dag}/{self.task_id}", self.repeat_hours)
        except Exception as e:  # the message matters more than its repetition
            self.log.warning("this run sends every problem, because the ledger does not answer: %s", e)
            found = _with_ledger(found, e)
        with airflow_errors():
            sent = send(found, facts, _senders(self.notifiers, context), _pages(), memory)
        return {"problems": len(found.problems), "sent": sent}


def alert_callback(*notifiers: Notifier, clickhouse_conn_id: str = "clickhouse_default") -> Notifier:
    """Return an ``on_failure_callback`` that sends a task's error, and the objects that failed in its run.

    It sends one message for each failure, because a callback does not see that a task succeeds. See
    `SendAlertsOperator` for the message.

    :param notifiers: Airflow's notifiers, or functions of the task's context
    :param clickhouse_conn_id: connection to ClickHouse
    """

    def call(context: Any) -> None:
        from storeside.alerts.evaluation import evaluate, send

        failed = {context["ti"].task_id: str(context.get("exception") or "")}
        facts = _facts(context, clickhouse_conn_id, "", failed)
        with airflow_errors():
            send(
                evaluate((FailedTasks(), FailedObjects()), facts, _hide),
                facts,
                _senders(notifiers, context),
                _pages(),
                None,
            )

    return call


def _facts(context: Any, clickhouse_conn_id: str, aws_conn_id: str, failed: Mapping[str, str]) -> Facts:
    def queue(name: str) -> Queue:
        from storeside.events.queue import Queue
        from storeside.operators.hooks.transfer import sqs_client

        return Queue.find(sqs_client(BaseHook.get_connection(aws_conn_id)), name)

    # The DAG processor calls callbacks of killed tasks, and its context may have no `dag_run`.
    instance = context["ti"]
    run = f"{instance.dag_id}/{instance.run_id}"
    return Facts(instance.dag_id, run, lambda: clickhouse(clickhouse_conn_id), queue, failed)


def _failed_tasks(context: Any) -> dict[str, str]:
    """Return the failed tasks of the run, except this one, with the known errors of each."""
    instance = context["ti"]
    run = instance.run_id
    states = instance.get_task_states(dag_id=instance.dag_id, run_ids=[run]).get(run, {})
    return {task: _FAILED[state] for task, state in states.items() if state in _FAILED and task != instance.task_id}


def _with_ledger(found: Found, error: Exception) -> Found:
    """Add the problem that the ledger does not answer, in place of the same error of each condition."""
    from dataclasses import replace

    others = tuple(problem for problem in found.problems if problem.key != "unchecked")
    what = _hide(f"the ledger in ClickHouse does not answer, so that objects and tables are not checked: {error}")
    return replace(found, problems=(*others, Problem("", what, condition="ledger")))


def _hide(text: str) -> str:
    """Replace the secrets that Airflow knows, such as passwords of connections, as in its logs."""
    from airflow.sdk._shared.secrets_masker import redact

    return str(redact(text))


def _pages() -> str:
    """Return the URL of Storeside's pages."""
    base: str = conf.get("api", "base_url", fallback="http://localhost:8080/")
    return base.rstrip("/") + PREFIX


def _senders(notifiers: Sequence[Notifier], context: Any) -> dict[str, Callable[[Alert], None]]:
    """Return functions that send an alert, by the names of the notifiers in the memory."""
    senders: dict[str, Callable[[Alert], None]] = {}
    for notifier in notifiers:
        kind = getattr(notifier, "__name__", type(notifier).__name__)
        number = sum(name.partition(" ")[0] == kind for name in senders)
        senders[f"{kind} {number + 1}"] = _sender(notifier, context)
    return senders


def _sender(notifier: Notifier, context: Any) -> Callable[[Alert], None]:
    def send(alert: Alert) -> None:
        # A notifier changes itself and the context while it renders its templates.
        _with_message(copy.copy(notifier))({**context, "alert": alert})

    return send


def _with_message(notifier: Any) -> Any:
    """Set the fields of a notifier that are None to templates of the message."""
    fields = [name for name in getattr(notifier, "template_fields", ()) if getattr(notifier, name, "") is None]
    for name in _FIELDS.keys() & {*fields}:
        setattr(notifier, name, _FIELDS[name])
    if {"data", "json"} <= {*fields}:  # HttpNotifier
        notifier.data = "{{ alert.json }}"
        notifier.headers = {"Content-Type": "application/json", **(notifier.headers or {})}
    return notifier
