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
    """A command in place of a container image; ``{port}``, ``{host}`` and ``{python}`` are filled in."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None


@dataclass(frozen=True)
class Settings:
    """The configuration file of the pod runner."""

    port: int
    namespace: str
    token: str = field(repr=False)
    certificate: str
    key: str
    state: Path
    python: str
    images: Mapping[str, Image]
    nodes: tuple[Mapping[str, Any], ...] = ()
    host: str = "127.0.0.1"

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read the file and the token file that it names."""
        record = json.loads(path.read_text())
        images = {
            pattern: Image(tuple(image["command"]), image.get("env", {}), image.get("cwd"))
            for pattern, image in record.pop("images").items()
        }
        token = Path(record.pop("token_file")).read_text().strip()
        state = Path(record.pop("state"))
        return cls(**record | {"nodes": tuple(record["nodes"])}, images=images, token=token, state=state)

    def image(self, name: str) -> Image | None:
        """Find the entry for a container image, whatever its tag or digest."""
        bare = re.sub(r"(:[^/@]*)?(@.*)?$", "", name).removeprefix("docker.io/")
        return next((image for pattern, image in self.images.items() if fnmatchcase(bare, pattern)), None)
