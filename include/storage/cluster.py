"""The AIStore cluster as the `aistore` SDK's client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cluster:
    """Where an AIStore cluster is and how it is entered.

    `endpoint` is a proxy's URL. `ca_cert`, `client_cert` and `client_key` are paths of PEM files, `verify` off takes
    any certificate; `token` is one that AuthN has issued.
    """

    endpoint: str
    token: str = field(default="", repr=False)
    ca_cert: str = ""
    client_cert: str = ""
    client_key: str = ""
    verify: bool = True

    def client(self) -> Any:
        """Return an SDK client with time-outs that fit polling: 5 s to connect, 60 s to answer."""
        from aistore.sdk import Client

        certificate = (self.client_cert, self.client_key) if self.client_key else self.client_cert
        return Client(
            self.endpoint,
            skip_verify=not self.verify,
            ca_cert=self.ca_cert or None,
            client_cert=certificate or None,
            timeout=(5, 60),
            token=self.token or None,
        )
