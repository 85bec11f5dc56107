"""The images of the cluster, made without a registry and without a container engine.

The name of a layer contains a hash of its inputs, so an unchanged layer is made once. Images follow
the Dockerfile: the same base, packages of Debian, locked packages of Python, files and user.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from storeside.aistore.spec import TRANSFORMER_IMAGE
from storeside.stack.building import aisloader
from storeside.stack.building.packages import uv
from storeside.stack.settings import CHECKOUT, StackError
from tests.containers.base_images import PYTHON_ENVIRONMENT, python_root
from tests.kubernetes.programs import aistore
from tests.kubernetes.registry import MANIFEST

Tell = Callable[[str], object]

TAG = "test"
# The names of images below the prefix of a registry.
NODE, INIT, TRANSFORMER, LOADER = (
    f"{name}:{TAG}" for name in ("aisnode", "ais-init", "transformer-tests", "aisloader")
)
# The transformers' name in docs/kubernetes.
DOCUMENTED = TRANSFORMER_IMAGE
PAUSE = "pause:3.10"
_SERVER = "runtime_python"
_SERVES_CLASS = (
    *("python", "-m", "uvicorn", f"storeside.stack.podrunner.{_SERVER}:app"),
    *("--host", "0.0.0.0", "--port", "8000"),  # noqa: S104 - in a container
)
# Files keep their times: Python compares them with those in its bytecode, and compiles again what differs.
_TAR = (
    "tar", "--create", "--numeric-owner", "--sort=name",
    "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*",
)  # fmt: skip
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_LOCKS = CHECKOUT / "include" / "storeside" / "stack" / "images"
_DOCKERFILE = CHECKOUT / "Dockerfile"
_PAUSE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) {
    signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def provide(cache: Path, store: Store) -> None:
    """Make the images of AIStore and its ETLs that `store` has not, with AIStore's programs in `cache`."""
    binaries = aistore(cache, store.tell)
    store.image(PAUSE, [store.layer("pause", [_PAUSE], _pause)], {"Entrypoint": ["/pause"], "User": "65535:65535"})
    for image, binary in ((NODE, "aisnode"), (INIT, "aisinit")):
        path = binaries / binary
        layer = store.layer(binary, [path.read_bytes()], partial(_go, binary=path))
        store.image(image, [layer], {"Entrypoint": [binary], "Env": ["PATH=/usr/bin", "HOME=/root"]})
    base = store.layer("transformer-base", inputs_of("transformer"), lambda root: packages(root, "transformer"))
    code = store.layer("transformer-code", [tree(path) for path in _transformer_files()], _transformer_code)
    for image in (TRANSFORMER, DOCUMENTED):
        store.image(image, [base, code], _transformer_config())
    loader = aisloader.build(cache.parent, store.tell)
    layer = store.layer("aisloader", [loader.read_bytes()], partial(_loader, binary=loader))
    store.image(LOADER, [base, layer], image_config("aisloader"))  # the base has the shell that the pods need
    classes = store.layer("runtime-python-code", [tree(path) for path in _class_files()], _class_code)
    store.image(_class_image(), [base, classes], image_config(*_SERVES_CLASS))


@dataclass(frozen=True)
class Layer:
    """A layer that the store has: its digest and its size."""

    digest: str
    size: int


