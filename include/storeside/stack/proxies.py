"""The stack is reached directly, even if HTTP_PROXY sends everything else through a proxy."""

from __future__ import annotations

from collections.abc import Mapping

from storeside.stack.settings import HOST


def direct(environment: Mapping[str, str]) -> dict[str, str]:
    """Return NO_PROXY, in both spellings, with the loopback address added to the exemptions of `environment`.

    Both spellings get all exemptions: if they differ, clients disagree on which one they read.
    """
    given = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    names = list(dict.fromkeys(filter(None, (name.strip() for name in given.split(",")))))
    # a lone * exempts everything; beside other names urllib and requests take it for a name
    exempt = "*" if "*" in names else ",".join(dict.fromkeys([*names, HOST, "localhost"]))
    return {"no_proxy": exempt, "NO_PROXY": exempt}
