"""Transcodes the same objects in each variant in turn, and by a client, as AIStore's published benchmark does.

Each round of a variant is a job of AIStore from bucket to bucket. It counts only if every object has a result: over
WebSocket, AIStore reports objects as done that failed. Recordings that the first variant cannot transcode, because of
their content, are not measured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.aistore.errors import NO_REASON, said
from storeside.aistore.existence import require_bucket
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec
from storeside.aistore.stored_objects import list_aistore
from storeside.errors import StoresideError, Transient
from storeside.measure.errors import (
    BrokenRecordingsError,
    MeasureCancelled,
    MeasureInputError,
    MeasureTransientError,
    VariantFailedError,
)
from storeside.measure.transforms import client as clients
from storeside.measure.transforms.results import CLIENT, Report, Result
from storeside.measure.transforms.scratch import Scratch
from storeside.measure.transforms.variants import Variant
from storeside.transform import submit
from storeside.transform.journal import failures, readable
from storeside.transform.naming import Naming
from storeside.transform.reasons import object_errors
from storeside.transform.state import Options
from storeside.transformers.audio.formats import EXTENSIONS, AudioFormat

log = logging.getLogger(__name__)

OBJECTS, ROUNDS, PARALLEL = range(1, 10_001), range(1, 101), range(257)
_POLL_SECONDS = 0.2
_STALL_SECONDS = 300.0


@dataclass(frozen=True)
class Plan:
    """A measurement of up to `objects` recordings of `source` below `prefix`, in each of the `variants`.

    `spec` is the transcoder's ETL on the FastAPI server, and `audio` its format. `workers` is the number of objects
    in flight per target. The client transcodes `parallel` objects at the same time; without any, it is left out.
    Raises MeasureInputError for a number out of range.
    """

    source: Bucket
    prefix: str
    objects: int
    spec: EtlSpec
    audio: AudioFormat
    variants: list[Variant]
    workers: int
    rounds: int
    parallel: int

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("objects", self.objects, OBJECTS),
            ("rounds", self.rounds, ROUNDS),
            ("client_workers", self.parallel, PARALLEL),
        ):
            if value not in allowed:
                raise MeasureInputError(f"{name} {value}: use {allowed[0]} to {allowed[-1]}")

    @property
    def naming(self) -> Naming:
        """The names of the results."""
        return Naming(self.audio.extensions)

    @property
    def form(self) -> str:
        """The format of the results in words."""
        return f"{self.audio.codec} {self.audio.sample_rate} Hz, channels: {self.audio.channels}"


class Benchmark:
    """Measures a plan. `scope` is the same for all tries of a task: a try removes what a killed one left behind."""

    def __init__(
        self, cluster: Cluster, plan: Plan, *, scope: str, pods: PodWatch | None = None,
        stop: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._client = cluster.client()
        self._plan = plan
        self._pods = pods
        self._stop = stop or threading.Event()
        self._scratch = Scratch(self._client, scope)
        self._names: dict[str, str] = {}
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
        plan, to = self._plan, self._scratch.source
        self._names = self._selected()
        names = list(self._names)
        to.handle(self._client).create()
        with jobs.submitting(self._client, plan.source, to):
            job_id = submit.objects(self._client, plan.source, names, to, None, [], Naming(), Options())
        self._follow(job_id)
        jobs.end_idle(self._client, plan.source, to)
        self._sizes = {found.name: found.size for found in list_aistore(self._client, to)}
        if missing := [name for name in names if name not in self._sizes]:
            raise MeasureTransientError(
                f"{plan.source}: {len(missing)} of {len(names)} objects could not be copied to the cluster, such as"
                f" {missing[0]!r}: check whether AIStore can read it"
            )
        log.info("%s: %d recordings, %.1f MB", plan.source, len(names), sum(self._sizes.values()) / 1e6)

    def _selected(self) -> dict[str, str]:
        """Return the first recordings of the source by name, with the names of their results."""
        plan, chosen = self._plan, dict[str, str]()
        for found in list_aistore(self._client, plan.source, plan.prefix):
            known = found.name.rpartition(".")[2].lower() in EXTENSIONS
            if found.size and known and not plan.naming.refusal(found.name):
                chosen[found.name] = plan.naming.destination(found.name)
            if len(chosen) == plan.objects:
                break
        if not chosen:
            below = f" below {plan.prefix!r}" if plan.prefix else ""
            raise MeasureInputError(
                f"{plan.source} has no recordings{below}: choose a bucket with objects such as a.flac; known"
                f" extensions are {', '.join(EXTENSIONS)}"
            )
        return chosen

    def _measure(self) -> Report:
        plan = self._plan
        cases: list[Variant | None] = [*([None] if plan.parallel else []), *plan.variants]
        seconds: dict[Variant | None, list[float]] = {case: [] for case in cases}
        failed: dict[str, str] = {}
        for number in range(1, plan.rounds + 1):
            for case in [case for case in cases if case in seconds]:
                name = str(case or CLIENT)
                try:
                    took = self._first(case) if not any(seconds.values()) else self._once(case)
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
            str(plan.source), plan.form, targets, processes, len(self._names), size, results, failed, self._left_out
        )

    def _first(self, case: Variant | None) -> float:
        """Transcode all objects before anything is measured; if some are broken, transcode the others again."""
        try:
            return self._once(case)
        except BrokenRecordingsError as e:
            log.warning("%s: %s; they are not measured", case or CLIENT, e)
            self._leave_out(e.reasons)
        return self._once(case)

    def _leave_out(self, broken: Mapping[str, str]) -> None:
        """Remove objects from the scratch bucket, and remember their reasons."""
        self._follow(self._scratch.source.objects(self._client, broken).delete())
        for name, reason in broken.items():
            del self._names[name], self._sizes[name]
            self._left_out[name] = reason

    def _once(self, case: Variant | None) -> float:
        """Transcode all objects; return the seconds.

        Raises BrokenRecordingsError if objects without a result are themselves the reason, and VariantFailedError if
        anything else fails.
        """
        self._check_stop()
        with _failing():
            to = self._scratch.destination()
            try:
                if case:
                    return self._by_etl(case.of(self._plan.spec, self._scratch.label), to)
                return self._by_client(to)
            finally:
                to.handle(self._client).delete(missing_ok=True)

    def _by_client(self, to: Bucket) -> float:
        spec = self._plan.spec
        environment = {**spec.environment, "OBJECT_TIMEOUT": str(spec.object_timeout)}
        seconds, broken = clients.transcode(
            self._cluster, self._scratch.source, to, self._names, environment, self._plan.parallel, self._stop
        )
        self._reconcile(to, {}, broken)
        return seconds

    def _by_etl(self, spec: EtlSpec, to: Bucket) -> float:
        """Run one job of AIStore, and return its seconds by the targets' clocks."""
        plan, source = self._plan, self._scratch.source
        try:
            names = etls.ensure(self._client, spec, self._pods, keeps=False)
            self._check_stop()
            options = Options(workers=plan.workers)
            with etls.kept(self._client, names):
                job_id = submit.bucket(self._client, source, to, spec, names, plan.naming, options)
            seconds = self._follow(job_id)
            reasons = dict(readable(job_id, object_errors(self._client, names, job_id, source)))
            journal = list(readable(job_id, failures(self._client, names, job_id, source.name)))
            reasons |= {f.object: f.reason for f in journal}
            self._reconcile(to, reasons, {f.object: f.reason for f in journal if f.final})
            return seconds
        finally:
            self._scratch.discard(spec.name)

    def _reconcile(self, to: Bucket, reasons: Mapping[str, str], broken: Mapping[str, str]) -> None:
        """Raise an error, with a reason, unless every object has a result that is not empty.

        `broken` are the reasons of objects that no retry helps.
        """
        there = {found.name for found in list_aistore(self._client, to) if found.size}
        missing = [name for name, result in self._names.items() if result not in there]
        if not missing:
            return
        known = {**reasons, **broken}
        name = next((name for name in missing if name in known), missing[0])
        of = f"{len(missing)} of {len(self._names)}"
        message = f"{of} objects have no result, such as {name!r}: {known.get(name, NO_REASON)}"
        if len(missing) < len(self._names) and all(name in broken for name in missing):
            raise BrokenRecordingsError(message, {name: broken[name] for name in missing})
        raise MeasureTransientError(f"{message}: choose a prefix without such objects")

    def _follow(self, job_id: str) -> float:
        """Wait for the end of a job and return its seconds. Raises MeasureTransientError if the job failed."""
        follower = jobs.Follower(self._client, job_id, _STALL_SECONDS)
        try:
            while not (progress := follower.poll()).finished:
                self._stop.wait(_POLL_SECONDS)
                self._check_stop()
        except BaseException:  # also a timeout of the task: while the job runs, its ETL cannot be removed
            jobs.abort(self._client, job_id)
            raise
        if progress.error:
            raise MeasureTransientError(f"job {job_id}: {progress.error}")
        return max(progress.seconds, 0.001)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise MeasureCancelled("the measurement was cancelled")


@contextmanager
def _failing() -> Iterator[None]:
    """Raise every error, except a cancellation and that of broken recordings, as VariantFailedError."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        yield
    except (MeasureCancelled, BrokenRecordingsError):
        raise
    except (StoresideError, AISError, RequestException, Transient) as e:
        raise VariantFailedError(said(e)) from e
