"""Pushes and pulls over HTTP, for every server: converts requests to jobs, and outcomes to answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from storeside.transformers.contract.failures import Failure, LeftOut
from storeside.transformers.contract.job import Job, from_pull, from_push
from storeside.transformers.contract.pipeline import DIRECT_PUT_LENGTH
from storeside.transformers.settings import Settings
from storeside.transformers.workers.pool import Content, Delivered, Streamed


@dataclass(frozen=True)
class HttpAnswer:
    """Status, headers and content of an answer."""

    status: int
    headers: Mapping[str, str]
    content: Any


def job_of(method: str, raw_path: bytes, raw_query: bytes, pipeline: str) -> Job:
    """Return the job in a request. Raises BadRequestError."""
    return (from_push if method == "PUT" else from_pull)(raw_path, raw_query, pipeline)


def answer(outcome: Delivered | Content | Streamed | LeftOut, mime_type: str) -> HttpAnswer:
    """Return the answer for a result: 204 after a direct put, or 200 with the result as body.

    An object that is left out gets 204, too: AIStore then stores nothing and counts no error (handleRespEcode in
    ext/etl/communicator.go), and an earlier ETL of a pipeline answers the same.
    """
    if isinstance(outcome, LeftOut):
        outcome = Delivered(0)
    if isinstance(outcome, Delivered):
        return HttpAnswer(HTTPStatus.NO_CONTENT, {DIRECT_PUT_LENGTH: str(outcome.size)}, b"")
    content = outcome.pieces if isinstance(outcome, Streamed) else outcome.data
    return HttpAnswer(HTTPStatus.OK, {"Content-Type": mime_type}, content)


def refusal(failure: Failure, status: HTTPStatus | None = None) -> HttpAnswer:
    """Return the answer for an object without a result; AIStore stores it as the object's error
    (ext/etl/communicator.go).

    The status is 422 for a final failure and 500 for others. It is never 404, because AIStore replaces the text, and
    never 503, because AIStore would then repeat a request that this server has already repeated.
    """
    if status is None:
        status = HTTPStatus.UNPROCESSABLE_ENTITY if failure.final else HTTPStatus.INTERNAL_SERVER_ERROR
    reason = failure.reason.encode(errors="backslashreplace")
    return HttpAnswer(status, {"Content-Type": "text/plain; charset=utf-8"}, reason)


def too_large(job: Job, settings: Settings) -> Failure:
    """Return the failure of an object that exceeds the server's size limit."""
    reason = f"the object has more than {settings.largest_body} bytes ({settings.body_limit})"
    return job.failure(reason, final=True)
