"""Elements of variable length: their bytes in HSDS's format, and the comparison of their types.

NumPy takes all types of variable length for one type, and h5json raises bare errors for values that do not fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storeside.hsds.client import Dataset
from storeside.hsds.errors import HsdsInputError, HsdsTransientError
from storeside.hsds.plan import Slab

# Maximum bytes of one element in HSDS (`MAX_VLEN_ELEMENT` in h5json/array_util.py, which HSDS uses as well).
MOST_ELEMENT_BYTES = 1_000_000
INEXPRESSIBLE = (
    "it has no sequences of sequences or strings, no compounds with a single field of variable length, and no"
    f" elements of more than {MOST_ELEMENT_BYTES:,} bytes: store them as elements of fixed size, or as objects in S3"
)
_UNFIT = (ValueError, TypeError, AttributeError, IndexError, KeyError)


def description(dtype: np.dtype[Any]) -> Any:
    """Return HSDS's description of a type, by which types compare; it leaves out how strings are encoded and padded.

    Raises TypeError, KeyError or ValueError for a type that HSDS lacks.
    """
    from h5json.hdf5dtype import getTypeItem

    return _essence(getTypeItem(dtype))


def _essence(kind: Any) -> Any:
    if isinstance(kind, dict):
        found = {name: _essence(part) for name, part in kind.items() if name not in ("charSet", "strPad")}
        if isinstance(members := found.get("members"), list):  # of an enum, in any order
            found["members"] = sorted(members, key=lambda member: str(member["name"]))
        return found
    return [_essence(part) for part in kind] if isinstance(kind, list | tuple) else kind


def is_expressible(kind: np.dtype[Any]) -> bool:
    """Return whether HSDS's format, as h5json writes it, can express elements of this type."""
    import h5py

    inner = h5py.check_vlen_dtype(kind)
    if inner is not None and np.dtype(inner).kind == "O":
        return False
    if len(kind.fields or ()) == 1 and kind.hasobject:
        return False
    return all(map(is_expressible, _parts(kind)))


def has_references(kind: np.dtype[Any]) -> bool:
    """Return whether elements are, or contain, HDF5's object or region references."""
    import h5py

    return h5py.check_ref_dtype(kind) is not None or any(map(has_references, _parts(kind)))


def _parts(kind: np.dtype[Any]) -> list[np.dtype[Any]]:
    """Return the types of a compound's fields, of an array's elements, and of the elements of a sequence."""
    import h5py

    parts = [field[0] for field in (kind.fields or {}).values()]
    if kind.subdtype:
        parts.append(kind.base)
    if (inner := h5py.check_vlen_dtype(kind)) is not None:
        parts.append(np.dtype(inner))
    return parts


def size_of(elements: np.ndarray[Any, Any], dataset: Dataset, slab: Slab) -> int:
    """Return the bytes of elements in HSDS's format. Raises HsdsInputError for elements without such a format."""
    from h5json.array_util import getByteArraySize

    try:
        return int(getByteArraySize(elements))
    except _UNFIT as e:
        raise _unfit(dataset, slab, e) from e


def encoded(elements: np.ndarray[Any, Any], dataset: Dataset, slab: Slab) -> bytes:
    """Return elements in HSDS's format. Raises HsdsInputError for elements without such a format."""
    from h5json.array_util import arrayToBytes

    try:
        content: bytes = arrayToBytes(elements)
    except _UNFIT as e:
        raise _unfit(dataset, slab, e) from e
    return content


def decoded(content: bytes, dataset: Dataset, slab: Slab) -> np.ndarray[Any, Any]:
    """Return the elements of a slab that HSDS sent.

    Raises:
        HsdsInputError: NumPy cannot express the elements, for example a string that is not UTF-8.
        HsdsTransientError: the content ends within an element, or has more than the slab's elements.
    """
    from h5json.array_util import bytesToArray

    # h5json silently shortens an element at the end of the content; with zeros behind it, it does not.
    padded = content + bytes(dataset.dtype.itemsize * slab.count)
    try:
        found = np.asarray(bytesToArray(padded, dataset.dtype, slab.shape)).reshape(slab.shape)
    except UnicodeDecodeError as e:
        raise HsdsInputError(
            f"{dataset}, {slab.select}: has strings that are not UTF-8: write them as UTF-8, or as opaque values"
        ) from e
    except _UNFIT as e:
        raise _unfit(dataset, slab, e) from e
    if (size := size_of(found, dataset, slab)) != len(content):
        raise HsdsTransientError(
            f"{dataset}, {slab.select}: HSDS sent {len(content)} bytes instead of {size}: see its logs, and those of"
            " a proxy in front of it"
        )
    return found


def _unfit(dataset: Dataset, slab: Slab, error: Exception) -> HsdsInputError:
    return HsdsInputError(
        f"{dataset}, {slab.select}: has elements that HSDS's format cannot express ({error}): {INEXPRESSIBLE}"
    )
