"""``make pin-images``: name the base images of Dockerfile and compose file by digest, as their tags are now.

A tag can be moved to another image; a digest cannot. It needs Docker with buildx, and the images' registry. Exit
status 1: a digest cannot be had, and no file was changed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from storeside.stack.settings import CHECKOUT

FILES = (CHECKOUT / "Dockerfile", CHECKOUT / "docker-compose.yaml")
# Images that the committed files name without a digest. docs/security.md states the risk; `make pin-images` and, for
# Kubernetes, the owner of the cluster add digests. A test finds images that are neither here nor have a digest.
OPEN = frozenset(
    {
        "clickhouse/clickhouse-server:26.9",
        "docker.io/aistorage/ais-init:v5.0",
        "docker.io/aistorage/aisnode:v5.0-etl",
        "golang:1.26.8",
        "postgres:17.6-bookworm",
        "python:3.11.14-slim-bookworm",
    }
)
# Images that are built from this repository, in a user's registry or in none.
_BUILT = re.compile(r"(registry\.example\.com/)?storeside/")
# ``ARG NAME_IMAGE=repository:tag@digest`` and ``image: repository:tag@digest``; ours are built, not pulled.
_IMAGE = re.compile(
    r"^(?P<before>ARG \w+_IMAGE=|\s+image: )(?P<tag>(?!storeside/)[\w./-]+:[\w.-]+)(?P<digest>@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def images(text: str) -> dict[str, str]:
    """Return the images that a file pulls, by name and tag, with their digests or empty texts."""
    return {match["tag"]: (match["digest"] or "")[1:] for match in _IMAGE.finditer(text)}


def named() -> dict[str, str]:
    """Return all images that committed files pull, by name and tag, with their digests or empty texts."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    found: dict[str, str] = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = CHECKOUT / name
        if path.name == "Dockerfile":
            found |= dict(_of_dockerfile(path.read_text()))
        elif path.suffix in (".yaml", ".yml"):
            for document in yaml.load_all(path.read_text(), _Loader):
                found |= dict(_of_document(document))
    return {tag: digest for tag, digest in found.items() if not _BUILT.match(tag)}


class _Loader(yaml.SafeLoader):
    """Reads YAML whose tags belong to another program, such as those of MkDocs, as if it had no tags."""


_Loader.add_multi_constructor("", lambda loader, suffix, node: None)


def _of_dockerfile(text: str) -> Iterator[tuple[str, str]]:
    """Yield the images of ``FROM`` with their digests, with the defaults of arguments; stages are none."""
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    stages = set()
    for image, stage in re.findall(r"^FROM (?:--\S+ )*(\S+)(?: AS (\S+))?$", text, re.MULTILINE | re.IGNORECASE):
        whole = re.sub(r"\$\{?(\w+)\}?", lambda match: defaults.get(match[1], ""), image)
        if whole and whole not in stages:
            yield _divided(whole)
        stages.add(stage)


def _of_document(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the images that a document of Compose or Kubernetes names, with their digests."""
    if isinstance(value, list):
        for item in value:
            yield from _of_document(item)
    if not isinstance(value, dict):
        return
    if name := value.get("newName"):  # of Kustomize
        yield f"{name}:{value.get('newTag', 'latest')}", value.get("digest", "")
    for key, item in value.items():
        if isinstance(item, str) and key.lower().endswith("image") and re.search("[:/]", item):
            yield _divided(item)
        else:
            yield from _of_document(item)


def _divided(image: str) -> tuple[str, str]:
    tag, _, digest = image.partition("@")
    return tag, digest


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
