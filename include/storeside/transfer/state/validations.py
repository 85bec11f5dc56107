"""Results of suites in ``storeside.validations``."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.quality.verdict import Verdict
from storeside.transfer.base.errors import plain
from storeside.transfer.state.loads import SYNCHRONOUS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)


def record(client: Client, table: str, run_id: str, verdict: Verdict, result: Mapping[str, Any]) -> None:
    """Record the result of a suite; the log says if ClickHouse refuses it, because the load itself is done."""
    row = [table, run_id, result["suite_name"], verdict.success, verdict.rows, json.dumps(result)]
    try:
        client.insert(
            "storeside.validations", [row],
            column_names=["destination", "run_id", "suite", "success", "rows", "result"], settings=SYNCHRONOUS,
        )  # fmt: skip
    except (DatabaseError, OperationalError) as e:
        log.warning("the result of %s is not in storeside.validations: %s", result["suite_name"], plain(e))


def last(client: Client, table: str, most: int) -> list[dict[str, Any]]:
    """Return the newest results of a table, the newest first."""
    rows = client.query(
        "SELECT result FROM storeside.validations WHERE destination = {table:String}"
        " ORDER BY validated_at DESC LIMIT {most:UInt32}",
        parameters={"table": table, "most": most},
    ).result_rows
    return [json.loads(text) for (text,) in rows]
