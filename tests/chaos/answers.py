"""Error responses of servers and load balancers: overload, expired credentials, a wrong clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from time import time
from wsgiref.handlers import format_date_time

Answer = Callable[[bytes], bytes]


def aws(status: int, code: str, message: str, ahead: float = 0) -> Answer:
    """Return an error of S3 or SQS for the request; the server's clock is `ahead` of the client's."""

    def answer(request: bytes) -> bytes:
        if b"x-amz-target: amazonsqs." in request.lower():
            body = json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": message}).encode()
            return _http(status, "application/x-amz-json-1.0", body, ahead)
        text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        head = request.startswith(b"HEAD ")
        return _http(status, "application/xml", b"" if head else text.encode(), ahead)

    return answer


def gateway(status: int) -> Answer:
    """Return the response of a load balancer whose server does not answer."""
    body = f"<html><body><h1>{status} {HTTPStatus(status).phrase}</h1></body></html>".encode()
    return lambda request: _http(status, "text/html", b"" if request.startswith(b"HEAD ") else body)


def _http(status: int, kind: str, body: bytes, ahead: float = 0) -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Date: {format_date_time(time() + ahead)}\r\n"
        f"Content-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "x-amz-request-id: CHAOS\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


AWS_ANSWERS = {
    "500": aws(500, "InternalError", "We encountered an internal error. Please try again."),
    "503": aws(503, "SlowDown", "Please reduce your request rate."),
    "expired credentials": aws(403, "ExpiredToken", "The provided token has expired."),
    "clock": aws(
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
        ahead=3600,
    ),
}
GATEWAY_ANSWERS = {"500": gateway(500), "503": gateway(503)}
