"""Reads failed objects from the logs of transformers; see `storeside.transformers.failures`."""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from storeside.aistore import jobs
from storeside.transformers.failures import Failure, parse

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)


def failures(client: Client, etl_names: Iterable[str], job_id: str, bucket: str) -> Iterator[Failure]:
    """Yield the failures of one job on `bucket` (its name), read from the logs of its ETLs.

    A transformer's log has the same clock as the job's snapshot on its target, so an entry that is older than the job
    belongs to another job. Yields nothing if the ETL no longer exists or the cluster does not answer.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        since = jobs.starts(client, job_id)
        for name in etl_names:
            for target, text in _logs(client, name):
                for failure in parse(text):
                    if failure.time >= since.get(target, 0) and failure.bucket in ("", bucket):
                        yield failure
    except (AISError, RequestException) as e:
        log.info("job %s: cannot read the logs of its ETL: %s", job_id, " ".join(str(e).split())[:300])


def _logs(client: Client, name: str) -> Iterator[tuple[str, str]]:
    """Yield each target and its transformer's log. SDK 2.0.0's method fails when one of the logs is empty."""
    for entry in client.cluster().client.request("get", path=f"etl/{name}/logs").json():
        yield entry["target_id"], b64decode(entry["logs"] or b"").decode(errors="replace")
