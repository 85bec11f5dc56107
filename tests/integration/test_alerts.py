"""Alerts on the real stack: a fault causes one message, and Airflow runs the DAG of docs/alerts.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.settings import CHECKOUT, Stack
from tests.alert_faults import FAULTS, UNREMEMBERED, Watched, receivers
from tests.receivers import Receiver, html_of
from tests.support import airflow_in

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

Servers = tuple[Receiver, Receiver]


@pytest.fixture(scope="module")
def servers(stack: Stack) -> Iterator[Servers]:
    """The webhook and the mail server that receive the alerts."""
    with receivers(stack) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_sent_once(
    fault: Callable[[Watched], str], servers: Servers, stack: Stack, clickhouse: Any, s3_client: S3Client,
    sqs_client: SQSClient,
) -> None:  # fmt: skip
    watched = Watched(stack, clickhouse, s3_client, sqs_client, *servers)
    sent = fault(watched)
    assert [text for text in FAULTS[fault] if text not in sent] == [], sent
    assert not any(secret in sent for secret in stack.secrets.values())
    if fault not in UNREMEMBERED:
        assert watched.alert() == "[]"


def test_airflow_runs_the_example(
    servers: Servers, stack: Stack, clickhouse: Any, s3_client: S3Client, tmp_path: Path
) -> None:
    """The run fails, although its last task succeeds; and a callback of the task tells, too."""
    page = (CHECKOUT / "docs" / "alerts.md").read_text()
    code = re.search(r"```python run\n(.*?)```", page, re.DOTALL)
    assert code
    start = "if __name__ == '__main__':\n    print('STATE', dag.test().state)\n"
    (tmp_path / "rides.py").write_text(f"{code[1]}\n{start}")
    s3_client.create_bucket(Bucket="rides")
    s3_client.put_object(Bucket="rides", Key="2026/a.csv", Body=b"n\n1\n")
    s3_client.put_object(Bucket="rides", Key="2026/b<b>.parquet", Body=b"PAR1")
    clickhouse.command("DROP TABLE IF EXISTS data.rides")
    variables = airflow_in(tmp_path, stack)
    hook, mails = servers
    for receiver in servers:
        receiver.taken()  # messages of other tests
    done = subprocess.run(
        [sys.executable, "rides.py"], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    assert "STATE failed" in done.stdout, done.stdout[-5000:] + done.stderr[-5000:]
    assert len(mails.messages) == 2, done.stdout + done.stderr
    (called, mail), (body,) = mails.taken(), hook.taken()
    assert called["Subject"].startswith("rides: task load failed: 1 of 2 objects failed, such as")
    assert mail["Subject"] == "rides: task load failed, and 1 other problem"
    assert "<code>2026/b&lt;b&gt;.parquet</code>" in html_of(mail)
    assert [problem["what"] for problem in body["problems"]] == ["task load failed", "1 of 2 objects failed"]
    assert f"{variables['AIRFLOW__API__BASE_URL'].rstrip('/')}/storeside/run?dag=rides&run=" in body["link"]
