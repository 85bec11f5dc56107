"""The hook's h5pyd files."""

from __future__ import annotations

import logging

import pytest
from airflow.sdk import BaseHook, Connection

from storeside.operators import HSDSHook


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING])
def test_an_opened_file_leaves_the_level_of_the_log(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """h5pyd sets that of the root logger to ERROR before it checks anything."""
    connection = Connection(
        conn_id="hsds_default", conn_type="hsds", host="127.0.0.1", port=1, login="u", password="p"
    )
    monkeypatch.setattr(BaseHook, "get_connection", lambda *_: connection)
    before = logging.root.level
    try:
        logging.root.setLevel(level)
        with pytest.raises(ValueError, match="mode"):
            HSDSHook().file("/home/u/a.h5", "no mode")
        assert logging.root.level == level
    finally:
        logging.root.setLevel(before)
