"""What the operators share: the run's identity, the ledger, and how errors become Airflow's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from include.sql.answers import whole_answers
from include.storage.errors import StorageError, TransientError
from include.transform.errors import TransformError, TransientTransformError, is_passing_refusal, said
from include.transform.ledger import Ledger

if TYPE_CHECKING:
    from airflow.sdk import Context

N = TypeVar("N", int, float)

# Answers of AIStore that stay the same: not logged in, not allowed. 400 is also what it says while a target is down.
_REFUSED = frozenset({401, 403})


def run_key(context: Context) -> str:
    """Return what identifies this run in Storeside's tables: ``<dag_id>/<run_id>``."""
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}"


def task_key(context: Context) -> str:
    """Return what is the same for all tries of a task, and for no other task."""
    instance = context["ti"]
    return f"{run_key(context)}/{instance.task_id}/{instance.map_index}"


def run_columns(context: Context) -> dict[str, str]:
    """Return the columns of ``storeside.runs`` that say which task this is; a mapped one is ``task[index]``."""
    instance = context["ti"]
    index = "" if instance.map_index is None or instance.map_index < 0 else f"[{instance.map_index}]"
    return {"run_id": run_key(context), "dag_id": instance.dag_id, "task_id": instance.task_id + index}


def record_running(tables: Ledger, context: Context, kind: str, source: str, destination: str, **detail: Any) -> None:
    """Record a task that is under way, for whoever watches; the row of its end takes this one's place."""
    tables.record_run(
        {
            **run_columns(context),
            "kind": kind,
            "source": source,
            "destination": destination,
            "state": "running",
            "detail": json.dumps(detail),
        }
    )


def clickhouse(conn_id: str) -> Any:
    """Return the clickhouse-connect client of an Airflow connection."""
    from airflow.providers.clickhousedb.hooks.clickhouse import ClickHouseHook

    return whole_answers(ClickHouseHook(conn_id).get_client())


def ledger(clickhouse_conn_id: str) -> Ledger:
    """Return the ledger behind an Airflow connection to ClickHouse."""
    return Ledger(clickhouse(clickhouse_conn_id))


def as_bool(value: bool | str, name: str) -> bool:
    """Read the flag `name`, which a template may have rendered. Raises ValueError for anything else."""
    if isinstance(value, bool):
        return value
    if value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError(f"{name} {value!r} is neither true nor false")


def as_number(value: float | str, name: str, kind: type[N]) -> N:
    """Read the number `name`, which a template may have rendered. Raises ValueError for anything else."""
    try:
        return kind(value)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{name} {value!r} is not a {'whole ' if kind is int else ''}number") from e


def as_list(texts: Sequence[str] | str) -> Sequence[str]:
    """Return a list of texts, as it is or as a template has rendered it: with spaces between."""
    return texts.split() if isinstance(texts, str) else texts


def only_when(param: str, value: str) -> Callable[[Context], None]:
    """Return a task's ``pre_execute`` that skips it unless a parameter of the run has this value."""

    def check(context: Context) -> None:
        chosen = context["params"][param]
        if chosen != value:
            raise AirflowSkipException(f"{param} is {chosen!r}")

    return check


@contextmanager
def transfer_errors() -> Iterator[None]:
    """Turn errors of transfers and queues into Airflow's: what cannot get better by itself is not retried."""
    from include.transfer.errors import TransferError, TransientError

    try:
        yield
    except TransientError as e:
        raise AirflowException(str(e)) from e
    except (TransferError, ValueError) as e:
        raise AirflowFailException(str(e)) from e


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn the engine's errors into Airflow's: what cannot get better by itself is not retried."""
    from aistore.sdk.errors import AISError, ErrBckNotFound, ErrRemoteBckNotFound

    try:
        yield
    except (TransientTransformError, TransientError) as e:
        raise AirflowException(str(e)) from e
    except (ErrBckNotFound, ErrRemoteBckNotFound) as e:
        raise AirflowFailException(f"AIStore has no such bucket: {e.message}: create it or correct its name") from e
    except AISError as e:
        text = said(e)
        refused = e.status_code in _REFUSED and not is_passing_refusal(text)
        raise (AirflowFailException if refused else AirflowException)(f"AIStore: {text}") from e
    except (TransformError, StorageError, ValueError) as e:
        raise AirflowFailException(str(e)) from e
