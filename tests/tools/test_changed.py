"""The selection of tests for a change."""

from __future__ import annotations

from typing import Any

import pytest

from tests import changed, durations
from tests.changed import Reason

PARQUET = "tests/integration/test_transfer_parquet.py"


@pytest.mark.parametrize(
    ("path", "file", "imports"),
    [
        (PARQUET, PARQUET, 0),
        ("tests/avro_files.py", "tests/integration/test_transfer_values.py", 1),
        ("include/storeside/aistore/buckets.py", "tests/attacks/test_name_canaries.py", 1),
        ("operators/operators/clickhouse.py", "tests/integration/test_transfer_shards.py", 1),
        ("dags/ingest.py", "tests/e2e/test_ingest.py", 1),
        ("include/storeside/sql/claim_results.sql", "tests/integration/test_bucket_job.py", None),
        ("include/storeside/transformers/audio/transcoding.py", "tests/integration/test_members.py", 1),
    ],
)
def test_tests_belong_to_what_they_use(path: str, file: str, imports: int | None) -> None:
    found = changed.belonging({path})
    assert file in found
    if imports is not None:
        assert found[file] == Reason(imports, path)


def test_tests_of_the_first_tier_are_left_out() -> None:
    assert "tests/unit/test_buckets.py" not in changed.belonging({"include/storeside/aistore/buckets.py"})


def test_a_page_of_the_docs_needs_no_server() -> None:
    assert changed.belonging({"docs/glossary.md"}) == {}


def test_the_farthest_and_of_these_the_dearest_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: dict[str, Any] = {"itself": 900, "near": 300, "far": 100, "far and dear": 200}
    monkeypatch.setattr(durations, "recorded", lambda: costs)
    imports = {"itself": 0, "near": 1, "far": 2, "far and dear": 2}

    def left(limit: int) -> list[str]:
        monkeypatch.setattr(changed, "LIMIT_SECONDS", limit)
        kept, left_out = changed.cut({file: Reason(n, "x") for file, n in imports.items()})
        assert kept.keys() | left_out.keys() == imports.keys()
        return list(left_out)

    assert left(1500) == []
    assert left(1499) == ["far and dear"]
    assert left(1250) == ["far and dear", "far"]
    assert left(10) == ["far and dear", "far", "near"]
    monkeypatch.setattr(changed, "LIMIT_SECONDS", 600)
    assert durations.expected("unknown") == 250


def test_an_unknown_commit_is_named() -> None:
    with pytest.raises(SystemExit, match="BASE=no-such-commit is no commit of this checkout"):
        changed.changes("no-such-commit")
