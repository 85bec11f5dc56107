"""Peers for loads from S3: Airbyte's source-s3, dlt and sling, each in a separate environment.

The benchmark measures only their reading, which limits the speed of a load: it counts and discards Airbyte's records,
dlt (Arrow path) writes local Parquet files, sling a local CSV file. Airbyte's discovery of the schema is not
included.

The peers download files and send telemetry when they run. Each therefore runs in a separate user and network
namespace (`unshare`) that has only a loopback interface, together with its own versitygw over the same folder. This
needs no root if the kernel lets users create namespaces. Otherwise the peers run in the host's network with their
telemetry turned off, and the table states that.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from storeside.stack.settings import CHECKOUT, default_folder
from tests.benchmarks import versitygw
from tests.benchmarks.versitygw import REGION, Gateway

PACKAGES: Mapping[str, Sequence[str]] = {
    "airbyte": ("airbyte-source-s3==4.14.2",),
    "dlt": ("dlt[filesystem,parquet,s3]==1.31.0", "pandas<3"),
    "sling": ("sling-linux-amd64==1.4.11",),
}
PYTHON = "3.11"
NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")
QUIET = {
    "RUNTIME__DLTHUB_TELEMETRY": "false",
    "SLING_DISABLE_TELEMETRY": "TRUE",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "*",
}
SECONDS = 1800
DLT = """\
import json, os, sys
import dlt
from dlt.common.configuration.specs import AwsCredentials
from dlt.sources.filesystem import filesystem, read_csv, read_jsonl, read_parquet

given = json.load(open(sys.argv[1]))
credentials = AwsCredentials(
    aws_access_key_id=given["access"], aws_secret_access_key=given["secret"],
    endpoint_url=given["endpoint"], region_name=given["region"],
)
folder, name = given["key"].rsplit("/", 1)
files = filesystem(bucket_url=f"s3://{given['bucket']}/{folder}", credentials=credentials, file_glob=name)
readers = {
    "parquet": lambda: read_parquet(chunksize=100_000, use_pyarrow=True), "csv": read_csv, "jsonl": read_jsonl,
}
destination = dlt.destinations.filesystem(bucket_url="file://" + given["work"] + "/out")
pipeline = dlt.pipeline("taxi", destination=destination, dataset_name="d")
resource = (files | readers[given["form"]]()).with_name("taxi")
pipeline.run(resource, loader_file_format="parquet", write_disposition="append")
print(pipeline.last_trace.last_normalize_info.row_counts["taxi"])
"""


@dataclass(frozen=True)
class Run:
    """One measurement; `start_seconds` passed before `seconds` began and are not in it."""

    seconds: float
    cpu_seconds: float
    rows: int
    peak_mb: float
    start_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    @property
    def rate_with_start(self) -> float:
        """Rows per second, the start of the process included."""
        return self.rows / (self.seconds + self.start_seconds)


def isolated() -> bool:
    """Return whether peers can be cut off from the network here."""
    if not shutil.which(NAMESPACE[0]):
        return False
    return subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


def install(name: str, cache: Path) -> Path:
    """Return the environment of a peer below `cache`, made there with uv when it is absent."""
    home = cache / "peers" / name
    done = home / ".installed"
    if not done.exists() or done.read_text() != repr(PACKAGES[name]):
        print(f"installing {', '.join(PACKAGES[name])}, once", file=sys.stderr, flush=True)
        own = default_folder() / "uv" / "bin" / "uv"
        uv = str(own) if own.exists() else shutil.which("uv")
        if uv is None:
            sys.exit("error: uv is needed to install the peers: make install")
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([uv, "venv", "--quiet", "--python", PYTHON, str(home)], check=True)
        pip = [uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python")]
        subprocess.run([*pip, *PACKAGES[name]], check=True)
        done.write_text(repr(PACKAGES[name]))
    return home


def run(name: str, environment: Path, gateway: Gateway, bucket: str, key: str, form: str) -> Run:
    """Let a peer read one object of the gateway's folder, without network; raises RuntimeError when it fails."""
    inside = [sys.executable, "-m", "tests.benchmarks.transfer_peers"]
    given = {
        "name": name,
        "environment": str(environment),
        "binary": str(gateway.binary),
        "folder": str(gateway.folder),
        "bucket": bucket,
        "key": key,
        "form": form,
    }
    command = [*(NAMESPACE if isolated() else ()), *inside]
    done = subprocess.run(
        command, input=json.dumps(given), text=True, capture_output=True,
        cwd=CHECKOUT, env=os.environ | QUIET, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} could not read {bucket}/{key}: {done.stderr[-2000:]}")
    return Run(**json.loads(done.stdout))


