"""Faults of components that answer: ``make status`` looks for them, because that is too slow for a health probe."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from storeside.stack.executor_watch import PATIENCE_SECONDS, titles
from storeside.stack.processes import marked
from storeside.stack.settings import Stack

_FRESH_SECONDS = 5.0
_CALL_SECONDS = 3.0


class ControlPlane:
    """The targets of the stack's cluster that do not answer control calls; one check serves all of them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._looked = float("-inf")
        self._found: dict[str, str] = {}

    def of(self, target: str) -> str:
        """Return the fault of the target with this id, with the remedy; empty if there is none."""
        if time.monotonic() - self._looked > _FRESH_SECONDS:
            self._found = self._look()
            self._looked = time.monotonic()
        return self._found.get(target, "")

    def _look(self) -> dict[str, str]:
        # imported here because AIStore's container image has neither
        import requests

        from storeside.aistore import control_plane
        from storeside.aistore.errors import AIStoreError
        from storeside.stack import authn

        ids = [f"aistarget{number}" for number in range(self._stack.targets)]
        client = authn.cluster(self._stack).client(patient=False)
        try:
            found = control_plane.unanswering(client, _CALL_SECONDS, expected=ids)
        except (AIStoreError, requests.RequestException, ValueError, KeyError) as e:
            return dict.fromkeys(ids, f"the proxy does not tell the cluster map: {e}")
        return {target.id: str(target) for target in found}


def of_scheduler(stack: Stack, parallelism: int) -> str:
    """Return the loss of workers of the scheduler's LocalExecutor; empty if it has all of them."""
    count = 0
    for process in marked(stack.state, "scheduler"):
        with suppress(psutil.Error):
            count = max(count, len(titles(process)))
    if count >= parallelism:
        return ""
    return (
        f"{count} of {parallelism} workers of the LocalExecutor are there: it is still starting, or queued tasks may "
        f"not start, and then it is restarted within {PATIENCE_SECONDS:.0f} s (at once by 'make restart "
        "COMPONENT=scheduler')"
    )
