"""Ports that another process took while the stack was down."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from storeside.stack import aistore
from storeside.stack.processes import listener, marked
from storeside.stack.settings import Stack, StackError, free_ports


def renew(stack: Stack, parts: Collection[str], tell: Callable[[str], object] = lambda text: None) -> Stack:
    """Return the stack with new ports in place of those that are taken, and record them; `tell` is called for each.

    While any part of the stack runs, all ports stay, because the running processes know them. Of `parts`, which will
    be started, AIStore cannot change the port of its proxy: the targets look for the proxy at the old one.

    Raises:
        StackError: a port of AIStore's proxy is taken.
    """
    if marked(stack.state):
        return stack
    owners = {name: owner for name, port in stack.ports.items() if (owner := listener(port))}
    fixed = {name for name in owners if name.startswith("ais_proxy") and aistore.folder(stack).exists()}
    if fixed and "aistore" in parts:
        name = min(fixed)
        raise StackError(
            f"port {stack.ports[name]} of AIStore's proxy is taken by {owners[name]}, and the cluster cannot move to "
            f"another: end that process, or delete {stack.state}, with its data, to make another stack"
        )
    moved = sorted(owners.keys() - fixed)
    if not moved:
        return stack
    recorded = set(stack.ports.values())
    # enough for the case that free ones are recorded for another part
    fresh = [port for port in free_ports(len(moved) + len(recorded)) if port not in recorded]
    new = dict(zip(moved, fresh, strict=False))
    for name, port in new.items():
        tell(f"port {stack.ports[name]} of {name} is taken by {owners[name]}: it is {port} from now on")
    stack = replace(stack, ports=stack.ports | new)
    stack.save()
    return stack
