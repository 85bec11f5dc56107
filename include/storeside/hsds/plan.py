"""Slabs: the parts of a selection that are read and written in one step, aligned with chunks and bounded in size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from storeside.hsds.errors import HsdsInputError


@dataclass(frozen=True)
class Slab:
    """A part of a dataset, as a range of indexes per dimension; without dimensions, the value of a scalar."""

    dimensions: tuple[range, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of indexes in each dimension."""
        return tuple(map(len, self.dimensions))

    @property
    def count(self) -> int:
        """The number of elements in the slab."""
        return math.prod(self.shape)

    @property
    def select(self) -> str:
        """The slab as HSDS's `select` parameter; empty for a scalar."""
        texts = [f"{d.start}:{d.stop}" + (f":{d.step}" if d.step > 1 else "") for d in self.dimensions]
        return f"[{','.join(texts)}]" if texts else ""

    def sample(self, most: int) -> Slab:
        """Return up to `most` elements of the slab, spread over it."""
        dimensions = []
        for indexes in self.dimensions:
            step = -(-len(indexes) // most)
            dimensions.append(_closed(indexes[::step]))
            most //= len(dimensions[-1])
        return Slab(tuple(dimensions))

    def halves(self) -> tuple[Slab, Slab] | None:
        """Split the slab across its first dimension with two or more indexes; None if there is no such dimension."""
        for n, indexes in enumerate(self.dimensions):
            if len(indexes) > 1:
                middle = len(indexes) // 2
                before, after = self.dimensions[:n], self.dimensions[n + 1 :]
                return (
                    Slab((*before, _closed(indexes[:middle]), *after)),
                    Slab((*before, _closed(indexes[middle:]), *after)),
                )
        return None


@dataclass(frozen=True)
class Plan:
    """The slabs of a selection.

    `block` is the extent of a slab in each dimension. It does not depend on the length of the first dimension: when a
    dataset grows, the slabs before its old end stay the same.
    """

    selection: tuple[range, ...]
    block: tuple[int, ...]
    chunks: tuple[int, ...]

    def __iter__(self) -> Iterator[Slab]:
        """Yield the slabs in the order of their elements."""
        for pieces in itertools.product(*self._pieces):
            yield Slab(pieces)

    def __len__(self) -> int:
        """Return the number of slabs."""
        return math.prod(map(len, self._pieces))

    @cached_property
    def split(self) -> tuple[int, ...]:
        """The dimensions that distinguish slabs: the first one, and all others that are split."""
        return tuple(n for n, pieces in enumerate(self._pieces) if n == 0 or len(pieces) > 1)

    @cached_property
    def _pieces(self) -> list[list[range]]:
        return [_cut(*of) for of in zip(self.selection, self.block, self.chunks, strict=True)]


def plan(
    selection: tuple[range, ...], chunks: Sequence[int], element_bytes: int, most_bytes: int, whole_rows: bool = False
) -> Plan:
    """Plan slabs of at most `most_bytes`, which consist of whole chunks if they fit.

    With `whole_rows` only the first dimension is split.

    Raises:
        HsdsInputError: a row, or an element, is larger than `most_bytes`.
    """
    rest = [max(d.stop, 1) for d in selection[1:]]
    block = [*chunks[:1], *(rest if whole_rows else map(min, chunks[1:], rest))]

    def size(extents: Sequence[int]) -> int:
        selected = [-(-extent // d.step) for extent, d in zip(extents, selection, strict=True)]
        inner = [min(count, len(d)) for count, d in zip(selected[1:], selection[1:], strict=True)]
        return int(math.prod([*selected[:1], *inner]) * element_bytes)

    for n in range(1 if whole_rows else len(block)):
        while size(block) > most_bytes and block[n] > 1:
            block[n] = max(1, min(block[n] - 1, block[n] * most_bytes // size(block)))
    if size(block) > most_bytes:
        what = "row" if whole_rows and len(block) > 1 else "element"
        raise HsdsInputError(
            f"one {what} takes {size(block)} bytes, more than the {most_bytes} of a slab: choose larger slabs"
            + (" or the layout 'long'" if what == "row" else "")
        )
    for n in reversed(range(1, len(block))):
        # A block smaller than a chunk was reduced to fit, unless the selection ends there.
        if block[n] < min(chunks[n], rest[n - 1]):
            break
        whole = [*block[:n], -(-rest[n - 1] // block[n]) * block[n], *block[n + 1 :]]
        if size(whole) > most_bytes:
            block[n] *= most_bytes // size(block)
            break
        block = whole
    else:
        if block and block[0] >= chunks[0]:
            block[0] *= max(1, most_bytes // max(size(block), 1))
    return Plan(selection, tuple(block), tuple(chunks))


def _cut(indexes: range, block: int, chunk: int) -> list[range]:
    """Split indexes at the ends of blocks; blocks smaller than a chunk start again with each chunk."""
    found, at = [], indexes.start
    while at < indexes.stop:
        base = at - at % block if block >= chunk else at - at % chunk + (at % chunk) // block * block
        end = base + block if block >= chunk else min(base + block, at - at % chunk + chunk)
        piece = range(at, min(end, indexes.stop), indexes.step)
        found.append(_closed(piece))
        at = piece[-1] + indexes.step
    return found


def _closed(indexes: range) -> range:
    """Return the range with its stop directly after its last index, so that equal ranges have equal texts."""
    return range(indexes.start, indexes[-1] + 1, indexes.step)
