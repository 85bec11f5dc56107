"""Asks ClickHouse for facts about the lines of text objects, which it reads beside the statement that loads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from storeside.transfer.staging.origin import PULLED_VERSION
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import LONG_STATEMENT, Planned


def line_facts(
    work: Work, objects: Sequence[Planned], facts: Sequence[str], compression: str, **settings: Any
) -> Sequence[Sequence[Any]]:
    """Return path, version and these aggregates of the column ``line``, for each object that has lines."""
    source, only = work.source(objects, "LineAsString", "line String", compression)
    version = "''" if work.request.source.by_url else PULLED_VERSION
    return work.client.query(
        f"SELECT _path, {version} AS version, {', '.join(facts)}"
        f" FROM {source}{f' WHERE {only}' if only else ''} GROUP BY 1, 2",
        settings={
            "use_hive_partitioning": 0, "max_query_size": LONG_STATEMENT, "s3_retry_attempts": 10, **settings,
        },
    ).result_rows  # fmt: skip


def place_of(work: Work, o: Planned) -> tuple[str, str]:
    """Return the path of an object, and the version that `line_facts` must have read.

    `Reader.check_unchanged` compares the versions of AIStore's objects.
    """
    source = work.request.source
    return source.path_of(o.key), "" if source.by_url else o.version
