"""Errors of a transfer, and the mapping of ClickHouse's errors to them.

TransferError
├── TransferCancelled        the user has stopped it
├── LeftError                this process ends, and another one continues
├── TransferInputError       the request cannot be carried out; no retry helps
│   └── ExpectationsError    rows break expectations, so nothing of the load is published
├── LoadObjectError          one object cannot be loaded; the others can
│   ├── DriftError           its columns are not the table's
│   ├── LimitError           it exceeds a limit of the load
│   ├── GoneError            its version no longer exists; the next run loads the version that it lists
│   ├── NoAccessError        S3 denies it, or it is archived; the next run tries it again
│   └── BusyObjectError      it cannot be read at the moment; the next run tries it again
└── TransferTransientError   another try may succeed
    └── StaleError           the staged rows can no longer be published; they must be read again
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from storeside.errors import BadInput, Cancelled, Partial, StoresideError, Transient
from storeside.transfer.base import damage


class FailureKind(StrEnum):
    """Why an object failed: the column ``kind`` of ``storeside.loads``, which decides whether the next run tries it.

    The members are those of the column's type.
    """

    NONE = "none"  # it did not fail
    OBJECT = "object"  # for good, because of its content
    ACCESS = "access"  # credentials or a policy kept it from being read
    TRANSIENT = "transient"  # it could not be read at the time, or its version did not exist

    @property
    def is_final(self) -> bool:
        """Whether later runs skip the object; ``plan_loads.sql`` and ``start_after.sql`` use the same rule."""
        return self is FailureKind.OBJECT


class TransferError(StoresideError):
    """A transfer, or a part of it, cannot continue; the message states the object and the reason.

    `key` is the key of the object that caused the error; empty if the cause is not known to be a single object.
    """

    key = ""


class TransferCancelled(TransferError, Cancelled):
    """The user has stopped the transfer."""


class LeftError(TransferError, Cancelled):
    """The process ends; ClickHouse's queries continue, and `Transfer.run` in another process takes them over."""


class TransferInputError(TransferError, BadInput):
    """The request is invalid or contradicts the existing table or objects."""


