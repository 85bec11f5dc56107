"""Evaluates the conditions of an alert, and sends the due problems through each notifier."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from storeside.alerts.conditions import Condition
from storeside.alerts.errors import AlertTransientError
from storeside.alerts.facts import Facts, Problem, Task
from storeside.alerts.memory import Memory
from storeside.alerts.message import Alert

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """The problems, and the conditions with a result: others lack the records that they need."""

    problems: tuple[Problem, ...]
    judged: frozenset[str]


def evaluate(conditions: Sequence[Condition], facts: Facts, hide: Callable[[str], str]) -> Found:
    """Return the problems of all conditions, without secrets; a condition that fails is a problem itself."""
    problems: list[Problem] = []
    judged = set()
    for condition in conditions:
        try:
            found = condition.look(facts)
        except Exception as e:  # one condition that fails must not hide what the others find
            log.warning("cannot check %s", condition.name, exc_info=True)
            problems.append(Problem("unchecked", f"cannot check {condition.name}: {e}", condition=condition.name))
            continue
        if found is not None:
            judged.add(condition.name)
            problems += [replace(problem, condition=condition.name) for problem in found]
    return Found(tuple(problem.without(hide) for problem in problems), frozenset(judged))


def send(
    found: Found,
    facts: Facts,
    notifiers: Mapping[str, Callable[[Alert], None]],
    base: str,
    memory: Memory | None,
) -> int:
    """Tell each notifier the problems that are due for it; return the number of messages.

    Without a memory, because ClickHouse does not answer or in a callback, all problems are due, also if ClickHouse
    stops to answer meanwhile. Raises AlertTransientError after all notifiers if some of them failed.
    """
    sent, failed = 0, []
    for name, notify in notifiers.items():
        due, old = _due(name, found, memory)
        if due:
            try:
                tasks, others = _tasks(facts)
                notify(Alert(facts.dag, facts.run.removeprefix(f"{facts.dag}/"), tasks, due, base, old, others))
            except Exception as e:
                log.warning("%s could not send", name, exc_info=True)
                failed.append(f"{name}: {e}")
                continue
            sent += 1
        if memory is not None:
            try:
                memory.record(name, found.problems, due, found.judged)
            except Exception as e:  # the other notifiers send, too
                log.warning("%s: the next run sends these problems again, because they are not recorded: %s", name, e)
    if failed:
        raise AlertTransientError(f"{len(failed)} of {len(notifiers)} notifiers could not send: {'; '.join(failed)}")
    return sent


def _due(name: str, found: Found, memory: Memory | None) -> tuple[Sequence[Problem], bool]:
    """Return the problems that are due for a notifier, and whether it has sent all of them before."""
    if memory is None:
        return found.problems, False
    try:
        due = [problem for problem in found.problems if memory.is_due(name, problem)]
        return due, not any(memory.is_news(name, problem) for problem in due)
    except Exception as e:
        log.warning("%s sends every problem, because the ledger does not answer: %s", name, e)
        return found.problems, False


def _tasks(facts: Facts) -> tuple[Sequence[Task], int]:
    """Return the counts of the first tasks, and the number of the others; none if the ledger does not answer."""
    try:
        return facts.tasks, facts.totals.tasks - len(facts.tasks)
    except Exception as e:
        log.info("the message has no counts: %s", e)
        return (), 0
