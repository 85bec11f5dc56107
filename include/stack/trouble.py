"""What is wrong with components that answer: looked for by ``make status``, too slow for a probe of health."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from include.stack.executor_watch import PATIENCE_SECONDS, titles
from include.stack.processes import marked
from include.stack.settings import Stack

_FRESH_SECONDS = 5.0
_CALL_SECONDS = 3.0


class ControlPlane:
    """Which targets of the stack's cluster do not answer control calls; one look serves all of them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._looked = float("-inf")
        self._found: dict[str, str] = {}

    def of(self, target: str) -> str:
        """Return what is wrong with the target of this id, with the remedy; empty when nothing is."""
        if time.monotonic() - self._looked > _FRESH_SECONDS:
            self._found = self._look()
            self._looked = time.monotonic()
        return self._found.get(target, "")

    def _look(self) -> dict[str, str]:
        # here, as the container image of AIStore has neither
        import requests

        from include.storage import control_plane
        from include.storage.cluster import Cluster

        ids = [f"aistarget{number}" for number in range(self._stack.targets)]
        client = Cluster(self._stack.url("ais_proxy")).client(patient=False)
        try:
            found = control_plane.unanswering(client, _CALL_SECONDS, expected=ids)
        except (requests.RequestException, ValueError, KeyError) as e:
            return dict.fromkeys(ids, f"the proxy does not tell the cluster map: {e}")
        return {target.id: str(target) for target in found}


def of_scheduler(stack: Stack, parallelism: int) -> str:
    """Tell whether the scheduler's LocalExecutor has lost workers; empty when it has all of them."""
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
