"""Pushes and pulls over HTTP: converts requests to jobs, and outcomes to answers."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from storeside.transformers.contract.failures import Failure, LeftOut
from storeside.transformers.contract.job import Job, from_pull, from_push
from storeside.transformers.contract.pipeline import DIRECT_PUT_LENGTH
from storeside.transformers.settings import Settings
from storeside.transformers.workers.pool import Content, Delivered, Streamed


def job_of(method: str, raw_path: bytes, raw_query: bytes, pipeline: str) -> Job:
    """Return the job in a request. Raises BadRequestError."""
    return (from_push if method == "PUT" else from_pull)(raw_path, raw_query, pipeline)


def answer(outcome: Delivered | Content | Streamed | LeftOut, mime_type: str) -> Response:
    """Return the answer for a result: 204 after a direct put, or 200 with the result as body.

    An object that is left out gets 204, too: AIStore then stores nothing and counts no error (handleRespEcode in
    ext/etl/communicator.go), and an earlier ETL of a pipeline answers the same.
    """
    if isinstance(outcome, LeftOut):
        outcome = Delivered(0)
    if isinstance(outcome, Delivered):
        return Response(b"", HTTPStatus.NO_CONTENT, {DIRECT_PUT_LENGTH: str(outcome.size)})
    headers = {"Content-Type": mime_type}
    if isinstance(outcome, Streamed):
        return StreamingResponse(outcome.pieces, headers=headers)
    return Response(outcome.data, headers=headers)


def refusal(failure: Failure, status: HTTPStatus | None = None) -> Response:
    """Return the answer for an object without a result; AIStore stores it as the object's error
    (ext/etl/communicator.go).

    The status is 422 for a final failure and 500 for others. It is never 404, because AIStore replaces the text, and
    never 503, because AIStore would then repeat a request that this server has already repeated.
    """
    if status is None:
        status = HTTPStatus.UNPROCESSABLE_ENTITY if failure.final else HTTPStatus.INTERNAL_SERVER_ERROR
    return PlainTextResponse(failure.reason.encode(errors="backslashreplace"), status)


def too_large(job: Job, settings: Settings) -> Failure:
    """Return the failure of an object that exceeds the server's size limit."""
    reason = f"the object has more than {settings.largest_body} bytes ({settings.body_limit})"
    return job.failure(reason, final=True)
