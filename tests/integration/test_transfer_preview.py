"""A preview on the real servers leaves ClickHouse, the bucket and the ledger as they were."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from storeside.operators import S3ToClickHouseOperator
from storeside.stack import demo
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER
from storeside.stack.settings import CHECKOUT, SOURCES
from storeside.transfer.base.staging_tables import PREVIEWS, STAGING
from storeside.transfer.request.source import Source
from storeside.transfer.run.preview import preview
from storeside.transfer.run.previewed import Preview
from tests.format_examples import EXAMPLES
from tests.support import until
from tests.transfers import Loading, environment, jsonl, request_of

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40)


def show(loading: Loading, keys: str = "", **options: Any) -> Preview:
    """Preview with the users of Airflow's connections; check that nothing differs afterwards."""
    before = state(loading)
    found = preview(
        request_of(Source(loading.bucket, keys, collection="storeside_s3"), loading.table, **options),
        demo.clickhouse_client(loading.stack, LOADER),
        loading.s3,
        demo.clickhouse_client(loading.stack, LEDGER),
    )
    assert state(loading) == before
    return found


def state(loading: Loading) -> Any:
    """Return all tables of ClickHouse with their definitions and rows, and all objects of the bucket.

    Merges of other tests' tables change their bytes.
    """
    tables = loading.query(
        "SELECT database, name, uuid, create_table_query, total_rows FROM system.tables"
        " WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') ORDER BY ALL"
    )
    databases = loading.query("SELECT name, uuid FROM system.databases ORDER BY ALL")
    objects = loading.s3.list_objects_v2(Bucket=loading.bucket).get("Contents", [])
    content = [
        (o["Key"], hashlib.sha256(loading.s3.get_object(Bucket=loading.bucket, Key=o["Key"])["Body"].read()).digest())
        for o in objects
    ]
    return tables, databases, content, [(o["Key"], o["ETag"], o["LastModified"]) for o in objects]


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_each_format_and_then_its_load(loading: Loading, loader: str) -> None:
    """The load creates the table that the preview shows, and its rows are the first ones."""
    for form, example in EXAMPLES.items():
        loading.table = f"{loading.table.partition('_of_')[0]}_of_{form}"
        rows = [(n, f"text {n}") for n in range(2 if not example.has_one_row else 1)]
        loading.put({f"{form}/good": example.make(("n", "s"), rows), f"{form}/bad": PNG})
        options = {"format": form, "loader": loader, **example.read(("n", "s"))}
        found = show(loading, f"{form}/", **options)
        assert (found.problem, found.listed, found.planned, found.loader) == ("", 2, 2, loader)
        assert [key for key, _ in found.refused] == [f"{form}/bad"], form
        assert found.rows == tuple((str(n), s) for n, s in rows)
        transfer = loading.transfer(f"{form}/", **options)
        transfer.run(transfer.prepare())
        (created,) = found.statements
        (made,) = loading.query(f"SHOW CREATE TABLE {loading.table}")
        assert all(f"`{name}` {kind}" in made[0] and f"`{name}` {kind}" in created for name, kind in found.columns)
        after = show(loading, f"{form}/", **options)
        assert (after.listed, after.planned, after.known_bad) == (2, 0, 1)
        assert dict(after.known_failures).keys() == {f"{form}/bad"}


def test_drift_from_an_existing_table(loading: Loading) -> None:
    loading.create("n Nullable(Int32) CODEC(ZSTD(3)), s String DEFAULT 'none'", "n SETTINGS allow_nullable_key = 1")
    loading.put({"a.jsonl": jsonl([{"n": 1}]), "b.jsonl": jsonl([{"n": 2, "x": [1]}])})
    found = show(loading, format="jsonl", on_drift="add")
    assert found.drift == (
        "column 'n' is Nullable(Int64) in the objects, and Nullable(Int32) in the table",
        "column 'x' (Array(Nullable(Int64))) is not in the table",
    )
    database, table = loading.table.split(".")
    (statement,) = found.statements
    assert statement == f"ALTER TABLE `{database}`.`{table}` ADD COLUMN IF NOT EXISTS `x` Array(Nullable(Int64))"
    assert found.rows[0][:2] == ("1", "none")
    refused = show(loading, format="jsonl").refused
    assert [key for key, _ in refused] == ["b.jsonl"]
    assert "x: (row 0)" in refused[0][1]
    assert STAGING not in refused[0][1]
    loading.load(format="jsonl", on_drift="add")
    assert show(loading, format="jsonl").planned == 0


