"""A small client of Airflow's REST API."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import requests

FINAL = ("success", "failed")


class AirflowApi:
    """Airflow's REST API as one user; logs in by itself, and again when the token has expired.

    Every method raises `requests.HTTPError` when Airflow refuses the request.
    """

    def __init__(self, base: str, user: str, password: str, timeout: float = 30) -> None:
        self.base = base.rstrip("/")
        self.timeout = timeout
        self._login = {"username": user, "password": password}
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy, no .netrc

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request to a path below ``/api/v2`` and return the answer."""
        if "Authorization" not in self._session.headers:
            self._sign_in()
        url = f"{self.base}/api/v2/{path}"
        response = self._session.request(method, url, timeout=self.timeout, **options)
        if response.status_code == requests.codes.unauthorized:
            self._sign_in()
            response = self._session.request(method, url, timeout=self.timeout, **options)
        if not response.ok:
            message = f"{response.status_code} for {method} {url}: {response.text[:500]}"
            raise requests.HTTPError(message, response=response)
        return response

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON of a GET."""
        return self.request("GET", path, params=parameters).json()

    def trigger(self, dag: str, conf: dict[str, Any] | None = None, run: str | None = None) -> str:
        """Start a run of a DAG and return its id."""
        body = {"logical_date": None, "conf": conf or {}, **({"dag_run_id": run} if run else {})}
        return str(self.request("POST", f"dags/{quote(dag)}/dagRuns", json=body).json()["dag_run_id"])

    def run(self, dag: str, run: str) -> dict[str, Any]:
        """Return one run of a DAG."""
        found: dict[str, Any] = self.get(_run(dag, run))
        return found

    def runs(self, dag: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the runs of a DAG; `parameters` filter as in the API, such as ``state="success"``."""
        return self._all(f"dags/{quote(dag)}/dagRuns", "dag_runs", **parameters)

    def wait(self, dag: str, run: str, seconds: float = 300) -> dict[str, Any]:
        """Wait until a run has ended and return it; raises TimeoutError when it has not in time."""
        deadline = time.monotonic() + seconds
        while (found := self.run(dag, run))["state"] not in FINAL:
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {run} of {dag} is {found['state']} after {seconds:g} s")
            time.sleep(0.5)
        return found

    def task_instances(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return all task instances of a run."""
        return self._all(f"{_run(dag, run)}/taskInstances", "task_instances")

    def xcom(self, dag: str, run: str, task: str, key: str = "return_value", map_index: int = -1) -> Any:
        """Return the value that a task has left."""
        path = f"{_run(dag, run)}/taskInstances/{quote(task)}/xcomEntries/{quote(key, safe='')}"
        return self.get(path, map_index=map_index, deserialize=False)["value"]

    def xcoms(self, dag: str, run: str, task: str) -> list[dict[str, Any]]:
        """Return the entries, without values, that a task has left."""
        return self._all(f"{_run(dag, run)}/taskInstances/{quote(task)}/xcomEntries", "xcom_entries")

    def log(self, dag: str, run: str, task: str, attempt: int = 1, map_index: int = -1) -> str:
        """Return the log of one try of a task as text."""
        path = f"{_run(dag, run)}/taskInstances/{quote(task)}/logs/{attempt}"
        content = self.get(path, map_index=map_index, full_content=True)["content"]
        if isinstance(content, str):
            return content
        return "\n".join(line if isinstance(line, str) else _line(line) for line in content)

    def _all(self, path: str, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return a listing over all its pages."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.get(path, **{"limit": 100, **parameters, "offset": len(found)})
            found += page[name]
            if not page[name] or len(found) >= page["total_entries"]:
                return found

    def _sign_in(self) -> None:
        self._session.headers.pop("Authorization", None)
        response = self._session.post(f"{self.base}/auth/token", json=self._login, timeout=self.timeout)
        if not response.ok:
            message = f"Airflow refuses the user {self._login['username']}: {response.status_code}"
            raise requests.HTTPError(message, response=response)
        self._session.headers["Authorization"] = f"Bearer {response.json()['access_token']}"


def _run(dag: str, run: str) -> str:
    return f"dags/{quote(dag)}/dagRuns/{quote(run, safe='')}"


def _line(entry: dict[str, Any]) -> str:
    """Return one structured log entry as text, with the lines of its errors."""
    extra = entry.get("error_detail") or []
    errors = [f"{error.get('exc_type')}: {error.get('exc_value')}" for error in extra if isinstance(error, dict)]
    head = " ".join(str(part) for part in (entry.get("timestamp"), entry.get("level"), entry.get("event")) if part)
    return "\n".join([head, *errors])
