"""Replaces ports that another process took while the stack was down."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from storeside.stack.servers import aistore
from storeside.stack.settings import Stack, StackError, free_ports
from storeside.stack.supervision.processes import listener, marked


def renew(stack: Stack, parts: Collection[str], tell: Callable[[str], object] = lambda text: None) -> Stack:
    """Return the stack with new ports for those that are taken, and record them; calls `tell` for each change.

    While any process of the stack runs, all ports stay, because running processes use them. If `parts`, the parts to
    start, include AIStore, the port of its proxy cannot change: the targets look for the proxy at the old port.

    Raises:
        StackError: another process has the port of AIStore's proxy.
    """
    if marked(stack.state):
        return stack
    owners = {name: owner for name, port in stack.ports.items() if (owner := listener(port))}
    fixed = {name for name in owners if name.startswith("ais_proxy") and aistore.folder(stack).exists()}
    if fixed and "aistore" in parts:
        name = min(fixed)
        raise StackError(
            f"port {stack.ports[name]} of AIStore's proxy is taken by {owners[name]}, and the cluster cannot move to "
            f"another: end that process, or delete {stack.state}, with its data, to create another stack"
        )
    moved = sorted(owners.keys() - fixed)
    if not moved:
        return stack
    recorded = set(stack.ports.values())
    # Enough ports even if all recorded ones are among the free ones.
    fresh = [port for port in free_ports(len(moved) + len(recorded)) if port not in recorded]
    new = dict(zip(moved, fresh, strict=False))
    for name, port in new.items():
        tell(f"port {stack.ports[name]} of {name} is taken by {owners[name]}: {name} moves to port {port}")
    stack = replace(stack, ports=stack.ports | new)
    stack.save()
    return stack
