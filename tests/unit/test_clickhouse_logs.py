"""ClickHouse's logs in its own tables: none of them grows without a limit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import yaml

from storeside.stack.servers.clickhouse_server import LOG_XML, LOGS
from storeside.stack.settings import CHECKOUT

COMPOSE = CHECKOUT / "include" / "storeside" / "stack" / "images" / "clickhouse" / "config.xml"
KUBERNETES = CHECKOUT / "docs" / "kubernetes" / "clickhouse.yaml"
# Logs that ClickHouse's own configuration turns on without a limit.
ON = (
    "asynchronous_metric_log", "background_schedule_pool_log", "error_log", "latency_log", "metric_log", "part_log",
    "query_log", "query_metric_log", "query_thread_log", "query_views_log", "text_log", "trace_log",
)  # fmt: skip
BASE = """<clickhouse>
<path>{folder}/data/</path><tmp_path>{folder}/data/tmp/</tmp_path><users_config>{folder}/users.xml</users_config>
{logs}
</clickhouse>"""
USERS = """<clickhouse>
<profiles><default/></profiles><quotas><default/></quotas>
<users><default><password/><profile>default</profile><quota>default</quota></default></users>
</clickhouse>"""
LISTS = """
import os, sys
os.chdir(os.environ["HOME"])
from chdb import _chdb
lists = "SELECT name, create_table_query FROM system.tables WHERE database = 'system' AND engine = 'MergeTree'"
_chdb.query(f"SELECT 1; SYSTEM FLUSH LOGS; {lists} INTO OUTFILE 'tables.tsv' FORMAT TSV", "TSV", path="data/")
"""


def elements(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {element.tag: element for element in root if element.tag.endswith("_log")}


def tables(folder: Path, settings: str = "") -> dict[str, str]:
    """Run the engine with all logs and these settings; return the statements of the tables that it has then."""
    own = folder / ".clickhouse-local"
    (own / "config.d").mkdir(parents=True)
    (folder / "data" / "tmp").mkdir(parents=True)
    logs = "".join(f"<{name}><database>system</database><table>{name}</table></{name}>" for name in ON)
    (own / "config.xml").write_text(BASE.format(folder=folder, logs=logs))
    (own / "config.d" / "storeside.xml").write_text(f"<clickhouse>{settings}</clickhouse>")
    (folder / "users.xml").write_text(USERS)
    done = subprocess.run(
        [sys.executable, "-c", LISTS], env={"HOME": str(folder)}, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-2000:]
    lines = (folder / "tables.tsv").read_text().splitlines()
    return dict(line.split("\t", 1) for line in lines)


def test_under_compose_each_log_has_a_limit_or_is_off(tmp_path: Path) -> None:
    found = elements(ElementTree.parse(COMPOSE).getroot())  # noqa: S314 - ours
    assert set(found) == set(ON)
    settings = "".join(ElementTree.tostring(element, "unicode") for element in found.values())
    made = tables(tmp_path / "ours", settings)
    assert set(made) == {"query_log", "part_log"}
    assert all("TTL event_date + toIntervalDay(7)" in statement for statement in made.values())
    assert {"trace_log", "metric_log"} <= set(tables(tmp_path / "default")), "the engine ignores its configuration"


def test_on_kubernetes_logs_without_a_limit_are_off() -> None:
    """Altinity's operator gives query_log and part_log an engine, besides which ClickHouse accepts no ttl."""
    house = yaml.safe_load(KUBERNETES.read_text())
    found = elements(ElementTree.fromstring(house["spec"]["configuration"]["files"]["config.d/storeside.xml"]))  # noqa: S314
    assert set(found) == set(ON) - {"query_log", "part_log"}
    assert all(element.get("remove") for element in found.values())


def test_embedded_logs_have_a_limit() -> None:
    assert all(
        re.search(rf"<{name}>.*<ttl>event_date \+ INTERVAL 7 DAY</ttl>", LOG_XML.format(name)) for name in LOGS
    )
