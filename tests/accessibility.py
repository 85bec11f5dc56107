"""axe-core, which finds what keeps people from using a page: installed by hash into the cache, run in a browser."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from storeside.stack.settings import default_folder

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOCK = Path(__file__).with_name("axe.lock")
# WCAG 2.2 up to level AA, and axe's best practices.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@cache
def script() -> str:
    """Return axe-core, which is no part of the environment: only the browser tests need it."""
    folder = default_folder() / "cache" / "axe"
    stamp = folder / LOCK.name
    if not stamp.exists() or stamp.read_bytes() != LOCK.read_bytes():
        own = default_folder() / "uv" / "bin" / "uv"
        command = [
            own if own.exists() else "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            sys.executable,
            "--no-deps",
        ]
        subprocess.run([*command, "--target", folder, "--require-hashes", "-r", LOCK], check=True)
        stamp.write_bytes(LOCK.read_bytes())
    return (folder / "axe_playwright_python" / "axe.min.js").read_text()


def figure(count: int) -> str:
    """Return the line that scripts read: how much was found on all pages."""
    return f"BENCH pages.axe_violations {count} findings"


def phone_figure(pixels: int) -> str:
    """Return the line that scripts read: how far one has to scroll through a page of objects on a phone."""
    return f"BENCH pages.phone_pixels_of_objects {pixels} px"


def height(page: Page) -> int:
    """Return the height of the whole open page in pixels."""
    return int(page.evaluate("document.documentElement.scrollHeight"))


def findings(page: Page) -> list[str]:
    """Return what axe finds on the page that is open: rule, element, explanation."""
    page.evaluate(script())
    found = page.evaluate(
        "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}, resultTypes: ['violations']})", RULES
    )
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
