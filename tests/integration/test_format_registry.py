"""A format that only a test registers is loaded by both loaders, as any other."""

from __future__ import annotations

import pytest

from tests import fake_format
from tests.transfers import Loading


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_a_registered_format_is_loaded(loading: Loading, loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_format.register(monkeypatch)
    loading.put({f"{n}.rowbinary": fake_format.make(("n", "s"), [(n, "a"), (None, None)]) for n in range(3)})
    loading.put({"cut.rowbinary": fake_format.make(("n", "s"), [(9, "abc")])[:-1]})
    report = loading.load(loader=loader)  # the endings of names show the format
    assert (report.loaded, report.failed, report.rows) == (3, 1, 6)
    assert loading.reasons().keys() == {"cut.rowbinary"}
    assert loading.rows("n, s") == [(0, "a"), (1, "a"), (2, "a"), *3 * [(None, None)]]
