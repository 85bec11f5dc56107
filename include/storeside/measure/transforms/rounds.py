"""One round of a variant: it transcodes all objects of a measurement, and every object has a result."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.aistore.errors import NO_REASON, said
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec
from storeside.aistore.stored_objects import list_aistore
from storeside.errors import StoresideError, Transient
from storeside.measure.errors import (
    BrokenRecordingsError,
    MeasureCancelled,
    MeasureTransientError,
    VariantFailedError,
)
from storeside.measure.transforms import client as clients
from storeside.measure.transforms.jobs import refuse_stopped, transcode_by_etl
from storeside.measure.transforms.plan import Plan
from storeside.measure.transforms.scratch import Scratch
from storeside.measure.transforms.variants import Variant

if TYPE_CHECKING:
    from aistore.sdk import Client


class Rounds:
    """Runs the rounds of a plan; `names` are the objects of the scratch bucket with the names of their results."""

    def __init__(
        self, cluster: Cluster, client: Client, plan: Plan, scratch: Scratch, pods: PodWatch | None,
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._client = client
        self._plan = plan
        self._scratch = scratch
        self._pods = pods
        self._stop = stop
        self.names: dict[str, str] = {}

    def seconds(self, case: Variant | None) -> float:
        """Transcode all objects; return the seconds.

        Raises BrokenRecordingsError if objects without a result are themselves the reason, and VariantFailedError if
        anything else fails.
        """
        refuse_stopped(self._stop)
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
            self._cluster, self._scratch.source, to, self.names, environment, self._plan.parallel, self._stop
        )
        self._reconcile(to, {}, broken)
        return seconds

    def _by_etl(self, spec: EtlSpec, to: Bucket) -> float:
        try:
            done = transcode_by_etl(
                self._client, self._plan.naming, spec, self._scratch.source, to, self._pods, self._stop
            )
            self._reconcile(to, done.reasons, done.broken)
            return done.seconds
        finally:
            self._scratch.discard(spec.name)

    def _reconcile(self, to: Bucket, reasons: Mapping[str, str], broken: Mapping[str, str]) -> None:
        """Raise an error, with a reason, unless every object has a result that is not empty.

        `broken` are the reasons of objects that no retry helps.
        """
        there = {found.name for found in list_aistore(self._client, to) if found.size}
        missing = [name for name, result in self.names.items() if result not in there]
        if not missing:
            return
        known = {**reasons, **broken}
        name = next((name for name in missing if name in known), missing[0])
        of = f"{len(missing)} of {len(self.names)}"
        message = f"{of} objects have no result, such as {name!r}: {known.get(name, NO_REASON)}"
        if len(missing) < len(self.names) and all(name in broken for name in missing):
            raise BrokenRecordingsError(message, {name: broken[name] for name in missing})
        raise MeasureTransientError(f"{message}: choose a prefix without such objects")


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
