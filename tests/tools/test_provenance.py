from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT
from tests import pin_images, sbom, wheels
from tests.audit_go import identifiers

DIGEST = f"sha256:{'ab' * 32}"


def test_every_pulled_image_can_be_pinned_and_renewed() -> None:
    for path in pin_images.FILES:
        text = path.read_text()
        found = pin_images.images(text)
        assert found, f"{path.name} pulls no image"
        pinned = pin_images.pinned(text, lambda _: DIGEST)
        assert pin_images.images(pinned) == dict.fromkeys(found, DIGEST)
        again = pin_images.pinned(pinned, lambda _: f"sha256:{'cd' * 32}")
        assert DIGEST not in again
        assert len(again) == len(pinned)
    compose = pin_images.images((CHECKOUT / "docker-compose.yaml").read_text())
    assert {name.partition(":")[0] for name in compose} == {"postgres", "clickhouse/clickhouse-server"}


def test_every_image_has_a_digest_or_is_listed_as_open() -> None:
    found = pin_images.named()
    assert {*pin_images.images((CHECKOUT / "Dockerfile").read_text())} < {*found}
    assert {tag for tag, digest in found.items() if not digest} == pin_images.OPEN
    page = (CHECKOUT / "docs" / "security.md").read_text().partition("## Open risks")[2]
    assert [tag for tag in sorted(pin_images.OPEN) if f"`{tag}`" not in page] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM a:1\n", {"a:1": ""}),
        (
            f"ARG X=b:2@{DIGEST}\nFROM --platform=linux/amd64 ${{X}} AS one\nFROM one\nFROM c\n",
            {"b:2": DIGEST, "c": ""},
        ),
        ("ARG ELSEWHERE\nFROM ${ELSEWHERE}\n", {}),
    ],
)
def test_images_of_a_dockerfile_are_found(text: str, expected: dict[str, str]) -> None:
    assert dict(pin_images._of_dockerfile(text)) == expected


def test_images_of_resources_are_found() -> None:
    document = {
        "spec": {"nodeImage": "x/node:5", "containers": [{"image": f"y:1@{DIGEST}"}, {"image": "by-kustomize"}]},
        "images": [{"name": "z", "newName": "q/z", "newTag": "v1"}, {"newName": "p", "digest": DIGEST}],
    }
    wanted = {"x/node:5": "", "y:1": DIGEST, "q/z:v1": "", "p:latest": DIGEST}
    assert dict(pin_images._of_document(document)) == wanted


@pytest.mark.parametrize("answer", ["echo not a digest", "echo no such image >&2; exit 1"])
def test_no_file_changes_when_a_digest_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{answer}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    file = tmp_path / "Dockerfile"
    file.write_text("ARG PYTHON_IMAGE=python:3.11\n")
    assert pin_images.main([file]) == 1
    assert file.read_text() == "ARG PYTHON_IMAGE=python:3.11\n"
    assert "no image was pinned: python:3.11" in capsys.readouterr().err


def test_every_image_of_the_dockerfile_has_a_bill() -> None:
    stages = [line.split()[-1] for line in (CHECKOUT / "Dockerfile").read_text().splitlines() if line[:5] == "FROM "]
    assert set(sbom.LOCKS) <= set(stages)
    assert all(path.exists() for locks in sbom.LOCKS.values() for path in locks)


def test_go_modules_are_components() -> None:
    listing = "x: go1.26.8\n\tmod\ta.b/c\tv1.5.0\t\n\tdep\tk8s.io/api\tv0.35.3\th1:x=\n\tbuild\t-a=b\n"
    found = [(module["name"], module["version"]) for module in sbom.modules(listing)]
    assert found == [("a.b/c", "v1.5.0"), ("k8s.io/api", "v0.35.3")]


def test_a_package_of_two_locks_is_listed_once() -> None:
    one = {"components": [{"purl": "pkg:pypi/a@1", "bom-ref": "x"}], "specVersion": "1.6", "serialNumber": "1"}
    more = [{"purl": "pkg:golang/b@v1", "bom-ref": "b"}]
    found = sbom.merged([one, one], more, "aistore")
    assert [c["purl"] for c in found["components"]] == ["pkg:pypi/a@1", "pkg:golang/b@v1"]
    assert found["metadata"]["component"]["name"] == "storeside/aistore"


def test_reports_of_govulncheck_are_read() -> None:
    text = "=== Symbol Results ===\n\nVulnerability #1: GO-2026-1234\n    More\nVulnerability #2: GO-2026-0099\n"
    assert identifiers(text) == ("GO-2026-0099", "GO-2026-1234")
    assert identifiers("No vulnerabilities found.\n") == ()


def test_libraries_inside_wheels_are_listed_with_their_versions() -> None:
    installed = {re.sub(r"[-_.]+", "-", one.name).lower(): one.version for one in metadata.distributions()}
    packages = {name: installed[name] for name in ("av", "cryptography", "numpy", "pillow")}
    found = {(item["bom-ref"].partition("#")[0], item["name"]): item for item in wheels.libraries(packages)}
    av = f"av@{packages['av']}"
    assert re.fullmatch(r"[\d.]+", found[av, "libavcodec"]["version"]), "from the name of the shared library"
    assert found[f"cryptography@{packages['cryptography']}", "openssl"]["purl"].startswith("pkg:generic/openssl@")
    assert {wheel.partition("@")[0] for wheel, _ in found} == set(packages)
    assert wheels.libraries({"av": "0.0.1"}) == [], "another version than the image's"
    one = {"components": [{"bom-ref": "av", "purl": av}]}
    assert len(sbom.merged([one], wheels.libraries({"av": packages["av"]}), "transformer")["components"]) > 10
