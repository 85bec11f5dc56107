"""The facts for conditions, which are a run in the ledger, its failed tasks and queues; and the problems found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.sql.migrate import migrate

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient

    from storeside.events.queue import Queue

# Examples of a problem in a message, and tasks of a run in it.
MOST_EXAMPLES = 5
MOST_TASKS = 20


@dataclass(frozen=True)
class Example:
    """An object of a problem with the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Problem:
    """A problem that a condition found.

    :param key: which of the condition's problems it is; empty if the condition has only one
    :param what: one sentence for the message
    :param examples: the first objects, with reasons
    :param level: size of the problem, 0 if it has none; an alert sends a larger problem again
    :param by_objects: an alert also sends it again if an object failed that had not failed when it was found last
    :param queue: name of the queue whose page shows more; else that is the page of the run
    :param condition: the condition that found it
    """

    key: str
    what: str
    examples: tuple[Example, ...] = ()
    level: float = 0.0
    by_objects: bool = False
    queue: str = ""
    condition: str = ""

    def without(self, hide: Callable[[str], str]) -> Problem:
        """Return the problem with every text passed through `hide`, which replaces secrets."""
        shown = tuple(Example(hide(example.name), hide(example.reason)) for example in self.examples)
        return replace(self, what=hide(self.what), examples=shown)


@dataclass(frozen=True)
class Task:
    """A finished task of a run. `rows` is -1 if it loads none."""

    task_id: str
    done: int
    failed: int
    skipped: int
    bytes_in: int
    rows: int
    known_bad: int


@dataclass(frozen=True)
class Totals:
    """The sums of all finished tasks of a run; `known` has the first objects that failed before it."""

    tasks: int
    done: int
    failed: int
    known_bad: int
    known: tuple[Example, ...]


@dataclass
class Facts:
    """A run, and the ways to the ledger and to queues.

    `run` is the name of the run in the ledger, ``<dag_id>/<run_id>``, `failed_tasks` maps its failed tasks to their
    errors, as far as these are known.
    """

    dag: str
    run: str
    connect: Callable[[], HttpClient]
    queue: Callable[[str], Queue]
    failed_tasks: Mapping[str, str] = field(default_factory=dict)
    _failure: Exception | None = field(default=None, init=False)

    @property
    def client(self) -> HttpClient:
        """The client of the ledger. Raises the error of the first attempt to connect, without another attempt."""
        if self._failure is not None:
            raise self._failure
        return self._client

    @cached_property
    def _client(self) -> HttpClient:
        try:
            client = self.connect()
            migrate(client)
        except Exception as e:
            self._failure = e
            raise
        return client

    def rows(self, query: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of a query about the run."""
        return self.client.query(query, parameters={"run": self.run, "dag": self.dag, **parameters}).result_rows

    @cached_property
    def tasks(self) -> list[Task]:
        """The finished tasks of the run, up to `MOST_TASKS`: a run may have one for each table."""
        return [
            Task(str(task_id), *map(int, counts))
            for task_id, *counts in self.rows(sql.query("alerts_tasks"), limit=MOST_TASKS)
        ]

    @cached_property
    def totals(self) -> Totals:
        """The sums of all finished tasks of the run."""
        (tasks, done, failed, known_bad, known), *_ = self.rows(sql.query("alerts_totals"), limit=MOST_EXAMPLES)
        examples = tuple(Example(*pair[:2]) for pair in known if len(pair) > 1)
        return Totals(int(tasks), int(done), int(failed), int(known_bad), examples)
