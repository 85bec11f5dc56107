"""Tables of version 0.1.0 in the ledger's database move with their records, by the statements of docs/versions.md."""

from __future__ import annotations

import re
from typing import Any

import pytest

from storeside.stack.settings import CHECKOUT
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from tests.transfers import Loading


def test_a_moved_table_is_not_loaded_again(
    loading: Loading, clickhouse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = loading.table.partition(".")[2]
    loading.put({"a.csv": b"n\n1\n", "b.csv": b"n\n2\n"})
    with monkeypatch.context() as patch:  # as version 0.1.0 did
        patch.setattr("storeside.transfer.request.request.RESERVED", ())
        source = Source(loading.bucket, collection="storeside_s3")
        former = Transfer(Request(source, f"storeside.{name}"), loading.client(), loading.s3, "former")
        assert former.run(former.prepare()).loaded == 2
    page = (CHECKOUT / "docs" / "versions.md").read_text()
    (block,) = re.findall(r"```sql\n(  CREATE DATABASE IF NOT EXISTS data;.*?)```", page, re.DOTALL)
    for statement in filter(str.strip, block.split(";")):
        clickhouse.command(re.sub(r"\btrips\b", name, statement))
    loading.put({"c.csv": b"n\n3\n"})
    report = loading.load()
    assert (report.skipped, report.loaded) == (2, 1)
    assert loading.rows("n") == [(1,), (2,), (3,)]
    loading.put({"a.csv": b"n\n9\n"})
    assert loading.load(on_overwrite="replace").loaded == 1
    assert loading.rows("n") == [(2,), (3,), (9,)]
