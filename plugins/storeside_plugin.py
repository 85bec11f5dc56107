"""The plugin. Every Airflow process loads this file; only an opened page imports the API server's code."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from storeside.operators.links import PREFIX, BenchmarksPageLink, QueuePageLink, RunPageLink, page


class Pages:
    """The ASGI application of the pages, created at the first request."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on."""
        if self._app is None:
            from storeside.plugins.pages.app import app

            self._app = app
        await self._app(scope, receive, send)


def _menu(name: str, path: str) -> dict[str, str]:
    return {"name": name, "href": page(path), "destination": "nav", "url_route": f"storeside-{path}"}


_RUN = page("run") + "?dag={DAG_ID}&run={RUN_ID}"


class StoresidePlugin(AirflowPlugin):
    """Pages about data movement, objects, queues, quality and benchmarks."""

    name = "storeside"
    fastapi_apps = [{"app": Pages(), "url_prefix": PREFIX, "name": "Storeside"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        _menu("Data movement", "movement"),
        _menu("Objects", "objects"),
        _menu("Queues", "queues"),
        _menu("Quality", "quality"),
        _menu("Benchmarks", "benchmarks"),
        {"name": "Data movement", "href": _RUN, "destination": "dag_run", "url_route": "storeside-run"},
        {
            "name": "Data movement",
            "href": f"{_RUN}&task={{TASK_ID}}&map_index={{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": "storeside-task",
        },
    ]
    operator_extra_links = [RunPageLink(), QueuePageLink(), BenchmarksPageLink()]  # noqa: RUF012
