"""Proves that CSV objects are plain: then ClickHouse parses their numbers itself, and no number needs a check.

A plain object has no field that ClickHouse's parser of numbers may read in another way than `text_reading` demands:
none with blanks around it, with a plus, with a zero before another digit, with an exponent, with an empty text in
quotes, or with more digits than a number keeps. So it has no such field of text either: there the proof is stricter
than it must be, and its object takes the longer way. A proof reads the object once more, at five times the speed of
the checks that it replaces.

A worker proves small objects that it sends, without another request.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import literal
from storeside.transfer.base import queries
from storeside.transfer.base.schema import FLOAT, INTEGERS, Column, bare
from storeside.transfer.staging.line_facts import line_facts, place_of
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import Planned

if TYPE_CHECKING:
    from storeside.transfer.request.object_format import Format

log = logging.getLogger(__name__)

# Bytes; for a smaller object, the second request costs as much as the checks.
_WORTH = 1 << 20
# Bytes of an object that a worker sends and proves in memory. Without a proof, the statement has checks, which
# ClickHouse takes 20 ms to analyse; the proof takes as long for 256 kB.
SMALL = 1 << 18
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


def pattern(form: Format, columns: Iterable[Column]) -> re.Pattern[bytes] | None:
    """Return the regular expression for the text of an object that is not plain; None if no proof helps."""
    faults = patterns(form, columns)
    return re.compile("|".join(faults).encode(), re.MULTILINE) if faults else None


def plain(work: Work, objects: Sequence[Planned], columns: Iterable[Column], compression: str) -> set[int]:
    """Return the load ids of those objects that are plain; `columns` are those of the table."""
    large = [o for o in objects if o.size >= _WORTH]
    faults = patterns(work.form, columns) if large and work.proofs.pay else []
    if not faults:
        return set()
    began = time.monotonic()
    listed = ", ".join(map(literal, faults))
    try:
        rows = line_facts(
            work, large,
            (
                "sum(length(line))",
                f"countIf(multiMatchAny(line, [{listed}]) OR NOT isValidUTF8(line))",
                "any(getSetting('max_threads'))",
            ),
            compression,
            query_id=queries.check_id(f"{queries.tables_of(work.loads.transfer)}{work.token}", large[0].load_id),
        )  # fmt: skip
    except DatabaseError as e:
        if work.stop.is_set():
            raise
        # the load states the fault of an object
        log.debug("without a proof: %s", e)
        return set()
    found = {(path, version): size for path, version, size, wrong, _ in rows if not wrong}
    proved = {o.load_id: size for o in large if (size := found.get(place_of(work, o))) is not None}
    threads = rows[0][-1] if rows else 1
    work.proofs.add(time.monotonic() - began, sum(proved.values()) * _SAVED / threads)
    return {*proved}
