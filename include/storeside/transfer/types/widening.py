"""Which type a column of a table may change to without loss."""

from __future__ import annotations

from storeside.transfer.base.schema import (
    INTEGERS,
    TIME,
    bare,
    bits_of,
    digits_of,
    fraction_of,
    is_nested,
    loose,
    scale_of,
)
from storeside.transfer.types.conversion import NANOSECONDS, are_clocks, is_cut

# Types of floats, with the bits of the integers that they hold without rounding, as a power of two.
_EXACT_BITS = {"Float32": 16, "Float64": 32}


def widens(source: str, target: str) -> bool:
    """Return whether type `target` has each value of `source`, so that a table's column may change to it."""
    a, b = bare(source), bare(target)
    if a.startswith("Array(") and b.startswith("Array("):
        return widens(a[6:-1], b[6:-1])
    if b == "String":
        # Queries of lists, maps and structs fail for text; the conversion of a FixedString removes zero bytes.
        return not (is_nested(a) or a.startswith("FixedString"))
    if loose(a) == loose(b) or are_clocks(a, b):
        return not is_cut(a, b)
    if TIME.fullmatch(a) and b.startswith("DateTime64"):  # with nine digits, its years are 1900 to 2262
        return fraction_of(a) <= fraction_of(b) and (fraction_of(b) < NANOSECONDS or a in ("Date", "DateTime"))
    if INTEGERS.fullmatch(a) or a.startswith("Decimal"):
        return _widens_number(a, b)
    others = {("Date", "Date32"), ("Float32", "Float64"), ("BFloat16", "Float32"), ("BFloat16", "Float64")}
    return (a, b) in others or (a == "Bool" and INTEGERS.fullmatch(b) is not None)


def _widens_number(a: str, b: str) -> bool:
    """Return whether type `b` has all values of the integers or decimals of type `a`."""
    if (places := scale_of(b)) is not None:
        whole_digits = digits_of(b) - places
        return digits_of(a) - (scale_of(a) or 0) <= whole_digits and (scale_of(a) or 0) <= places
    if not INTEGERS.fullmatch(a):
        return False
    bits = bits_of(a)
    if b in _EXACT_BITS:
        return bits <= _EXACT_BITS[b]
    if not INTEGERS.fullmatch(b):
        return False
    if a.startswith("U") == b.startswith("U"):
        return bits <= bits_of(b)
    return a.startswith("U") and bits < bits_of(b)
