"""The pages in a browser: accessibility, phones, Airflow's own frame around them, its time zone, and filters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from storeside.ledger.objects import Ledger
from tests import accessibility
from tests.e2e.conftest import FINDINGS
from tests.e2e.test_pages import DAG, DESK, PHONE, Site, browser, site, tab  # noqa: F401 (fixtures)
from tests.support import unique, until

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_axe_finds_nothing_on_any_page(site: Site, tab: Page, request: pytest.FixtureRequest) -> None:  # noqa: F811
    found: list[str] = []
    for size, scheme in ((DESK, "light"), (DESK, "dark"), (PHONE, "light")):
        tab.set_viewport_size(size)  # type: ignore[arg-type]
        tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for address in site.pages:
            tab.goto(address)
            found += [
                f"{urlsplit(address).path} {scheme} {size['width']}: {one}" for one in accessibility.findings(tab)
            ]
    request.config.stash[FINDINGS] = len(found)
    assert not found, "\n".join(found)


def test_a_phone_shows_rows_as_cards_with_readable_names_and_axes(site: Site, tab: Page) -> None:  # noqa: F811
    tab.set_viewport_size(PHONE)  # type: ignore[arg-type]
    for path in ("overview", "movement", "objects", "tables", "etls", "storage"):
        tab.goto(site.url(path))
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    tab.goto(site.url("movement"))
    cell = tab.locator("table.cards tbody td").first
    assert cell.get_attribute("data-label") == "When"
    assert cell.bounding_box()["width"] > 250  # type: ignore[index]
    for axis in tab.locator(".scale, .ends").all():
        assert float(axis.evaluate("e => getComputedStyle(e).fontSize.replace('px', '')")) >= 11
    tab.goto(site.url("run", dag=DAG, run=site.run))
    assert tab.locator(".path-list").is_visible()
    assert tab.locator("svg.path").is_hidden()


def test_a_phone_has_one_short_entry_for_each_object(site: Site, tab: Page) -> None:  # noqa: F811
    bucket, folder = unique("entries"), "recordings/of/a/day/" * 3
    rows = [
        [source, destination, f"{folder}{n:03}.flac", f"{folder}{n:03}.flac", "done", "", "pages/entries"]
        for source, destination in (
            (f"ais://{bucket}", f"ais://{bucket}-copy"),
            (f"s3://{bucket}", f"ais://{bucket}"),
        )
        for n in range(25)
    ]
    columns = ["source", "destination", "object", "destination_object", "status", "reason", "run_id"]
    site.clickhouse.insert("storeside.objects", rows, column_names=columns)
    loads = [["db.t", f"{bucket}-loaded", f"{folder}{n:03}.csv", "v", "loaded", "pages/entries"] for n in range(60)]
    columns = ["destination", "bucket", "key", "version", "state", "run_id"]
    site.clickhouse.insert("storeside.loads", loads, column_names=columns)
    tab.set_viewport_size(PHONE)  # type: ignore[arg-type]
    tab.goto(site.url("objects", bucket=bucket))
    assert tab.get_by_role("list", name="Objects").get_by_role("listitem").count() == 25 + 50
    assert tab.locator("table").first.is_hidden()
    pixels = accessibility.height(tab)
    print(accessibility.phone_figure(pixels))
    assert pixels <= 6000
    tab.set_viewport_size(DESK)  # type: ignore[arg-type]
    assert tab.get_by_role("list", name="Objects").is_hidden()


def test_a_list_is_downloaded_from_the_frame_of_airflow(site: Site, tab: Page) -> None:  # noqa: F811
    tab.goto(f"{site.airflow}/plugin/storeside")
    frame = tab.frame_locator("iframe")
    frame.get_by_role("link", name="Objects", exact=True).click()
    frame.get_by_role("heading", name="Objects", level=1).wait_for()  # Overview downloads, too
    with tab.expect_download() as waited:
        frame.get_by_role("link", name="CSV").first.click()
    assert waited.value.suggested_filename in ("storeside-objects.csv", "storeside-loads.csv")
    assert waited.value.path().read_text().startswith("object,")
    frame.get_by_role("heading", name="Objects", level=1).wait_for()


def test_airflows_home_links_to_the_overview(site: Site, tab: Page) -> None:  # noqa: F811
    tab.goto(site.airflow)
    tab.get_by_role("link", name="Storeside: the state of the pipelines").click()
    tab.frame_locator("iframe").get_by_role("heading", name="Overview").wait_for()


def test_the_picture_of_two_places_keeps_its_size(site: Site, tab: Page) -> None:  # noqa: F811
    tab.goto(site.url("run", dag=DAG, run=site.run))
    box = tab.locator("svg.path").bounding_box()
    assert box is not None
    assert box["width"] == pytest.approx(428, abs=2)


def test_a_run_keeps_its_failures_when_a_later_run_succeeds(site: Site, tab: Page) -> None:  # noqa: F811
    name = unique("kept")
    source, destination = f"s3://{name}", f"ais://{name}"
    ledger = Ledger(site.clickhouse)
    columns = ["source", "destination", "object", "destination_object", "status", "reason", "run_id"]
    for run, status, reason in (("first", "failed", "no audio stream"), ("second", "done", "")):
        row = [source, destination, "a.flac", "a.wav", status, reason, f"pages/{run}-{name}"]
        site.clickhouse.insert("storeside.objects", [row], column_names=columns)
        ledger.record_run(
            {
                "run_id": f"pages/{run}-{name}",
                "dag_id": "pages",
                "task_id": "copy",
                "kind": "copy",
                "source": source,
                "destination": destination,
                "state": "done" if status == "done" else "partial",
                status: 1,
                "seconds": 1.0,
            }
        )
        time.sleep(0.01)  # the times of runs in the ledger are in milliseconds
    tab.goto(site.url("run", dag="pages", run=f"first-{name}"))
    row_of = tab.get_by_role("region", name="Objects").get_by_role("row", name="a.flac")
    assert "no audio stream" in row_of.inner_text()
    tab.get_by_role("link", name=f"second-{name}").click()
    tab.get_by_role("region", name="Objects").get_by_role("row", name="a.flac").get_by_text("done").wait_for()


def test_airflow_has_one_entry_for_the_pages(site: Site, tab: Page) -> None:  # noqa: F811
    tab.goto(f"{site.airflow}/plugin/storeside")
    frame = tab.frame_locator("iframe")
    frame.get_by_role("heading", name="Overview").wait_for()
    frame.locator("nav").wait_for()
    tab.get_by_role("button", name="Browse").click()
    entry = tab.get_by_role("menuitem", name="Storeside")
    entry.wait_for()
    icon = entry.locator("img")
    until(lambda: icon.evaluate("i => i.complete && i.naturalWidth > 0"), 20, "icon")
    assert tab.get_by_role("button", name="Plugins").count() == 0


def test_the_tab_of_a_run_has_no_tabs_of_its_own(site: Site, tab: Page) -> None:  # noqa: F811
    tab.goto(f"{site.airflow}/dags/{DAG}/runs/{site.run}/plugin/storeside-run")
    frame = tab.frame_locator("iframe")
    frame.get_by_role("heading", name=DAG).wait_for()
    frame.locator("nav").wait_for(state="hidden")
    frame.get_by_role("link", name="in/good.csv").click()
    back = frame.get_by_role("link", name="Back to the run")
    back.wait_for()
    frame.locator("nav").wait_for(state="hidden")
    back.click()
    frame.get_by_role("heading", name=DAG).wait_for()


def test_times_are_in_the_time_zone_of_airflow(site: Site, tab: Page) -> None:  # noqa: F811
    shown = {}
    for zone in ("UTC", "Asia/Kolkata"):
        tab.goto(site.url("movement"))
        tab.evaluate("zone => localStorage.setItem('timezone', JSON.stringify(zone))", zone)
        tab.reload()
        shown[zone] = tab.locator("tbody time").first.inner_text()
        at = float(str(tab.locator("tbody time").first.get_attribute("data-at")))
    assert shown["UTC"] == time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    assert shown["Asia/Kolkata"] == time.strftime("%Y-%m-%d %H:%M:%S GMT+5:30", time.gmtime(at + 5.5 * 3600))


def test_filter_order_and_page_are_in_the_address(site: Site, tab: Page) -> None:  # noqa: F811
    dag = unique("filtered")
    rows: list[list[Any]] = [
        [f"{dag}/{n:02}", dag, "copy", "copy", "s3://a", "ais://b", "done", n] for n in range(60)
    ]
    columns = ["run_id", "dag_id", "task_id", "kind", "source", "destination", "state", "done"]
    site.clickhouse.insert("storeside.runs", rows, column_names=columns)
    tab.goto(site.url("movement"))
    assert tab.locator(f"datalist option[value='{dag}']").count() == 1
    tab.get_by_label("DAG contains").fill(dag[3:])
    tab.get_by_role("button", name="Filter").click()
    tab.get_by_text("60 tasks: 1,770 objects done, none failed").wait_for()

    def done() -> list[str]:
        return tab.locator("td[data-label='Done']").all_inner_texts()

    tab.get_by_role("link", name="Done").click()
    tab.wait_for_url("**sort=done**")
    assert done()[:2] == ["59", "58"]
    tab.get_by_role("link", name="Next page").click()
    tab.wait_for_url("**after=**")
    assert done() == [str(n) for n in range(9, -1, -1)]
    query = parse_qs(urlsplit(tab.url).query)
    assert (query["dag"], query["sort"]) == ([dag[3:]], ["done"])
    tab.get_by_role("link", name="Previous page").click()
    tab.wait_for_url("**back=**")
    assert (done()[0], len(done())) == ("59", 50)
    assert tab.get_by_role("link", name="Previous page").count() == 0


def test_a_page_that_waits_shows_that_it_loads(site: Site, tab: Page) -> None:  # noqa: F811
    tab.goto(site.url("overview"))
    assert tab.locator("html[data-loading]").count() == 0
    tab.evaluate("window.addEventListener('click', event => event.preventDefault())")  # it never arrives
    tab.get_by_role("link", name="Objects", exact=True).click()
    assert tab.locator("html[data-loading]").count() == 1
    tab.evaluate("window.dispatchEvent(new Event('pageshow'))")
    assert tab.locator("html[data-loading]").count() == 0