def _loopback_up() -> None:
    """Bring up the loopback interface of a new network namespace."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, get_flags, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", answer)[1]
        if not flags & up:
            fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def _inside() -> None:
    given = json.load(sys.stdin)
    _loopback_up()
    with (
        tempfile.TemporaryDirectory(prefix="peer-", dir=given["environment"]) as work,
        versitygw.serve(Path(given["binary"]), Path(given["folder"])) as gateway,
    ):
        job = Job(
            environment=Path(given["environment"]),
            work=Path(work),
            gateway=gateway,
            bucket=given["bucket"],
            key=given["key"],
            form=given["form"],
        )
        print(json.dumps(asdict(PEERS[given["name"]](job))))


@dataclass(frozen=True)
class Job:
    """The objects that a peer reads, and its folder."""

    environment: Path
    work: Path
    gateway: Gateway
    bucket: str
    key: str
    form: str

    def write(self, name: str, content: Any) -> Path:
        """Write a file for the peer, readable by its owner alone."""
        path = self.work / name
        path.touch(mode=0o600)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def measure(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        counts: Callable[[bytes], int] = int,
    ) -> Run:
        """Run a command to its end; `counts` gives the rows that a line of its output stands for."""
        home = {"HOME": str(self.work), "TMPDIR": str(self.work)}
        log = self.work / "log"
        with log.open("wb") as errors:
            began = time.monotonic()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd=self.work,
                env=os.environ | home | dict(environment or {}), start_new_session=True,
            )  # fmt: skip
            watch = threading.Timer(SECONDS, os.killpg, (process.pid, signal.SIGKILL))
            watch.start()
            try:
                assert process.stdout
                rows = sum(map(counts, process.stdout))
                # With the descendants that it waited for; the peak is that of the largest one.
                _, status, usage = os.wait4(process.pid, 0)
            finally:
                watch.cancel()
            seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {log.read_text()[-2000:]}")
        return Run(seconds, usage.ru_utime + usage.ru_stime, rows, usage.ru_maxrss / 1024)


def _airbyte(job: Job) -> Run:
    program = str(job.environment / "bin" / "source-s3")
    keys = job.gateway.keys
    form: dict[str, Any] = {"filetype": job.form}
    if job.form == "parquet":
        form["decimal_as_float"] = False
    stream = {
        "name": "taxi",
        "globs": [job.key],
        "format": form,
        "validation_policy": "Emit Record",
        "schemaless": False,
        "days_to_sync_if_history_is_full": 3,
    }
    config = job.write(
        "config.json",
        {
            "bucket": job.bucket,
            "aws_access_key_id": keys.access,
            "aws_secret_access_key": keys.secret,
            "endpoint": job.gateway.endpoint,
            "region_name": REGION,
            "streams": [stream],
            "delivery_method": {"delivery_type": "use_records_transfer"},
        },
    )
    environment = os.environ | {"HOME": str(job.work)}
    found = subprocess.run(
        [program, "discover", "--config", str(config)],
        check=True, capture_output=True, text=True, cwd=job.work, env=environment,
    )  # fmt: skip
    messages = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    (discovered,) = next(message["catalog"]["streams"] for message in messages if message["type"] == "CATALOG")
    chosen = {"stream": discovered, "sync_mode": "full_refresh", "destination_sync_mode": "overwrite"}
    catalog = job.write("catalog.json", {"streams": [chosen]})
    command = [program, "read", "--config", str(config), "--catalog", str(catalog)]
    return job.measure(command, counts=lambda line: b'"type":"RECORD"' in line[:40])


def _dlt(job: Job) -> Run:
    script = job.write("read.py", DLT)
    keys = job.gateway.keys
    given = {
        "access": keys.access,
        "secret": keys.secret,
        "endpoint": job.gateway.endpoint,
        "region": REGION,
        "bucket": job.bucket,
        "key": job.key,
        "form": job.form,
        "work": str(job.work),
    }
    arguments = job.write("given.json", given)
    command = [str(job.environment / "bin" / "python"), str(script), str(arguments)]
    return job.measure(command, {"DLT_DATA_DIR": str(job.work / "dlt")})


def _sling(job: Job) -> Run:
    (program,) = job.environment.glob("lib/python*/site-packages/sling_linux_amd64/bin/sling-linux-amd64")
    keys = job.gateway.keys
    connection = {
        "type": "s3",
        "bucket": job.bucket,
        "access_key_id": keys.access,
        "secret_access_key": keys.secret,
        "endpoint": job.gateway.endpoint,
        "region": REGION,
    }
    out = job.work / "out.csv"
    command = [str(program), "run", "--src-conn", "BENCH", "--src-stream", f"s3://{job.bucket}/{job.key}"]
    command += ["--tgt-object", f"file://{out}"]
    done = job.measure(command, {"BENCH": json.dumps(connection)}, counts=lambda line: 0)
    with out.open("rb") as file:
        rows = sum(1 for _ in file) - 1
    return replace(done, rows=rows)


PEERS: Mapping[str, Callable[[Job], Run]] = {"airbyte": _airbyte, "dlt": _dlt, "sling": _sling}


if __name__ == "__main__":
    _inside()
