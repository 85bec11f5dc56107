"""Downloads of lists as CSV: their parts, their limit, hostile names, and errors between parts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from storeside.pages import downloads
from storeside.pages.benchmarks import Bar, Chart
from storeside.pages.tables import At, Page, UnavailableError, write_cursor
from storeside.plugins.pages import downloads as routes
from storeside.plugins.pages import etls, storage
from tests.unit.test_pages import QUEUE, Airflow, Tables, airflow, is_query, pages, tables  # noqa: F401 (fixtures)
from tests.unit.test_pages_overview import Client, cluster  # noqa: F401 (a fixture)


def read(content: bytes | str) -> list[list[str]]:
    text = content.decode() if isinstance(content, bytes) else content
    return list(csv.reader(io.StringIO(text, newline="")))


def listed(count: int, size: int = downloads.PART) -> Any:
    """Return a function that reads pages of `count` numbered rows."""

    def page(at: At) -> Page[int]:
        (first,) = at.cursor(int) or (0,)
        rows = list(range(first, min(first + size, count)))
        return Page(rows, after=write_cursor((first + size,)) if first + size < count else "")

    return page


@pytest.mark.parametrize("count", [0, 1, 1000, 1001, 9_999, 10_000])
def test_a_download_has_all_rows_in_parts(tables: Tables, count: int) -> None:  # noqa: F811
    parts = list(downloads.lines(tables, listed(count), {"n": lambda n: n}))  # type: ignore[arg-type]
    assert len(parts) == max(-(-count // downloads.PART), 1)
    rows = read(b"".join(parts))
    assert rows == [["n"], *([str(n)] for n in range(count))]


def test_a_download_that_is_cut_off_states_it(tables: Tables) -> None:  # noqa: F811
    rows = read(b"".join(downloads.lines(tables, listed(10_001), {"n": lambda n: n})))  # type: ignore[arg-type]
    assert len(rows) == 1 + downloads.MOST + 1
    assert rows[-1] == ["These are the first 10,000 rows. Narrow the filter to see the others."]


def test_a_download_reads_the_next_part_only_when_the_last_was_sent(tables: Tables) -> None:  # noqa: F811
    asked: list[At] = []
    page = listed(5000)

    def counted(at: At) -> Page[int]:
        asked.append(at)
        return page(at)  # type: ignore[no-any-return]

    parts = downloads.lines(tables, counted, {"n": lambda n: n})  # type: ignore[arg-type]
    next(parts)
    assert len(asked) == 1
    next(parts)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "name",
    [
        "=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff201",
        "'quoted", 'a"b,c\nd', "plain", "", "a=1", "\u202egnp.exe",
    ],
)  # fmt: skip
def test_no_name_is_a_formula_and_every_name_can_be_read_again(tables: Tables, name: str) -> None:  # noqa: F811
    content = b"".join(downloads.lines(tables, lambda _: Page([name]), {"name": str, "size": len}))  # type: ignore[arg-type]
    ((shown, size),) = read(content)[1:]
    assert not shown.startswith(tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"))
    assert shown.removeprefix("'") == name
    assert size == str(len(name))


def test_a_number_stays_a_number() -> None:
    assert (downloads.cell(-1.5), downloads.cell("-1.5")) == (-1.5, "'-1.5")


def test_times_are_in_utc_and_unknown_ones_empty() -> None:
    assert (downloads.moment(1.5), downloads.moment(0)) == ("1970-01-01T00:00:01.500+00:00", "")


COPIED = {
    "source": "s3://a", "object": "=1+1", "prepend": "", "destination": "ais://b", "destination_object": "x",
    "status": "done", "reason": "", "bytes_in": 1, "bytes_out": 2, "recorded_ms": 1000, "run_id": "d/r",
}  # fmt: skip
LOADED = {
    "bucket": "b", "bucket_uri": "s3://b", "key": "k", "version": "v", "destination": "db.t", "status": "loaded",
    "reason": "", "rows": 3, "rejected": 0, "bytes": 9, "recorded_ms": 1000, "run_id": "d/r",
}  # fmt: skip
EVENT = {
    "event": "ObjectCreated", "bucket": "b", "key": "k", "size": 1, "state": "loaded", "receives": 1, "reason": "",
    "recorded_ms": 1000, "sent_ms": 0, "run_id": "d/r", "message_id": "m", "record": 0,
}  # fmt: skip
TABLE = {
    "table": "db.t", "dags": ["d"], "objects": 1, "rows_loaded": 3, "objects_failed": 0, "state": "done",
    "loaded_ms": 1000, "recorded_ms": 2000, "rows": None, "bytes": 5,
}  # fmt: skip
VERDICT = {
    "run_id": "d/r", "dag_id": "d", "task_id": "t", "kind": "validate", "source": "s3://a", "destination": "",
    "state": "done", "listed": 4, "done": 4, "failed": 0, "seconds": 1.0, "detail": "{}", "recorded_ms": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "statement", "row", "expected"),
    [
        ("objects", "pages_objects", COPIED, {"object": "'=1+1", "result": "x", "bytes_in": "1"}),
        ("loads", "pages_keys", LOADED, {"object": "k", "bucket": "s3://b", "table": "db.t", "rows": "3"}),
        ("queues?queue=events", "pages_events", EVENT, {"event": "ObjectCreated", "object": "k", "run_id": "d/r"}),
        ("tables", "pages_destinations", TABLE, {"table": "db.t", "rows": "", "bytes": "5", "dags": "d"}),
        ("quality", "pages_verdicts", VERDICT, {"task": "t", "source": "s3://a", "expectations": "0"}),
        ("run?dag=d&run=r&task=copy", "pages_outcomes", {**COPIED, "object": "o"}, {"object": "o", "status": "done"}),
        ("run?dag=d&run=r&task=load", "pages_loaded", {**LOADED, "key": "k2"}, {"object": "k2", "rows": "3"}),
        ("movement", "", {}, {"dag": "d", "run": "r", "task": "copy", "state": "done", "seconds": "1.0"}),
    ],
)  # fmt: skip
def test_each_list_can_be_downloaded(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    statement: str,
    row: dict[str, Any],
    expected: dict[str, str],
) -> None:
    monkeypatch.setattr(routes, "may_read_runs", lambda *_: True)
    tables.run("copy", "done")
    tables.run("load", "done", "load")
    tables.answers[statement] = [row]
    address, _, query = path.partition("?")
    answer = pages.get(f"/{address}.csv?{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith('attachment; filename="storeside-')
    assert answer.headers["cache-control"] == "no-store"
    head, first, *_ = read(answer.text)
    assert expected.items() <= dict(zip(head, first, strict=True)).items()


def test_the_medians_of_all_charts_are_downloaded(
    pages: TestClient,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bars = (Bar("=pull, 4", 12.5, 1.0, 3), Bar("push, 4", 5.0, 0.4, 2))
    chart = Chart("backend_benchmark", "mean", ("backend", "threads"), bars, more=False)
    monkeypatch.setattr("storeside.pages.benchmarks.charts", lambda _: [chart])
    assert read(pages.get("/benchmarks.csv").text) == [
        ["table", "measure", "by", "case", "median", "measurements"],
        ["storeside.backend_benchmark", "mean", "backend, threads", "'=pull, 4", "12.5", "3"],
        ["storeside.backend_benchmark", "mean", "backend, threads", "push, 4", "5.0", "2"],
    ]
    assert '<a href="/storeside/benchmarks.csv?" download' in pages.get("/benchmarks").text


@pytest.mark.parametrize(
    "query", ["status=x", "order=sideways", "sort=x", "after=[1]", "dga=1"],
)  # fmt: skip
def test_a_download_refuses_what_its_page_refuses(pages: TestClient, query: str) -> None:  # noqa: F811
    assert pages.get(f"/objects.csv?{query}").status_code == 400


def test_a_run_that_one_may_not_read_is_not_downloaded(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables.run("copy", "done")
    monkeypatch.setattr(routes, "may_read_runs", lambda *_: False)
    assert pages.get("/run.csv?dag=d&run=r").status_code == 403
    assert pages.get("/queues.csv?queue=other").status_code == 404
    monkeypatch.setattr(routes, "may_read_runs", lambda *_: True)
    assert pages.get("/run.csv?dag=d&run=other").status_code == 404


def test_an_error_before_the_first_row_is_a_page_and_a_later_one_breaks_the_download_off(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answers() -> Iterator[list[dict[str, Any]]]:
        yield [{**COPIED, "object": f"o{n:05}"} for n in range(downloads.PART + 1)]

    later = answers()

    def rows(statement: str, **_: Any) -> list[dict[str, Any]]:
        assert is_query(statement, "pages_objects")
        try:
            return next(later)
        except StopIteration:
            raise UnavailableError("no answer") from None

    monkeypatch.setattr(tables, "rows", rows)
    with (
        pytest.raises(RuntimeError, match="already started"),
        TestClient(pages.app, root_path="/storeside") as client,
    ):
        client.get("/objects.csv")
    answer = pages.get("/objects.csv")
    assert (answer.status_code, "no answer" in answer.text) == (503, True)


def rows_of(pages: TestClient, path: str) -> list[dict[str, str]]:  # noqa: F811
    answer = pages.get(path)
    assert answer.status_code == 200, answer.text
    head, *rows = read(answer.text)
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_pipelines_can_be_downloaded(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    airflow: Airflow,  # noqa: F811
) -> None:
    for name, state in (("good", "success"), ("broken", "failed")):
        airflow.runs(state, name)
        airflow.has("copy", state, dag=name)
    first, second = rows_of(pages, "/overview.csv")
    assert (first["pipeline"], first["last_state"], first["needs_attention"]) == (
        "broken",
        "failed",
        "The last run failed",
    )
    assert (first["last_success"], bool(second["last_success"])) == ("", True)
    assert (second["pipeline"], second["failed_objects"], second["waiting"], second["needs_attention"]) == (
        "good", "0", "", "",
    )  # fmt: skip
    assert [row["pipeline"] for row in rows_of(pages, "/overview.csv?dag=goo")] == ["good"]
    assert '<a href="/storeside/overview.csv?dag=goo" download' in pages.get("/overview?dag=goo").text


def test_etls_and_targets_can_be_downloaded(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    cluster: Client,  # noqa: F811
) -> None:
    rows = {row["etl"]: row for row in rows_of(pages, "/etls.csv")}
    assert rows["wav-1"]["health"] == "t1: running; t2: running"
    assert (rows["other-2"]["state"], rows["other-2"]["objects"]) == ("unhealthy", "7")
    assert '<a href="/storeside/etls.csv?" download' in pages.get("/etls").text
    first, second = rows_of(pages, "/storage.csv")
    assert (first["target"], first["state"], first["used"], first["disks"]) == ("t1", "ready", "750000", "2")
    assert second["alerts"] == "rebalances; a disk is faulty"
    assert '<a href="/storeside/storage.csv?conn_id=aistore_default" download' in pages.get("/storage").text
    tables.dags = frozenset({"d"})
    assert rows_of(pages, "/etls.csv") == [], "no task of these DAGs uses them"
    assert pages.get("/storage.csv").status_code == 403


def test_a_cluster_that_does_not_answer_is_no_empty_list(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(_: str) -> Any:
        raise UnavailableError("no answer")

    for module in (etls, storage):
        monkeypatch.setattr(module, "aistore", silent)
    assert [(row["connection"], row["problem"]) for row in rows_of(pages, "/etls.csv")] == [
        ("aistore_default", "no answer")
    ]
    assert pages.get("/storage.csv").status_code == 503
