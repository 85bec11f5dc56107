"""Maps errors of the engine and of AIStore to Airflow's exceptions, which decide whether a task is retried.

| kind                  | Airflow's exception     | the task    |
|-----------------------|-------------------------|-------------|
| `BadInput`            | `AirflowFailException`  | fails       |
| `Partial`             | `AirflowFailException`  | fails       |
| `Transient`           | `AirflowException`      | is retried  |
| `Cancelled`           | `AirflowException`      | is retried, unless a user has set its state |
| AIStore's `AISError`  | by status, see `is_final` | either    |
| anything else         | none: raised unchanged  | is retried  |
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.aistore.errors import is_passing_refusal, said
from storeside.errors import BadInput, Cancelled, Partial, StoresideError, Transient

# Statuses of AIStore that a retry does not change: not authenticated, not permitted. 400 is not one of them, because
# AIStore also sends it while a target is down.
_REFUSED = frozenset({401, 403})


class OperatorInputError(StoresideError, BadInput):
    """An operator's argument, or a connection that the operator uses, is invalid."""


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Raise errors as Airflow's exceptions, so that Airflow does not retry a task if a retry cannot help."""
    try:
        yield
    except Exception as e:
        if (mapped := airflow_error(e)) is None:
            raise
        raise mapped from e


def airflow_error(error: BaseException) -> AirflowException | None:
    """Return Airflow's exception for our errors and AIStore's; None for any other error, which Airflow retries."""
    if isinstance(error, StoresideError):
        text = str(error)
    elif (sdk := _of_aistore(error)) is None:
        return None
    elif isinstance(error, sdk.ErrBckNotFound | sdk.ErrRemoteBckNotFound):
        text = f"AIStore has no such bucket: {said(error)}: create it or correct its name"
    else:
        text = f"AIStore: {said(error)}"
    return AirflowFailException(text) if is_final(error) else AirflowException(text)


def is_final(error: BaseException) -> bool:
    """Return whether the error is final, so that a retry cannot help.

    A plain ValueError is not final: it comes from a bug or from a truncated response, for which a retry may help.
    """
    if isinstance(error, BadInput | Partial):
        return True
    if (sdk := _of_aistore(error)) is None:
        return False
    if isinstance(error, sdk.ErrBckNotFound | sdk.ErrRemoteBckNotFound):
        return True
    return getattr(error, "status_code", 0) in _REFUSED and not is_passing_refusal(said(error))


def may_pass_soon(error: BaseException) -> bool:
    """Return whether the trigger should try again within seconds instead of failing the try of the task."""
    if isinstance(error, Transient):
        return error.is_soon
    return not isinstance(error, Cancelled) and not is_final(error)


def _of_aistore(error: BaseException) -> Any:
    """Return the SDK's module of errors if `error` is an `AISError`; if the SDK is not loaded, it cannot be one."""
    sdk: Any = sys.modules.get("aistore.sdk.errors")
    return sdk if sdk is not None and isinstance(error, sdk.AISError) else None
