"""The S3 server of the transfer benchmarks: versitygw, which serves a folder at the speed of the disk.

Each folder below its root is a bucket, and each file in it an object, so the benchmark creates objects by writing
files. versitygw stores an object's ETag in an extended attribute, which `publish` sets.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storeside.stack.building.go import Go, built_once
from storeside.stack.settings import HOST, StackError, free_ports
from storeside.stack.supervision.probes import answers
from storeside.stack.supervision.processes import listener

MODULE = "github.com/versity/versitygw"
VERSION = "v1.8.0"
REGION = "us-east-1"
START_SECONDS = 30
ETAG = "user.etag"
HEALTH = "/healthz"


@dataclass(frozen=True)
class Keys:
    """The keys of a server's only user."""

    access: str
    secret: str = field(repr=False)

    @classmethod
    def create(cls) -> Keys:
        return cls(secrets.token_hex(8), secrets.token_hex(16))


@dataclass(frozen=True)
class Gateway:
    """A running server: where it listens, and the folder whose folders are its buckets."""

    endpoint: str
    keys: Keys
    folder: Path
    binary: Path

    def client(self) -> object:
        """Return a boto3 client."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.keys.access,
            aws_secret_access_key=self.keys.secret,
            region_name=REGION,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )


def build(cache: Path) -> Path:
    """Return the server's binary below `cache`, building it there first when it is absent (some minutes)."""
    binary = cache / f"versitygw-{VERSION}" / "versitygw"
    return built_once(binary, f"versitygw {VERSION}", lambda text: print(text, flush=True), _build)


def _build(go: Go, work: Path) -> Path:
    made = work / "made"
    source = Path(go.download(MODULE, VERSION, work)["Dir"])
    arguments = ("-trimpath", "-ldflags=-w -s", f"-o={made / 'versitygw'}", "./cmd/versitygw")
    go.run(f"compiling versitygw {VERSION}", "build", *arguments, directory=source)
    return made


def publish(path: Path) -> None:
    """Give a file the ETag that it would have had it been put as an object."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    os.setxattr(path, ETAG, f'"{digest.hexdigest()}"'.encode())


@contextmanager
def serve(binary: Path, folder: Path, keys: Keys | None = None) -> Iterator[Gateway]:
    """Serve the folders below `folder` as buckets, on a free port of the loopback address."""
    keys = keys or Keys.create()
    (port,) = free_ports(1)
    environment = os.environ | {"ROOT_ACCESS_KEY": keys.access, "ROOT_SECRET_KEY": keys.secret}
    options = ["--port", f"{HOST}:{port}", "--region", REGION, "--health", HEALTH]
    # Keep connections open like S3; by default versitygw closes a connection after one response.
    command = [str(binary), *options, "--keep-alive", "--quiet", "posix", str(folder)]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"http://{HOST}:{port}{HEALTH}"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise StackError(f"versitygw did not start: port {port} is that of {listener(port) or 'nobody'}")
            time.sleep(0.05)
        yield Gateway(f"http://{HOST}:{port}", keys, folder, binary)
    finally:
        process.terminate()
        process.wait(10)
