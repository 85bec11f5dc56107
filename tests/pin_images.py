"""``make pin-images``: name the base images of Dockerfile and compose file by digest, as their tags are now.

A tag can be moved to another image; a digest cannot. It needs Docker with buildx, and the images' registry. Exit
status 1: a digest cannot be had, and no file was changed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from storeside.stack.settings import CHECKOUT

FILES = (CHECKOUT / "Dockerfile", CHECKOUT / "docker-compose.yaml")
# ``ARG NAME_IMAGE=repository:tag@digest`` and ``image: repository:tag@digest``; ours are built, not pulled.
_IMAGE = re.compile(
    r"^(?P<before>ARG \w+_IMAGE=|\s+image: )(?P<tag>(?!storeside/)[\w./-]+:[\w.-]+)(?P<digest>@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def images(text: str) -> dict[str, str]:
    """Return the images that a file pulls, by name and tag, with their digests or empty texts."""
    return {match["tag"]: (match["digest"] or "")[1:] for match in _IMAGE.finditer(text)}


def pinned(text: str, digest: Callable[[str], str]) -> str:
    """Return the file's text with the digest of every image."""
    return _IMAGE.sub(lambda match: f"{match['before']}{match['tag']}@{digest(match['tag'])}", text)


def ask(image: str) -> str:
    """Return the digest of an image in its registry. Raises ValueError when there is none."""
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as e:
        raise ValueError(f"docker cannot be run: {e.strerror}") from e
    if not _DIGEST.fullmatch(done.stdout.strip()):
        raise ValueError(f"{image}: {' '.join(done.stderr.split())[-300:] or 'the registry tells no digest'}")
    return done.stdout.strip()


def main(files: Iterable[Path] = FILES) -> int:
    """Pin the images of all files, or change none; return the exit status."""
    texts = {path: path.read_text() for path in files}
    try:
        found = {tag: ask(tag) for text in texts.values() for tag in images(text)}
    except ValueError as e:
        print(f"error: no image was pinned: {e}", file=sys.stderr)
        return 1
    for path, text in texts.items():
        path.write_text(pinned(text, found.__getitem__))
    for tag, digest in found.items():
        print(f"{tag}@{digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
