"""Clients connect to the stack directly, even if HTTP_PROXY sends all other requests through a proxy."""

from __future__ import annotations

from collections.abc import Mapping

from storeside.stack.settings import HOST


def direct(environment: Mapping[str, str]) -> dict[str, str]:
    """Return NO_PROXY, in both spellings, with `environment`'s exemptions and the loopback address.

    Both spellings get all exemptions, because clients differ in the spelling that they read.
    """
    given = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    names = list(dict.fromkeys(filter(None, (name.strip() for name in given.split(",")))))
    # A single * exempts all hosts; in a list, urllib and requests treat it as a host name.
    exempt = "*" if "*" in names else ",".join(dict.fromkeys([*names, HOST, "localhost"]))
    return {"no_proxy": exempt, "NO_PROXY": exempt}
