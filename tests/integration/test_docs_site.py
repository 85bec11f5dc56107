"""``make docs-site`` builds every page, with search, and refuses a broken link."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT, default_folder


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [str(word) for word in command], cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=250,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site() -> Path:
    # the environment of the tests is installed: make must not check whether it is current
    done = run("make", "-o", ".venv/.installed", "docs-site", f"STORESIDE_HOME={default_folder()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1]).parent


def test_every_page_is_there_and_is_found(site: Path) -> None:
    pages = {path.relative_to(CHECKOUT / "docs") for path in (CHECKOUT / "docs").rglob("*.md")}
    assert all((site / page.with_suffix(".html")).exists() or page.name == "README.md" for page in pages)
    for page in ("index.html", "contributing.html", "changelog.html", "decisions/index.html"):
        assert (site / page).exists()
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert any(entry["location"].startswith("reference.html#aistranscodeaudiooperator") for entry in found)
    assert not list(site.rglob("*.py"))


def test_the_site_asks_no_other_site(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?://", text)


@pytest.mark.parametrize("link", ["[a](no-such-page.md)", "[a](audio.md#no-such-place)", "[a](../NO.md)"])
def test_a_broken_link_fails(site: Path, tmp_path: Path, link: str) -> None:
    shutil.copytree(CHECKOUT / "docs", tmp_path / "docs")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(CHECKOUT / name, tmp_path)
    with (tmp_path / "docs" / "tutorial.md").open("a") as page:
        page.write(f"\n{link}\n")
    done = run(
        site.parent / "venv" / "bin" / "mkdocs", "build", "--config-file", tmp_path / "docs" / "site" / "mkdocs.yml",
        "--site-dir", tmp_path / "html",
    )  # fmt: skip
    assert done.returncode == 1
    assert "tutorial.md" in done.stderr
    assert re.search(r"no-such|NO\.md", done.stderr)