class ExpectationsError(TransferInputError):
    """Rows break expectations, so nothing of the load is published; `verdict` is the verdict as values for JSON."""

    def __init__(self, message: str, verdict: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.verdict = dict(verdict or {})


class LoadObjectError(TransferError, Partial):
    """An object cannot be loaded; `kind` is its kind in the ledger."""

    kind = FailureKind.OBJECT


class LimitError(LoadObjectError):
    """An object is larger than the limits of the load allow, once it is decompressed."""


class DriftError(LoadObjectError):
    """An object has columns, or types of columns, that the table does not accept."""


class GoneError(LoadObjectError):
    """An object was deleted or overwritten after it was listed.

    The failure is not final: the same content, uploaded again, has the same version.
    """

    kind = FailureKind.TRANSIENT


class NoAccessError(LoadObjectError):
    """S3 denies access to an object, or has it in an archive."""

    kind = FailureKind.ACCESS


class BusyObjectError(LoadObjectError):
    """An object cannot be read at the moment; the others can."""

    kind = FailureKind.TRANSIENT


class TransferTransientError(TransferError, Transient):
    """A server could not be reached, was busy, or was overloaded."""


class StaleError(TransferTransientError):
    """A staging table no longer fits the destination, or another process that published first removed it."""


DELETED = "it was deleted after it was listed"
OVERWRITTEN = "it was overwritten after it was listed; the next run loads the new version"
DENIED = "S3 denies access to it (403): allow s3:GetObject on it"
ARCHIVED = "it is archived (S3: InvalidObjectState): restore it, and the next run loads it"
BUSY = "it cannot be read at the moment"
NO_COLUMNS = "it has no columns, like a file of a data frame without columns: write its columns, or leave it out"

# https://github.com/ClickHouse/ClickHouse/blob/master/src/Common/ErrorCodes.cpp
NO_SUCH_COLUMN = 16
UNKNOWN_IDENTIFIER = 47
UNKNOWN_TABLE = 60
UNKNOWN_DATABASE = 81
SUPPORT_IS_DISABLED = 344
TABLE_EXISTS = 57
DIFFERENT_STRUCTURE = 122
THROWN = 395  # by a check of a row's values, whose text is ours
ACCESS_DENIED = 497
_HTTP_ERROR = 86  # of url(), with which ClickHouse reads AIStore
_S3_ERROR = 499
_NO_COLLECTION = 669
OBJECT_CHANGED = 1009
# Codes for unwritable files, timeouts, host names, memory, too many queries or parts, the network, a session in use,
# a stopping or overloaded server, lost or killed queries, lack of space, a user's quota, Keeper, too few replicas,
# a table that restarts, and a statement that the client has sent again after its connection broke (216).
_TRANSIENT = frozenset(
    {
        75, 159, 198, 201, 202, 203, 209, 210, 216, 225, 236, 241, 242, 243, 252, 279, 285, 286, 290, 319, 373, 394,
        425, 439, 733, 745, 999, 1000,
    }
)  # fmt: skip
# Transient codes that a single object may cause, because it needs too much time or memory.
_BY_SIZE = frozenset({159, 241})
# Memory limits that other statements share.
_SHARED_MEMORY = re.compile(r"\(total\) memory limit|User memory limit")
_UNKNOWN_COLUMN = re.compile(r"(?:row \d+, )?(?:column '(?:[^'\\]|\\.)*+': )?Unknown (?:field found|column)")
# S3's transient errors. ClickHouse gives all errors of S3 the one code S3_ERROR.
_S3_BUSY = re.compile(
    r"HTTP response code: (?:429|5\d\d)|SlowDown|RequestTimeout|InternalError|Connection|Timeout|Poco"
    r"|DNS_ERROR"
    r"|ExpiredToken|token has expired|Skewed|difference between the request time"
)
_HTTP_STATUS = re.compile(r"HTTP status code: (?P<status>\d{3})")
_HTTP_BUSY = re.compile(r"HTTP status code: (?:408|429|5\d\d)")
_HTTP_MESSAGE = re.compile(r'"message": ?"(?P<text>[^"]*)"')
# The address to which AIStore redirects a request is signed, and anyone who has it can repeat the request.
_SIGNED = re.compile(r"\?[^\s'\"?]*?\bu=[\w-]{40,}[^\s'\".:,)]*")
# The answer of a proxy in front of ClickHouse.
_GATEWAY = re.compile(r"received HTTP status 5\d\d")
# The texts of ClickHouse before and after the name of an object, in the order of the search.
_FILES = (
    ("(in file/uri ", "): ", ") (", ")"),
    ("while reading '", "' in bucket"),
    ("reading from: ", " "),
)
_START = re.compile(
    r"(?:Received ClickHouse exception, code: \d++, server response: )?(?:Code: \d++\. DB::Exception: )?"
)
_NAME = re.compile(r"[A-Z][A-Z_0-9]+")
_NOISE = re.compile(
    rf"{damage.NOISE}|" + r"\(for url [^()]*\)|\(version [^()]*+(?:\([^()]*+\)\))?\)?"
    r"|While reading from: [^:]*:|:? ?While executing \w+"
    r"| in the schema file '__cache__/\w*+-?\w*+\.proto'|Cannot parse '__cache__/\w*+-?\w*+\.proto' file, "
    r"|: The table structure cannot be extracted from a \w+ format file\. You can specify the structure manually\."
    r"|Set the '\w+' parameter explicitly to ignore and proceed|\(while reading header\):?"
)
# A cast names its column in its expression; a parser shows all columns of the row up to the one that failed.
_EXECUTING = "While executing "
_FUNCTION = ": while executing 'FUNCTION "
_IN_STAGE = "': read stage: "
_CAST = re.compile(r"accurateCast\((?:__table\d+\.)?(?P<name>`(?:[^`\\]|\\.)*+`|\w++) ::? ")
_SCOPE = "In scope SELECT "
_AT_ROW = "(at row "
_ROW = re.compile(r"\(at row (\d{1,18})\)")
_KEY = "(while reading the value of key "
_HEADER = "(while reading header"
# Parts of a line about a column's value.
_COLUMN, _TYPE, _VALUE, _WRONG = "name: ", ", type: ", ', parsed text: "', ", ERROR: "
# The text before an operation that `Upsert` does not know, in the reason for its object.
UNKNOWN_OPERATION = "an unknown operation"
_ELEMENT, _OF_ENUM = "Unknown element '", "' for enum"
# Errors that end with the name of a field as the object has it.
_RAW = ("Unknown field found", "Duplicate field found")
_THROWN = "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"
_BLANK = " .:,"
_GONE = re.compile(r"HTTP response code: 404|NoSuchKey|The specified key does not exist")
_ARCHIVED = re.compile("InvalidObjectState")
_DENIED = re.compile(r"HTTP response code: 403|Access ?Denied", re.IGNORECASE)
# Remedies by the code of ClickHouse's error.
_NO_TIME = "correct the value, or write null if it is missing, or change the column to String"
_REMEDIES = {
    38: _NO_TIME,
    41: _NO_TIME,
    70: "give the column a type that holds it, or let `on_drift` widen it",
    321: "give the column a type that holds it, or let `on_drift` widen it",
    349: "make the column Nullable",
    241: "divide its rows or row groups, or set `max_memory_usage` in the user's profile",
    159: "divide it, or raise the seconds of `limits`",
    81: "create the database, or correct the table's name",
    32: "it is cut off, upload it again, or `format` is not that of the object",
    436: "add the value to the enum in the schema, or correct the type of the field",
    444: "it is damaged, or `format`, schema or message are not those of the object",
}
# How ClickHouse says that Parquet has a day outside the years 0 to 9999.
_BEYOND_DATES = "out of allowed Date32 range"
# How ClickHouse says that it has no type for an INT96 of Parquet, which it reads as nanoseconds; and the remedy.
_BEYOND_NANOSECONDS = "INT96 timestamp out of range"
WRITE_TIMESTAMP = (
    "write it as TIMESTAMP (in Spark, set spark.sql.parquet.outputTimestampType to TIMESTAMP_MICROS), which holds the"
    " years 0 to 9999"
)
# ClickHouse's words about a row of CSV with more text where a value in quotes, or the last one, should have ended.
_AFTER_VALUE = re.compile(r"There is no (?:delimiter \(|line feed\.)")
# How ClickHouse says that a struct in JSON has a name that its column lacks, with a setting that loads do not have.
# It compares names as they are written: Python's json escapes letters such as é unless ensure_ascii is off.
_NO_ELEMENT = re.compile(
    r"(?:Tuple doesn't have element with name (?P<name>'(?:[^'\\]|\\.)*+'), enable setting"
    r" input_format_json_ignore_unknown_keys_in_named_tuple"
    r"|Unexpected number of elements in named tuple\. Expected no more than (?P<most>\d+) \(consider enabling"
    r" input_format_json_ignore_unknown_keys_in_named_tuple setting\))(?: \(NOT_FOUND_COLUMN_IN_BLOCK\))?"
)
# How ClickHouse says that a text of JSON has half of a surrogate pair, with a setting that loads do not have.
# Programs that cut texts at a length, such as JavaScript's, leave it at the end.
_HALF_PAIR = re.compile(
    r"(?:Cannot parse escape sequence: missing second part of surrogate pair"
    r"|Incorrect surrogate pair of unicode escape sequences in JSON)"
    r"\. In JSON input formats you can disable setting input_format_json_throw_on_bad_escape_sequence"
    r" to save bad escape sequences as is"
)
_MOST = 600
_EXAMINED = 2048  # characters of a part in which patterns are looked for
# Characters examined at both ends of a long error, which may quote an unknown column's name of any length.
_END = 16 << 10


def kind_of(error: BaseException) -> FailureKind:
    """Return the ledger's kind for an object that failed with this error."""
    return error.kind if isinstance(error, LoadObjectError) else FailureKind.OBJECT


def code_of(error: BaseException) -> int:
    """Return the code that ClickHouse gave an error; 0 for errors that are not the server's."""
    return int(getattr(error, "code", 0) or 0)


def _text(error: BaseException) -> str:
    text = str(error)
    return text if len(text) <= 2 * _END else f"{text[:_END]} … {text[-_END:]}"


class Said(NamedTuple):
    """The parts of an error of ClickHouse; see `said`."""

    what: str  # may quote content
    row: int  # the server counts from 1; 0 if it names none
    column: str
    why: str | None  # what is wrong with the value, which may quote content; None if the error shows no values
    name: str  # of the error's code


def said(error: BaseException) -> Said:
    """Return the parts of an error's text.

    The text quotes content, which may look like the server's parts. So these are read from the end, where the server
    writes them, and content that makes a part ambiguous only leaves it out. The cost is linear.
    """
    text = _SIGNED.sub("", " ".join(_text(error).split()))
    if start := _START.match(text):
        text = text[start.end() :]
    for client_or_version in ("(for url ", "(version "):
        text = _without_last(text, client_or_version)
    head, _, last = text.rpartition("(")
    name = last[:-1] if last.endswith(")") and _NAME.fullmatch(last[:-1]) else ""
    text = (head if name else text).rstrip(_BLANK)
    end = len(text)
    while (at := text.rfind(_EXECUTING, 0, end)) >= 0 and text[at + len(_EXECUTING) : end].isidentifier():
        end = _without_blanks(text, at)
    text = _without_last(_without_last(text[:end], _FILES[0][0]), _HEADER)
    if text.startswith(_RAW):
        text, row = _row(text)
        return Said(text, row, "", None, name)
    text, column = _cast_column(text)
    text, row = _row(text)
    if not row and column is None and text.count(_AT_ROW) == 1:
        what, _, rest = text.partition(_AT_ROW)
        number, _, values = rest.partition(")")
        if number.isdecimal() and (fault := _fault(values)):
            return Said(what.rstrip(_BLANK), int(number), *fault, name)
    elif not row and column is None:
        text = text.partition(_AT_ROW)[0].rstrip(_BLANK)
    if column is None and text.endswith(")") and text.count(_KEY) == 1:
        text, _, column = text[:-1].partition(_KEY)
    return Said(text.partition(_SCOPE)[0].rstrip(_BLANK), row, column or "", None, name)


def _without_blanks(text: str, end: int) -> int:
    """Return the end of the beginning of a text without its blanks. A copy in each step would cost quadratic time."""
    while end and text[end - 1] in _BLANK:
        end -= 1
    return end


def _without_last(text: str, begin: str) -> str:
    """Return a text without the bracket at its end that begins so."""
    at = text.rfind(begin) if text.endswith(")") else -1
    return text[:at].rstrip(_BLANK) if at >= 0 else text


def _row(text: str) -> tuple[str, int]:
    """Return a text without the row at its end, and the row; 0 if it has none."""
    at = text.rfind(_AT_ROW) if text.endswith(")") else -1
    number = text[at + len(_AT_ROW) : -1] if at >= 0 else ""
    return (text[:at].rstrip(_BLANK), int(number)) if number.isdecimal() and len(number) < 20 else (text, 0)


def _cast_column(text: str) -> tuple[str, str | None]:
    """Return a text without the functions at its end that failed, and the column that the last one casts.

    The column is empty if that function is no cast, and None if the text contains no function.
    """
    column, end = None, len(text)
    while (at := text.rfind(_FUNCTION, 0, end)) >= 0 and (text[end - 1] == "'" or text.find(_IN_STAGE, at, end) >= 0):
        if column is None:
            cast = _CAST.match(text, at + len(_FUNCTION))
            column = cast["name"].strip("`") if cast else ""
        end = _without_blanks(text, at)
    return text[:end], column


def _fault(values: str) -> tuple[str, str] | None:
    """Return the last column of the rows that an error shows, and the fault of its value.

    A value has no quotes within its quotes. Returns None if the columns are not clear.
    """
    name, end = "", 0
    while (start := values.find(_COLUMN, end)) >= 0:
        kind = values.find(_TYPE, start)
        value = values.find(_VALUE, kind)
        wrong = values.find(_WRONG, kind, value if value >= 0 else None)
        if kind < 0 or (value < 0 and wrong < 0):
            return None
        name = values[start + len(_COLUMN) : kind]
        if wrong >= 0:
            end = wrong + 2
            break
        end = values.find('"', value + len(_VALUE)) + 1
        if not end:
            return None
        if not values[end : end + 9].lstrip().startswith(("Column ", "Row ")):
            break
    found, _, why = values[end:].lstrip().partition("ERROR: ")
    return None if _TYPE in why or not name else (name, "" if found else why)


def plain(error: BaseException, first_row: int = 0) -> str:
    """Return the beginning of an error's text, without the parts that client and server add around it.

    Rows are numbered from 0, like the column `_row_number`; the statement began with row `first_row`.
    """
    what, row, column, why, name = said(error)
    what = damage.explained(_NOISE.sub("", what[:_EXAMINED]).strip(_BLANK), name)
    if what.startswith(_ELEMENT) and f" has {UNKNOWN_OPERATION} " in what:
        operation = what[len(_ELEMENT) :].rpartition(_OF_ENUM)[0]
        return f"{operation[:_MOST]}: `upsert` knows c, r, u, d, I, U, D, true, false, 1 and 0"
    if why is not None:
        because = _NOISE.sub("", why[:_EXAMINED]).strip(_BLANK)
        text = f"row {row - 1 + first_row}, column {column!r}: {what}{because and f': {because}'}"
    else:
        text = f"column {column!r}: {what}" if column else what
        text += f": (row {row - 1 + first_row})" if row else ""
        if text.count(_AT_ROW) == 1 and not row:
            text = _ROW.sub(lambda found: f"(row {int(found[1]) - 1 + first_row})", text)
    text = text if len(text) <= _MOST else f"{text[:_MOST]} …"
    return f"{text} ({name})" if name and name != _THROWN else text


def shown(name: str) -> str:
    """Return a name with invisible characters escaped: a line feed in it would start a new log line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def remedy(text: str, error: BaseException) -> str:
    """Return the text of an error with a remedy for the user, if ClickHouse's code determines one."""
    if _BEYOND_DATES in text:  # no type of ClickHouse holds it
        return f"{text}: correct the date, or leave out the column"
    if _BEYOND_NANOSECONDS in text:
        return f"{text}: {WRITE_TIMESTAMP}"
    if _HALF_PAIR.search(text):
        said = _HALF_PAIR.sub(r"half of a surrogate pair, such as \\ud83d, is no text", text)
        return rf'{said}: write \ufffd in its place, or set `on_bad_rows` to "skip" or "keep"'
    if _AFTER_VALUE.search(text):
        return f'{text}: correct the row, or set csv.escape to "\\\\" if backslashes stand before quotes in values'
    if missing := _NO_ELEMENT.search(text):
        return (
            text[: missing.start()] + _without_element(missing["name"] or "", missing["most"]) + text[missing.end() :]
        )
    found = _REMEDIES.get(code_of(_cause(error)), "") or damage.remedy_of(text)
    return f"{text}: {found}" if found else text


def _without_element(name: str, most: str | None) -> str:
    """Return why a struct has no element of this name, as it is written and quoted, or only `most` elements."""
    if r"\u" in name:
        return (
            f"its name {name} is written with escapes, which ClickHouse does not read in a struct: write it without"
            " (ensure_ascii=False in Python), or set nested to 'json' or 'string' for a new table"
        )
    lacks = f"has no {name}" if name else f"has {most} elements, and the object more, or one of them twice"
    return f"the column's struct {lacks}: add them to its type, or set nested to 'json' or 'string' for a new table"


def by_size(error: BaseException) -> bool:
    """Return whether the object may be the cause of the failure: a time-out, or the statement's memory limit."""
    return code_of(_cause(error)) in _BY_SIZE and not _SHARED_MEMORY.search(_nameless(_cause(error)))


def _cause(error: BaseException) -> BaseException:
    return error.__cause__ if isinstance(error, TransferTransientError) and error.__cause__ else error


def named_file(error: BaseException) -> str:
    """Return the ``bucket/key``, or the key, that an error of ClickHouse names last; empty if it names none."""
    text = _text(error)
    for begin, *ends in _FILES:
        if (at := text.rfind(begin) + len(begin)) >= len(begin):
            found = (text.find(end, at) for end in ends)
            return text[at : next((end for end in found if end >= 0), None)]
    return ""


def _nameless(error: BaseException) -> str:
    """Return an error's text without the object's name, which may look like a reason."""
    text, name = _text(error), named_file(error)
    for begin, *_ in _FILES:
        text = text.replace(f"{begin}{name}", begin)
    return text


def is_of_storage(error: BaseException) -> bool:
    """Return whether S3 or AIStore refused a request of ClickHouse."""
    return code_of(error) in (_S3_ERROR, _HTTP_ERROR)


def names_unknown_column(text: str) -> bool:
    """Return whether the text of an error is about a column that the table lacks."""
    return bool(_UNKNOWN_COLUMN.match(text))


def is_without_collection(error: BaseException) -> bool:
    """Return whether a named collection does not exist, or the user has no right to it."""
    code = code_of(error)
    return code == _NO_COLLECTION or (code == ACCESS_DENIED and "NAMED COLLECTION" in str(error))


def is_unlistable(error: BaseException) -> bool:
    """Return whether ClickHouse could not parse a listing, such as one with a control character, which XML forbids.

    The server answered, so ClickHouse can reach it and may list. It can still read objects by name.
    """
    return code_of(error) == _S3_ERROR and "Xml Parse Error" in _nameless(error)


def is_transient(error: BaseException) -> bool:
    """Return whether the same statement may succeed later."""
    from clickhouse_connect.driver.exceptions import OperationalError

    code = code_of(error)
    if code == _S3_ERROR:
        return bool(_S3_BUSY.search(_nameless(error)))
    if code == _HTTP_ERROR:
        return bool(_HTTP_BUSY.search(_text(error)))
    if not code:
        return isinstance(error, OperationalError) or bool(_GATEWAY.search(_text(error)))
    return code in _TRANSIENT


def about(error: TransferError, key: str) -> TransferError:
    """Return the error with the key of the object that caused it."""
    error.key = key
    return error


def in_member(error: LoadObjectError, name: str) -> LoadObjectError:
    """Return the error with the name of the member of an archive that caused it."""
    return type(error)(f"member {name!r}: {error}")


def not_copied(key: str, what: str, error: OSError) -> TransferTransientError:
    """Return the error for an object of which the worker could not copy `what` into its temporary folder."""
    place = tempfile.tempdir or "a temporary folder"
    return TransferTransientError(
        f"{key!r}: {what} cannot be copied to {place}: {error}: free some space there, or set TMPDIR"
    )


def no_number(column: str) -> str:
    """Return the reason for a text in a column of numbers of JSON, which ClickHouse would take for a number."""
    return (
        f"column {column!r} has a text that is no JSON number, such as an empty one: correct it, or change the column"
        " to String"
    )


def guessed_time(column: str) -> str:
    """Return the reason for a text in a column of times of JSON, of whose time ClickHouse would guess a part."""
    return (
        f"column {column!r} has a text that is no whole date and time, such as 10:00 or 0000-00-00, or whose order of"
        " day and month is unknown: correct it, or write null if it is missing, or change the column to String"
    )


def skipped_time(column: str) -> str:
    """Return the reason for a local time that ClickHouse would change."""
    return (
        f"column {column!r} has a time that no clock of its time zone shows, because clocks are set forward: write it"
        " with an offset"
    )


def mixed_list(column: str) -> str:
    """Return the reason for a list in a JSON column in which ClickHouse would make texts of booleans."""
    return (
        f"column {column!r} has a list of texts and booleans, of which ClickHouse would make texts: set nested to"
        " 'string' for a new table, or change the column to String"
    )


def out_of_range(column: str, kind: str) -> str:
    """Return the reason for a number that a column of floats would turn into infinity or zero."""
    return f"column {column!r} has a number beyond the range of {kind}: change the column to String"


def not_kept(column: str, kind: str) -> str:
    """Return the reason for a text that a column of numbers would change, such as a code."""
    return (
        f"column {column!r} has a code, or a number that {kind} does not keep: change the column to String, or"
        ' set read.codes to "number"'
    )


def classify(error: Any) -> TransferError:
    """Return our error for ClickHouse's error about an object that it read."""
    if isinstance(error, TransferError):
        return error
    text = plain(error)
    if is_transient(error):
        return TransferTransientError(text)
    if is_of_storage(error):
        return _of_s3(_nameless(error), text) if code_of(error) == _S3_ERROR else _of_http(_text(error), text)
    if code_of(error) == ACCESS_DENIED:
        return TransferInputError(f"ClickHouse does not allow it: {text}")
    if names_unknown_column(text):
        return drift(text)
    kind = GoneError if code_of(error) == OBJECT_CHANGED else LoadObjectError
    return kind(remedy(text, error))


def lacks(table: str, names: Iterable[str]) -> DriftError:
    """Return the error for columns of an object that the table lacks."""
    return DriftError(
        f'columns {", ".join(map(repr, names))} are not in {table}: set `on_drift` to "add" or "rest", or leave'
        " them out with `columns.drop`"
    )


def drift(text: str) -> DriftError:
    """Return the error for a field that the table lacks, from ClickHouse's text."""
    return DriftError(f"{text}: see `on_drift`")


def _of_s3(whole: str, text: str) -> LoadObjectError:
    """Return our error for a permanent error of S3, from the `whole` text of ClickHouse's error without the name."""
    if _GONE.search(whole):
        return GoneError(DELETED)
    if _ARCHIVED.search(whole):  # S3 answers 403
        return NoAccessError(ARCHIVED)
    return NoAccessError(DENIED) if _DENIED.search(whole) else LoadObjectError(text)


def _of_http(whole: str, text: str) -> LoadObjectError:
    """Return our error for a permanent error of AIStore, from the `whole` text of ClickHouse's error."""
    status = found["status"] if (found := _HTTP_STATUS.search(whole)) else ""
    if status == "404":
        return GoneError(DELETED)
    if status in ("401", "403"):
        return NoAccessError(
            f"AIStore denies ClickHouse access to it ({status}): renew the token in ClickHouse's named collection,"
            " and allow its user to read the bucket"
        )
    said = _HTTP_MESSAGE.search(whole)
    return LoadObjectError(f"AIStore answered {status}: {said['text']}" if status and said else text)
