"""The DAG that transforms a bucket and loads the results into a table, on the whole embedded stack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.airflow_api import AirflowApi
from storeside.stack.settings import CHECKOUT, Stack
from tests.support import allow_in_forms, unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

pytestmark = pytest.mark.timeout(400)

DAG = "transform_to_clickhouse"
TEXTS = {path.name: path.read_bytes() for path in sorted((CHECKOUT / "tests" / "data" / "texts").glob("*.txt"))}


@pytest.fixture(scope="module")
def api(airflow: Stack) -> Iterator[AirflowApi]:
    api = AirflowApi(airflow.url("airflow"), "admin", airflow.secrets["airflow_admin"])
    lists = json.loads(api.get("variables/storeside_forms")["value"])
    until(lambda: any(dag["dag_id"] == DAG for dag in api.get("dags")["dags"]), 90, DAG)
    allow_in_forms(api, **{**lists, "transformers": ["text_facts"]})
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
    yield api
    allow_in_forms(api, **lists)


def run(api: AirflowApi, state: str = "success", **conf: Any) -> dict[str, dict[str, Any]]:
    """Run the DAG; return the results of its tasks."""
    found = api.trigger(DAG, conf)
    assert api.wait(DAG, found, 150)["state"] == state, api.log(DAG, found, "load")
    values = {task: api.xcom(DAG, found, task) for task in ("transform", "load")}
    return {task: dict(json.loads(value) if isinstance(value, str) else value) for task, value in values.items()}


def test_texts_become_rows_of_facts(api: AirflowApi, s3_client: S3Client, clickhouse: Any) -> None:
    source, table = unique("novel"), f"data.{unique('facts').replace('-', '_')}"
    s3_client.create_bucket(Bucket=source)
    for name, content in {**TEXTS, "cover.txt": b"\xff\xd8\xff\xe0"}.items():
        s3_client.put_object(Bucket=source, Key=name, Body=content)
    fields = {"source": f"s3://{source}", "destination": f"ais://{unique('facts')}", "table": table}
    found = run(api, **fields)
    assert (found["transform"]["done"], found["transform"]["failed"]) == (5, 1), found
    assert (found["load"]["loaded"], found["load"]["failed"], found["load"]["rows"]) == (5, 0, 5), found

    def words() -> list[int]:
        return [row[0] for row in clickhouse.query(f"SELECT words FROM {table} ORDER BY object").result_rows]

    assert words() == [1554, 1962, 1534, 1945, 1021]
    again = run(api, **fields)
    assert (again["transform"]["skipped"], again["load"]["loaded"], again["load"]["skipped"]) == (5, 0, 5), again
    s3_client.put_object(Bucket=source, Key="sense-and-sensibility-01.txt", Body=b"Short now.")
    changed = run(api, **fields)
    assert (changed["transform"]["done"], changed["load"]["loaded"], changed["load"]["skipped"]) == (1, 1, 4), changed
    assert words() == [2, 1962, 1534, 1945, 1021], "the rows of the changed text replace the old ones"
