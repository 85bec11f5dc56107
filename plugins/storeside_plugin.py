"""The plugin. Every Airflow process loads this file; only an opened page imports the API server's code."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from storeside.operators.links import PREFIX, BenchmarksPageLink, QueuePageLink, RunPageLink, page

# Seconds that the first visitor waits for a page before the frame says that the pages start.
_PATIENCE = 0.3
_STARTING = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="1"><title>Storeside starts</title></head>
<body><h1>Storeside</h1>
<p role="status">The pages start. This takes a few seconds after a start of Airflow.</p></body></html>
"""
_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-length", str(len(_STARTING)).encode()),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


class Pages:
    """The ASGI application of the pages. The first request imports it, in a thread: that takes seconds."""

    def __init__(self) -> None:
        self._loading: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on. A browser that opens a page meanwhile gets a page that loads itself again."""
        if self._loading is None or (self._loading.done() and self._loading.exception()):
            self._loading = asyncio.create_task(asyncio.to_thread(_load))
        if not self._loading.done():
            await asyncio.wait([self._loading], timeout=_PATIENCE if _opens_a_page(scope) else None)
        if self._loading.done():
            await self._loading.result()(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await send({"type": "http.response.body", "body": _STARTING})


def _load() -> Any:
    from storeside.plugins.pages.app import app

    return app


def _opens_a_page(scope: Any) -> bool:
    """Return whether a browser will show the answer, as a whole page or in a frame."""
    sent = dict(scope.get("headers", ()))
    return scope.get("method") == "GET" and sent.get(b"sec-fetch-mode") == b"navigate"


_RUN = page("run") + "?dag={DAG_ID}&run={RUN_ID}"


class StoresidePlugin(AirflowPlugin):
    """Pages about pipelines, data movement, objects, queues, quality, the corpus, ETLs, storage and benchmarks."""

    name = "storeside"
    fastapi_apps = [{"app": Pages(), "url_prefix": PREFIX, "name": "Storeside"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Storeside",
            "href": page("overview"),
            "destination": "nav",
            "category": "browse",
            "icon": page("static/icon.svg"),
            "icon_dark_mode": page("static/icon-dark.svg"),
            "url_route": "storeside",
        },
        {"name": "Data movement", "href": _RUN, "destination": "dag_run", "url_route": "storeside-run"},
        {
            "name": "Data movement",
            "href": f"{_RUN}&task={{TASK_ID}}&map_index={{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": "storeside-task",
        },
    ]
    react_apps = [  # noqa: RUF012
        {"name": "Storeside overview", "bundle_url": page("static/home.js"), "destination": "dashboard"}
    ]
    operator_extra_links = [RunPageLink(), QueuePageLink(), BenchmarksPageLink()]  # noqa: RUF012
