"""The pictures of the pages in docs/images, from a running stack with data: ``python -m tests.pictures``.

It opens each page in Airflow's own page, light and dark, and alone on a phone, and writes PNG files with few colours.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import requests
from PIL import Image

from storeside.stack import demo
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import CHECKOUT, Stack, default_folder
from tests import accessibility

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "docs" / "images", help="where the pictures go")
    parser.add_argument("--page", action="append", help="only these, such as overview")
    options = parser.parse_args()
    stack = Stack.load(default_folder())
    if stack is None:
        raise SystemExit("there is no stack: start it with 'make up', and run its DAGs")
    found = phone_pixels = 0
    addresses = {name: path for name, path in pages(stack).items() if not options.page or name in options.page}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for look in ("", "-dark", "-phone"):
            tab = opened(browser, stack, look)
            for name, path in addresses.items():
                found += picture(tab, stack, path, look, options.folder / f"page-{name}{look}.png")
                if (name, look) == ("objects", "-phone"):
                    phone_pixels = accessibility.height(tab)
            tab.context.close()
        browser.close()
    print(accessibility.figure(found), flush=True)
    if phone_pixels:
        print(accessibility.phone_figure(phone_pixels), flush=True)


def pages(stack: Stack) -> dict[str, str]:
    """Return the addresses of the pages, with a run and an object that have something to show."""
    api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
    client = demo.clickhouse_client(stack)

    def newest(statement: str) -> list[Any]:
        rows = client.query(statement).result_rows
        return list(rows[0]) if rows else []

    found = {
        name: name
        for name in ("overview", "movement", "objects", "tables", "queues", "quality", "corpus", "etls", "storage")
    }
    found["benchmarks"] = "benchmarks"
    ran = (
        "SELECT run_id FROM storeside.runs FINAL WHERE dag_id = 'speech_pipeline'"
        " ORDER BY done > 0 DESC, recorded_at LIMIT 1"
    )
    if run := newest(ran):
        dag, _, name = run[0].partition("/")
        found["run"] = "run?" + urlencode({"dag": dag, "run": name})
    failed = [run for run in api.runs("ingest") if run["state"] == "failed"]
    if failed:
        found["failed-run"] = "run?" + urlencode({"dag": "ingest", "run": failed[-1]["dag_run_id"]})
    made = (
        "SELECT source, object FROM storeside.objects FINAL WHERE source LIKE 'ais://%' AND status = 'done'"
        " AND effect != '' AND object LIKE '%.flac' ORDER BY bytes_in DESC LIMIT 1"
    )
    if one := newest(made):
        found["object"] = "object?" + urlencode({"bucket": one[0], "object": one[1]})
    if queue := newest("SELECT queue FROM storeside.queue_depths ORDER BY dead DESC, recorded_at DESC LIMIT 1"):
        label = queue[0].rpartition("/")[2]
        found["queues"] = "queues?" + urlencode({"queue": label})
        found["dead-letters"] = "dead-letters?" + urlencode({"queue": label})
    return found


def opened(browser: Browser, stack: Stack, look: str) -> Page:
    """Return a tab of a signed-in administrator."""
    login = {"username": "admin", "password": stack.secrets["airflow_admin"]}
    answer = requests.post(f"{stack.url('airflow')}/auth/token", json=login, timeout=30)
    context = browser.new_context(
        viewport=PHONE if look == "-phone" else DESK,  # type: ignore[arg-type]
        color_scheme="dark" if look == "-dark" else "light",
        timezone_id="UTC",
    )
    context.add_cookies([{"name": "_token", "value": answer.json()["access_token"], "url": stack.url("airflow")}])
    context.add_init_script(f"localStorage.setItem('theme', '{'dark' if look == '-dark' else 'light'}')")
    return context.new_page()


def picture(tab: Page, stack: Stack, path: str, look: str, file: Path) -> int:
    """Take a picture of a page, and return how much the accessibility checker finds on it."""
    address = f"{stack.url('airflow')}/storeside/{path}"
    tab.goto(address)
    tab.locator("main").wait_for()  # the first request loads the pages
    settle(tab)
    found = accessibility.findings(tab)
    print("\n".join([f"{file.name}", *found]), flush=True)
    if look == "-phone":
        if "dead-letters" in path:
            tab.get_by_role("button", name="Read the dead letters").click()
            tab.locator("table").wait_for()
        content = tab.screenshot()
    else:
        tab.goto(f"{stack.url('airflow')}/plugin/storeside")
        frame = tab.locator("iframe")
        frame.wait_for()
        frame.evaluate("(frame, address) => { frame.src = address; }", address)
        tab.wait_for_timeout(500)
        inner = frame.content_frame
        inner.locator("h1").wait_for()
        if "dead-letters" in path:
            inner.get_by_role("button", name="Read the dead letters").click()
            inner.locator("table").wait_for()
        tab.wait_for_timeout(2500)
        content = tab.screenshot()
    image = Image.open(io.BytesIO(content)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(file, optimize=True)
    return len(found)


def settle(tab: Page) -> None:
    """Wait until the page has drawn its waveforms and read its logs."""
    tab.wait_for_load_state("load")
    tab.wait_for_timeout(1500)


if __name__ == "__main__":
    main()
