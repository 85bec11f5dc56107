"""The programs of the cluster, built from published Go modules, whose sources are in the folders next to this."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from storeside.stack.building.go import Go, built_once
from storeside.stack.building.nodes import VERSION as AISTORE
from storeside.stack.building.patch import MODULE

KUBERNETES = "1.34.4"
SOURCES = Path(__file__).parent
_VERSION = "k8s.io/component-base/version"
_FLAGS = {
    "kube": f"-s -w -X {_VERSION}.gitVersion=v{KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=34"
    f" -X {_VERSION}.gitTreeState=clean -X {_VERSION}.buildDate=2026-01-01T00:00:00Z",
    "coredns": "-s -w",
}
# What AIStore's image for ETLs is built with.
_AISTORE_TAGS = "aws etl"
_AISTORE_PROGRAMS = ("aisnode", "aisinit")

Tell = Callable[[str], object]


def program(name: str, cache: Path, tell: Tell) -> Path:
    """Return the binary of ``kube`` or ``coredns``; build it below `cache` first if its sources have changed."""
    parts = [(SOURCES / name / file).read_bytes() for file in ("go.mod", "go.sum", "main.go")]
    folder = cache / f"{name}-{_digest(*parts, _FLAGS[name].encode())}"

    def make(go: Go, work: Path) -> Path:
        source, made = work / "source", work / "made"
        shutil.copytree(SOURCES / name, source)
        go.run(
            f"compiling {name}", "build", "-trimpath", f"-ldflags={_FLAGS[name]}", f"-o={made / name}", ".",
            directory=source,
        )  # fmt: skip
        return made

    return built_once(folder / name, name, tell, make)


def aistore(cache: Path, tell: Tell) -> Path:
    """Return the folder with AIStore's node and its ``aisinit``, built without any change of ours."""
    folder = cache / f"aistore-{_digest(MODULE.encode(), AISTORE.encode(), _AISTORE_TAGS.encode())}"

    def make(go: Go, work: Path) -> Path:
        made, empty = work / "made", work / "empty"
        empty.mkdir()
        module = go.download(MODULE, AISTORE, empty)
        released = json.loads(Path(module["Info"]).read_text())["Time"].replace("Z", "+0000")
        for name in _AISTORE_PROGRAMS:
            go.run(
                f"compiling {name} of AIStore {AISTORE}", "build", "-trimpath", f"-tags={_AISTORE_TAGS}",
                f"-ldflags=-w -s -X main.build={AISTORE} -X main.buildtime={released}", f"-o={made / name}",
                f"./cmd/{name}", directory=Path(module["Dir"]),
            )  # fmt: skip
        return made

    return built_once(folder / _AISTORE_PROGRAMS[0], f"AIStore {AISTORE}", tell, make).parent


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:10]
