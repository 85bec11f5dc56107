"""Iceberg's own implementation, as a writer and a reader of tables beside pyiceberg."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import maven

VERSION = "1.11.0"
_SDK, _HADOOP = "2.33.0", "3.4.1"
_PACKAGES = (
    *(f"org.apache.iceberg:iceberg-{part}:{VERSION}" for part in ("core", "parquet", "orc", "data", "aws")),
    *(f"software.amazon.awssdk:{part}:{_SDK}" for part in ("s3", "sts", "kms", "url-connection-client")),
    *(f"org.apache.hadoop:hadoop-client-{part}:{_HADOOP}" for part in ("api", "runtime")),
    "org.xerial:sqlite-jdbc:3.50.3.0", "org.slf4j:slf4j-nop:2.0.17",
)  # fmt: skip
_PROGRAM = Path(__file__).parent / "java" / "IcebergTables.java"


class JavaIceberg:
    """The running program; `do` sends it a command, see its source."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def do(self, command: str, table: str = "", **given: Any) -> dict[str, Any]:
        """Return the answer to a command. Raises RuntimeError if it failed."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"do": command, "table": table, **given}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or '{"error": "it has ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


@contextmanager
def run(cache: Path, name: str, properties: Mapping[str, str], log: Path) -> Iterator[JavaIceberg]:
    """Run the program with a SQL catalogue, `name` with these properties."""
    jars = maven.download(cache, f"iceberg-{VERSION}", _PACKAGES)
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{jars}/*", str(_PROGRAM)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        running = JavaIceberg(process)
        try:
            running.do("open", name=name, properties=properties)
            yield running
        finally:
            process.terminate()
