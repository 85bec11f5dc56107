"""Runs the pod runner, and so the transformers, in a separate container without AIStore's secrets.

``python -m storeside.stack.containers.transformers`` waits until the container of AIStore
(`storeside.stack.containers.aistore`) has written the pod runner's files to the volume that both mount at
``$STORESIDE_HOME``, and serves until the container is stopped.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from storeside.stack.containers.files import CERTIFICATES
from storeside.stack.podrunner.__main__ import serve
from storeside.stack.podrunner.component import with_trust
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.podrunner.settings import Settings, parse_images
from storeside.stack.settings import default_folder

_AGAIN_SECONDS = 0.5


def main() -> None:
    """Wait for the files, then serve until the process is stopped."""
    settings = _wait_for(default_folder() / "state" / "podrunner" / "config.json")
    # The file may be from the image before an update, so the images come from the code.
    images = with_trust(IMAGES, CERTIFICATES / "ca.pem")
    serve(replace(settings, images=parse_images(images)))


def _wait_for(config: Path) -> Settings:
    print(f"waiting for AIStore's container to write {config}", file=sys.stderr, flush=True)
    while True:
        try:
            return Settings.load(config)
        except (OSError, ValueError):  # absent, not open to this user's group, or incomplete
            time.sleep(_AGAIN_SECONDS)


if __name__ == "__main__":
    main()
