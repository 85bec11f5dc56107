"""States the meaning of errors of ClickHouse, pyarrow and deltalake about damaged content, for all formats."""

from __future__ import annotations

import re

# Words of a programmer that tell a user nothing: types of C++, stacks, and notes about a parser's buffer.
NOISE = (
    r"Code: \d+\. (?:\w{1,40}+::){1,4}+\w{1,40}+: "
    r"|\b(?:\w{1,40}+::){1,4}+\w{1,40}+\. Code: \d+, type: |,? e\.(?:what|code)\(\) ="
    r"|,? Stack trace(?: \([^()]*+\))?: .*"
    r"|:? ?(?:Buffer has gone, cannot extract information about what has been parsed"
    r"|Could not print diagnostic info [\w ',()]*+)\.?"
)
_TYPE = re.compile(r"^(?:\w++::)++\w++[:,.]? ")
_STACK = re.compile(r"(?:\n {0,8}0: |\bstack backtrace:).*", re.DOTALL)
# Names of ClickHouse's codes for content that is not as its format prescribes.
_DAMAGE = re.compile(
    r"INCORRECT_DATA|CANNOT_DECOMPRESS|CANNOT_READ_ALL_DATA|CANNOT_SEEK_THROUGH_FILE|UNEXPECTED_END_OF_FILE"
    r"|AVRO_EXCEPTION|STD_EXCEPTION|UNKNOWN_EXCEPTION|[A-Z0-9_]+_(?:INFLATE|DECODER|READ|UNCOMPRESS|DECODE)_FAILED"
)
# Words of the readers of formats that state their types, in errors with these codes.
_BY_FORMAT = re.compile(r": read stage: |\bORC\b|orc::|\bArrow\b|[Pp]arquet\b|avro::|\bAvro\b|Range out of bounds")
_STAGE = re.compile(r": read stage: \w++(?:: column: (?P<column>.*))?")
_CUT = re.compile(r"buffer error|LZMA_BUF_ERROR|[Tt]runcated|end-of-stream marker|is cut off|EOF reached")
_FILE = re.compile(r":? ?While reading from: \S+$")
_UNPACKING = re.compile(r"inflate failed|lzma_stream_decoder|ZSTD|LZ4|brotli|bzip2|snappy|Snappy")
_KEYS = "Map keys must be annotated as required"
_CHECKSUM = re.compile(r"CRC checksum verification failed.*")
_WIDE = re.compile(r"Integers with (?:more|less) than \d+ bits")
AGAIN = "upload it again, or write it again"
_UPLOAD = "upload it again"
# pyarrow's errors about CSV; it counts columns from 0, and its streaming reader does not state the row.
_FIELDS = re.compile(
    r"CSV parse error: (?:Row #\d+: )?Expected (?P<names>\d+) columns, got (?P<fields>\d+)(?P<row>.*)"
)
_VALUE = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #\d+: )?CSV conversion error to (?P<kind>[^:]+): "
    r"invalid (?:UTF8 data|value (?P<value>.*))"
)
_IS_DAMAGED = re.compile(r"it(?:s compressed content)? is (?:damaged|cut off)")


def explained(what: str, name: str) -> str:
    """Return the text of an error of ClickHouse, whose code has this `name`, as a sentence if content is damaged."""
    if not _DAMAGE.fullmatch(name):
        return _TYPE.sub("", what)
    if not _BY_FORMAT.search(what):
        if not _UNPACKING.search(what):
            return _TYPE.sub("", what)
        state = "cut off" if _CUT.search(what) else "damaged"
        return f"its compressed content is {state}: {_FILE.sub('', what)}"
    stage = _STAGE.search(what)
    where = f" in column {stage['column']!r}" if stage and stage["column"] else ""
    words = _TYPE.sub("", _STAGE.sub("", what))
    state = "cut off" if _CUT.search(what) and not where else "damaged"
    return f"it is {state}{where}: {words}"


def remedy_of(text: str) -> str:
    """Return the remedy for an error that `explained` has made a sentence; empty for others."""
    found = _IS_DAMAGED.match(text)
    return "" if not found else _UPLOAD if "compressed" in found.group() else AGAIN


def broken(what: str, error: BaseException) -> str:
    """Return the reason for content that a library cannot unpack; `what` names the content."""
    return f"{what} is broken: {words(error)}: {_UPLOAD}"


def words(error: BaseException) -> str:
    """Return the text of a library's error on one line, without its stack; what is wrong with a CSV as a sentence."""
    said = " ".join(_STACK.sub("", str(error)).split()).rstrip(" .:")
    if found := _CHECKSUM.search(said):
        return f"it is damaged: {found.group()}: {AGAIN}"
    if found := _FIELDS.match(said):
        return (
            f"a row has {found['fields']} instead of {found['names']} fields{found['row']}: correct its rows;"
            " `on_bad_rows` cannot leave them out, because pyarrow parses this dialect"
        )
    if found := _VALUE.match(said):
        column = f"column number {int(found['column']) + 1}"
        if not found["value"]:
            return f"{column} has invalid UTF-8: set csv.encoding to the object's"
        return f"{column} has {found['value']}, which is no {found['kind']}"
    return said


def unreadable(error: BaseException, kind: str) -> str:
    """Return why pyarrow does not open a file; `kind` is its format, such as "Parquet"."""
    said = words(error)
    if _WIDE.match(said):
        return (
            "a column has integers of 128 bits, which Arrow does not have: write it as Decimal(38, 0), or as text"
            f" ({said})"
        )
    if said.startswith(_KEYS):
        return (
            "the keys of a map may be NULL in its schema, as Presto and Athena wrote them before 2022: write it again"
            f" with a newer version ({said})"
        )
    if said.endswith(("not implemented", "not supported")):
        return f"it cannot be read, because {said}: write its columns with other types"
    return f"not a whole {kind} file: {said}: {AGAIN}"
