"""Refuses requests to ministack that none of the stack's own clients sends.

ministack answers everyone at ``/_ministack/…``: one POST, which a page of any site can make a browser send, erases
all buckets and queues. It lists the buckets without a signature. And it does not look at the name in ``Host``, by
which a page whose name leads to this machine (DNS rebinding) would read what it answers.
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
    """Return an application that passes on only requests to one of `hosts`, and answers others with 403."""

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
    """Return why a request is refused; empty if it is not."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    host = headers.get(b"host", b"").decode("latin-1").rsplit(":", 1)[0].lower()
    if host not in hosts:
        return "this is not one of the names of this server"
    path = scope["path"]
    if path == HEALTH and scope.get("method") in ("GET", "HEAD"):
        return ""
    if path.startswith("/_"):
        return "this server has no administration"
    if b"authorization" not in headers and b"X-Amz-" not in scope.get("query_string", b""):
        return "" if path != "/" else "sign the request"
    return ""
