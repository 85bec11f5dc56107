"""The documentation's commands that are marked ``sh run``, and its queries, work on the stack."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storeside.sql.migrate import migrate
from storeside.stack.airflow import airflow
from storeside.stack.clients import clients_environment
from storeside.stack.settings import CHECKOUT, SOURCES, Stack
from storeside.transfer.tables.quarantine import Quarantine
from tests.support import files_of_page

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
RUN = {
    command: path.name
    for path in PAGES
    for block in re.findall(r"^ *```sh run\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if (command := re.sub(r"\s+#.*", "", line).strip())
}
# The output of the last command of a block, if a block with text follows.
PRINTED = {
    re.sub(r"\s+#.*", "", commands.splitlines()[-1]).strip(): text
    for path in PAGES
    for commands, text in re.findall(
        r"^```sh run\n(.*?)^```\n\n^```text\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL
    )
}
QUERIES = [
    statement
    for path in PAGES
    for block in re.findall(r"^ *```sql\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL)
    for statement in re.split(r";\s*$", block, flags=re.MULTILINE)
    if statement.strip().startswith("SELECT")
]


@pytest.fixture(scope="module")
def environment(stack: Stack) -> dict[str, str]:
    """The variables that `python -m storeside.stack env` gives a user of the stack."""
    return {
        **os.environ,
        **{name: value for name, value in airflow.environment(stack).items() if name.startswith("AIRFLOW_CONN_")},
        **clients_environment(stack),
        "STORESIDE_HOME": str(stack.state.parent),
        "PYTHONPATH": str(SOURCES),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, s3_client: S3Client, clickhouse: Any) -> Iterator[Path]:
    """A folder with the files that the commands name; S3 and ClickHouse with the objects and tables they need."""
    place = tmp_path_factory.mktemp("docs")
    (place / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    (place / "tests").symlink_to(CHECKOUT / "tests", target_is_directory=True)
    (place / "a.txt").write_text("one two three")
    (place / "b.txt").write_text("four")
    (place / "texts").mkdir()
    (place / "texts" / "a.txt").write_text("one two three")
    for path, text in files_of_page("my_package/words.py").items():
        (place / path).parent.mkdir()
        (place / path).write_text(text)
    forget = (
        "DROP TABLE IF EXISTS data.trips",  # of other tests, and of this one
        "DROP TABLE IF EXISTS data.customers",
        "DROP TABLE IF EXISTS data.customers_current",
        "DELETE FROM storeside.loads WHERE destination IN ('data.trips', 'data.customers')",
    )
    migrate(clickhouse)
    for statement in forget:
        clickhouse.command(statement)
    yield place
    for statement in forget:
        clickhouse.command(statement)
    for bucket, keys in (
        ("trips", ["2026/trips.parquet"]),
        ("texts", ["a.txt"]),
        ("sensors", ["2026/a.csv"]),
        ("crm", ["customers/1.csv", "customers/2.csv"]),
    ):
        with suppress(s3_client.exceptions.NoSuchBucket):  # a command failed before it was created
            for key in keys:
                s3_client.delete_object(Bucket=bucket, Key=key)
            s3_client.delete_bucket(Bucket=bucket)


def test_there_are_commands_and_queries() -> None:
    assert len(RUN) >= 5
    assert len(PRINTED) >= 4
    assert len(QUERIES) >= 6


@pytest.mark.guarantee("docs-true")
def test_commands_run(folder: Path, environment: dict[str, str], clickhouse: Any) -> None:
    for line, page in RUN.items():
        # The environment is installed here: make must not check whether it is current.
        command = re.sub(r"^make ", "make -o .venv/.installed ", re.sub(r"^python ", f"{sys.executable} ", line))
        command = command.replace("FROM=", f"FROM={folder}/")
        place = CHECKOUT if command.startswith("make ") else folder
        path = f"{folder}:{environment['PYTHONPATH']}"
        done = subprocess.run(
            ["bash", "-euc", command], cwd=place, env=environment | {"PYTHONPATH": path}, check=False, timeout=120,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{page}: {line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert line not in PRINTED or done.stdout == PRINTED[line], f"{page}: {line}"
    assert clickhouse.query("SELECT count(), sum(fare) FROM data.trips").first_row == (3, 7.5)
    current = clickhouse.query("SELECT id, city FROM data.customers_current ORDER BY id").result_rows
    assert current == [(1, "Bern"), (3, "Genf")]
    assert (folder / "results" / "a.count").read_text() == "3\n"


def test_make_sql_prints_tables_and_json(environment: dict[str, str], tmp_path: Path) -> None:
    def sql(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "storeside.stack", "sql", *arguments], env=environment, cwd=CHECKOUT, check=False,
            input=typed, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    assert "│ 1 │ é │" in sql("SELECT 1 AS n, 'é' AS s;").stdout
    assert [json.loads(row) for row in sql("--json", "SELECT number AS n FROM numbers(2)").stdout.splitlines()] == [
        {"n": 0},
        {"n": 1},
    ]
    several = sql("--json", typed="SELECT 1 AS a;\nSELECT nothing;\nSELECT\n  2 AS b")
    assert several.stdout.splitlines() == ['{"a":1}', '{"b":2}']
    assert several.returncode == 1
    assert several.stderr.startswith("error: Code: 47")
    terminal = subprocess.run(
        ["script", "-qec", f"{sys.executable} -m storeside.stack sql", str(tmp_path / "typescript")], cwd=CHECKOUT,
        env=environment, input="SELECT 41\n+ 1 AS n;\nquit\n", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "/play with user storeside; " in terminal.stdout
    assert "│ 42 │" in terminal.stdout


@pytest.mark.parametrize("statement", QUERIES)
def test_queries_are_understood(clickhouse: Any, statement: str) -> None:
    migrate(clickhouse)
    Quarantine(clickhouse, "speech", "manifest").create()  # a load creates it for the first invalid row
    clickhouse.command("CREATE DATABASE IF NOT EXISTS data")
    tables = {"data.utterances": "recording String", "data.lectures": "left_out String, duration_seconds Float64"}
    for name, columns in tables.items():
        clickhouse.command(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    try:
        clickhouse.query(statement)
    finally:
        for name in tables:
            clickhouse.command(f"DROP TABLE {name}")
