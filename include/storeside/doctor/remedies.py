"""Remedies for connection errors, by kind: a time-out, a certificate, an unknown host, a closed port."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence

TIME_OUT = (
    "check that the server runs and is not overloaded, that host and port are right, and that no firewall or "
    "security group drops the packets"
)
# OpenSSL: not yet valid, expired; other host name, other IP address.
_DATES, _NAMES = {9, 10}, {62, 64}
# OpenSSL's reasons if the server's answer is not TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_BUSY = "the server is overloaded or faulty: see its logs, and try again"


def reach(error: BaseException, otherwise: str, tls: str = "") -> str:
    """Return the remedy for an error before the server answered.

    `otherwise` is the remedy for an unknown host or a refused connection. `tls` names the settings of the connection
    for encryption and certificates.
    """
    chain = list(_chain(error))
    if any(isinstance(e, ssl.SSLError) or type(e).__name__ == "SSLError" for e in chain):
        return _of_tls(chain, f" ({tls})" if tls else "")
    if any(isinstance(e, TimeoutError) or "Timeout" in type(e).__name__ for e in chain):
        return TIME_OUT
    return otherwise


def _of_tls(chain: Sequence[BaseException], settings: str) -> str:
    """Return the remedy for an error of TLS, by OpenSSL's code (X509_V_ERR_…) or else by its text."""
    codes = {e.verify_code for e in chain if isinstance(e, ssl.SSLCertVerificationError)}
    text = " ".join(map(str, chain))
    if codes & _DATES or "certificate has expired" in text:
        return "renew the server's certificate, which has expired or is not valid yet; check this machine's clock"
    if codes & _NAMES or "mismatch" in text or "doesn't match" in text:
        return "use a host name or address in the server's certificate, or issue it a certificate for this one"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"trust the authority that issued the server's certificate: name its file in the connection{settings}"
    if any(reason in text for reason in _NO_TLS):
        return f"the server speaks no TLS at this port: correct it, or the encryption of the connection{settings}"
    return (
        "the TLS handshake failed: check whether the server requires a client certificate, which versions of TLS it"
        f" allows, and whether it speaks TLS at this port{settings}; its log may have the reason"
    )


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
