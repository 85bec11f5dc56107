"""Airflow runs the DAG of docs/transfer/replace-partition.md for thirty days that were exported again."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storeside.stack.settings import CHECKOUT, Stack
from tests.support import airflow_in

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

PAGE = CHECKOUT / "docs" / "transfer" / "replace-partition.md"
DAYS = [f"2026-01-{n:02}" for n in range(1, 31)]
# Runs the DAG for each day, and prints the state of each run.
RUNS = """
if __name__ == "__main__":
    for n in range(1, 31):
        print("STATE", dag.test(logical_date=datetime.fromisoformat(f"2026-01-{n:02}T00:00:00+00:00")).state)
"""


def test_thirty_days_are_loaded_again(stack: Stack, clickhouse: Any, s3_client: S3Client, tmp_path: Path) -> None:
    text = PAGE.read_text()
    code = re.search(r"```python run\n(.*?)```", text, re.DOTALL)
    command = re.search(r"^airflow backfill create .*$", text, re.MULTILINE)
    assert code
    assert command
    (tmp_path / "sales.py").write_text(code[1] + RUNS)
    s3_client.create_bucket(Bucket="shops")
    for n, day in enumerate(DAYS):
        body = f"day,shop,sold,currency\n{day},a,{n},CHF\n{day},b,{n},CHF\n".encode()
        s3_client.put_object(Bucket="shops", Key=f"sold/day={day}/1.csv", Body=b"PAR1" if day == DAYS[9] else body)
    clickhouse.command("DROP TABLE IF EXISTS data.sold")
    clickhouse.command(
        "CREATE TABLE data.sold (day Date, shop String, sold Int64) ENGINE = MergeTree PARTITION BY day ORDER BY shop"
    )
    clickhouse.command("INSERT INTO data.sold SELECT toDate('2026-01-01') + number, 'old', -1 FROM numbers(31)")
    variables = airflow_in(tmp_path, stack)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            arguments, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return done.stdout

    states = re.findall(r"^STATE (?:\w+\.)?(\w+)$", run(sys.executable, "sales.py"), re.MULTILINE)
    assert [state.lower() for state in states] == ["failed" if day == DAYS[9] else "success" for day in DAYS]
    found = clickhouse.query(
        "SELECT toString(day), shop, sold, currency FROM data.sold ORDER BY day, shop"
    ).result_rows
    expected: list[tuple[Any, ...]] = []
    for n, day in enumerate(DAYS):
        new = [(day, shop, n, "CHF") for shop in ("a", "b")]
        expected += [(day, "old", -1, None)] if day == DAYS[9] else new
    assert found == [*expected, ("2026-01-31", "old", -1, None)]  # a day without a run stays as it was
    planned = run(str(Path(sys.executable).parent / "airflow"), *shlex.split(command[0])[1:], "--dry-run")
    assert [day for day in DAYS if day not in planned] == []
