"""The message of an alert, in the forms that notifiers send.

Names of objects and reasons are hostile input: an uploader chooses them. Line breaks and other characters that cannot
be printed are shown as escapes, so that a subject has one line and a name cannot turn the direction of a text. HTML
and Slack's markup are escaped. A name at a word's beginning after ``@`` cannot mention a group of a chat.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from storeside.alerts.facts import Problem, Task
from storeside.amounts import counted, others, size

MOST_PROBLEMS = 10
_SUBJECT, _NAME, _TEXT = 100, 200, 400
_MENTION = re.compile(r"(?<!\w)@(?=\w)")


@dataclass(frozen=True)
class Alert:
    """The problems of a run that a notifier sends.

    :param dag: the DAG
    :param run: id of the run
    :param tasks: the first finished tasks of the run, with counts
    :param problems: the problems
    :param base: URL of Storeside's pages
    :param reminder: whether the notifier has sent all of the problems before
    :param other_tasks: the number of its other finished tasks
    """

    dag: str
    run: str
    tasks: Sequence[Task]
    problems: Sequence[Problem]
    base: str
    reminder: bool = False
    other_tasks: int = 0

    @property
    def link(self) -> str:
        """The URL of the run's page."""
        return f"{self.base}/run?{urlencode({'dag': self.dag, 'run': self.run})}"

    @property
    def subject(self) -> str:
        """The problem in one line of at most 100 characters; of several, the first and the number of the others."""
        more = len(self.problems) - 1
        rest = f", and {counted(more, 'other problem')}" if more else ""
        start = f"{'Still: ' if self.reminder else ''}{self.dag}: "
        return _short(start + printable(self.problems[0].what, _TEXT), _SUBJECT - len(rest)) + rest

    @property
    def text(self) -> str:
        """The whole message as plain text."""
        return "\n".join(self._lines(lambda text: text, lambda name: f"'{name}'", lambda url, text: f"{text}: {url}"))

    @property
    def html(self) -> str:
        """The whole message as HTML."""
        lines = self._lines(
            html.escape,
            lambda name: f"<code>{html.escape(name)}</code>",
            lambda url, text: f'<a href="{html.escape(url)}">{text}</a>',
        )
        return "<br>\n".join(
            line.replace("  ", "&nbsp;&nbsp;", 1) if line.startswith("  ") else line for line in lines
        )

    @property
    def slack(self) -> str:
        """The whole message in Slack's markup."""
        return "\n".join(
            self._lines(
                _slack, lambda name: f"`{_slack(name).replace('`', chr(39))}`", lambda url, text: f"<{url}|{text}>"
            )
        )

    @property
    def json(self) -> str:
        """The alert as a JSON object, with names and reasons as they are."""
        return json.dumps(
            {
                "dag": self.dag,
                "run": self.run,
                # With templates that render to Python objects, this word keeps the text from becoming one.
                "reminder": self.reminder,
                "subject": self.subject,
                "link": self.link,
                "problems": [
                    {
                        "condition": problem.condition,
                        "what": _short(problem.what, _TEXT),
                        "examples": [
                            {"object": _short(example.name, 1024), "reason": _short(example.reason, _TEXT)}
                            for example in problem.examples
                        ],
                    }
                    for problem in self.problems[:MOST_PROBLEMS]
                ],
            }
        )

    def _lines(
        self, plain: Callable[[str], str], code: Callable[[str], str], link: Callable[[str, str], str]
    ) -> Iterator[str]:
        """Yield the lines of the message; the functions write a text, a name and a link as the notifier needs it."""
        yield plain(f"{'Still: ' if self.reminder else ''}DAG {self.dag}, run {printable(self.run, _NAME)}")
        for problem in self.problems[:MOST_PROBLEMS]:
            yield plain(f"- {printable(problem.what, _TEXT)}")
            for example in problem.examples:
                yield f"  {code(printable(example.name, _NAME))}: {plain(printable(example.reason, _TEXT))}"
            if problem.queue:
                yield "  " + link(f"{self.base}/queues?{urlencode({'queue': problem.queue})}", "page of the queue")
        if (more := len(self.problems) - MOST_PROBLEMS) > 0:
            yield plain(f"- and {counted(more, 'other problem')}")
        for task in self.tasks:
            yield plain(_counts(task))
        if self.other_tasks > 0:
            yield plain(f"and {counted(self.other_tasks, 'other task')}")
        yield link(self.link, "page of the run")


def _counts(task: Task) -> str:
    """Return what a task has done."""
    rows = f", {counted(task.rows, 'row')}" if task.rows >= 0 else ""
    rest = others((task.failed, "failed"), (task.known_bad, "failed for good before"), (task.skipped, "done before"))
    return f"{task.task_id}: {counted(task.done, 'object')} done{rest}{rows}, {size(task.bytes_in)}"


def printable(text: str, longest: int) -> str:
    """Return a text on one line, shortened, without control characters and without mentions of groups."""
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: longest + 1])
    return _MENTION.sub(r"\\x40", _short(escaped, longest))


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