class Store:
    """Blobs by digest, and a pointer to a manifest by name and tag, below a folder."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.folder = folder
        self.tell = tell
        for name in ("blobs", "layers", "manifests"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def layer(self, name: str, inputs: Sequence[str | bytes], fill: Callable[[Path], Path | None]) -> Layer:
        """Return the layer that `fill` makes in an empty folder (or in the one that it returns) from `inputs`."""
        digest = hashlib.sha256()
        for part in (*_TAR, *inputs):
            digest.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
        pointer = self.folder / "layers" / f"{name}-{digest.hexdigest()[:16]}"
        if pointer.exists() and (blob := self.folder / "blobs" / pointer.read_text()).exists():
            return Layer(blob.name, blob.stat().st_size)
        self.tell(f"making the layer {name}")
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=self.folder) as work:
            root = Path(work) / "root"
            root.mkdir()
            made = self._pack(fill(root) or root, Path(work) / "layer.tar")
        pointer.write_text(made.digest)
        return made

    def _pack(self, root: Path, archive: Path) -> Layer:
        run(*_TAR, "--directory", str(root), "--file", str(archive), ".")
        with archive.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        size = archive.stat().st_size
        archive.replace(self.folder / "blobs" / digest)
        return Layer(digest, size)

    def image(self, name: str, layers: Sequence[Layer], config: Mapping[str, Any]) -> None:
        """Write the manifest of an image."""
        digests = [f"sha256:{layer.digest}" for layer in layers]
        settings = {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": digests},
            "history": [{"created_by": "storeside"} for _ in layers],
        }
        described = self._put(_CONFIG, settings)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described,
            "layers": [
                {"mediaType": _LAYER, "digest": digest, "size": layer.size}
                for digest, layer in zip(digests, layers, strict=True)
            ],
        }
        repository, _, tag = name.partition(":")
        pointer = self.folder / "manifests" / repository / tag
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.write_text(self._put(MANIFEST, manifest)["digest"].removeprefix("sha256:"))

    def _put(self, kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
        content = json.dumps(document).encode()
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _pause(root: Path) -> None:
    source = root / "pause.c"
    source.write_text(_PAUSE)
    run("gcc", "-Os", "-static", "-s", "-o", str(root / "pause"), str(source))
    source.unlink()


def _go(root: Path, binary: Path) -> None:
    for folder in ("usr/bin", "etc/ssl/certs", "root", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(binary, root / "usr" / "bin")
    shutil.copy(_CERTIFICATES, root / _CERTIFICATES.lstrip("/"))
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\n")


def _loader(root: Path, binary: Path) -> None:
    folder = root / "usr" / "local" / "bin"
    folder.mkdir(parents=True)
    shutil.copy(binary, folder)


def _python_tag() -> str:
    found = re.search(r"^ARG PYTHON_IMAGE=python:(\S+)$", _DOCKERFILE.read_text(), re.MULTILINE)
    if not found:
        raise StackError(f"{_DOCKERFILE} names no image of Python")
    return found[1]


def _debian(stage: str) -> list[str]:
    """Return the packages of Debian that a stage of the Dockerfile installs."""
    text = _DOCKERFILE.read_text().replace("\\\n", " ")
    (body,) = re.findall(rf"^FROM \S+ AS {stage}\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    found = re.search(r"apt-get install --yes --no-install-recommends ([^&]+)&&", body)
    return found[1].split() if found else []


_STAGES = {"transformer": "transformer-code", "airflow": "airflow"}


def inputs_of(name: str) -> list[str | bytes]:
    """Return what `packages` installs for an image."""
    return [_python_tag(), " ".join(_debian(_STAGES[name])), (_LOCKS / f"{name}.lock").read_bytes()]


def packages(root: Path, name: str) -> Path:
    """Install what the Dockerfile installs: the base, its user, packages of Debian, and locked packages of Python."""
    root.rmdir()
    python_root(_python_tag(), root.parent)
    environment = {**PYTHON_ENVIRONMENT, "DEBIAN_FRONTEND": "noninteractive", "UV_LINK_MODE": "copy"}

    def inside(*command: str) -> None:
        run("chroot", str(root), "/usr/bin/env", "-i", *(f"{n}={v}" for n, v in environment.items()), *command)

    inside("useradd", "--uid", "50000", "--gid", "0", "--create-home", "--home-dir", "/home/storeside", "storeside")
    if debian := _debian(_STAGES[name]):
        inside("apt-get", "update", "--quiet")
        inside("apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *debian)
    for command in (uv("the images"), str(_LOCKS / f"{name}.lock")):
        shutil.copy(command, root / "tmp")
    inside("/tmp/uv", "venv", "--quiet", "--python", "/usr/local/bin/python3", "/opt/venv")  # noqa: S108 - below root
    inside(
        "/tmp/uv", "pip", "install", "--quiet", "--no-cache", "--compile-bytecode", "--require-hashes",  # noqa: S108
        "--python", "/opt/venv/bin/python", "-r", f"/tmp/{name}.lock",  # noqa: S108
    )  # fmt: skip
    for garbage in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "tmp"):
        shutil.rmtree(root / garbage, ignore_errors=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def _transformer_files() -> list[Path]:
    engine = CHECKOUT / "include" / "storeside"
    return [engine / "__init__.py", engine / "transformers", CHECKOUT / "tests" / "transformers.py"]


def _transformer_code(root: Path) -> None:
    """The files of the image ``transformer``, and the transformers of the tests."""
    copy_files(root, _transformer_files())


def copy_files(root: Path, paths: Sequence[Path]) -> None:
    """Copy files and folders of the checkout to the same places below ``/opt/storeside``."""
    for path in paths:
        target = root / "opt" / "storeside" / path.relative_to(CHECKOUT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__", "*.lock"), symlinks=True)
        else:
            shutil.copy(path, target)


def _class_image() -> str:
    """The name of AIStore's public image for Python classes; the node gets the pod runner's server of classes."""
    return f"aistorage/runtime_python:{'.'.join(_python_tag().split('.')[:2])}"


def _class_files() -> list[Path]:
    engine = CHECKOUT / "include" / "storeside"
    runner = engine / "stack" / "podrunner"
    return [
        engine / "__init__.py",
        engine / "stack" / "__init__.py",
        runner / "__init__.py",
        runner / f"{_SERVER}.py",
    ]


def _class_code(root: Path) -> None:
    copy_files(root, _class_files())


def _transformer_config() -> dict[str, Any]:
    return image_config("python", "-m", "storeside.transformers.serve", "--transform", "audio_transcode")


def image_config(*command: str) -> dict[str, Any]:
    """Return the settings of an image with our package, which runs a command."""
    environment = {**PYTHON_ENVIRONMENT, "PYTHONUNBUFFERED": "1", "PYTHONPATH": "/opt/storeside/include"}
    environment["PATH"] = f"/opt/venv/bin:{environment['PATH']}"
    return {
        "User": "50000:0",
        "WorkingDir": "/opt/storeside",
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "ExposedPorts": {"8000/tcp": {}},
        "Cmd": list(command),
    }


def tree(path: Path) -> bytes:
    """Return a digest of a file, or of all files below a folder, with their names."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        if "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(CHECKOUT)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.digest()


def run(*command: str) -> None:
    """Run a command. Raises StackError with its last output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"{' '.join(command[:12])}: {done.stdout[-500:]}{done.stderr[-1000:]}")
