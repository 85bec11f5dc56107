"""Submits AIStore's jobs between two buckets. Each function returns the id of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec
from storeside.transform.naming import Naming
from storeside.transform.state import Options

if TYPE_CHECKING:
    from aistore.sdk import Bucket as BucketHandle
    from aistore.sdk import Client
    from aistore.sdk.multiobj import ObjectGroup


def bucket(
    client: Client,
    source: Bucket,
    destination: Bucket,
    spec: EtlSpec,
    etls: list[str],
    naming: Naming,
    options: Options,
) -> str:  # fmt: skip
    """Transform all objects below a prefix; `etls` are the stages of a chain."""
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
    group: ObjectGroup, to: BucketHandle, spec: EtlSpec | None, etls: list[str], naming: Naming, options: Options
) -> str:
    """Transform named objects, or copy them when there is no `spec`."""
    given: dict[str, Any] = {
        "prepend": naming.prepend,
        "continue_on_error": options.continue_on_error,
        "latest": options.latest,
        "num_workers": options.workers or None,
    }
    if spec is None:
        return str(group.copy(to, **given)[-1])
    job_id: str = group.transform(
        to,
        etls[0],
        etl_pipeline=etls[1:] or None,
        timeout=spec.request_timeout,
        ext=dict(naming.extensions) or None,
        **given,
    )
    return job_id


def quarantine(group: ObjectGroup, to: BucketHandle) -> str:
    """Copy named objects unchanged, regardless of the job's options."""
    return str(group.copy(to, continue_on_error=True)[-1])
