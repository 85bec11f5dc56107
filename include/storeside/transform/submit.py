"""Submits AIStore's jobs between two buckets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError, said
from storeside.aistore.spec import EtlSpec
from storeside.transform.naming import Naming
from storeside.transform.state import Options, State

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

# Names per multi-object request: a few MB of JSON. After each transform, the reasons of failed objects are read from
# the transformer's log, which loses lines when it is full. A copy has no such log, and each request costs a deferral.
WINDOW, COPY_WINDOW = 10_000, 50_000
# Seconds before the next attempts of a submission. Other tasks hold a bucket for less than a second.
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)


def patiently(attempt: Callable[[], State | None]) -> State:
    """Return the result of a submission; try again if it returns None, and while a bucket is busy.

    An attempt returns None if another task has stopped the ETL since it was started. Raises AIStoreTransientError
    when the last attempt does.
    """
    from aistore.sdk.errors import AISError

    for wait in (*_WAITS, None):
        reason = "another task has stopped its ETL"
        try:
            if (state := attempt()) is not None:
                return state
        except AISError as e:
            reason = said(e)
            if wait is None or e.status_code != HTTPStatus.CONFLICT or "busy" not in reason:
                raise
        if wait is not None:
            log.info("the job cannot be submitted for now, trying again in %g s: %s", wait, reason)
            time.sleep(wait)
    raise AIStoreTransientError(f"the job could not be submitted: each time {reason}: try later")


def bucket(
    client: Client,
    source: Bucket,
    destination: Bucket,
    spec: EtlSpec,
    etls: list[str],
    naming: Naming,
    options: Options,
) -> str:  # fmt: skip
    """Transform all objects below a prefix, and return the job's id; `etls` are the stages of a chain."""
    job_id: str = source.handle(client).transform(
        etls[0],
        destination.handle(client),
        etl_pipeline=etls[1:] or None,
        timeout=spec.request_timeout,
        prefix_filter=options.prefix,
        prepend=naming.prepend,
        ext=dict(naming.extensions) or None,
        latest=options.latest,
        sync=options.sync,
        num_workers=options.workers,
        cont_on_err=options.continue_on_error,
    )
    return job_id


def objects(
    client: Client,
    source: Bucket,
    names: Sequence[str],
    to: Bucket,
    spec: EtlSpec | None,
    etls: list[str],
    naming: Naming,
    options: Options,
) -> str:
    """Transform named objects, or copy them when there is no `spec`; return the job's id.

    Raises AIStoreInputError before a request to AIStore that could not store one of the objects or results.
    """
    for name in names:
        if reason := naming.refusal(name):
            raise AIStoreInputError(f"object {name!r} of {source}: {reason}")
    group, target = source.objects(client, names), to.handle(client)
    given: dict[str, Any] = {
        "prepend": naming.prepend,
        "continue_on_error": options.continue_on_error,
        "latest": options.latest,
        "num_workers": options.workers or None,
    }
    if spec is None:
        return str(group.copy(target, **given)[-1])
    job_id: str = group.transform(
        target,
        etls[0],
        etl_pipeline=etls[1:] or None,
        timeout=spec.request_timeout,
        ext=dict(naming.extensions) or None,
        **given,
    )
    return job_id


def quarantine(client: Client, source: Bucket, names: Sequence[str], to: Bucket) -> str:
    """Copy named objects unchanged, regardless of the job's options; return the job's id.

    Raises AIStoreInputError for a name that no object can have.
    """
    return str(source.objects(client, names).copy(to.handle(client), continue_on_error=True)[-1])
