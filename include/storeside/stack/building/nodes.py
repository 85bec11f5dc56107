"""Builds AIStore's node and AuthN from their published module, with the changes of `aistore_patches`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from storeside.stack.building import backends as aistore_backends
from storeside.stack.building.go import Go, built_once
from storeside.stack.building.patch import CLIENT_GO, MODULE
from storeside.stack.building.patches import PATCHES

VERSION = "v1.5.0"
TAGS = "aws etl mono"
AUTHN = "authn"

_UNUSED = shutil.ignore_patterns("docs", "fern", "python", ".git*")


def build(cache: Path, tell: Callable[[str], object] = lambda text: None) -> Path:
    """Return the path of `aisnode` below `cache`; `AUTHN` is in the same folder.

    Calls `tell` and builds both binaries if they are absent. The node has the backends that the environment chooses,
    see `aistore_backends`. Raises StackError for an unknown backend, or if the build fails.
    """
    tags = _tags(aistore_backends.chosen(os.environ))
    return built_once(path(cache), f"AIStore {VERSION}", tell, partial(_build, tags))


def path(cache: Path) -> Path:
    """Return the path of `aisnode`, which may not exist yet. Raises StackError for an unknown backend."""
    tags = _tags(aistore_backends.chosen(os.environ))
    return cache / f"aisnode-{VERSION}-{_patch_set(tags)}" / "aisnode"


def _tags(backends: Sequence[str]) -> str:
    """Return the tags of the build: those of every build, then the chosen backends."""
    return " ".join([TAGS, *backends])


def _patch_set(tags: str = TAGS) -> str:
    return hashlib.sha256(repr((MODULE, VERSION, tags, PATCHES)).encode()).hexdigest()[:10]


def _build(node_tags: str, go: Go, work: Path) -> Path:
    empty = work / "empty"
    empty.mkdir()
    module = go.download(MODULE, VERSION, empty)
    source = work / "aistore"
    _copy(Path(module["Dir"]), source)
    requirements = json.loads(go.run("reading go.mod", "mod", "edit", "-json", module["GoMod"], directory=empty))
    go.require(requirements["Go"], source, f"AIStore {VERSION}")
    client_go = next(entry["Version"] for entry in requirements["Require"] if entry["Path"] == CLIENT_GO)
    _copy(Path(go.download(CLIENT_GO, client_go, empty)["Dir"]), work / "client-go")
    for patch in PATCHES:
        patch.apply(source if patch.module == MODULE else work / "client-go")
    go.run("go mod edit", "mod", "edit", f"-replace={CLIENT_GO}=../client-go", directory=source)
    released = json.loads(Path(module["Info"]).read_text())["Time"].replace("Z", "+0000")
    made = work / "made"
    for name, tags in (("aisnode", node_tags), (AUTHN, "mono")):
        go.run(
            f"compiling {name} of AIStore {VERSION}",
            "build",
            "-trimpath",
            f"-tags={tags}",
            f"-ldflags=-w -s -X main.build={VERSION} -X main.buildtime={released}",
            f"-o={made / name}",
            f"./cmd/{name}",
            directory=source,
        )
    return made


def _copy(module: Path, to: Path) -> None:
    """Copy a tree of the read-only module cache to a folder where it can be changed and deleted."""
    shutil.copytree(module, to, ignore=_UNUSED, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(to):
        os.chmod(folder, 0o755)  # noqa: S103
