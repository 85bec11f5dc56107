"""Transcodes the same objects in each variant in turn, and by a client, as AIStore's published benchmark does.

Each round of a variant is a job of AIStore from bucket to bucket. It counts only if every object has a result: over
WebSocket, AIStore reports objects as done that failed. Recordings that the first variant cannot transcode, because of
their content, are not measured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from storeside.aistore import jobs
from storeside.aistore.cluster import Cluster
from storeside.aistore.errors import said
from storeside.aistore.existence import require_bucket
from storeside.aistore.pods import PodWatch
from storeside.errors import StoresideError, Transient
from storeside.measure.errors import (
    BrokenRecordingsError,
    MeasureInputError,
    MeasureTransientError,
    VariantFailedError,
)
from storeside.measure.transforms.jobs import follow
from storeside.measure.transforms.plan import Plan
from storeside.measure.transforms.recordings import chosen, copied
from storeside.measure.transforms.results import CLIENT, Report, Result
from storeside.measure.transforms.rounds import Rounds
from storeside.measure.transforms.scratch import Scratch
from storeside.measure.transforms.variants import Variant

log = logging.getLogger(__name__)


class Benchmark:
    """Measures a plan. `scope` is the same for all tries of a task: a try removes what a killed one left behind."""

    def __init__(
        self, cluster: Cluster, plan: Plan, *, scope: str, pods: PodWatch | None = None,
        stop: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self._client = cluster.client()
        self._plan = plan
        self._scratch = Scratch(self._client, scope)
        self._stop = stop or threading.Event()
        self._rounds = Rounds(cluster, self._client, plan, self._scratch, pods, self._stop)
        self._sizes: dict[str, int] = {}
        self._left_out: dict[str, str] = {}

    def run(self) -> Report:
        """Copy the objects to a scratch bucket, and measure all variants in turn; then remove all scratch.

        Raises:
            MeasureInputError: there are no recordings, or no variant worked.
            MeasureTransientError: other transforms run, or the objects could not be copied.
            MeasureCancelled: `stop` was set.
            AIStoreError: the bucket does not exist, or a target is stuck.
            AISError: AIStore refuses a request.
        """
        jobs.require_targets(self._client)
        jobs.wait_for_rebalance(self._client)
        require_bucket(self._client, self._plan.source)
        self._scratch.remove()
        if running := jobs.running_transforms(self._client):
            raise MeasureTransientError(f"{running[0]} runs and would distort the figures: try later")
        try:
            with jobs.naming_stuck_targets(self._client):
                self._copy()
                return self._measure()
        finally:
            self._remove()

    def _remove(self) -> None:
        """Remove the scratch; a failure of it must not hide the outcome of the measurement."""
        from aistore.sdk.errors import AISError
        from requests import RequestException

        try:
            self._scratch.remove()
        except (StoresideError, AISError, RequestException, Transient) as e:
            log.warning("the buckets and ETLs of this measurement are not all removed: %s", said(e))

    def _copy(self) -> None:
        """Copy the objects to the scratch bucket, so that each variant reads them from the targets' disks."""
        self._rounds.names = chosen(self._client, self._plan)
        self._sizes = copied(self._client, self._plan, list(self._rounds.names), self._scratch.source, self._stop)

    def _measure(self) -> Report:
        plan = self._plan
        cases: list[Variant | None] = [*([None] if plan.parallel else []), *plan.variants]
        seconds: dict[Variant | None, list[float]] = {case: [] for case in cases}
        failed: dict[str, str] = {}
        for number in range(1, plan.rounds + 1):
            for case in [case for case in cases if case in seconds]:
                name = str(case or CLIENT)
                try:
                    took = self._first(case) if not any(seconds.values()) else self._rounds.seconds(case)
                    seconds[case].append(took)
                    log.info("round %d of %d: %s: %.2f s", number, plan.rounds, name, took)
                except VariantFailedError as e:
                    failed[name] = str(e)
                    del seconds[case]
                    log.warning("round %d of %d: %s fails and is left out: %s", number, plan.rounds, name, e)
        results = [Result(case, tuple(found)) for case, found in seconds.items()]
        if not any(result.variant for result in results):
            raise MeasureInputError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
        targets = len(self._client.cluster().get_info().tmap)
        processes = int(plan.spec.tuning.get("NUM_WORKERS", 0))
        size = sum(self._sizes.values())
        return Report(
            str(plan.source),
            plan.form,
            targets,
            processes,
            len(self._rounds.names),
            size,
            results,
            failed,
            self._left_out,
        )

    def _first(self, case: Variant | None) -> float:
        """Transcode all objects before anything is measured; if some are broken, transcode the others again."""
        try:
            return self._rounds.seconds(case)
        except BrokenRecordingsError as e:
            log.warning("%s: %s; they are not measured", case or CLIENT, e)
            self._leave_out(e.reasons)
        return self._rounds.seconds(case)

    def _leave_out(self, broken: Mapping[str, str]) -> None:
        """Remove objects from the scratch bucket, and remember their reasons."""
        follow(self._client, self._scratch.source.objects(self._client, broken).delete(), self._stop)
        for name, reason in broken.items():
            del self._rounds.names[name], self._sizes[name]
            self._left_out[name] = reason
