"""Markers of writers: the rule for a worker's listings and the one for ClickHouse's are the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.aistore.markers import MARKERS, NONE, marker, markers_of, named_by

NAMES = st.lists(st.sampled_from(["_", ".", "/", "a", "crc", "metadata", "_$folder$", "SUCCESS"])).map("".join)


@given(NAMES, st.sampled_from(["", "in/", "_", "a/_S", "x.crc", "a/.b", "_$folder$", "in/metadata", "_{a,.b}.crc"]))
def test_a_name_is_a_marker_for_both_or_for_none(name: str, keys: str) -> None:
    assert bool(marker(name, named_by(keys))) == (re.search(markers_of(keys), name) is not None and name != "")


@given(NAMES)
def test_the_pattern_of_a_marker_is_the_first_that_matches(name: str) -> None:
    found = [kind for kind, expression in MARKERS.items() if re.search(expression, name)]
    assert marker(name) == next(iter(found), "")


@pytest.mark.parametrize("name", ["_raw/x.csv", "_year=2026/a", "x_.csv", "a.crc.csv", "", "_/"])
def test_data_beside_markers_is_data(name: str) -> None:
    assert marker(name) == ""


def test_keys_that_name_all_markers_leave_none() -> None:
    assert markers_of("{_,.}crc,metadata,_$folder$") == NONE
