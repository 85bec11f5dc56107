"""Builds AIStore's node binary from its published module, with three small changes.

AIStore runs ETLs only in Kubernetes mode, and that mode assumes a pod: a service account mounted at a fixed
place below /var/run, and a network beyond loopback. Two changes let environment variables say otherwise;
without the variables the binary behaves as the stock one. The third ends an ETL whose pod can no longer be
watched: the stock watcher keeps a core busy for ever once its stream has ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from include.stack.go import Go, built_once
from include.stack.settings import StackError

MODULE = "github.com/NVIDIA/aistore"
VERSION = "v1.5.0"
CLIENT_GO = "k8s.io/client-go"
TAGS = "aws etl mono"
SERVICE_ACCOUNT_VARIABLE = "STORESIDE_SERVICEACCOUNT"
LOOPBACK_VARIABLE = "STORESIDE_LOOPBACK"

_UNUSED = shutil.ignore_patterns("docs", "fern", "python", ".git*")


@dataclass(frozen=True)
class Patch:
    """Exact replacements in one file of a module, valid for one content of it only."""

    module: str
    file: str
    sha256: str
    replacements: tuple[tuple[str, str], ...]

    def apply(self, tree: Path) -> None:
        """Change the file below `tree`; StackError when it is not the file the change was written for."""
        path = tree / self.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StackError(f"cannot patch {self.module}: {error}") from error
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise StackError(
                f"{self.module}/{self.file} has SHA-256 {found} instead of {self.sha256}: not built; "
                "clear the Go module cache ('go clean -modcache') and try again"
            )
        text = content.decode()
        for old, new in self.replacements:
            if text.count(old) != 1:
                raise StackError(f"{self.module}/{self.file} does not hold the text to be replaced exactly once")
            text = text.replace(old, new)
        path.write_text(text)


PATCHES = (
    Patch(
        module=CLIENT_GO,
        file="rest/config.go",
        sha256="eec2bc86377a181b1e0da51dcbe77a33402344b16d9c48e989e870e5e21b576b",
        replacements=(
            (
                "\tconst (\n"
                '\t\ttokenFile  = "/var/run/secrets/kubernetes.io/serviceaccount/token"\n'
                '\t\trootCAFile = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"\n'
                "\t)\n",
                f'\tserviceAccount := os.Getenv("{SERVICE_ACCOUNT_VARIABLE}")\n'
                '\tif serviceAccount == "" {\n'
                '\t\tserviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"\n'
                "\t}\n"
                '\ttokenFile, rootCAFile := serviceAccount+"/token", serviceAccount+"/ca.crt"\n',
            ),
        ),
    ),
    Patch(
        module=MODULE,
        file="ais/utils.go",
        sha256="51761cfec1cfa1a7d769da020791ecc54838ace6085184e4e7c10f0204efd798",
        replacements=tuple(
            (
                f"{rule}\n\t\t\t\tif k8s.IsK8s() {{\n",
                f'{rule}\n\t\t\t\tif k8s.IsK8s() && os.Getenv("{LOOPBACK_VARIABLE}") != "1" {{\n',
            )
            for rule in ("// K8s: always exclude loopback", "// K8s: always exclude 127.0.0.1 loopback")
        ),
    ),
    Patch(
        module=MODULE,
        file="ais/htrun.go",
        sha256="1227ab08fdf901643b77f961fb89119cf8a73ae6691fd5d62ca71325b71b91ce",
        replacements=(
            (
                "\tif h.pubAddrAny(config) {\n",
                '\tif h.pubAddrAny(config) && h.si.PubNet.Hostname != "127.0.0.1" {\n',
            ),
        ),
    ),
    Patch(
        module=MODULE,
        file="ext/etl/pod_watcher.go",
        sha256="e6070d25ddedbabbbabe433409a31282241d3dc24dda093bc421bec9fad60091",
        replacements=(
            (
                "\t\tcase event := <-pw.watcher.ResultChan():\n",
                "\t\tcase event, open := <-pw.watcher.ResultChan():\n"
                "\t\t\tif !open {\n"
                "\t\t\t\tpw.podCtxCancel()\n"
                "\t\t\t\tselect {\n"
                "\t\t\t\tcase <-pw.stopCh.Listen():\n"
                "\t\t\t\tdefault:\n"
                "\t\t\t\t\terrCtx := &cmn.ETLErrCtx{PodName: pw.podName, PodStatus: pw.GetPodStatus()}\n"
                '\t\t\t\t\tpw.xetl.Abort(cmn.NewErrETL(errCtx, "the watch of the pod has ended"))\n'
                "\t\t\t\t}\n"
                "\t\t\t\treturn\n"
                "\t\t\t}\n",
            ),
        ),
    ),
)


def build(cache: Path, tell: Callable[[str], object] = lambda text: None) -> Path:
    """Return the node binary below `cache`, building it there first when it is absent; `tell` hears of that."""
    binary = cache / f"aisnode-{VERSION}-{_patch_set()}" / "aisnode"
    return built_once(binary, f"AIStore {VERSION}", tell, _build)


def _patch_set() -> str:
    return hashlib.sha256(repr((MODULE, VERSION, TAGS, PATCHES)).encode()).hexdigest()[:10]


def _build(go: Go, work: Path) -> Path:
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
    new = work / "aisnode"
    go.run(
        f"compiling AIStore {VERSION}",
        "build",
        "-trimpath",
        f"-tags={TAGS}",
        f"-ldflags=-w -s -X main.build={VERSION} -X main.buildtime={released}",
        f"-o={new}",
        "./cmd/aisnode",
        directory=source,
    )
    return new


def _copy(module: Path, to: Path) -> None:
    """Copy a tree of the module cache, which is read-only, to where it can be changed and deleted."""
    shutil.copytree(module, to, ignore=_UNUSED, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(to):
        os.chmod(folder, 0o755)  # noqa: S103
