"""S3 events start runs that load their objects, on the whole embedded stack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from tests.support import administrator, configure, process, switch_on, unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient


DAG = "s3_events_to_clickhouse"
QUEUE = f"{s3.TABLES}-events"
TABLE = "data.trips"


class Arrivals:
    """The DAG with its bucket, queue and table."""

    def __init__(self, stack: Stack, s3_client: S3Client, sqs: SQSClient, clickhouse: Any) -> None:
        self.stack, self.s3, self.sqs, self.clickhouse = stack, s3_client, sqs, clickhouse
        self.api = administrator(stack)
        self.url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]

    def put(self, prefix: str, count: int) -> None:
        for n in range(count):
            self.s3.put_object(Bucket=s3.TABLES, Key=f"{prefix}/{n:03}.csv", Body=f"word,n\n{prefix},{n}\n".encode())

    def rows(self, prefix: str) -> tuple[int, int]:
        """Return the number of rows and of distinct rows."""
        if not int(self.clickhouse.query(f"EXISTS {TABLE}").first_row[0]):
            return 0, 0
        found = self.clickhouse.query(
            f"SELECT count(), uniqExact(n) FROM {TABLE} WHERE word = {{prefix:String}}", parameters={"prefix": prefix}
        )
        return tuple(found.first_row)

    def messages(self) -> int:
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=list(names))["Attributes"]
        return sum(int(found[name]) for name in names)

    def started(self) -> list[dict[str, Any]]:
        return [run for run in self.api.runs(DAG) if run["run_type"] == "asset_triggered"]


@pytest.fixture(scope="module")
def arrivals(airflow: Stack, s3_client: S3Client, sqs_client: SQSClient, clickhouse: Any) -> Arrivals:
    arrivals = Arrivals(airflow, s3_client, sqs_client, clickhouse)
    configure(arrivals.api, DAG, queue=QUEUE, bucket=s3.TABLES, table=TABLE, schedule="*/15 * * * *")
    switch_on(arrivals.api, DAG)
    return arrivals


@pytest.mark.essential
def test_a_burst_is_one_run_and_every_object_a_row(arrivals: Arrivals) -> None:
    runs: list[dict[str, Any]] = []
    while not runs:  # the periodic run, every quarter of an hour, may be the first
        prefix = unique("burst")
        arrivals.put(prefix, 40)
        until(lambda: arrivals.rows(prefix) == (40, 40), 90, "rows of the burst", interval=0.5)  # noqa: B023
        until(lambda: not arrivals.messages(), 30, "empty queue", interval=0.5)
        runs = arrivals.started()
    assert 1 <= len(runs) <= 2  # the window may end in the middle of the burst
    assert {arrivals.api.wait(DAG, run["dag_run_id"])["state"] for run in runs} == {"success"}
    extras = [event["extra"] for event in arrivals.api.get("assets/events")["asset_events"]]
    told = [extra["payload"] for extra in extras if extra.get("payload", {}).get("queue") == QUEUE]
    assert all(len(json.dumps(extra)) < 16_000 and extra["batch"] for extra in told)
    assert len(told) >= len(runs)


@pytest.mark.chaos
def test_a_killed_triggerer_neither_loses_nor_repeats_events(arrivals: Arrivals) -> None:
    prefix = unique("kill")
    triggerer = process(arrivals.stack, "triggerer")
    arrivals.put(prefix, 30)
    until(lambda: not int(_visible(arrivals)), 60, "leased messages", interval=0.2)
    triggerer.kill()
    until(lambda: arrivals.rows(prefix) == (30, 30), 180, "rows", interval=0.5)
    until(lambda: not arrivals.messages(), 150, "empty queue", interval=0.5)
    assert process(arrivals.stack, "triggerer").pid != triggerer.pid
    assert arrivals.rows(prefix) == (30, 30)


def _visible(arrivals: Arrivals) -> str:
    names = ["ApproximateNumberOfMessages"]
    return arrivals.sqs.get_queue_attributes(QueueUrl=arrivals.url, AttributeNames=names)["Attributes"][names[0]]


@pytest.mark.essential
def test_dead_letters_are_listed_and_sent_back_from_the_form(arrivals: Arrivals) -> None:
    arrivals.api.request("PATCH", "dags/sqs_redrive", json={"is_paused": False})
    key = unique("late") + ".csv"
    arrivals.sqs.send_message(QueueUrl=arrivals.url, MessageBody=json.dumps({"what": key}))

    def redrive(state: str = "success", **conf: Any) -> Any:
        run = arrivals.api.trigger("sqs_redrive", {"queue": QUEUE, **conf})
        assert arrivals.api.wait("sqs_redrive", run)["state"] == state
        if state == "failed":
            return arrivals.api.log("sqs_redrive", run, "redrive")
        value = arrivals.api.xcom("sqs_redrive", run, "redrive")
        return json.loads(value) if isinstance(value, str) else value

    def dead() -> list[Any]:
        url = arrivals.sqs.get_queue_url(QueueName=f"{QUEUE}-dlq")["QueueUrl"]
        return arrivals.sqs.receive_message(QueueUrl=url, VisibilityTimeout=0).get("Messages", [])

    until(dead, 90, "dead letter", interval=0.5)
    listed = redrive()
    assert (listed["dead_letters"], listed["redriven"]) == (1, 0)
    assert "not an S3 event notification" in listed["first"][0]["reason"]
    said = redrive("failed", redrive=True, message_ids=["another"])
    assert "0 of 1 messages were sent back: another not among the dead letters" in said
    assert redrive(redrive=True, message_ids=[listed["first"][0]["message_id"]])["redriven"] == 1
