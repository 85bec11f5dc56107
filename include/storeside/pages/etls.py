"""The ETLs of an AIStore cluster: which task runs with each, whether it is healthy, and its last errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.aistore.spec import KEEPER, MARK
from storeside.errors import Transient
from storeside.pages.movement import read_detail
from storeside.pages.tables import Tables, UnavailableError

if TYPE_CHECKING:
    from aistore.sdk import Client

_MOST_ETLS = 20
_MOST_ERRORS = 5
# Bytes of a pod's log that the API server reads, in AIStore's encoding, and lines of it that a page shows.
_MOST_LOG_BYTES = 8 << 20
_MOST_LOG_LINES = 500
_STAGES = ["Initializing", "Running", "Aborted", "Unknown"]
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Use:
    """A task of a run that uses ETLs: their names, AIStore's job, and the task's connection to AIStore."""

    run_id: str
    task_id: str
    names: tuple[str, ...]
    job: str
    conn_id: str
    recorded: float

    @property
    def dag(self) -> str:
        """The DAG of the run."""
        return self.run_id.partition("/")[0]

    @property
    def run(self) -> str:
        """Airflow's id of the DAG run."""
        return self.run_id.partition("/")[2]


@dataclass(frozen=True)
class Etl:
    """An ETL of the cluster.

    :param name: its name
    :param stage: AIStore's stage, such as ``running``, in small letters
    :param image: its container image
    :param communication: ``ws``, ``hpush`` or ``hpull``
    :param is_ours: whether Storeside started it
    :param objects: objects transformed
    :param bytes_in: bytes of these objects
    :param bytes_out: bytes of their results
    :param health: state on each target, by the target's name
    :param errors: the last objects that failed, with their reasons
    :param answered: false if the cluster left a request about the ETL unanswered
    :param kept_by: the run that keeps the ETL for later tasks
    :param idle: seconds since a task last began or ended to use it; None if no task recorded it
    """

    name: str
    stage: str
    image: str
    communication: str
    is_ours: bool
    objects: int
    bytes_in: int
    bytes_out: int
    health: tuple[tuple[str, str], ...]
    errors: tuple[tuple[str, str], ...]
    answered: bool = True
    kept_by: str = ""
    idle: float | None = None

    @property
    def state(self) -> str:
        """One word for the page."""
        states = {state.lower() for _, state in self.health}
        if self.stage != "running" or states == {"running"}:
            return self.stage
        return "unhealthy" if states else _UNKNOWN


def uses(tables: Tables) -> list[Use]:
    """Return the tasks that run with ETLs, newest first, as far as the visitor may read their DAGs."""
    found = []
    for row in tables.rows(sql.query("pages_etl_runs")):
        detail = read_detail(row["detail"])
        names = detail.get("etls")
        if not isinstance(names, list) or not names:
            continue
        job, conn_id = str(detail.get("job", "")), str(detail.get("aistore_conn_id", ""))
        found.append(
            Use(row["run_id"], row["task_id"], tuple(map(str, names)), job, conn_id, row["recorded_ms"] / 1000)
        )
    return found


def names(client: Client) -> list[tuple[str, Any]]:
    """Return the names of the cluster's ETLs with AIStore's own figures. Raises AISError or RequestException."""
    return [(etl.id, etl) for etl in client.cluster().list_etls(_STAGES)][:_MOST_ETLS]


def read(
    client: Client, name: str, listed: Any, jobs: Sequence[str] = (), *, ask: bool = True, idle: float | None = None
) -> Etl:
    """Ask the cluster about one ETL. `jobs` are those whose errors are shown; what it does not tell stays empty.

    After the first request without an answer there are no others: each waits for its time-out. Without `ask`, there
    is none.
    """
    from aistore.sdk.errors import AISError
    from pydantic import ValidationError
    from requests import RequestException

    image = communication = kept_by = ""
    is_ours, errors = False, []
    health: tuple[tuple[str, str], ...] = ()
    try:
        for job in (jobs or ("",)) if ask else ():
            try:
                details = client.etl(name).view(job)
            except (AISError, ValidationError):
                continue
            message = details.init_msg
            communication = message.communication.removesuffix("://")
            image = getattr(message.runtime, "image", "")
            variables = {each.name: each.value for each in getattr(message.runtime, "env", None) or ()}
            is_ours, kept_by = MARK in variables, variables.get(KEEPER) or ""
            errors += [(error.obj_name, error.msg) for error in details.obj_errors or ()]
        health = _health(client, name) if ask else ()
    except (RequestException, Transient):
        ask = False
    return Etl(
        name, listed.stage.lower() or _UNKNOWN, image, communication, is_ours, listed.obj_count, listed.in_bytes,
        listed.out_bytes, health, tuple(errors[-_MOST_ERRORS:]), answered=ask,
        kept_by=kept_by, idle=idle,
    )  # fmt: skip


def targets(client: Client, name: str) -> tuple[str, ...]:
    """Return the targets beside which an ETL runs."""
    return tuple(target for target, _ in _health(client, name))


def pod_log(client: Client, name: str, target: str) -> list[str] | None:
    """Return the last lines of the log of the pod beside a target; None if the log is too large for a page.

    Raises AISError, UnavailableError or RequestException if AIStore does not return it.
    """
    answer = client.cluster().client.request("get", path=f"etl/{name}/logs/{target}", stream=True)
    content = bytearray()
    with closing(answer):
        for part in answer.iter_content(1 << 20):
            content += part
            if len(content) > _MOST_LOG_BYTES:
                return None
    try:
        (one,) = json.loads(content)  # a list of targets, although the request has one
        text = base64.b64decode(one["logs"] or "")  # null if the log is empty
    except (KeyError, TypeError, ValueError) as e:
        raise UnavailableError(
            f"AIStore's answer about the log of {name} beside {target} is none of AIStore 5.0: read the pod's log"
        ) from e
    return text.decode(errors="replace").splitlines()[-_MOST_LOG_LINES:]


def _health(client: Client, name: str) -> tuple[tuple[str, str], ...]:
    """Return the state of an ETL beside each target; empty if it is not known. Raises RequestException."""
    from aistore.sdk.errors import AISError

    try:
        answer = client.cluster().client.request("get", path=f"etl/{name}/health").json()
    except (AISError, ValueError):
        return ()
    found = answer if isinstance(answer, list) else []
    return tuple(
        sorted((str(one.get("target_id", "")), str(one.get("health_status", _UNKNOWN)).lower()) for one in found)
    )
