"""The images that the embedded stack's pod runner knows: the commands that it runs in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storeside.stack.settings import CHECKOUT, SOURCES

# The pod runner finds the user's own transformers, such as my_package.words:count, in the root of the checkout.
_CODE = {"cwd": str(CHECKOUT), "env": {"PYTHONPATH": str(SOURCES)}}
_SERVE = "python -m storeside.transformers.serve --transform {} --host 0.0.0.0 --port 8000"
_SDK_SERVE = f"{_SERVE.replace('.serve ', '.sdk_servers ')} --server *"
# The pod runner runs `command` instead of an image. Pods may request only the commands in `allowed`: Storeside's
# transforms with their parameters, and one of them on the SDK's servers, which measurements compare. A class
# (`init_class`) is the caller's code, so only the owner's file allows it.
IMAGES: Mapping[str, Mapping[str, Any]] = {
    "storeside/transformer-*": {
        "command": ["{python}", "-m", "storeside.transformers.serve", "--host", "{host}", "--port", "{port}"],
        "allowed": [
            f"AUDIO_*= SHARD_*= {_SERVE.format('audio_transcode')}",
            f"AUDIO_*= SHARD_*= {_SERVE.format('audio_transcode_probe')}",
            f"AUDIO_*= SHARD_*= {_SERVE.format('audio_probe')}",
            f"AUDIO_*= SHARD_*= FFMPEG_*= {_SERVE.format('audio_ffmpeg')}",
            f"AUDIO_*= {_SERVE.format('audio_utterances')}",
            f"AUDIO_*= {_SERVE.format('audio_segments')}",
            f"SHARD_*= {_SERVE.format('text_facts')}",
            f"SHARD_*= {_SERVE.format('text_json')}",
            f"AUDIO_*= {_SDK_SERVE.format('audio_transcode')}",
        ],
        **_CODE,
    },
    # the image that the SDK's `init_class` requests
    "aistorage/runtime_python": {
        "command": [
            *("{python}", "-m", "uvicorn", "storeside.stack.podrunner.runtime_python:app"),
            *("--host", "{host}", "--port", "{port}", "--no-access-log"),
        ],
        **_CODE,
    },
}
