"""The breaks of `make test-the-tests` belong to the rows of the guarantees, and apply to the present code."""

from __future__ import annotations

import ast

import pytest

from storeside.stack.settings import CHECKOUT
from tests import guarantees
from tests.breaks.breaks import BREAKS, Break, Edit


def test_every_row_of_the_guarantees_has_a_break() -> None:
    assert {it.row for it in BREAKS} == set(guarantees.rows())


@pytest.mark.parametrize("it", BREAKS, ids=lambda it: f"{it.row}: {it.what}")
def test_breaks_apply_and_leave_code_that_parses(it: Break) -> None:
    for edit in it.edits:
        broken = edit.applied((CHECKOUT / edit.file).read_text())
        if edit.file.endswith(".py"):
            ast.parse(broken)


def test_a_break_that_does_not_apply_says_so() -> None:
    for text in ("", "a a"):
        with pytest.raises(ValueError, match=r"no longer applies: f has its old text [02] times"):
            Edit("f", "a", "b").applied(text)
