"""Proves that CSV objects are plain: then ClickHouse parses their numbers itself, and no number needs a check.

A plain object has no field that ClickHouse's parser of numbers may read in another way than `text_reading` demands:
none with blanks around it, with a plus, with a zero before another digit, with an exponent, with an empty text in
quotes, or with more digits than a number keeps. So it has no such field of text either: there the proof is stricter
than it must be, and its object takes the longer way. A proof reads the object once more, at five times the speed of
the checks that it replaces.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import literal
from storeside.transfer.base import queries
from storeside.transfer.base.schema import FLOAT, INTEGERS, Column, bare
from storeside.transfer.staging.origin import PULLED_VERSION
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import LONG_STATEMENT, Planned

if TYPE_CHECKING:
    from storeside.transfer.request.object_format import Format

log = logging.getLogger(__name__)

# Bytes; for a smaller object, the second request costs as much as the checks.
_WORTH = 1 << 20
# The time of one core that the checks of a byte take. Measured with ClickHouse 26.9 and CSV of 19 columns: 21 ns.
_SAVED = 20e-9
_DELIMITERS = ",;|\t"
# The most digits, with a point, that every number of a type keeps.
_DIGITS = {"float": 15, "integer": 18}


def patterns(form: Format, columns: Iterable[Column]) -> list[str]:
    """Return the regular expressions for a line that is not plain; none if no proof helps to read these columns."""
    kinds = {bare(column.type) for column in columns}
    floats = any(FLOAT.fullmatch(kind) for kind in kinds)
    is_possible = form.has_fields and form.is_native and form.csv.delimiter in _DELIMITERS
    if not is_possible or not (floats or any(INTEGERS.fullmatch(kind) for kind in kinds)):
        return []
    end = "\\t" if form.csv.delimiter == "\t" else f"[{form.csv.delimiter}]"
    blank = "[ ]" if form.csv.delimiter == "\t" else "[ \\t]"
    begin, last = f'(?:^|{end})"?', f'"?(?:{end}|\\r?$)'
    exponent = f"-?[0-9.]+[eE][+-]?[0-9]*{last}"
    most = _DIGITS["float" if floats else "integer"]
    return [
        f'{begin}(?:-?[+]|--|\'|{blank}|-?0[0-9]|{exponent})|{blank}{last}|(?:^|{end})""',
        f"{begin}-?[0-9.]{{{most + 1}}}",
    ]


def plain(work: Work, objects: Sequence[Planned], columns: Iterable[Column], compression: str) -> set[int]:
    """Return the load ids of those objects that are plain; `columns` are those of the table."""
    large = [o for o in objects if o.size >= _WORTH]
    faults = patterns(work.form, columns) if large and work.proofs.pay else []
    if not faults:
        return set()
    began = time.monotonic()
    try:
        rows = _read(work, large, faults, compression)
    except DatabaseError as e:
        if work.stop.is_set():
            raise
        # the load states the fault of an object
        log.debug("without a proof: %s", e)
        return set()
    found = {(path, version): size for path, version, size, wrong, _ in rows if not wrong}
    place = work.request.source
    proved = {
        o.load_id: size for o in large if (size := found.get((place.path_of(o.key), _version(work, o)))) is not None
    }
    threads = rows[0][-1] if rows else 1
    work.proofs.add(time.monotonic() - began, sum(proved.values()) * _SAVED / threads)
    return {*proved}


def _version(work: Work, o: Planned) -> str:
    """Return the version that the statement must have read; `Reader.check_unchanged` compares those of AIStore."""
    return "" if work.request.source.by_url else o.version


def _read(work: Work, objects: Sequence[Planned], faults: Sequence[str], compression: str) -> Sequence[Sequence[Any]]:
    """Return path, version, bytes and faulty lines of each object, and the number of threads."""
    source, only = work.source(objects, "LineAsString", "line String", compression)
    version = "''" if work.request.source.by_url else PULLED_VERSION
    listed = ", ".join(map(literal, faults))
    return work.client.query(
        f"SELECT _path, {version} AS version, sum(length(line)),"
        f" countIf(multiMatchAny(line, [{listed}]) OR NOT isValidUTF8(line)), any(getSetting('max_threads'))"
        f" FROM {source}{f' WHERE {only}' if only else ''} GROUP BY 1, 2",
        settings={
            "use_hive_partitioning": 0,
            "max_query_size": LONG_STATEMENT,
            "s3_retry_attempts": 10,
            "query_id": queries.check_id(f"{queries.tables_of(work.loads.transfer)}{work.token}", objects[0].load_id),
        },
    ).result_rows
