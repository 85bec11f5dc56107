"""Remedies for connection errors, by kind: a time-out, a certificate, an unknown host, a closed port."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

TIME_OUT = (
    "check that the server runs and is not overloaded, that host and port are right, and that no firewall or "
    "security group drops the packets"
)
_BUSY = "the server is overloaded or faulty: see its logs, and try again"


def reach(error: BaseException, otherwise: str, tls: str = "") -> str:
    """Return the remedy for an error before the server answered.

    `otherwise` is the remedy for an unknown host or a refused connection. `tls` is the setting that controls
    encryption and certificates.
    """
    chain = list(_chain(error))
    if any(isinstance(e, ssl.SSLError) or type(e).__name__ == "SSLError" for e in chain):
        setting = f" ({tls})" if tls else ""
        return (
            "the server speaks no TLS at this port, or this machine does not trust its certificate: correct the "
            f"connection{setting}, or install the authority's certificate"
        )
    if any(isinstance(e, TimeoutError) or "Timeout" in type(e).__name__ for e in chain):
        return TIME_OUT
    return otherwise


def answered(status: int, otherwise: str) -> str:
    """Return the remedy for an HTTP status: 429 and 5xx need no change of rights, so `otherwise` does not apply."""
    return _BUSY if status == 429 or status >= 500 else otherwise


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, which each client library keeps in a different attribute."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [found.__cause__, found.__context__, getattr(found, "reason", None), *found.args]
            waiting.append(getattr(found, "kwargs", {}).get("error"))  # botocore
