"""ORDER BY, PARTITION BY and TTL of a new table, assembled from column names and a short list of functions.

ClickHouse evaluates constant functions such as ``file()`` when it creates a table, and its errors show their results.
So a form's text never becomes SQL: the parser reads it, and the clause is composed from the tokens with quoted names.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import TransferInputError

# Functions of a column, and functions of a column and a number, such as ``modulo(id, 16)``.
FUNCTIONS = (
    *("toDate", "toDateTime", "toYear", "toMonth", "toHour", "toMonday", "toYYYYMM", "toYYYYMMDD", "toUnixTimestamp"),
    *("toStartOfHour", "toStartOfDay", "toStartOfWeek", "toStartOfMonth", "toStartOfQuarter", "toStartOfYear"),
    *("cityHash64", "sipHash64", "xxHash64", "intHash32", "intHash64", "lower", "upper"),
)
WITH_NUMBER = ("modulo", "intDiv")
UNITS = ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")

_QUOTED = r"`(?:[^`\\]|\\.)++`|\"(?:[^\"\\]|\\.)++\""
_TOKEN = re.compile(rf"\s*(?:(?P<name>{_QUOTED}|[^\W\d][\w.]*)|(?P<number>\d{{1,9}})|(?P<sign>[(),+]))", re.DOTALL)
_EMPTY = ("", "tuple()")
# A string or a quoted name; without its end it extends to the end of the text, and the second group is empty.
QUOTED = re.compile(r"(['`\"])(?:(?!\1)[^\\]|\\.)*+(\1)?", re.DOTALL)
_EXPRESSION = re.compile(r"(?:[\w\s(),.+*%=<>!:?|\[\]]|-(?!-)|/(?!\*))*")


@dataclass(frozen=True)
class Expression:
    """SQL of a DAG author for ORDER BY, PARTITION BY or TTL, which ClickHouse receives unchanged.

    Airflow renders no template in it, so no field of a form can become a part of it.

    :param text: one expression of columns and functions
    """

    text: str


def key(option: str, given: str | Expression) -> str:
    """Return the columns and functions of a key as SQL, separated by commas; empty if there are none.

    Raises TransferInputError, with the name `option`, for anything else.
    """
    if isinstance(given, Expression):
        return checked(option, given)
    if given.strip() in _EMPTY:
        return ""
    parser = _Parser(option, given)
    is_wrapped = parser.take("(")
    terms = [parser.term()]
    while parser.take(","):
        terms.append(parser.term())
    if is_wrapped:
        parser.need(")")
    parser.end()
    return ", ".join(terms)


def ttl(given: str | Expression) -> str:
    """Return a TTL such as ``day + INTERVAL 30 DAY`` as SQL; empty if there is none. Raises TransferInputError."""
    if isinstance(given, Expression):
        return checked("ttl", given)
    if not given.strip():
        return ""
    parser = _Parser("ttl", given)
    text = parser.term()
    if parser.take("+"):
        parser.need("INTERVAL")
        text += f" + INTERVAL {parser.number()} {parser.word(UNITS)}"
    parser.end()
    return text


def unquoted(text: str, by: str = "_") -> str:
    """Return SQL with `by` in place of each string and quoted name; a quote without an end stays."""
    return QUOTED.sub(lambda found: by if found[2] else found[1], text)


def checked(option: str, expression: Expression) -> str:
    """Return the text of an expression. Raises TransferInputError if it could escape the parentheses around it."""
    bare = unquoted(expression.text)
    depths = list(itertools.accumulate((c == "(") - (c == ")") for c in bare))
    if _EXPRESSION.fullmatch(bare) and min(depths, default=0) >= 0 and not (depths and depths[-1]):
        return expression.text
    raise TransferInputError(
        f"{option} {expression.text!r}: write one expression of columns and functions, such as (city, day)"
    )


class _Parser:
    """Parses the text of one option."""

    def __init__(self, option: str, text: str) -> None:
        self._error = TransferInputError(
            f"{option} {text!r}: write "
            + ("column + INTERVAL 30 DAY" if option == "ttl" else "columns, such as (city, toYYYYMM(taken_at))")
            + f"; functions are {', '.join((*FUNCTIONS, *WITH_NUMBER))}. A DAG can set any other expression"
            f' in code: {option}=Expression("…")'
        )
        self._tokens: list[tuple[str, str]] = []
        text, at = text.rstrip(), 0
        while at < len(text):
            if (match := _TOKEN.match(text, at)) is None:
                raise self._error
            self._tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            at = match.end()
        self._tokens.reverse()

    def term(self) -> str:
        """Parse a column, or a function of a column, and return its SQL."""
        name = self._of("name")
        if name[0] in '`"' or not self.take("("):
            return _column(name)
        if name not in (*FUNCTIONS, *WITH_NUMBER):
            raise self._error
        arguments = [_column(self._of("name"))]
        if name in WITH_NUMBER:
            self.need(",")
            arguments.append(self.number())
        self.need(")")
        return f"{name}({', '.join(arguments)})"

    def number(self) -> str:
        """Parse a whole number."""
        return self._of("number")

    def word(self, words: tuple[str, ...]) -> str:
        """Parse one of these words in upper or lower case, and return it in upper case."""
        if (found := self._of("name").upper()) not in words:
            raise self._error
        return found

    def take(self, text: str) -> bool:
        """Consume this token if it is the next one; return whether it was."""
        if not self._tokens or self._tokens[-1][1].upper() != text:
            return False
        self._tokens.pop()
        return True

    def need(self, text: str) -> None:
        """Consume this token. Raises TransferInputError if it is not the next one."""
        if not self.take(text):
            raise self._error

    def end(self) -> None:
        """Raise TransferInputError if a token is left."""
        if self._tokens:
            raise self._error

    def _of(self, kind: str) -> str:
        if not self._tokens or self._tokens[-1][0] != kind:
            raise self._error
        return self._tokens.pop()[1]


def _column(name: str) -> str:
    return identifier(re.sub(r"\\(.)", r"\1", name[1:-1], flags=re.DOTALL) if name[0] in '`"' else name)
