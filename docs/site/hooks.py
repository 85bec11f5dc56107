"""Adds the pages of the checkout's top folder to the site, and links that work in it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# Pages of the top folder, and their names in the site.
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Folders whose files have no page in the site; links to them become plain text.
_ELSEWHERE = ("tests/", "include/", "dags/", "operators/")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the top folder."""
    for name, page in TOP.items():
        files.append(File.generated(config, page, content=site_links((ROOT / name).read_text(), "")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change the links of a page in `docs` to pages of the top folder."""
    folder = page.file.src_uri.rpartition("/")[0]
    return markdown if page.file.generated_by else site_links(markdown, f"docs/{folder}".rstrip("/"))


def site_links(text: str, folder: str) -> str:
    """Return the Markdown of a page in `folder` of the checkout with links for the site."""

    def change(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash_, anchor = target.partition("#")
        there = os.path.normpath(f"{folder}/{path}" if folder else path)
        if there in TOP:
            up = "../" * folder.count("/")  # docs/decisions is one folder below the site's root
            return f"{mark}[{label}]({up}{TOP[there]}{hash_}{anchor})"
        if there.startswith(_ELSEWHERE):
            return label
        return f"{mark}[{label}]({target if folder else target.removeprefix('docs/')})"

    return _LINK.sub(change, text)
