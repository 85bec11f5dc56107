"""What the servers beside the targets say of objects that failed; see `include.transformers.failures`."""

from __future__ import annotations

import logging
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
            for entry in client.etl(name).logs():
                for failure in parse(entry.logs):
                    if failure.time >= since.get(entry.target_id, 0) and failure.bucket in ("", bucket):
                        yield failure
    except (AISError, RequestException) as e:
        log.info("job %s: the logs of its ETL cannot be read: %s", job_id, " ".join(str(e).split())[:300])