def test_an_operator_and_a_command(
    loading: Loading, connections: None, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both show the rows and the statement; the value for XCom is JSON of bounded size without secrets."""
    loading.put({"a.csv": b"n,s\n" + b"".join(b"%d,%s\n" % (n, b"x" * 5000) for n in range(100))})
    before = state(loading)
    operator = S3ToClickHouseOperator(
        task_id="preview", source=f"s3://{loading.bucket}", table=loading.table, plan_only=True
    )
    with caplog.at_level("INFO"):
        value = operator.execute({})
    assert len(json.dumps(value)) < 20_000
    assert (value["planned"], value["rows"][1][0], len(value["rows"])) == (1, "1", 20)
    written = capsys.readouterr()
    shown = "\n".join([written.out, written.err, *(record.getMessage() for record in caplog.records)])
    assert "CREATE TABLE IF NOT EXISTS" in shown
    assert "nothing is loaded or changed" in shown
    assert not any(secret in shown + json.dumps(value) for secret in loading.stack.secrets.values())
    done = command(loading, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == value["rows"]
    assert "first 20 rows:" in command(loading).stdout
    assert state(loading) == before


def command(loading: Loading, *more: str) -> subprocess.CompletedProcess[str]:
    given = arguments(loading, *more)
    return subprocess.run(given, check=False, env=variables(loading), capture_output=True, text=True)


def arguments(loading: Loading, *more: str) -> list[str]:
    source = f"s3://{loading.bucket}"
    return [
        sys.executable, "-m", "storeside.transfer", source, loading.table, "--preview",
        "--collection", "storeside_s3", *more,
    ]  # fmt: skip


def variables(loading: Loading) -> dict[str, str]:
    return {**environment(loading.stack), "PYTHONPATH": str(SOURCES)}


def test_a_killed_preview_leaves_only_tables_that_are_swept(loading: Loading) -> None:
    """The next load drops them when they are an hour old, and no other table."""
    loading.put({f"{n}.csv": b"n\n" + b"1\n" * 100 for n in range(50)})
    before = state(loading)
    started = subprocess.Popen(
        arguments(loading, "--set", "read.sample_objects=50"), env=variables(loading), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    names = f"SELECT name FROM system.tables WHERE database = '{STAGING}' AND startsWith(name, 'load_{PREVIEWS}')"
    until(lambda: bool(loading.query(names)), 60, "staging table of the preview")
    started.send_signal(signal.SIGKILL)
    started.wait()
    left = loading.query(names)
    assert [row for row in state(loading)[0] if row[0] != STAGING] == [row for row in before[0] if row[0] != STAGING]
    loading.load(format="csv")
    assert loading.query(names) == left, "the preview could still run"
    for (name,) in left:
        loading.clickhouse.command(f"DROP TABLE {STAGING}.`{name}` SYNC")


def test_the_example_of_the_documentation(loading: Loading) -> None:
    """The commands of the page print what the page shows; the ledger may have a speed."""
    page = (CHECKOUT / "docs" / "preview.md").read_text()
    commands = re.findall(r"^```sh run\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0].splitlines()
    expected = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0].splitlines()
    try:
        for line in commands:
            given = re.sub(r"^\.venv/bin/python", sys.executable, line)
            done = subprocess.run(
                ["bash", "-euc", given], env=variables(loading), check=False, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        assert [x for x in done.stdout.splitlines() if not x.startswith("time: ")] == [
            x for x in expected if not x.startswith("time: ")
        ]
    finally:
        loading.s3.delete_object(Bucket="sensors", Key="2026/a.csv")
        loading.s3.delete_bucket(Bucket="sensors")
