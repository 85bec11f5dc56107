"""Collects the reasons of failed objects from transformers' logs and from AIStore."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import is_refusal, plain, said
from storeside.aistore.existing import details
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger, Reported
from storeside.ledger.scope import Pending, Scope
from storeside.transform.journal import readable, reported
from storeside.transform.members import record_members
from storeside.transform.state import Phase, State
from storeside.transformers.contract.failures import Facts, Failure, LeftOut

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

Entry = Failure | LeftOut | Facts

# The maximum number of failed copies whose reasons are requested from AIStore; others get the common reason.
REASONS = 200
# The maximum number of failed objects that AIStore lists per target and job (MaxObjErr in ext/etl/runtime_api.go).
MOST_ERRORS = 128


def record_reasons(
    client: Client, ledger: Ledger, scope: Scope, source: Bucket, spec: EtlSpec | None, state: State
) -> None:
    """Record why objects failed in a finished job, which ones the transformer left out, and facts of the others."""
    if state.phase == Phase.QUARANTINE:
        return
    if spec is None:
        if state.phase == Phase.RETRY:
            missing = ledger.missing(scope, "", REASONS)
            ledger.record_reasons(scope, reasons_of_copies(client, source, missing))
        return
    if spec.in_shards:
        record_members(client, ledger, scope, source, state.etl_names, state.job_id)
    known: dict[str, str] = {}
    if state.phase == Phase.RETRY or spec.communication != "ws":
        known = dict(readable(state.job_id, object_errors(client, state.etl_names, state.job_id, source)))
    journal = readable(state.job_id, reported(client, state.etl_names, state.job_id, source.name))
    ledger.record_outcomes(scope, map(_outcome, _explained(journal, known)))
    ledger.record_reasons(scope, ((name, reason, False) for name, reason in known.items()))


def _explained(journal: Iterable[Entry], known: dict[str, str]) -> Iterator[Entry]:
    """Yield what transformers report, and remove AIStore's errors about these objects, which say less."""
    for entry in journal:
        if not isinstance(entry, Facts):
            known.pop(entry.object, None)
        yield entry


def _outcome(entry: Entry) -> tuple[str, str, Reported, str]:
    if isinstance(entry, Facts):
        return entry.object, "", "facts", entry.facts
    if isinstance(entry, LeftOut):
        return entry.object, entry.reason, "left_out", entry.facts
    return entry.object, entry.reason, "final" if entry.final else "reason", ""


def reasons_of_copies(client: Client, bucket: Bucket, missing: Iterable[Pending]) -> Iterator[tuple[str, str, bool]]:
    """Request each missing object from AIStore, and yield each refusal as the final reason of the failed copy."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    for p in missing:
        try:
            bucket.object(client, p.object).head()
        except AISError as e:
            if is_refusal(e.status_code):
                yield p.object, said(e), True
            else:
                log.warning("%s/%s was not copied: %s", bucket, p.object, said(e))
        except RequestException as e:
            log.warning("%s/%s was not copied: %s", bucket, p.object, e)


def object_errors(client: Client, etl_names: Iterable[str], job_id: str, source: Bucket) -> Iterator[tuple[str, str]]:
    """Yield AIStore's errors of failed objects: at most `MOST_ERRORS` per target and job. Raises AISError."""
    for name in etl_names:
        for error in details(client, name, job_id).get("obj_errors") or ():
            yield _object_name(error["obj_name"], source), plain(error["msg"])


def _object_name(reported: str, bucket: Bucket) -> str:
    """Return the object's name from the name in an error, which may include its bucket."""
    for prefix in (f"{bucket.own_uri}/", f"{bucket}/", f"{bucket.provider}://{bucket.name}/", f"{bucket.name}/"):
        if reported.startswith(prefix):
            return reported[len(prefix) :]
    return reported
