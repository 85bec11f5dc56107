"""Selections and slabs: every selected element is read once, in bounded pieces."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from storeside.hsds.errors import HsdsInputError
from storeside.hsds.plan import Slab, plan
from storeside.hsds.selection import parse


@st.composite
def selections(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[range, ...]]:
    """A shape and a selection in it."""
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    chosen = []
    for length in shape:
        start = draw(st.integers(0, length - 1))
        stop = draw(st.integers(start + 1, length))
        chosen.append(range(start, stop, draw(st.integers(1, 5))))
    return shape, tuple(chosen)


@given(
    selections(), st.lists(st.integers(1, 15), min_size=3, max_size=3), st.integers(1, 64), st.integers(64, 20_000),
    st.booleans(),
)  # fmt: skip
def test_slabs_are_the_selection_and_fit(
    found: Any, chunks: list[int], element: int, most: int, whole_rows: bool
) -> None:
    shape, selection = found
    try:
        slabs = plan(selection, chunks[: len(shape)], element, most, whole_rows)
    except HsdsInputError:
        # a row is refused only if it does not fit
        assert whole_rows
        assert math.prod(map(len, selection[1:])) * element > most
        return
    wanted = list(itertools.product(*selection))
    got = [index for slab in slabs for index in itertools.product(*slab.dimensions)]
    assert sorted(got) == wanted
    assert len(got) == len(wanted)
    assert len(list(slabs)) == len(slabs)
    for slab in slabs:
        assert slab.count * element <= most
        if whole_rows:
            assert slab.shape[1:] == tuple(map(len, selection[1:]))
    # the offset of the data distinguishes slabs
    assert len({tuple(slab.dimensions[n].start for n in slabs.split) for slab in slabs}) == len(slabs)


@given(selections(), st.lists(st.integers(1, 15), min_size=3, max_size=3), st.integers(64, 20_000))
def test_slabs_are_made_of_whole_chunks_or_parts_of_one(found: Any, chunks: list[int], most: int) -> None:
    shape, selection = found
    for slab in plan(selection, chunks[: len(shape)], 8, most):
        for indexes, chunk, whole in zip(slab.dimensions, chunks, selection, strict=False):
            within = indexes.start // chunk == (indexes.stop - 1) // chunk
            begins = indexes.start == whole.start or any(
                i % chunk == 0 for i in range(indexes.start - whole.step + 1, indexes.start + 1)
            )
            assert within or begins


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 20), st.integers(1, 30), st.integers(240, 5000))
def test_growth_leaves_all_slabs_but_the_last_as_they_were(
    rows: int, more: int, width: int, chunk: int, most: int
) -> None:
    def slabs(count: int) -> list[Slab]:
        return list(plan((range(count), range(width)), (chunk, width), 8, most, whole_rows=True))

    before, after = slabs(rows), {slab.dimensions[0].start: slab for slab in slabs(rows + more)}
    for slab in before:
        grown = after[slab.dimensions[0].start]
        assert grown == slab if slab.dimensions[0].stop < rows else grown.dimensions[0].stop >= rows


@given(selections())
def test_halves_are_the_whole(found: Any) -> None:
    _, selection = found
    slab = Slab(tuple(range(d.start, d[-1] + 1, d.step) for d in selection))
    halves = slab.halves()
    if halves is None:
        assert slab.count == 1
        return
    pieces = [list(itertools.product(*half.dimensions)) for half in halves]
    assert sorted(pieces[0] + pieces[1]) == list(itertools.product(*slab.dimensions))
    assert pieces[0][0] == next(itertools.product(*slab.dimensions))


@given(selections(), st.data())
def test_selections_are_numpys(found: Any, data: st.DataObject) -> None:
    shape, selection = found
    parts = []
    for d, length in zip(selection, shape, strict=True):
        start = d.start - length if data.draw(st.booleans()) else d.start
        stop = d.stop if d.stop == length or data.draw(st.booleans()) else d.stop - length
        parts.append(f" {start}:{stop}:{d.step}" if d.step > 1 else f"{start}:{stop} ")
    array = np.arange(math.prod(shape)).reshape(shape)
    text = ",".join(parts)
    wanted = array[tuple(slice(d.start, d.stop, d.step) for d in selection)]
    assert (array[np.ix_(*parse(f"[{text}]", shape))] == wanted).all()
    assert parse(text, shape) == selection


def test_short_selections_take_the_rest() -> None:
    assert parse("", (4, 5)) == parse("...", (4, 5)) == parse(":, :", (4, 5)) == (range(4), range(5))
    assert parse("2", (4, 5)) == (range(2, 3), range(5))
    assert parse("-1", (4, 5)) == (range(3, 4), range(5))
    assert parse("", ()) == ()
    assert parse("", (0, 5)) == (range(0), range(5))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0:5", "dimension 0: '0:5' is out of range, the dataset has 4"),
        ("4", "out of range"),
        ("-5", "out of range"),
        (":, 9:", "dimension 1: '9:' is out of range, the dataset has 5"),
        ("2:2", "selects nothing"),
        ("3:1", "selects nothing"),
        ("::0", "the step must be 1 or more"),
        ("::-1", "neither an index nor start:stop:step"),
        ("a:b", "neither an index nor start:stop:step"),
        (":,:,:", "has 3 dimensions, the dataset has 2"),
    ],
)
def test_wrong_selections_are_refused(text: str, said: str) -> None:
    with pytest.raises(HsdsInputError, match="selection") as caught:
        parse(text, (4, 5))
    assert said in str(caught.value)


def test_a_selection_that_is_too_large_for_a_slab_says_what_helps() -> None:
    with pytest.raises(
        HsdsInputError, match=r"one row takes 17600 bytes, more than the 8000 of a slab.*layout 'long'"
    ):
        plan((range(10), range(2200)), (10, 2200), 8, 8000, whole_rows=True)
    with pytest.raises(HsdsInputError, match="one element takes 9000 bytes"):
        plan((range(10),), (10,), 9000, 8000)


@pytest.mark.parametrize(
    ("columns", "whole_rows"),
    [
        (range(10), False),
        (range(10), True),
        (range(995, 1000), False),
        (range(0, 1000, 100), False),
        (range(995, 1005), False),  # of two chunks
        (range(50_000_000, 50_000_010), False),
    ],
)
def test_a_narrow_selection_takes_more_rows(columns: range, whole_rows: bool) -> None:
    slabs = plan((range(1_000_000), columns), (100, 1000), 8, 8 << 20, whole_rows)
    assert len(slabs) == -(-1_000_000 * len(columns) * 8 // (8 << 20))


@given(
    st.integers(1, 500), st.integers(1, 9), st.integers(0, 10**6), st.integers(1, 40), st.data(),
    st.integers(8, 5000), st.booleans(),
)  # fmt: skip
def test_slabs_do_not_depend_on_what_is_left_out(
    rows: int, chunk: int, place: int, width: int, data: st.DataObject, most: int, whole_rows: bool
) -> None:
    """The selected part of a row of chunks is cut into as many slabs as a dataset of only that part."""
    start = data.draw(st.integers(0, width - 1))
    stop = data.draw(st.integers(start + 1, width))
    count = stop - start
    assume(chunk * count * 8 <= most)
    chosen = range(place * width + start, place * width + stop)
    of = {"element_bytes": 8, "most_bytes": most, "whole_rows": whole_rows}
    found = plan((range(rows), chosen), (chunk, width), **of)
    assert len(found) == len(plan((range(rows), range(count)), (chunk, count), **of))


def test_the_articles_dataset_is_cut_into_two_chunks_each() -> None:
    slabs = plan((range(12000), range(2200)), (240, 2200), 8, 9_000_000, whole_rows=True)
    assert len(slabs) == 25
    assert next(iter(slabs)).select == "[0:480,0:2200]"
