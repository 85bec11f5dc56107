"""The configuration of the pod runner: the command that runs in place of each container image."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Image:
    """A command in place of a container image; ``{port}``, ``{host}`` and ``{python}`` are filled in.

    `allowed` are the lines of `storeside.stack.podrunner.allowed` that pods with this image may ask for.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The configuration file of the pod runner; `allowed` is the file of what the owner allows besides."""

    port: int
    namespace: str
    token: str = field(repr=False)
    certificate: str
    key: str
    state: Path
    python: str
    images: Mapping[str, Image]
    allowed: Path
    nodes: tuple[Mapping[str, Any], ...] = ()
    host: str = "127.0.0.1"

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read the file and the token file that it names."""
        record = json.loads(path.read_text())
        images = {
            pattern: Image(
                tuple(image["command"]), image.get("env", {}), image.get("cwd"), tuple(image.get("allowed", ()))
            )
            for pattern, image in record.pop("images").items()
        }
        token = Path(record.pop("token_file")).read_text().strip()
        state, allowed = (Path(record.pop(name)) for name in ("state", "allowed"))
        nodes = tuple(record.pop("nodes"))
        return cls(**record, nodes=nodes, images=images, token=token, state=state, allowed=allowed)

    def image(self, name: str) -> Image | None:
        """Find the entry for a container image, whatever its tag or digest."""
        bare = bare_name(name)
        return next((image for pattern, image in self.images.items() if fnmatchcase(bare, pattern)), None)


def bare_name(image: str) -> str:
    """Return the name of a container image without tag, digest and Docker's registry."""
    return re.sub(r"(:[^/@]*)?(@.*)?$", "", image).removeprefix("docker.io/")
