"""Direct put: a worker delivers its result to the destination target, or to the next ETL of a pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from storeside.transformers.contract import pipeline
from storeside.transformers.contract.job import Job
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data

from .http_client import DeliveryError, HttpClient, address_of, nodes_of, reason
from .http_connection import Incoming, Response

_DIRECT_PUT_LENGTH = pipeline.DIRECT_PUT_LENGTH.lower()
# The status with which Storeside's servers report a permanent failure of an object.
_FINAL = 422
# The statuses of AIStore's targets, and of an ETL that has stored its result by direct put.
_STORED = (200, 204)


class DirectPut:
    """Delivers results through `client`; requests to AIStore's nodes contain the ETL's secret, others do not."""

    def __init__(self, client: HttpClient, settings: Settings) -> None:
        self._client = client
        self._target_url = settings.target_url
        self._nodes = nodes_of(settings)

    def deliver(self, job: Job, data: Data | Iterator[Data]) -> int | bytes:
        """Put a result, or its pieces, to the address in the job's pipeline.

        Returns the number of stored bytes (0 for pieces), or the content that the last ETL of an inline pipeline
        returned. Raises DeliveryError. If the iterator of the pieces raises an error, nothing is stored.
        """
        url, headers, _ = self._destination(job)
        if isinstance(data, Iterator):
            answer = self._client.stream(url, data, headers)
        else:
            answer = self._client.request("PUT", url, data, headers)
        if answer.status == 204:
            return int(answer.headers.get(_DIRECT_PUT_LENGTH) or 0)
        if answer.status == 200:
            return answer.body or (0 if isinstance(data, Iterator) else len(data))
        raise DeliveryError(f"direct put: {reason(answer)}", final=answer.status == _FINAL)

    def deliver_stream(self, job: Job, pieces: Iterator[Data], returned: Callable[[Data], object]) -> int | None:
        """Put the pieces of a result.

        `returned` gets the content that the last ETL of an inline pipeline returns meanwhile.

        Return the number of bytes that a later ETL has stored, None after the last one. Raises DeliveryError, and the
        errors of `pieces`; nothing is stored then.
        """
        url, headers, is_node = self._destination(job)
        if is_node:
            answer: Response | Incoming = self._client.stream(url, pieces, headers)
            if answer.status in _STORED:
                return None
            raise DeliveryError(f"direct put: {reason(answer)}")
        with self._client.through(url, pieces, headers) as answer:
            if answer.status not in _STORED:
                raise DeliveryError(f"direct put: {reason(answer)}", final=answer.status == _FINAL)
            for piece in answer.pieces:
                returned(piece)
            return int(answer.headers.get(_DIRECT_PUT_LENGTH) or 0)

    def _destination(self, job: Job) -> tuple[str, dict[str, str], bool]:
        """Return URL and headers for a direct put, and whether it goes to AIStore. Raises DeliveryError."""
        try:
            url, rest = pipeline.first_of(job.pipeline)
        except ValueError as e:
            raise DeliveryError(f"pipeline {job.pipeline!r}: {e}") from e
        node = self._require_node(url)
        # Bytes, because names need not be UTF-8. The next ETL receives the same path that AIStore would send.
        path = os.fsencode(f"{job.bucket}/{job.object}" if job.bucket else job.object)
        # The next ETL serves HTTP even if AIStore serves HTTPS.
        url = pipeline.put_address(url, self._target_url if node else url, path, job.arguments)
        headers = {pipeline.NODE_URL: rest} if rest else {}
        return url, headers, node

    def _require_node(self, url: str) -> bool:
        """Return whether the address is AIStore's, and not that of the next ETL, which has no path.

        Raises DeliveryError if it would receive the ETL's secret and is not a node of AIStore.
        """
        try:
            parts = urlsplit(url)
            is_node = address_of(parts) in self._nodes
        except ValueError as e:
            raise DeliveryError(f"pipeline {url!r}: {e}", final=True) from e
        if parts.path and not is_node:
            raise DeliveryError(f"direct put: {parts.netloc} is not a node of AIStore; AIS_NODES lists them")
        return bool(parts.path)
