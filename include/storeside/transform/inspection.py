"""Checks whether objects can be transformed, without a result: AIStore's dry validation of a bucket."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError, said
from storeside.aistore.existence import require_bucket
from storeside.aistore.existing import described, require_reports
from storeside.aistore.markers import marker, named_by
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec
from storeside.transform.journal import failures
from storeside.transform.reasons import MOST_ERRORS, object_errors

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inspection:
    """Transforms every object of `source` and discards the results.

    It uses ``hpush``, because over WebSocket AIStore 5.0 reports an inspection but transforms nothing. An existing
    ETL keeps its own channel, which must not be ``ws``.
    """

    client: Client
    source: Bucket
    spec: EtlSpec
    prefix: str = ""
    workers: int = 0
    pods: PodWatch | None = None

    def submit(self) -> str:
        """Start the ETL and the job; return the job's id."""
        require_bucket(self.client, self.source)
        spec = described(self.client, self.spec.over("hpush"))
        require_reports(spec, "an inspection")
        jobs.wait_for_rebalance(self.client)
        jobs.end_idle(self.client, self.source, self.source)
        names = etls.ensure(self.client, spec, self.pods, keeps=False)
        job_id = self.source.handle(self.client).inspect(
            names[0],
            timeout=spec.request_timeout,
            prefix_filter=self.prefix,
            num_workers=self.workers,
            etl_pipeline=names[1:] or None,
        )
        log.info("submitted inspection %s with ETL %s", job_id, " >> ".join(names))
        return str(job_id)

    def failures(self, job_id: str) -> dict[str, str]:
        """Return the reason for each object that could not be transformed, and release the ETL.

        Markers of writers are left out, as a transform leaves them out.

        Raises AIStoreTransientError if the failures cannot be read, for example because another task deleted the ETL,
        and AIStoreInputError if they may be too many to be listed.
        """
        from aistore.sdk.errors import AISError
        from requests import RequestException

        names = self.spec.over("hpush").names
        reasons: dict[str, str] = {}
        try:
            for failure in failures(self.client, names, job_id, self.source.name):
                reasons.setdefault(failure.object, failure.reason)
            for name in names:
                self._add_errors(name, job_id, reasons)
        except (AISError, RequestException) as e:
            raise AIStoreTransientError(
                f"the objects of {self.source} that failed in inspection {job_id} cannot be known ({said(e)}): a"
                " retry inspects the bucket again"
            ) from e
        finally:
            self.release()
        named = named_by(self.prefix)
        return {name: reason for name, reason in reasons.items() if not marker(name, named)}

    def _add_errors(self, etl_name: str, job_id: str, reasons: dict[str, str]) -> None:
        """Add AIStore's errors of an ETL to the `reasons` from its log, which only Storeside's server writes."""
        errors = dict(object_errors(self.client, [etl_name], job_id, self.source))
        if len(errors) >= MOST_ERRORS and not errors.keys() <= reasons.keys():
            example, reason = next((name, why) for name, why in errors.items() if name not in reasons)
            raise AIStoreInputError(
                f"job {job_id}: AIStore lists {len(errors)} failed objects of {self.source}, and more may have"
                f" failed: it lists {MOST_ERRORS} per target: correct what they have in common, such as {example!r}:"
                f" {reason}, or inspect fewer objects"
            )
        for name, reason in errors.items():
            reasons.setdefault(name, reason)

    def release(self) -> None:
        """Stop and delete the ETL, unless another job uses it."""
        etls.release(self.client, self.spec.over("hpush").own_names)
