"""Transformers for comparison: AIStore's published FFmpeg transformer, and two that only return bytes.

``python -m tests.benchmarks.peers --server fastapi`` serves the published method: the SDK's server, and one `ffmpeg`
process per object (AIStore v3.28, "Boost ETL Performance with Optimized Data Movement", which used this command).
``--server returns`` serves bytes and never puts them directly: AIStore names the destination's target in each request
for a bucket transform, also if the ETL does not support direct put, and the SDK's servers and ours follow it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer

from storeside.transformers.transformer import Source


def ffmpeg(source: str | bytes) -> bytes:
    """Return the WAV that one `ffmpeg` process makes of a file or of its content."""
    rate, channels = os.environ["AR"], os.environ["AC"]
    given = source if isinstance(source, str) else "pipe:0"
    command = ["ffmpeg", "-nostdin", "-loglevel", "error", "-i", given]
    if given == "pipe:0":
        command.remove("-nostdin")
    command += ["-ac", channels, "-ar", rate, "-c:a", "pcm_s16le", "-f", "wav", "pipe:1"]
    content = None if isinstance(source, str) else source
    return subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True).stdout


class FastAPIFFmpeg(FastAPIServer):
    def transform(self, data: bytes, _path: str, _etl_args: str) -> bytes:
        return ffmpeg(data)


def fastapi_app() -> object:
    """Return the application for uvicorn."""
    return FastAPIFFmpeg().app


class Echo:
    """Returns the number of bytes of a transcoded object, to measure the cluster's cost of moving them."""

    mime_type = "application/octet-stream"

    def __init__(self) -> None:
        self.data = os.urandom(int(os.environ["ECHO_BYTES"]))

    def transform(self, _source: Source, _name: str, _arguments: str) -> bytes:
        return self.data


class Returns(BaseHTTPRequestHandler):
    """Answers each request with the number of bytes of a transcoded object."""

    protocol_version = "HTTP/1.1"
    data = b""

    def do_GET(self) -> None:
        """Answer a probe."""
        self.do_PUT()

    def do_PUT(self) -> None:
        """Answer a transform."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()
        self.wfile.write(self.data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", choices=["fastapi", "returns"], default="fastapi")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if options.server == "fastapi":
        import uvicorn

        uvicorn.run(
            "tests.benchmarks.peers:fastapi_app", factory=True, host=options.host, port=options.port,
            workers=int(os.environ.get("NUM_WORKERS", "2")), access_log=False, log_level="warning",
        )  # fmt: skip
    else:
        Returns.data = os.urandom(int(os.environ["ECHO_BYTES"]))
        ThreadingHTTPServer((options.host, options.port), Returns).serve_forever()


if __name__ == "__main__":
    main()
