"""A small client of Airflow's REST API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import requests

FINAL = ("success", "failed")
# Transient faults: a busy or starting API server, and SQLite's lock, which Airflow answers with 500.
_PASSING_STATUS = frozenset({429, 500, 502, 503, 504})
_PASSING = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
# Methods that can be repeated safely; `trigger` repeats its POST by its own rule.
_REPEATABLE = frozenset({"GET", "PATCH", "PUT"})
_PAUSE_SECONDS = 0.5
T = TypeVar("T")


class AirflowApi:
    """Airflow's REST API for one user; logs in when needed, and again after the token expires.

    Each answer must arrive within `timeout` seconds. After a slow, broken or failed answer the client repeats the
    request for up to `patience` seconds if repeating it is safe. Every method raises `requests.HTTPError` when
    Airflow refuses the request, and another `requests.RequestException` when Airflow does not answer in time.
    """

    def __init__(self, base: str, user: str, password: str, timeout: float = 30, patience: float = 120) -> None:
        self.base = base.rstrip("/")
        self.timeout = timeout
        self.patience = patience
        self._login = {"username": user, "password": password}
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy, no .netrc

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request to a path below ``/api/v2`` and return the answer."""
        if "Authorization" not in self._session.headers:
            self._patiently(self._sign_in)
        if method not in _REPEATABLE:
            return self._request(method, path, **options)
        return self._patiently(lambda: self._request(method, path, **options))

    def _request(self, method: str, path: str, **options: Any) -> requests.Response:
        url = f"{self.base}/api/v2/{path}"
        response = self._session.request(method, url, timeout=self.timeout, **options)
        if response.status_code == requests.codes.unauthorized:
            self._patiently(self._sign_in)
            response = self._session.request(method, url, timeout=self.timeout, **options)
        if not response.ok:
            message = f"{response.status_code} for {method} {url}: {response.text[:500]}"
            raise requests.HTTPError(message, response=response)
        return response

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Return the result of `ask`, which is called again after each transient fault."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return ask()
            except (*_PASSING, requests.HTTPError) as e:
                if not passes(e) or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON body of the answer to a GET."""
        return self.request("GET", path, params=parameters).json()

    def trigger(self, dag: str, conf: dict[str, Any] | None = None, run: str | None = None) -> str:
        """Start a run of a DAG and return its id; `run` sets the id.

        The client chooses the id before it sends the request. After a lost answer it can therefore repeat the
        request: Airflow answers 409 (conflict) if the first request started the run.
        """
        name = run or f"manual__{datetime.now(UTC).isoformat()}_{uuid.uuid4().hex[:8]}"
        body = {"logical_date": None, "conf": conf or {}, "dag_run_id": name}
        sent = 0

        def start() -> str:
            nonlocal sent
            sent += 1
            try:
                self.request("POST", f"dags/{quote(dag)}/dagRuns", json=body)
            except requests.HTTPError as e:
                if sent == 1 or e.response.status_code != requests.codes.conflict:
                    raise
            return name

        return self._patiently(start)

    def run(self, dag: str, run: str) -> dict[str, Any]:
        """Return one run of a DAG."""
        found: dict[str, Any] = self.get(_run(dag, run))
        return found

    def runs(self, dag: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the runs of a DAG; `parameters` are filters of the API, such as ``state="success"``."""
        return self._all(f"dags/{quote(dag)}/dagRuns", "dag_runs", **parameters)

    def wait(self, dag: str, run: str, seconds: float = 600) -> dict[str, Any]:
        """Wait until a run has ended and return it. Raises TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        while (found := self.run(dag, run))["state"] not in FINAL:
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {run} of {dag} is {found['state']} after {seconds:g} s")
            time.sleep(0.5)
        return found

    def task_instances(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return all task instances of a run."""
        return self._all(f"{_run(dag, run)}/taskInstances", "task_instances")

    def xcom(self, dag: str, run: str, task: str, key: str = "return_value") -> Any:
        """Return the value of a task's XCom."""
        path = f"{_run(dag, run)}/taskInstances/{quote(task)}/xcomEntries/{quote(key, safe='')}"
        return self.get(path, deserialize=False)["value"]

    def xcoms(self, dag: str, run: str, task: str) -> list[dict[str, Any]]:
        """Return the keys of a task's XComs with their metadata, without values."""
        return self._all(f"{_run(dag, run)}/taskInstances/{quote(task)}/xcomEntries", "xcom_entries")

    def log(self, dag: str, run: str, task: str, attempt: int = 1, map_index: int = -1) -> str:
        """Return the log of one try of a task as text, one line per entry."""
        path = f"{_run(dag, run)}/taskInstances/{quote(task)}/logs/{attempt}"
        content = self.get(path, map_index=map_index, full_content=True)["content"]
        if isinstance(content, str):
            return content
        return "\n".join(line if isinstance(line, str) else _line(line) for line in content)

    def _all(self, path: str, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the entries of all pages of an API list."""
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


def passes(error: requests.RequestException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, requests.HTTPError):
        return error.response is not None and error.response.status_code in _PASSING_STATUS
    return isinstance(error, _PASSING)


def _run(dag: str, run: str) -> str:
    return f"dags/{quote(dag)}/dagRuns/{quote(run, safe='')}"


def _line(entry: dict[str, Any]) -> str:
    """Return one structured log entry as text, followed by its errors."""
    extra = entry.get("error_detail") or []
    errors = [f"{error.get('exc_type')}: {error.get('exc_value')}" for error in extra if isinstance(error, dict)]
    head = " ".join(str(part) for part in (entry.get("timestamp"), entry.get("level"), entry.get("event")) if part)
    return "\n".join([head, *errors])
