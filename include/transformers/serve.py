"""The ETL server that runs beside each AIStore target: audio transcoding and probing.

``python -m include.transformers.serve --transform audio_transcode`` listens where AIStore expects it; the
parameters of a transform are environment variables, because bucket transforms carry no arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from typing import Any

import uvicorn
from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer

from .audio import probe, transcode
from .formats import AudioFormat

# Objects of up to this size travel in one WebSocket message (AIStore's own limit, ext/etl/websocket_comm.go).
MAX_MESSAGE = 16 << 30


class AudioTranscoder(FastAPIServer):  # type: ignore[misc]
    """Transcodes each object to the format that the ``AUDIO_*`` variables name."""

    def __init__(self) -> None:
        super().__init__()
        self.target = AudioFormat.from_environment()

    def transform(self, data: str | bytes, _path: str, _etl_args: str) -> bytes:
        """Return the object transcoded; AudioError becomes AIStore's error for this object."""
        return transcode(data, self.target)

    def get_mime_type(self) -> str:
        """Return the MIME type for inline GETs."""
        return self.target.mime_type


class AudioProbe(FastAPIServer):  # type: ignore[misc]
    """Turns each audio object into one JSON line of facts about it."""

    def transform(self, data: str | bytes, _path: str, _etl_args: str) -> bytes:
        """Return the facts of `probe` as one JSON line."""
        return json.dumps(dataclasses.asdict(probe(data))).encode() + b"\n"

    def get_mime_type(self) -> str:
        """Return the MIME type for inline GETs."""
        return "application/x-ndjson"


TRANSFORMS: dict[str, type[FastAPIServer]] = {"audio_transcode": AudioTranscoder, "audio_probe": AudioProbe}


def application() -> Any:
    """Build the ASGI application of the transform named in ``STORESIDE_TRANSFORM``."""
    return TRANSFORMS[os.environ["STORESIDE_TRANSFORM"]]().app


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transform", choices=sorted(TRANSFORMS), required=True)
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - a pod's own network
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=int(os.environ.get("NUM_WORKERS", "1")))
    arguments = parser.parse_args()
    os.environ["STORESIDE_TRANSFORM"] = arguments.transform
    uvicorn.run(
        "include.transformers.serve:application",
        factory=True,
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        log_level="info",
        access_log=False,
        ws_max_size=MAX_MESSAGE,
        ws_ping_interval=None,
    )


if __name__ == "__main__":
    main()
