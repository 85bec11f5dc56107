"""Version 0.1.0 works on the tables of this version, as after a rollback; see `tests.previous`."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from tests.previous import unpack
from tests.support import unique
from tests.transfers import Loading, environment

# A transform of 0.1.0 that plans two objects, stores a result of one, and plans again.
TRANSFORM = """
import json, sys
from include.transfer.__main__ import clickhouse
from include.transform.ledger import Ledger, Scope
ledger = Ledger(clickhouse())
ledger.create()
plans = []
for run in ("first", "second"):
    scope = Scope("ais://in", "ais://out", sys.argv[1], f"{sys.argv[1]}/{run}")
    ledger.record_listing(scope, "source", [(name, f"{name}.wav", 3, "v1", "") for name in ("a", "b")])
    ledger.record_listing(scope, "before", [] if run == "first" else [("", "a.wav", 9, "r1", "")])
    plan = ledger.plan(scope, retry_failed=False, keeps_result=True)
    ledger.record_listing(scope, "after", [("", "a.wav", 9, "r1", "")])
    ledger.record_reasons(scope, [("b", "no audio", True)])
    ledger.settle(scope, record_done=True, no_reason="unknown")
    totals = ledger.totals(scope)
    plans.append([plan.listed, plan.pending, plan.known_bad, totals.done, totals.failed])
    ledger.forget_listings(scope)
print(json.dumps(plans))
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code of 0.1.0."""
    return unpack(tmp_path_factory.mktemp("previous") / "code", "include")


@pytest.fixture
def run(previous: Path, loading: Loading) -> Callable[..., str]:
    """Run Python with the code of 0.1.0 and return its output."""

    def run(*arguments: str) -> str:
        variables = {**environment(loading.stack), "PYTHONPATH": str(previous)}
        done = subprocess.run(
            [sys.executable, *arguments], env=variables, cwd=previous, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_loads_go_on_after_a_rollback_and_after_the_next_upgrade(run: Callable[..., str], loading: Loading) -> None:
    load = ("-m", "include.transfer", f"s3://{loading.bucket}", loading.table)
    loading.put({"a.csv": b"n\n1\n"})
    assert loading.load().loaded == 1
    loading.put({"b.csv": b"n\n2\n"})
    run(*load)
    assert loading.rows("n") == [(1,), (2,)]
    loading.put({"c.csv": b"n\n3\n"})
    report = loading.load()
    assert (report.skipped, report.loaded) == (2, 1)
    run(*load)
    assert loading.rows("n") == [(1,), (2,), (3,)]


def test_transforms_go_on_after_a_rollback_and_after_the_next_upgrade(
    run: Callable[..., str], loading: Loading
) -> None:
    """Each task of 0.1.0 replaces views of this version by its own; those with another name stay."""
    loading.put({"a.csv": b"n\n1\n"})
    assert loading.load().loaded == 1  # the tables are those of this version
    plans = json.loads(run("-c", TRANSFORM, uuid.uuid4().hex))
    assert plans == [[2, 2, 0, 1, 1], [2, 0, 1, 0, 0]]
    ledger = Ledger(loading.client())
    scope = Scope("ais://in", "ais://out", unique("transform"), unique("run"))
    ledger.create()
    ledger.record_listing(scope, "source", [("a", "a.wav", 3, "v1", "")])
    ledger.record_listing(scope, "before", [])
    assert ledger.plan(scope, retry_failed=False, keeps_result=True).pending == 1
    ledger.record_listing(scope, "after", [("", "a.wav", 9, "r1", "")])
    ledger.settle(scope, record_done=True, no_reason="unknown")
    assert ledger.totals(scope).done == 1
