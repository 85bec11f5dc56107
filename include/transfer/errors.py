"""What can go wrong in a transfer, and what is done about it.

TransferError
├── Cancelled         the user has stopped it
├── UsageError        the request cannot be carried out; no retry helps
├── ObjectError       one object cannot be loaded; the others are
│   └── DriftError    its columns are not the table's
└── TransientError    the same again may succeed
    ├── StaleError    what was read cannot be published any more; it has to be read again
    └── TriedOutError it was tried several times
"""

from __future__ import annotations

import re
from typing import Any


class TransferError(Exception):
    """A transfer, or a part of it, cannot go on; the message names what and why.

    `key` is that of the object that it is about, when one of several is known to be.
    """

    key = ""


class Cancelled(TransferError):
    """The user has stopped the transfer."""


class UsageError(TransferError):
    """The request is wrong or contradicts what is there."""


class ObjectError(TransferError):
    """An object cannot be loaded."""


class DriftError(ObjectError):
    """An object has columns, or types of columns, that the table does not take."""


class TransientError(TransferError):
    """A server could not be reached, was busy, or was asked too much at once."""


class StaleError(TransientError):
    """A staging table does not fit the destination any more, or was taken away by somebody who published before."""


class TriedOutError(TransientError):
    """It was tried several times already, and the next try should be later."""


DELETED = "it was deleted after it was listed"
DENIED = "S3 denies the access to it (403): allow s3:GetObject on it"
BUSY = "it cannot be read for now"
# Reasons, or their beginnings, of failures that are not the object's own: the next run tries it again.
PASSING = (DENIED, BUSY)

# https://github.com/ClickHouse/ClickHouse/blob/master/src/Common/ErrorCodes.cpp
UNKNOWN_TABLE = 60
SUPPORT_IS_DISABLED = 344
TABLE_EXISTS = 57
DIFFERENT_STRUCTURE = 122
ACCESS_DENIED = 497
_S3_ERROR = 499
OBJECT_CHANGED = 1009
# files that cannot be written, timeouts, names of hosts, memory, too many queries or parts, network, a session in
# use, a server that stops, lost or killed queries, lack of space
_TRANSIENT = frozenset(
    {75, 159, 198, 202, 203, 209, 210, 236, 241, 242, 243, 252, 279, 290, 319, 373, 394, 425, 439, 999, 1000}
)
# Of these, what one object alone may be to blame for: it takes too long, or too much memory.
_BY_SIZE = frozenset({159, 241})
# Memory that statements of others have taken as well.
_SHARED_MEMORY = re.compile(r"\(total\) memory limit|User memory limit")
_UNKNOWN_COLUMN = re.compile(r"Unknown field found|Unknown column")
# Of an answer of S3, those that come and go. The code of S3_ERROR is one for all of them.
_S3_BUSY = re.compile(
    r"HTTP response code: (?:429|5\d\d)|SlowDown|RequestTimeout|InternalError|Connection|Timeout|Poco"
    r"|DNS_ERROR"
    r"|ExpiredToken|token has expired|Skewed|difference between the request time"
)
# What stands before ClickHouse answers in its place.
_GATEWAY = re.compile(r"received HTTP status 5\d\d")
_FILE = re.compile(
    r"\(in file/uri (?P<in>.+?)\)|while reading '(?P<while>.+?)' in bucket|reading from: (?P<from>\S+)"
)
_NOISE = re.compile(
    r"^Received ClickHouse exception, code: \d+, server response: |\(for url [^)]*\)|Code: \d+\. DB::Exception: "
    r"|\(version [^)]*\)|\(in file/uri .+?\):?|While reading from: [^:]*:|:? ?While executing \w+"
    r"|In scope SELECT .*(?= \()"
    r"|Set the '\w+' parameter explicitly to ignore and proceed|\(while reading header\):?"
)
# A cast names its column in its expression; a parser shows all columns of the row up to the one it stopped at.
_CAST = re.compile(r": while executing 'FUNCTION accurateCast\((?:__table\d+\.)?(?P<name>`[^`]+`|\w+) ::? .*'\.")
_EXPRESSION = re.compile(r": while executing 'FUNCTION .*'\.")
_PARSED = re.compile(
    r"^(?P<what>.*?): \(at row (?P<row>\d+)\).*Column \d+, name: (?P<name>.*?), type: [^\"]*parsed text: "
    r"(?:.*?ERROR: (?P<why>.*)|.*(?P<code> \(.*))$"
)
_AT_ROW = re.compile(r"\(at row (\d+)\)")
_KEY = re.compile(r":? ?\(while reading the value of key (?P<name>.+?)\)")
_BEFORE_NAME = re.compile(r"[:.\s]+(?=\([A-Z_0-9]+\)$)")
_GONE = re.compile(r"HTTP response code: 404|NoSuchKey|The specified key does not exist")
_DENIED = re.compile(r"HTTP response code: 403|Access ?Denied", re.IGNORECASE)
# What the user can do about an error, by its name.
_REMEDIES = {
    "CANNOT_CONVERT_TYPE": "give the column a type that holds it, or let `on_drift` widen it",
    "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE": "give the column a type that holds it, or let `on_drift` widen it",
    "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN": "make the column Nullable",
    "MEMORY_LIMIT_EXCEEDED": "divide its rows or row groups, or set `max_memory_usage` in the user's profile",
    "UNKNOWN_DATABASE": "create the database, or correct the table's name",
    "ZLIB_INFLATE_FAILED": "upload it again",
    "LZMA_STREAM_DECODER_FAILED": "upload it again",
}
_MOST = 600
# Of a long error, so much is looked at from both ends: it quotes the name of an unknown column, however long that is.
_END = 16 << 10


