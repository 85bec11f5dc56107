"""The variants of AIStore's published benchmark of ETLs: server, channel, file access and direct put."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec import COMMUNICATION_TYPES, SERVERS, EtlSpec, served_by
from storeside.measure.errors import MeasureInputError


@dataclass(frozen=True, order=True)
class Variant:
    """One way to send objects to a transformer and their results to their targets."""

    server: str
    communication: str
    file_access: bool
    direct_put: bool

    def of(self, spec: EtlSpec, label: str) -> EtlSpec:
        """Return the ETL `spec`, served in this way, under another label.

        Raises AIStoreInputError for a way that does not exist.
        """
        return replace(
            spec,
            label=label,
            command=served_by(spec.command, self.server),
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
    spec: EtlSpec,
    servers: Sequence[str] = SERVERS,
    communications: Sequence[str] = COMMUNICATION_TYPES,
    file_access: Collection[bool] = (True, False),
    direct_put: Collection[bool] = (True, False),
) -> list[Variant]:
    """Return all combinations that exist for the transcoder `spec`, each once.

    Only the FastAPI server speaks WebSocket, for which AIStore needs direct put. Raises MeasureInputError for an
    unknown server or channel, and if no combination exists.
    """
    _require("servers", servers, SERVERS)
    _require("communications", communications, COMMUNICATION_TYPES)
    every = (
        Variant(server, kind, access, direct)
        for server in dict.fromkeys(servers)
        for kind in dict.fromkeys(communications)
        for access in file_access
        for direct in direct_put
    )
    found = list(_existing(spec, every))
    if not found:
        raise MeasureInputError(
            f"servers {', '.join(servers)} with {', '.join(communications)}: no such variant exists, because only"
            " fastapi speaks ws, and ws needs direct put: add hpush or hpull, or fastapi with direct put"
        )
    return found


def _existing(spec: EtlSpec, every: Iterator[Variant]) -> Iterator[Variant]:
    for variant in every:
        try:
            variant.of(spec, spec.label)
        except AIStoreInputError:
            continue
        yield variant


def _require(name: str, chosen: Sequence[str], allowed: Sequence[str]) -> None:
    if not chosen or not set(chosen) <= set(allowed):
        raise MeasureInputError(f"{name} {list(chosen)}: choose one or more of {', '.join(allowed)}")
