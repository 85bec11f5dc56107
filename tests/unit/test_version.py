"""The version of the project, which `storeside.__version__` alone decides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import storeside.__main__
from storeside import __version__
from storeside.stack.settings import CHECKOUT

# Pages that name files of a build, or images with their tags.
PLACES = [CHECKOUT / "docker-compose.yaml", *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "docs").rglob("*.yaml")]
_NAMED = re.compile(
    r"storeside/[a-z0-9-]+:(\d[\w.]*\d)|storeside-(\d[\w.]*?)-py3|defaultAirflowTag: (\S+)|TAG=\"(\d[\w.]*)"
)


def test_the_command_states_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert storeside.__main__.main(["--version"]) == 0
    assert capsys.readouterr().out == f"storeside {__version__}\n"


def test_images_and_packages_are_named_by_the_version() -> None:
    found = {
        (path.relative_to(CHECKOUT), next(filter(None, match.groups())))
        for path in PLACES
        for match in _NAMED.finditer(path.read_text())
    }
    assert {Path("docker-compose.yaml"), Path("docs/running.md"), Path("docs/kubernetes.md")} <= {p for p, _ in found}
    assert {(path, version) for path, version in found if version != __version__} == set()


def test_the_changelog_begins_with_the_version_or_with_what_is_unreleased() -> None:
    newest = re.search(r"^## (\S+)", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == ("Unreleased" if ".dev" in __version__ else __version__)
