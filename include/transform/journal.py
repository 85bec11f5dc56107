"""What the servers beside the targets say of objects that failed; see `include.transformers.failures`."""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any

from include.transformers.failures import Failure, parse

from . import jobs

log = logging.getLogger(__name__)


def failures(client: Any, etl_names: Iterable[str], job_id: str, bucket: str) -> Iterator[Failure]:
    """Yield the failures of one job on `bucket` (its name) out of the logs of its ETLs.

    A log belongs to a server beside one target, whose clock is that of the job's snapshot there: what is older than
    the job is another's. An ETL that is gone, or a cluster that does not answer, has nothing to say.
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
        log.info("job %s: the logs of its ETL cannot be read: %s", job_id, " ".join(str(e).split())[:300])


def _logs(client: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield each target and the log of its server; SDK 2.0.0's own method fails when one of them is empty."""
    for entry in client.cluster().client.request("get", path=f"etl/{name}/logs").json():
        yield entry["target_id"], b64decode(entry["logs"] or b"").decode(errors="replace")
