"""The images that the embedded stack's pod runner knows: the commands that it runs in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storeside.stack.settings import CHECKOUT, SOURCES

# Transformers of the checkout's user, such as my_package.words:count, are found in its root.
_CODE = {"cwd": str(CHECKOUT), "env": {"PYTHONPATH": str(SOURCES)}}
_SERVE = "python -m storeside.transformers.serve --transform {} --host 0.0.0.0 --port 8000"
# The commands that the pod runner runs in place of images, and what pods may ask for: our transforms with their
# parameters. A class (`init_class`) is code of the caller: only the owner's file allows it.
IMAGES: Mapping[str, Mapping[str, Any]] = {
    "storeside/transformer-*": {
        "command": ["{python}", "-m", "storeside.transformers.serve", "--host", "{host}", "--port", "{port}"],
        "allowed": [
            f"AUDIO_*= {_SERVE.format('audio_transcode')}",
            f"AUDIO_*= {_SERVE.format('audio_transcode_probe')}",
            f"AUDIO_*= {_SERVE.format('audio_probe')}",
            f"AUDIO_*= FFMPEG_*= {_SERVE.format('audio_ffmpeg')}",
        ],
        **_CODE,
    },
    # the image that the SDK's `init_class` asks for
    "aistorage/runtime_python": {
        "command": [
            *("{python}", "-m", "uvicorn", "storeside.stack.podrunner.runtime_python:app"),
            *("--host", "{host}", "--port", "{port}", "--no-access-log"),
        ],
        **_CODE,
    },
}
