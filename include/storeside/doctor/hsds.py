"""Checks HSDS: whether the service is ready and accepts the login."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus

from storeside.doctor.findings import Finding, System
from storeside.doctor.remedies import answered, reach

_SECONDS = 10
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_here = System("HSDS")


@dataclass(frozen=True)
class Service:
    """The address of an HSDS service and the user; without a user, requests are anonymous."""

    endpoint: str
    user: str = ""
    password: str = field(default="", repr=False)


def examine(service: Service) -> Iterator[Finding]:
    """Check whether the service is ready, and whether this user can list its top-level domain."""
    import requests

    session = requests.Session()
    if service.endpoint.startswith("http+unix://"):
        import requests_unixsocket  # a dependency of h5pyd

        session = requests_unixsocket.Session()
    session.auth = (service.user, service.password) if service.user else None
    try:
        about = session.get(f"{service.endpoint}/about", timeout=_SECONDS)
        state = about.json().get("state") if about.ok else f"status {about.status_code}"
        domains = session.get(f"{service.endpoint}/domains", params={"domain": "/"}, timeout=_SECONDS)
    except (requests.RequestException, ValueError) as e:
        ways = "correct host and port of the HSDS connection, and let this machine reach it"
        yield _here.failed("ready", e, reach(e, ways, tls="its endpoint's schema"))
        return
    if state == "READY":
        yield _here.ok("ready", service.endpoint)
    elif about.status_code not in _REFUSED:  # HSDS refuses a wrong login everywhere
        yield _here.failed("ready", state, "start its service node and all its data nodes")
    if domains.status_code in _REFUSED:
        yield _here.failed(
            "login", f"status {domains.status_code}", "correct login and password of the HSDS connection"
        )
    elif not domains.ok:
        remedy = answered(domains.status_code, "see the logs of its service node")
        yield _here.failed("login", f"status {domains.status_code}", remedy)
    else:
        yield _here.ok("login", f"as {service.user or 'anonymous'}")
