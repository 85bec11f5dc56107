"""What can go wrong in a transfer, and what is done about it.

TransferError
├── UsageError        the request cannot be carried out; no retry helps
├── ObjectError       one object cannot be loaded; the others are
│   └── DriftError    its columns are not the table's
└── TransientError    the same again may succeed
"""

from __future__ import annotations

import re
from typing import Any


class TransferError(Exception):
    """A transfer, or a part of it, cannot go on; the message names what and why."""


class UsageError(TransferError):
    """The request is wrong or contradicts what is there."""


class ObjectError(TransferError):
    """An object cannot be loaded."""


class DriftError(ObjectError):
    """An object has columns, or types of columns, that the table does not take."""


class TransientError(TransferError):
    """A server could not be reached, was busy, or was asked too much at once."""


# https://github.com/ClickHouse/ClickHouse/blob/master/src/Common/ErrorCodes.cpp
UNKNOWN_TABLE = 60
TABLE_EXISTS = 57
DIFFERENT_STRUCTURE = 122
ACCESS_DENIED = 497
_S3_ERROR = 499
# timeouts, memory, too many queries or parts, network, lost or killed queries, lack of space
_TRANSIENT = frozenset({159, 202, 203, 209, 210, 241, 242, 243, 252, 279, 290, 319, 394, 425, 439, 999, 1000})
# an ETag that is another than at the listing (UNEXPECTED_FILE..., "was replaced during read")
_UNKNOWN_COLUMN = re.compile(r"Unknown field found|Unknown column|duplicate field|Duplicate field", re.IGNORECASE)
# Of an answer of S3, those that come and go. The code of S3_ERROR is one for all of them.
_S3_BUSY = re.compile(
    r"HTTP response code: (?:429|5\d\d)|SlowDown|RequestTimeout|InternalError|Connection|Timeout|Poco"
)
_FILE = re.compile(
    r"\(in file/uri (?P<in>.+?)\)|while reading '(?P<while>.+?)' in bucket|reading from: (?P<from>\S+)"
)
_NOISE = re.compile(
    r"^Received ClickHouse exception, code: \d+, server response: |\(for url [^)]*\)|Code: \d+\. DB::Exception: "
)
_MOST = 600


def code_of(error: BaseException) -> int:
    """Return the code that ClickHouse gave an error; 0 for errors that are not the server's."""
    return int(getattr(error, "code", 0) or 0)


def plain(error: BaseException) -> str:
    """Return the first words of an error, without the client's and the server's wrapping."""
    text = " ".join(_NOISE.sub("", str(error)).split())
    return text if len(text) <= _MOST else f"{text[:_MOST]} …"


def named_file(error: BaseException) -> str:
    """Return the ``bucket/key``, or the key, that an error of ClickHouse names; empty when it names none."""
    found = _FILE.search(str(error))
    return next((value for value in found.groupdict().values() if value), "") if found else ""


def is_transient(error: BaseException) -> bool:
    """Tell whether the same statement may succeed later."""
    from clickhouse_connect.driver.exceptions import OperationalError

    code = code_of(error)
    if code == _S3_ERROR:
        return bool(_S3_BUSY.search(str(error)))
    return code in _TRANSIENT or (isinstance(error, OperationalError) and not code)


def classify(error: Any) -> TransferError:
    """Return the error of ours that stands for one of ClickHouse's while it read an object."""
    if isinstance(error, TransferError):
        return error
    text = plain(error)
    if is_transient(error):
        return TransientError(text)
    if code_of(error) == ACCESS_DENIED:
        return UsageError(f"ClickHouse does not allow it: {text}")
    if _UNKNOWN_COLUMN.search(text):
        return DriftError(text)
    return ObjectError(text)
