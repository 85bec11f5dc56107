"""Answers of ClickHouse that have lost rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import OperationalError

from storeside.sql.answers import whole_answers


class Server:
    """The parts of a clickhouse-connect client that `whole_answers` uses; the query names rows and summary."""

    def __init__(self, **settings: Any) -> None:
        self.server_settings = settings
        self.set: dict[str, Any] = {}

    def set_client_setting(self, name: str, value: Any) -> None:
        self.set[name] = value

    def query(self, rows: int, **summary: str) -> Any:
        return SimpleNamespace(row_count=rows, summary=summary)


def asked(rows: int, **summary: str) -> Any:
    return whole_answers(cast("Client", Server(max_threads=1))).query(cast("Any", rows), **cast("Any", summary))


@pytest.mark.parametrize(("rows", "summary"), [
    (0, {"read_rows": "5", "result_rows": "0"}), (3, {"result_rows": "3"}), (4, {"result_rows": "3"}), (1, {}),
])  # fmt: skip
def test_an_answer_with_all_of_its_rows_is_returned(rows: int, summary: dict[str, str]) -> None:
    assert asked(rows, **summary).row_count == rows


@pytest.mark.parametrize(("rows", "summary", "reason"), [
    (0, {}, "ends within its headers"), (0, {"result_rows": "30"}, "has 0 of its 30 rows: its disk may be full"),
    (29, {"result_rows": "30"}, "has 29 of its 30 rows"),
])  # fmt: skip
def test_an_answer_that_has_lost_rows_is_refused(rows: int, summary: dict[str, str], reason: str) -> None:
    with pytest.raises(OperationalError, match=reason):
        asked(rows, **summary)


def test_a_client_without_the_settings_of_its_server_is_refused() -> None:
    """The client reads them before it has the setting that keeps answers in memory."""
    with pytest.raises(OperationalError, match="list of settings is empty"):
        whole_answers(cast("Client", Server()))


def test_clickhouse_keeps_answers_in_memory() -> None:
    server = Server(max_threads=1)
    whole_answers(cast("Client", server))
    assert server.set["buffer_size"] >= 1 << 30
