"""An ASGI guard in front of an ETL server: it passes on only requests that AIStore sent."""

from __future__ import annotations

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .sender import HEADER, Senders

_NOT_ALLOWED = 1008  # the close code; a client whose WebSocket is not accepted sees HTTP 403


class Guard:
    """Passes on AIStore's requests and health checks; refuses all others before their bodies are read."""

    def __init__(self, app: ASGIApp, senders: Senders) -> None:
        self._app = app
        self._senders = senders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle or refuse one request, or one WebSocket connection."""
        reason = self._refusal(scope)
        if not reason:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _NOT_ALLOWED})  # not accepted yet: HTTP 403
        else:
            headers = {"Connection": "close"}
            await PlainTextResponse(f"{reason}\n", HTTPStatus.FORBIDDEN, headers)(scope, receive, send)

    def _refusal(self, scope: Scope) -> str:
        if scope["type"] not in ("http", "websocket") or (scope["type"], scope["path"]) == ("http", "/health"):
            return ""
        headers = Headers(scope=scope)
        address, _ = scope.get("client") or ("", 0)
        target: bytes = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        return self._senders.refusal(address, headers.get(HEADER, ""), target)
