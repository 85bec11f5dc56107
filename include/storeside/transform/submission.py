"""Submits the next job of AIStore for a bucket job: of the whole bucket, of a window of objects, or a quarantine."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Pending, Scope
from storeside.transform import submit
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Phase, State

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)


class Submission:
    """Submits the jobs of one bucket job, and starts and ends its ETLs; `pods` watches these."""

    def __init__(
        self, client: Client, ledger: Ledger, scope: Scope, source: Bucket, destination: Bucket,
        spec: EtlSpec | None, naming: Naming, options: Options, pods: PodWatch | None,
    ) -> None:  # fmt: skip
        self.client = client
        self.ledger = ledger
        self.scope = scope
        self.source = source
        self.destination = destination
        self.spec = spec
        self.naming = naming
        self.options = options
        self.pods = pods

    def submit(self, state: State) -> State:
        """Submit the next job; for the returned state see `BucketJob.submit`."""
        self.require_same_effect(state)
        return submit.patiently(lambda: self._submit(state))

    def require_same_effect(self, state: State) -> None:
        """Raise AIStoreTransientError when the ETL does something else than at the beginning."""
        if state.effect is not None and state.effect != self.scope.effect:
            raise AIStoreTransientError(
                f"the ETL of {self.source} -> {self.destination} was replaced by another while the job ran: a retry"
                " transforms all objects with the new one"
            )

    def end(self) -> None:
        """End the ETLs, and jobs of AIStore that are idle."""
        for to in filter(None, (self.destination, self.options.quarantine)):
            # an ended job stays idle for minutes if a target missed its end
            jobs.end_idle(self.client, self.source, to)
        if self.spec:
            (etls.renew if self.options.keep_etl else etls.release)(self.client, self.spec.all_names)

    def _submit(self, state: State) -> State | None:
        jobs.wait_for_rebalance(self.client)
        window: list[Pending] = []
        if state.phase != "bucket":
            limit = submit.WINDOW if self.spec else submit.COPY_WINDOW
            window = self.ledger.missing(self.scope, state.cursor, limit, final=state.phase == Phase.QUARANTINE)
            if not window:
                return replace(state, job_id="")
        to = self.options.quarantine if state.phase == Phase.QUARANTINE else self.destination
        assert to is not None  # noqa: S101 - advance() chose this phase
        names = self._ensure_etls(state.phase)
        with jobs.submitting(self.client, self.source, to), etls.kept(self.client, names):
            if running := jobs.running_between(self.client, self.source, to):
                log.warning("job %s of another task runs between %s and %s: following it", running, self.source, to)
                return replace(state, job_id=running, waits=True)
            jobs.end_idle(self.client, self.source, to)
            if names and not etls.are_there(self.client, names):
                return None
            if state.phase == "bucket":
                assert self.spec is not None  # noqa: S101 - plan() chose this phase
                job_id = submit.bucket(
                    self.client, self.source, self.destination, self.spec, names, self.naming, self.options
                )
            else:
                wanted = [p.object for p in window]
                if state.phase == Phase.QUARANTINE:
                    job_id = submit.quarantine(self.client, self.source, wanted, to)
                else:
                    job_id = submit.objects(
                        self.client, self.source, wanted, to, self.spec, names, self.naming, self.options
                    )
        self.ledger.record_submitted(self.scope, job_id)
        what = f"{len(window)} objects" if window else "the bucket"
        with_etl = f" with ETL {' >> '.join(names)}" if names else ""
        log.info("submitted %s to %s as job %s%s", what, to, job_id, with_etl)
        cursor = window[-1].object if window else ""
        return replace(state, job_id=job_id, etl_names=tuple(names), cursor=cursor)

    def _ensure_etls(self, phase: Phase) -> list[str]:
        if self.spec is None or phase == "quarantine":
            return []
        # an ETL is not replaced while a transform exists, even an idle one
        jobs.end_idle(self.client, self.source, self.destination)
        spec = self.spec.over("hpush") if phase == Phase.RETRY else self.spec
        return etls.ensure(self.client, spec, self.pods, keeps=self.options.keep_etl, keeper=self.scope.run_id)
