"""ElasticMQ, an SQS server besides the stack's: tests on both do not depend on one server's behaviour.

Maven downloads its jars once; they stay in the cache of the benchmarks. Tests skip if Java or Maven is absent.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from storeside.stack.servers import s3
from storeside.stack.settings import HOST, StackError, free_ports
from tests import maven

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

VERSION = "1.7.1"
START_SECONDS = 60
_SETTINGS = """include classpath("application.conf")
node-address {{ protocol = http, host = "{host}", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "{host}", sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


def download(cache: Path) -> Path:
    """Return the folder of the server's jars below `cache`; Maven downloads them first if it is absent."""
    return maven.download(cache, f"elasticmq-{VERSION}", [f"org.elasticmq:elasticmq-server_2.13:{VERSION}"])


@contextmanager
def serve(jars: Path, folder: Path) -> Iterator[SQSClient]:
    """Run the server on a free port of the loopback address; yield a boto3 client of it."""
    (port,) = free_ports(1)
    settings, log = folder / "elasticmq.conf", folder / "elasticmq.log"
    settings.write_text(_SETTINGS.format(host=HOST, port=port))
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", f"-Dconfig.file={settings}", "-cp", f"{jars}/*"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "org.elasticmq.server.Main"], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "=== ElasticMQ server" not in (text := log.read_text(errors="replace")) or "started" not in text:
            if process.poll() is not None or time.monotonic() > deadline:
                raise StackError(f"ElasticMQ did not start: {text[-500:]}")
            time.sleep(0.1)  # between two looks
        yield s3.client("sqs", f"http://{HOST}:{port}", "x", "y")
    finally:
        process.terminate()
        process.wait(10)
