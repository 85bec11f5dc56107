"""The stack is reached directly, also where HTTP_PROXY sends everything else through a proxy."""

from __future__ import annotations

from collections.abc import Mapping

from include.stack.settings import HOST


def direct(environment: Mapping[str, str]) -> dict[str, str]:
    """Return NO_PROXY, in both spellings, with the loopback address added to what `environment` exempts already.

    Both spellings get all of it: of two that differ, each client reads another one.
    """
    given = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    names = list(dict.fromkeys(filter(None, (name.strip() for name in given.split(",")))))
    # a lone * exempts everything; with other names beside it urllib and requests take it for a name
    exempt = "*" if "*" in names else ",".join(dict.fromkeys([*names, HOST, "localhost"]))
    return {"no_proxy": exempt, "NO_PROXY": exempt}
