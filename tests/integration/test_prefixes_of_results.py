"""Transforms and copies of one bucket pair whose results have different prefixes: each keeps its own outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.transform.bucket_job import BucketJob
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Summary
from tests.support import put, sizes, small_spec, unique

pytestmark = pytest.mark.usefixtures("no_etl_is_left")
Drive = Callable[[BucketJob], Summary]


def test_two_etls_with_prefixes_of_their_own_skip_what_each_has_done(
    aistore: Any, clickhouse: Any, drive: Drive
) -> None:
    source, to = Bucket("ais", unique("in")), Bucket("ais", unique("out"))
    put(aistore, source, {"a.txt": b"a", "b.txt": b"b"})
    ledger = Ledger(clickhouse)

    def run(prepend: str) -> tuple[int, int]:
        spec = small_spec("upper", environment={"SUFFIX": prepend[:1]})
        job = BucketJob(
            aistore, ledger, source, to, run_id=unique("run"), spec=spec, naming=Naming(prepend=prepend),
            options=Options(keep_etl=True),
        )  # fmt: skip
        found = drive(job)
        assert not found.failed, found
        return found.done, found.skipped

    assert [run("x/"), run("y/")] == [(2, 0)] * 2
    assert [run("x/"), run("y/")] == [(0, 2)] * 2
    assert set(sizes(aistore, to)) == {f"{prepend}{name}.txt" for prepend in ("x/", "y/") for name in "ab"}

    # version 0.1.0 recorded no prefix: its outcomes still count for the prefix of their results
    clickhouse.command(
        "INSERT INTO storeside.objects SELECT * REPLACE ('' AS prepend) FROM"
        " (SELECT * FROM storeside.objects FINAL WHERE source = {source:String} AND prepend = 'x/')",
        parameters={"source": str(source)},
    )
    clickhouse.command(
        "ALTER TABLE storeside.objects DELETE WHERE source = {source:String} AND prepend != ''",
        parameters={"source": str(source)},
        settings={"mutations_sync": 1},
    )
    assert run("x/") == (0, 2)
    put(aistore, source, {"a.txt": b"changed"})
    assert run("x/") == (1, 1)
    assert run("x/") == (0, 2)
