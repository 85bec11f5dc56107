"""Faults of components that answer. ``make status`` checks for them, because a health probe must be quicker."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from storeside.stack.executor_watch import PATIENCE_SECONDS, titles
from storeside.stack.settings import Stack
from storeside.stack.supervision.processes import marked

_FRESH_SECONDS = 5.0
_CALL_SECONDS = 3.0


class ControlPlane:
    """Finds the targets of the stack's cluster that do not answer control calls; all targets share one check."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._checked = float("-inf")
        self._found: dict[str, str] = {}

    def of(self, target: str) -> str:
        """Return the fault of the target with this id, with the remedy; empty if it has none."""
        if time.monotonic() - self._checked > _FRESH_SECONDS:
            self._found = self._check()
            self._checked = time.monotonic()
        return self._found.get(target, "")

    def _check(self) -> dict[str, str]:
        # Imported late, because AIStore's container image has neither package.
        import requests

        from storeside.aistore import control_plane
        from storeside.aistore.errors import AIStoreError
        from storeside.stack import authn

        ids = [f"aistarget{number}" for number in range(self._stack.targets)]
        client = authn.cluster(self._stack).client(patient=False)
        try:
            found = control_plane.unanswering(client, _CALL_SECONDS, expected=ids)
        except (AIStoreError, requests.RequestException, ValueError, KeyError) as e:
            return dict.fromkeys(ids, f"the proxy does not return the cluster map: {e}")
        return {target.id: str(target) for target in found}


def of_scheduler(stack: Stack, parallelism: int) -> str:
    """Return the fault of a scheduler whose LocalExecutor lacks workers; empty if it has all of them."""
    count = 0
    for process in marked(stack.state, "scheduler"):
        with suppress(psutil.Error):
            count = max(count, len(titles(process)))
    if count >= parallelism:
        return ""
    return (
        f"{count} of {parallelism} workers of the LocalExecutor run: the scheduler is still starting, or it lost "
        "workers and queued tasks may not start. In the second case it is restarted within "
        f"{PATIENCE_SECONDS:.0f} s, or at once by 'make restart COMPONENT=scheduler'"
    )
