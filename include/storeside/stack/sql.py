"""``make sql``: queries to the stack's ClickHouse, one by one or at a prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TextIO
from urllib.parse import urlencode

import requests

from storeside.stack.servers.clickhouse_users import USER
from storeside.stack.settings import Stack, StackError
from storeside.stack.supervision.processes import marked

PROMPT, MORE = "sql> ", "...> "
_LEAVE = ("exit", "quit", "\\q")
# Statements that return rows; ClickHouse answers with nothing if there are none.
_READS = ("select", "show", "describe")


class Query:
    """Sends statements to the stack's ClickHouse and returns the answers as text in a ClickHouse format."""

    def __init__(self, stack: Stack, *, as_json: bool) -> None:
        self.stack = stack
        self.url = stack.url("clickhouse_http")
        self.password = stack.secrets["clickhouse"]
        self.verify = str(stack.authority) if stack.tls else True
        self.format = "JSONEachRow" if as_json else "PrettyCompactMonoBlock"

    def __call__(self, statement: str) -> str:
        """Run one statement. Raises StackError with ClickHouse's message."""
        if not marked(self.stack.state, "clickhouse"):  # another program at the port must not get the password
            raise StackError("ClickHouse does not run: see 'make status'")
        parameters = {"default_format": self.format, "output_format_pretty_color": 0}
        try:
            answer = requests.post(
                f"{self.url}/?{urlencode(parameters)}",
                statement.encode(),
                auth=(USER, self.password),
                timeout=600,
                verify=self.verify,
            )
        except requests.RequestException as e:
            raise StackError("ClickHouse does not answer: see 'make status'") from e
        if not answer.ok:
            raise StackError(answer.text.strip())
        return answer.text


def run(stack: Stack, statement: str, *, as_json: bool) -> int:
    """Run `statement`, or else those of standard input or of a prompt; return 1 if a statement failed."""
    query = Query(stack, as_json=as_json)
    if statement:
        return _print(query, statement)
    if not sys.stdin.isatty():
        return max((_print(query, text) for text in statements(sys.stdin)), default=0)
    print(f"ClickHouse at {query.url} as {USER}. End each statement with ';', and leave with Ctrl-D.")
    print(f"In a browser: {query.url}/play with user {USER}; {stack.state / 'stack.json'} has the password")
    _prompt(query)
    return 0


def statements(lines: TextIO) -> Iterator[str]:
    """Yield the statements of a text; a statement ends at a line that ends with ``;``, or at the end of the text."""
    text = ""
    for line in lines:
        text += line
        if line.rstrip().endswith(";"):
            yield text
            text = ""
    if text.strip():
        yield text


def _prompt(query: Callable[[str], str]) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() a history and line editing
    text = ""
    while True:
        try:
            line = input(MORE if text else PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:  # discards the statement, as in a shell
            print()
            text = ""
            continue
        if not text and line.strip().rstrip(";") in _LEAVE:
            return
        text += f"{line}\n" if text or line.strip() else ""
        if line.rstrip().endswith(";"):
            _print(query, text)
            text = ""


def _print(query: Callable[[str], str], statement: str) -> int:
    text = statement.strip().rstrip(";")
    try:
        answer = query(text)
    except StackError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    print(answer, end="", flush=True)
    if not answer and text.lower().startswith(_READS):
        print("0 rows", file=sys.stderr, flush=True)  # a program that reads the output gets rows only
    return 0
