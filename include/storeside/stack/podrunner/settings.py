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
    """The command that replaces a container image; the runner fills in ``{port}``, ``{host}`` and ``{python}``.

    `allowed` are lines as in `storeside.stack.podrunner.allowed`: the commands that pods of this image may request.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The configuration file of the pod runner.

    :param port: port of its API
    :param namespace: Kubernetes' namespace of the pods
    :param token: token that clients must send
    :param certificate: file of its certificate
    :param key: file of the certificate's key
    :param state: folder of its pods' records and logs
    :param python: Python that replaces ``{python}`` in commands
    :param images: commands of the images, by pattern of their names
    :param allowed: file with commands that the owner allows as well
    :param pod_token: file with AIStore's token for transformers; it does not exist if AIStore requires no tokens
    :param gatherer_token: the same for transformers that make shards of objects
    :param nodes: AIStore's nodes, which the API lists as pods
    :param host: address that it listens on
    """

    port: int
    namespace: str
    token: str = field(repr=False)
    certificate: str
    key: str
    state: Path
    python: str
    images: Mapping[str, Image]
    allowed: Path
    pod_token: Path
    gatherer_token: Path
    nodes: tuple[Mapping[str, Any], ...] = ()
    host: str = "127.0.0.1"

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read the configuration file and its token file."""
        record = json.loads(path.read_text())
        images = parse_images(record.pop("images"))
        token = Path(record.pop("token_file")).read_text().strip()
        for name in ("state", "allowed", "pod_token", "gatherer_token"):
            record[name] = Path(record[name])
        nodes = tuple(record.pop("nodes"))
        return cls(**record, nodes=nodes, images=images, token=token)

    def image(self, name: str) -> Image | None:
        """Return the entry for a container image, independent of its tag or digest; None if there is none."""
        bare = bare_name(name)
        return next((image for pattern, image in self.images.items() if fnmatchcase(bare, pattern)), None)


def parse_images(images: Mapping[str, Mapping[str, Any]]) -> dict[str, Image]:
    """Return the images of a configuration file by pattern."""
    return {
        pattern: Image(
            tuple(image["command"]), image.get("env", {}), image.get("cwd"), tuple(image.get("allowed", ()))
        )
        for pattern, image in images.items()
    }


def bare_name(image: str) -> str:
    """Return the name of a container image without tag, digest and Docker's registry prefix."""
    return re.sub(r"(:[^/@]*)?(@.*)?$", "", image).removeprefix("docker.io/")
