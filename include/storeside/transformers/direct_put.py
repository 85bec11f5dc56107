"""Direct put: a worker delivers its result itself, to the destination target or to the next ETL of a pipeline."""

from __future__ import annotations

import os

from aistore.sdk.const import HEADER_DIRECT_PUT_LENGTH, HEADER_NODE_URL
from aistore.sdk.errors import InvalidPipelineError
from aistore.sdk.etl.webserver.utils import compose_etl_direct_put_url, parse_etl_pipeline

from .http_client import DeliveryError, HttpClient
from .job import Job
from .transformer import Data

# Our own servers' statuses for an object that fails again if it is tried again.
_FINAL = 422


class DirectPut:
    """Delivers results over `client`; `target_url` is the target's address for this ETL."""

    def __init__(self, client: HttpClient, target_url: str) -> None:
        self._client = client
        self._target_url = target_url

    def deliver(self, job: Job, data: Data) -> int | bytes:
        """Put a result where the job's pipeline says; raises DeliveryError.

        Returns the number of bytes stored, or the content that comes back from the last ETL of an inline pipeline.
        """
        try:
            url, rest = parse_etl_pipeline(job.pipeline)
        except InvalidPipelineError as e:
            raise DeliveryError(f"pipeline {job.pipeline!r}: {e}") from e
        # Bytes, because names need not be UTF-8. The next ETL gets the same path that AIStore would send.
        path = os.fsencode(f"{job.bucket}/{job.object}" if job.bucket else job.object)
        url = compose_etl_direct_put_url(url, self._target_url, path, job.arguments)
        answer = self._client.request("PUT", url, data, {HEADER_NODE_URL: rest} if rest else None)
        if answer.status == 204:
            return int(answer.headers.get(HEADER_DIRECT_PUT_LENGTH) or 0)
        if answer.status == 200:
            return answer.body or len(data)
        raise DeliveryError(f"direct put: {answer.reason}", final=answer.status == _FINAL)
