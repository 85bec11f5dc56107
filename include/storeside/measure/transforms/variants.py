"""The variants of AIStore's published benchmark of ETLs: server, channel, file access and direct put.

``storeside`` is Storeside's server. ``fastapi``, ``flask`` and ``http`` are those of AIStore's SDK, which the
published benchmark compares.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from storeside.aistore.spec import COMMUNICATION_TYPES, EtlSpec
from storeside.measure.errors import MeasureInputError

Server = Literal["storeside", "fastapi", "flask", "http"]
SERVERS: tuple[Server, ...] = get_args(Server)
# The servers that speak WebSocket.
_WEBSOCKET = ("storeside", "fastapi")
_SERVE, _SERVE_BY_SDK = "storeside.transformers.serve", "storeside.transformers.sdk_servers"


@dataclass(frozen=True, order=True)
class Variant:
    """One way to send objects to a transformer and their results to their targets."""

    server: str
    communication: str
    file_access: bool
    direct_put: bool

    def of(self, spec: EtlSpec, label: str) -> EtlSpec:
        """Return the ETL `spec` of Storeside's server, served in this way, under another label."""
        command = spec.command
        if self.server != SERVERS[0]:
            command = tuple(_SERVE_BY_SDK if word == _SERVE else word for word in command)
            command += ("--server", self.server)
        return replace(
            spec,
            label=label,
            command=command,
            communication=self.communication,
            file_access=self.file_access,
            direct_put=self.direct_put,
        )

    def __str__(self) -> str:
        words = [self.server, self.communication, *self.options]
        return " ".join(filter(None, words))

    @property
    def options(self) -> tuple[str, str]:
        """File access and direct put in words; empty if they are off."""
        return "file access" if self.file_access else "", "direct put" if self.direct_put else ""


def variants(
    servers: Sequence[str] = SERVERS,
    communications: Sequence[str] = COMMUNICATION_TYPES,
    file_access: Collection[bool] = (True, False),
    direct_put: Collection[bool] = (True, False),
) -> list[Variant]:
    """Return all combinations that exist, each once: Storeside's first, because only its server knows broken objects.

    Flask and the HTTP server of the SDK do not speak WebSocket, for which AIStore needs direct put. Raises
    MeasureInputError for an unknown server or channel, and if no combination exists.
    """
    _require("servers", servers, SERVERS)
    _require("communications", communications, COMMUNICATION_TYPES)
    found = [
        Variant(server, kind, access, direct)
        for server in SERVERS
        if server in servers
        for kind in dict.fromkeys(communications)
        for access in file_access
        for direct in direct_put
        if kind != "ws" or (server in _WEBSOCKET and direct)
    ]
    if not found:
        raise MeasureInputError(
            f"servers {', '.join(servers)} with {', '.join(communications)}: no such variant exists, because only"
            f" {' and '.join(_WEBSOCKET)} speak ws, and ws needs direct put: add hpush or hpull, or one of these with"
            " direct put"
        )
    return found


def _require(name: str, chosen: Sequence[str], allowed: Sequence[str]) -> None:
    if not chosen or not set(chosen) <= set(allowed):
        raise MeasureInputError(f"{name} {list(chosen)}: choose one or more of {', '.join(allowed)}")
