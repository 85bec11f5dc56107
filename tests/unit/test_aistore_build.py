from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from storeside.stack.building import go, nodes
from storeside.stack.building.backends import VARIABLE, settings
from storeside.stack.building.go import version_of
from storeside.stack.building.patch import Patch
from storeside.stack.building.patches import PATCHES
from storeside.stack.settings import StackError

ORIGINAL = "first\nsecond\n"


def patch(sha256: str = "", old: str = "second", new: str = "third") -> Patch:
    return Patch(
        "example.com/module", "file.go", sha256 or hashlib.sha256(ORIGINAL.encode()).hexdigest(), ((old, new),)
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "file.go").write_text(ORIGINAL)
    return tmp_path


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``go`` that runs the test's script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    go = folder / "go"
    go.write_text("#!/bin/sh\n")
    go.chmod(go.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return go


def test_patch_replaces_exact_text(tree: Path) -> None:
    patch().apply(tree)
    assert (tree / "file.go").read_text() == "first\nthird\n"


def test_patch_refuses_another_content(tree: Path) -> None:
    with pytest.raises(StackError, match="SHA-256") as caught:
        patch(sha256="0" * 64).apply(tree)
    assert "\n" not in str(caught.value)
    assert (tree / "file.go").read_text() == ORIGINAL


def test_patch_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"cannot patch example\.com/module"):
        patch().apply(tmp_path)


@pytest.mark.parametrize("old", ["absent", "s"])
def test_patch_refuses_text_that_is_not_there_exactly_once(tree: Path, old: str) -> None:
    with pytest.raises(StackError, match="exactly once"):
        patch(old=old).apply(tree)


def test_every_patch_names_one_file_and_its_checksum() -> None:
    assert len({(entry.module, entry.file) for entry in PATCHES}) == len(PATCHES)
    assert all(len(entry.sha256) == 64 and entry.replacements for entry in PATCHES)


def test_missing_go_and_uv_are_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("STORESIDE_HOME", str(tmp_path))
    with pytest.raises(StackError, match=r"Go 1\.26 or newer is needed.*https://go\.dev/dl.*make install") as caught:
        nodes.build(tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_an_old_go_is_not_used(tmp_path: Path, fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go.write_text("#!/bin/sh\necho go1.19.8\n")
    monkeypatch.setenv("STORESIDE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{fake_go.parent}:/bin")
    with pytest.raises(StackError, match=r"Go 1\.26 or newer is needed"):
        nodes.build(tmp_path / "cache")


def test_a_module_with_another_checksum_is_not_built(tmp_path: Path, fake_go: Path) -> None:
    fake_go.write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in\n'
        """'mod download') echo '{"Dir": "/", "Sum": "h1:evil=", "GoModSum": "h1:evil="}' ;;\n"""
        "'env GOVERSION') echo go1.26.8 ;;\n"
        "esac\n"
    )
    cache = tmp_path / "cache"
    with pytest.raises(StackError, match=r"aistore v1\.5\.0 has the checksum h1:evil= instead of h1:no092"):
        nodes.build(cache)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_the_caller_cannot_turn_off_the_checks(
    tmp_path: Path, fake_go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    fake_go.write_text(f'#!/bin/sh\n[ "$2" = GOVERSION ] && echo go1.26.8\n[ $1 = mod ] && env > {seen} && exit 1\n')
    unsafe = ("GOFLAGS", "GONOSUMDB", "GONOSUMCHECK", "GOPRIVATE", "GONOPROXY", "GOINSECURE", "GOENV", "GOVCS")
    for name in unsafe:
        monkeypatch.setenv(name, "unsafe")
    monkeypatch.setenv("GOSUMDB", "unsafe")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "unsafe")
    monkeypatch.setenv("GOPROXY", "https://proxy.example")
    with pytest.raises(StackError, match="download"):
        nodes.build(tmp_path / "cache")
    variables = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "=" in line)
    assert "unsafe" not in variables.values()
    assert variables["GOPROXY"] == "https://proxy.example"
    assert variables["GOTOOLCHAIN"] == "local"


def test_every_module_has_checksums() -> None:
    lines = (go._IMAGES / "go.sum").read_text().splitlines()
    known = {line.split()[0] for line in lines}
    tools = {"github.com/fsouza/fake-gcs-server", "github.com/versity/versitygw", "golang.org/x/vuln"}
    assert known == {"github.com/NVIDIA/aistore", "k8s.io/client-go"} | tools
    assert len(lines) == 2 * len(known)
    assert f"github.com/NVIDIA/aistore {nodes.VERSION} h1:" in "\n".join(lines)


def test_failed_download_names_the_log_and_leaves_nothing_behind(tmp_path: Path, fake_go: Path) -> None:
    fake_go.write_text("#!/bin/sh\n[ $1 = env ] && echo go1.26.8 && exit\necho 'no route to the proxy' >&2\nexit 1\n")
    cache = tmp_path / "cache"
    with pytest.raises(StackError, match=r"download of github\.com/NVIDIA/aistore@v1\.5\.0 failed"):
        nodes.build(cache)
    assert "no route to the proxy" in (cache / "aisnode-build.log").read_text()
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_binary_in_the_cache_is_taken_without_go(tmp_path: Path, fake_go: Path) -> None:
    fake_go.write_text("#!/bin/sh\n[ $1 = env ] && echo go1.26.8 && exit\nexit 1\n")
    with pytest.raises(StackError):
        nodes.build(tmp_path)
    binary = tmp_path / f"aisnode-{nodes.VERSION}-{nodes._patch_set()}" / "aisnode"
    binary.parent.mkdir()
    binary.touch()
    assert nodes.build(tmp_path) == binary


def test_backends_are_a_build_of_their_own(tmp_path: Path, fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go.write_text("#!/bin/sh\n[ $1 = env ] && echo go1.26.8 && exit\nexit 1\n")
    binaries = {}
    for backends, tags in (("", "aws etl mono"), ("oci, gcp", "aws etl mono gcp oci"), ("aws", "aws etl mono")):
        folder = tmp_path / f"aisnode-{nodes.VERSION}-{nodes._patch_set(tags)}"
        folder.mkdir(exist_ok=True)
        binaries[backends] = folder / "aisnode"
        binaries[backends].touch()
        monkeypatch.setenv("STORESIDE_AISTORE_BACKENDS", backends)
        assert nodes.build(tmp_path) == binaries[backends]
    assert binaries[""] == binaries["aws"] != binaries["oci, gcp"]
    monkeypatch.setenv("STORESIDE_AISTORE_BACKENDS", "gcs")
    with pytest.raises(StackError, match="unknown backend gcs: choose from gcp, azure, oci"):
        nodes.build(tmp_path)


def test_nodes_get_the_variables_of_their_backends_alone() -> None:
    given = {"AZURE_STORAGE_KEY": "k", "OCI_REGION": "r", "HTTPS_PROXY": "p", "HOME": "/h"}
    assert settings(given) == {}
    assert settings({**given, VARIABLE: "oci"}) == {"OCI_REGION": "r", "HTTPS_PROXY": "p"}
    assert settings({**given, VARIABLE: "azure oci"}).keys() == {"AZURE_STORAGE_KEY", "OCI_REGION", "HTTPS_PROXY"}


def test_versions_compare_as_numbers() -> None:
    assert version_of("go1.9") < version_of("1.26") <= version_of("go1.26.8")
