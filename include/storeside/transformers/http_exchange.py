"""Pushes and pulls over HTTP, for every server: requests become jobs, outcomes become answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aistore.sdk.const import HEADER_DIRECT_PUT_LENGTH

from .failures import Failure
from .job import Job, from_pull, from_push
from .pool import Content, Delivered
from .settings import Settings


@dataclass(frozen=True)
class HttpAnswer:
    """Status, headers and content of an answer."""

    status: int
    headers: Mapping[str, str]
    content: Any


def job_of(method: str, raw_path: bytes, raw_query: bytes, pipeline: str) -> Job:
    """Return the job of a request. Raises BadRequestError."""
    return (from_push if method == "PUT" else from_pull)(raw_path, raw_query, pipeline)


def answer(outcome: Delivered | Content, mime_type: str) -> HttpAnswer:
    """Return AIStore's answer for a result: 204, it has been stored; or 200, the body holds it."""
    if isinstance(outcome, Delivered):
        return HttpAnswer(HTTPStatus.NO_CONTENT, {HEADER_DIRECT_PUT_LENGTH: str(outcome.size)}, b"")
    return HttpAnswer(HTTPStatus.OK, {"Content-Type": mime_type}, outcome.data)


def refusal(failure: Failure, status: HTTPStatus | None = None) -> HttpAnswer:
    """Return the answer for an object without a result; AIStore keeps it as the object's error
    (ext/etl/communicator.go).

    The status is 422 for a final failure and 500 for another one. It is never 404, which AIStore replaces by a text
    of its own, nor 503, because AIStore would then repeat what this server has already repeated.
    """
    if status is None:
        status = HTTPStatus.UNPROCESSABLE_ENTITY if failure.final else HTTPStatus.INTERNAL_SERVER_ERROR
    reason = failure.reason.encode(errors="backslashreplace")
    return HttpAnswer(status, {"Content-Type": "text/plain; charset=utf-8"}, reason)


def too_large(job: Job, settings: Settings) -> Failure:
    """Return the failure of an object that the server does not accept."""
    reason = f"the object has more than {settings.largest_body} bytes ({settings.body_limit})"
    return job.failure(reason, final=True)
