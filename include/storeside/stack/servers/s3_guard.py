"""Refuses requests to ministack that no client of the stack sends.

ministack answers every client at ``/_ministack/…``: one POST, which a page of any web site can make a browser send,
erases all buckets and queues. It lists the buckets without a signature. It also ignores the ``Host`` header: a page
whose host name resolves to this machine (DNS rebinding) could read the answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

HEALTH = "/_ministack/health"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def guarded(app: App, hosts: Collection[str]) -> App:
    """Return an application that passes on requests to one of `hosts` and answers all others with 403."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not (reason := _refusal(scope, hosts)):
            await app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": reason.encode()})

    return guard


def _refusal(scope: Scope, hosts: Collection[str]) -> str:
    """Return the reason for refusing a request; empty for an allowed request."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    host = headers.get(b"host", b"").decode("latin-1").rsplit(":", 1)[0].lower()
    if host not in hosts:
        return "the Host header is not a name of this server"
    path = scope["path"]
    if path == HEALTH and scope.get("method") in ("GET", "HEAD"):
        return ""
    if path.startswith("/_"):
        return "this server has no administration API"
    if b"authorization" not in headers and b"X-Amz-" not in scope.get("query_string", b""):
        return "" if path != "/" else "sign the request"
    return ""