def may_pass(reason: str) -> bool:
    """Tell whether an object failed by the fault of credentials, a policy or a server, and not by its own."""
    return reason.startswith(PASSING)


def code_of(error: BaseException) -> int:
    """Return the code that ClickHouse gave an error; 0 for errors that are not the server's."""
    return int(getattr(error, "code", 0) or 0)


def _text(error: BaseException) -> str:
    text = str(error)
    return text if len(text) <= 2 * _END else f"{text[:_END]} … {text[-_END:]}"


def plain(error: BaseException, first_row: int = 0) -> str:
    """Return the first words of an error, without the client's and the server's wrapping.

    Rows are numbered as in the column `_row_number`, from 0; the statement began with the `first_row`-th.
    """
    text = _NOISE.sub("", " ".join(_text(error).split())).strip()
    if cast := _CAST.search(text):
        text = f"column {cast['name'].strip('`')!r}: {text[: cast.start()]}{text[cast.end() :]}"
    text = _EXPRESSION.sub("", text)
    if parsed := _PARSED.search(text):
        why = f": {parsed['why']}" if parsed["why"] else parsed["code"]
        row = int(parsed["row"]) - 1 + first_row
        text = f"row {row}, column {parsed['name']!r}: {parsed['what']}{why}"
    elif key := _KEY.search(text):
        text = f"column {key['name']!r}: {text[: key.start()]}{text[key.end() :]}"
    text = _AT_ROW.sub(lambda found: f"(row {int(found[1]) - 1 + first_row})", text)
    text = _BEFORE_NAME.sub(" ", text.strip()).replace(" (FUNCTION_THROW_IF_VALUE_IS_NON_ZERO)", "")
    return text if len(text) <= _MOST else f"{text[:_MOST]} …"


def shown(name: str) -> str:
    """Return a name in which nothing is invisible: a line feed in it would begin a line of a log."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def remedy(text: str) -> str:
    """Return an error's text with what the user can do about it, where that is plain from the error's name."""
    found = next((what for name, what in _REMEDIES.items() if f"({name})" in text), "")
    return f"{text}: {found}" if found else text


def by_size(error: BaseException) -> bool:
    """Tell whether a statement failed by what may lie in the object: its time-out, or the limit of its memory."""
    cause = error.__cause__ if isinstance(error, TransientError) and error.__cause__ else error
    return code_of(cause) in _BY_SIZE and not _SHARED_MEMORY.search(_text(cause))


def named_file(error: BaseException) -> str:
    """Return the ``bucket/key``, or the key, that an error of ClickHouse names; empty when it names none."""
    found = _FILE.search(_text(error))
    return next((value for value in found.groupdict().values() if value), "") if found else ""


def is_unlistable(error: BaseException) -> bool:
    """Tell whether ClickHouse could not read a listing, as where a key has a control character, which XML has not.

    The server has answered, so ClickHouse reaches it and may list; objects that are asked for by name can be read.
    """
    return code_of(error) == _S3_ERROR and "Xml Parse Error" in _text(error)


def is_transient(error: BaseException) -> bool:
    """Tell whether the same statement may succeed later."""
    from clickhouse_connect.driver.exceptions import OperationalError

    code = code_of(error)
    if code == _S3_ERROR:
        return bool(_S3_BUSY.search(_text(error)))
    if not code:
        return isinstance(error, OperationalError) or bool(_GATEWAY.search(_text(error)))
    return code in _TRANSIENT


def about(error: TransferError, key: str) -> TransferError:
    """Return the error with the key of the object that it is about."""
    error.key = key
    return error


def classify(error: Any) -> TransferError:
    """Return the error of ours that stands for one of ClickHouse's while it read an object."""
    if isinstance(error, TransferError):
        return error
    text = plain(error)
    if is_transient(error):
        return TransientError(text)
    if code_of(error) == _S3_ERROR:
        return ObjectError(DELETED if _GONE.search(text) else DENIED if _DENIED.search(text) else text)
    if code_of(error) == ACCESS_DENIED:
        return UsageError(f"ClickHouse does not allow it: {text}")
    if _UNKNOWN_COLUMN.search(text):
        return DriftError(f"{text}: see `on_drift`")
    return ObjectError(remedy(text))
