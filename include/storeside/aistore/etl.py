"""Starts, reuses and stops ETLs. A stop aborts all bucket transforms of the cluster, so tasks check first."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from storeside.aistore import existing, jobs
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError, is_passing, said
from storeside.aistore.lock import age_of, break_lock, locked
from storeside.aistore.pods import PodWatch, Watched, is_final
from storeside.aistore.spec import KEEPER, MARK, EtlSpec

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

_ATTEMPTS = 3
# Longer than it takes to stop an ETL: a task that waits longer waits for the start of an ETL.
_END_SECONDS = 10.0
# Longer than the SDK waits for the start of an ETL (5 minutes).
_START_SECONDS = 330.0
# A task records in the names of empty buckets which ETLs it started, which it could not stop at its end, and which it
# keeps for later tasks. All end with the name of the ETL.
USED, LEFT, KEPT = "storeside-etl-used-", "storeside-etl-left-", "storeside-etl-kept-"
# The task of an ETL that was started so long ago is dead, if no transform runs.
_ABANDONED_SECONDS = 86_400.0
# The time to live of a kept ETL after its last use: longer than a day, so that daily runs find it.
KEPT_SECONDS = 2 * 86_400.0
# Seconds between health checks of an ETL that does not answer.
_HEALTH_WAITS = (1.0, 3.0)


def ensure(
    client: Client, spec: EtlSpec, pods: PodWatch | None = None, *, keeps: bool = True, keeper: str = ""
) -> list[str]:
    """Start the ETLs of a chain unless they run already, and return their names.

    With `keeps`, other tasks do not stop the ETLs when this task has died or could not stop them; see `release`. With
    a `keeper`, the name of a run, they do so `KEPT_SECONDS` after the last use.
    This starts no existing ETL: `existing.described` lists the errors for an existing ETL that does not run.
    `pods` watches the pods, so the error states why a pod does not start. Raises AIStoreInputError with the reason
    when a pod cannot start. Raises AIStoreTransientError when it may start later, for example after it was killed, or
    when an ETL must be replaced while transforms run. Raises StuckTargetError when a target answers no control call.
    """
    with jobs.naming_stuck_targets(client):
        return [_ensure(client, stage, pods, keeps, keeper) for stage in spec.stages]


def _ensure(client: Client, spec: EtlSpec, pods: PodWatch | None, keeps: bool, keeper: str) -> str:
    if spec.is_existing:
        _require_healthy(client, existing.described(client, spec).name)
        return spec.name
    attempt = 0
    while True:
        attempt += 1
        longest = spec.init_timeout + 60
        with locked(client, _lock(spec.name), stale_seconds=longest, patience_seconds=2 * longest):
            _forget(client, spec.name, (USED, LEFT) if keeps else (LEFT,))
            if _running(client, spec):
                if keeps and keeper:  # also an ETL of a task that does not keep it, and may have died
                    _keep(client, spec.name)
                else:
                    renew(client, [spec.name])
                return spec.name
            jobs.require_targets(client)  # with a stuck target, the start of an ETL takes minutes to fail
            _forget(client, spec.name, (KEPT,))
            record = USED if not keeps else KEPT if keeper else ""
            if record:
                client.bucket(record + spec.name).create(exist_ok=True)
            failure = _start(client, spec, pods, keeper if keeps else "")
            if failure is not None:
                _forget(client, spec.name, (USED, KEPT))
        if failure is None:
            return spec.name
        reason, final = failure
        if attempt == _ATTEMPTS or final:
            kind = AIStoreInputError if final else AIStoreTransientError  # not final: killed, or unknown
            raise kind(f"ETL {spec.name} (image {spec.image}) does not start: {reason}")
        log.warning("ETL %s: start %d of %d failed, retrying: %s", spec.name, attempt, _ATTEMPTS, reason)
        time.sleep(2)  # AIStore still cancels the failed start; an immediate init fails with "context canceled"


def renew(client: Client, names: Collection[str]) -> None:
    """Record that kept ETLs among these are used now, so that their time to live begins again."""
    for name in names:
        if age_of(client, KEPT + name) is not None:
            _keep(client, name)


def _keep(client: Client, name: str) -> None:
    _forget(client, name, (KEPT,))
    client.bucket(KEPT + name).create(exist_ok=True)


def _start(client: Client, spec: EtlSpec, pods: PodWatch | None, keeper: str) -> tuple[str, bool] | None:
    """Start an ETL. Return None when it runs, otherwise the reason of the failure and whether a retry is useless."""
    from aistore.sdk.errors import AISError

    started = time.monotonic()
    message = spec.message()
    message["runtime"]["env"] += _of_the_cluster(client, spec)
    message["runtime"]["env"] += [{"name": KEEPER, "value": keeper}] if keeper else []
    try:
        with pods.watching(spec.name) if pods else nullcontext(Watched()) as watched:
            client.cluster().client.request("put", path="etl", timeout=spec.init_timeout + 30, json=message)
    except AISError as e:
        discard(client, spec.name)  # a failed init leaves an entry that blocks the next init
        return watched.why(said(e)), watched.is_final or is_final(said(e))
    log.info("ETL %s started in %.1f s", spec.name, time.monotonic() - started)
    return None


def _of_the_cluster(client: Client, spec: EtlSpec) -> list[dict[str, str]]:
    """Return the environment variables that list the nodes a pod trusts, and the variables for its decoders."""
    smap = client.cluster().get_info()
    nodes = [*smap.tmap.values(), *smap.pmap.values()]
    networks = [net for node in nodes for net in (node.public_net, node.intra_control_net, node.intra_data_net)]
    urls = [urlsplit(net.direct_url) for net in networks if net.direct_url]
    addresses = sorted({f"{url.hostname}:{url.port}" for url in urls})
    found = {"AIS_NODES": ",".join(addresses), "TRANSFORM_VARIABLES": ",".join([*spec.environment, *spec.tuning])}
    # AIStore omits an empty value from the description of an ETL, which its SDK then cannot parse.
    return [{"name": name, "value": value} for name, value in found.items() if value]


def _lock(name: str) -> str:
    """Return the name of the lock that a task holds while it starts or stops an ETL."""
    return f"ETL {name}"


def _running(client: Client, spec: EtlSpec) -> bool:
    """Return whether the ETL runs beside every target. A restarted target lists an ETL but does not run it.

    An ETL of the same name with another specification is discarded. Raises AIStoreTransientError while transforms
    run, because this would abort them, and AIStoreInputError if Storeside did not start that ETL.
    """
    from aistore.sdk.errors import AISError

    name = spec.name
    if not are_there(client, [name]):
        return False
    try:
        if spec.etl_name and (mark := mark_of(client, name)) != spec.mark:
            if not mark:
                raise AIStoreInputError(
                    f"ETL {name} runs already, and Storeside did not start it: use EtlSpec.existing({name!r}), or"
                    " choose another name"
                )
            if jobs.running_transforms(client):
                raise AIStoreTransientError(
                    f"ETL {name} runs with another specification, and stopping it would abort transforms that run:"
                    " wait for them, or choose another name"
                )
            log.info("ETL %s runs with another specification: replacing it", name)
            discard(client, name)
            return False
        _check_health(client, name)
    except AISError as e:
        if any(job.startswith("etl-bck[") for job in jobs.running_transforms(client)):
            raise AIStoreTransientError(
                f"ETL {name} does not run beside every target ({said(e)}), and starting it again would abort bucket"
                " transforms that run: try later"
            ) from e
        log.warning("ETL %s does not run beside every target, restarting it: %s", name, said(e))
        discard(client, name)
        return False
    return True


def _require_healthy(client: Client, name: str) -> None:
    """Raise AIStoreTransientError when an existing ETL does not run beside every target."""
    from aistore.sdk.errors import AISError

    try:
        _check_health(client, name)
    except AISError as e:
        raise AIStoreTransientError(
            f"ETL {name} does not run beside every target ({said(e)}), and tasks do not restart an existing ETL: stop"
            " and start it with AISStopEtlOperator and AISStartEtlOperator"
        ) from e


def _check_health(client: Client, name: str) -> None:
    """Raise AISError when the ETL does not run beside every target in three checks some seconds apart."""
    from aistore.sdk.errors import AISError

    for wait in (*_HEALTH_WAITS, None):
        try:
            client.cluster().client.request("get", path=f"etl/{name}/health")
        except AISError:
            if wait is None:
                raise
            time.sleep(wait)
        else:
            return


def mark_of(client: Client, name: str) -> str:
    """Return the mark with which the ETL `name` was started; empty if it was not started from an `EtlSpec`."""
    return existing.variables(existing.details(client, name)["init_msg"]).get(MARK, "")


def are_there(client: Client, names: Collection[str]) -> bool:
    """Return whether AIStore lists all of these ETLs."""
    return set(names) <= {etl.id for etl in client.cluster().list_etls()}


def ours(client: Client) -> list[str]:
    """Return the names of all ETLs that were started from an `EtlSpec`.

    Leaves out ETLs that ended meanwhile, and those of which a restarted target knows nothing.
    """
    return [etl.id for etl in client.cluster().list_etls() if _is_ours(client, etl.id)]


def _is_ours(client: Client, name: str) -> bool:
    from aistore.sdk.errors import AISError

    try:
        return bool(mark_of(client, name))
    except AISError as e:
        if e.status_code != HTTPStatus.NOT_FOUND:
            raise
        return False


def release(client: Client, names: Collection[str]) -> bool:
    """Stop and delete ETLs unless a transform runs anywhere in the cluster; return whether they were deleted.

    If they were not, the next task that calls this function while no transform runs stops them, and also ETLs whose
    tasks died. Tasks that use one of these ETLs meanwhile stop it themselves.

    Stopping any ETL aborts every bucket transform (AIStore 5.0, xreg.AbortKind). Idle ETLs are stopped, because a
    target can hang while it stops them after another target was lost.
    """
    if not names:
        return True
    try:
        return _released(client, names)
    except AIStoreTransientError as e:
        log.info("another task starts a transform, or stops the ETLs: %s", e)
        _leave(client, names)
    try:
        return _released(client, names)  # the other task may have looked for such ETLs before these were recorded
    except AIStoreTransientError:
        return False


def _released(client: Client, names: Collection[str]) -> bool:
    with kept(client, names, patience_seconds=_END_SECONDS):
        if jobs.running_transforms(client):
            log.info("other transforms run: the last of their tasks stops the ETLs")
            _leave(client, names)
            return False
        pending = set(names)
        while pending:
            for name in sorted(pending):
                # no lock is stale, because the start of an ETL has no time limit
                with locked(client, _lock(name), stale_seconds=math.inf, patience_seconds=_END_SECONDS):
                    discard(client, name)
                    _forget(client, name, (USED, LEFT, KEPT))
            pending = set(_without_tasks(client))
    return True


def _leave(client: Client, names: Collection[str]) -> None:
    """Record that the tasks of these ETLs have ended, for those that exist."""
    for etl in client.cluster().list_etls():
        if etl.id in names:
            client.bucket(LEFT + etl.id).create(exist_ok=True)


def _forget(client: Client, name: str, records: Collection[str]) -> None:
    for record in records:
        client.bucket(record + name).delete(missing_ok=True)


def _without_tasks(client: Client) -> Iterator[str]:
    """Yield the names of ETLs whose tasks have ended, or have died long ago, or that were last used long ago."""
    for bucket in client.cluster().list_buckets():
        if bucket.name.startswith(LEFT):
            yield bucket.name.removeprefix(LEFT)
        elif bucket.name.startswith(USED) and (age_of(client, bucket.name) or 0) > _ABANDONED_SECONDS:
            yield bucket.name.removeprefix(USED)
        elif bucket.name.startswith(KEPT) and (age_of(client, bucket.name) or 0) > KEPT_SECONDS:
            yield bucket.name.removeprefix(KEPT)


def idle_seconds(client: Client) -> dict[str, float]:
    """Return the seconds since tasks last began or ended to use ETLs, by name, as far as tasks recorded it."""
    found: dict[str, float] = {}
    for bucket in client.cluster().list_buckets():
        for record in (USED, LEFT, KEPT):
            if bucket.name.startswith(record) and (age := age_of(client, bucket.name)) is not None:
                name = bucket.name.removeprefix(record)
                found[name] = min(age, found.get(name, math.inf))
    return found


@contextmanager
def kept(
    client: Client, names: Collection[str], *, patience_seconds: float = 2 * jobs.SUBMIT_SECONDS
) -> Iterator[None]:
    """Let no other task stop an ETL or submit a transform; without `names` do nothing.

    Otherwise a task that finds no transform could stop an ETL while another task submits a transform, and so end it.
    """
    if not names:
        yield
        return
    what = "the end of ETLs, and the start of transforms"
    with locked(client, what, stale_seconds=jobs.SUBMIT_SECONDS, patience_seconds=patience_seconds):
        yield


def start(client: Client, name: str, pods: PodWatch | None = None) -> bool:
    """Start the stopped ETL `name` as AIStore keeps it; return False if it runs already.

    If it was started from an `EtlSpec`, it is kept as one of `ensure` with a `keeper`.
    Raises AIStoreInputError when there is no such ETL, or with the reason when its pod cannot start. Raises
    AIStoreTransientError when it may start later.
    """
    from aistore.sdk.errors import AISError

    with (
        jobs.naming_stuck_targets(client),
        locked(client, _lock(name), stale_seconds=_START_SECONDS, patience_seconds=2 * _START_SECONDS),
    ):
        if not _is_stopped(client, name):
            return False
        jobs.require_targets(client)
        try:
            with pods.watching(name) if pods else nullcontext(Watched()) as watched:
                client.etl(name).start()
        except AISError as e:
            kind = AIStoreInputError if watched.is_final or is_final(said(e)) else AIStoreTransientError
            raise kind(f"ETL {name} does not start: {watched.why(said(e))}") from e
        if mark_of(client, name):
            _keep(client, name)
    return True


def _is_stopped(client: Client, name: str) -> bool:
    """Return whether an ETL must be started. For some seconds, AIStore reports an ETL with a dead pod as running."""
    from aistore.sdk.errors import AISError

    stage = existing.stage_of(client, name)
    if not stage:
        raise AIStoreInputError(f"there is no ETL {name} in the cluster: correct its name or initialize it")
    if stage != existing.RUNNING:
        return True
    try:
        _check_health(client, name)
    except AISError as e:
        if existing.stage_of(client, name) == existing.RUNNING:
            raise AIStoreTransientError(
                f"ETL {name} does not run beside every target ({said(e)}), and AIStore does not start it again: stop"
                " it first with AISStopEtlOperator"
            ) from e
        return True
    return False


def stop(client: Client, name: str) -> None:
    """Stop the ETL `name` and keep its specification, so that AIStore can start it again.

    Raises AIStoreTransientError while any transform runs: stopping would abort it.
    """
    from aistore.sdk.errors import AISError

    with kept(client, [name]):
        if running := jobs.running_transforms(client):
            raise AIStoreTransientError(f"stopping ETL {name} would abort {running[0]}, which runs: try later")
        try:
            client.etl(name).stop()
        except AISError as e:
            kind = AIStoreTransientError if is_passing(e.status_code) else AIStoreInputError
            raise kind(f"ETL {name} cannot be stopped: {said(e)}") from e
        _forget(client, name, (USED, LEFT, KEPT))  # else the end of a task would delete its specification


def discard_own(client: Client, names: Collection[str]) -> None:
    """Stop and delete ETLs that no other task uses, and the locks that a killed try held to start them.

    Raises AIStoreTransientError while any transform runs: stopping an ETL would abort it.
    """
    with kept(client, names):
        if names and (running := jobs.running_transforms(client)):
            raise AIStoreTransientError(f"stopping ETL {', '.join(names)} would abort {running[0]}, which runs")
        for name in names:
            discard(client, name)
            _forget(client, name, (USED, LEFT, KEPT))
            break_lock(client, _lock(name))


def discard(client: Client, name: str) -> None:
    """Stop and delete the ETL `name` if it exists, even while transforms run; see `release`."""
    from aistore.sdk.errors import AISError

    for verb in ("stop", "delete"):
        try:
            getattr(client.etl(name), verb)()
        except AISError as e:
            log.debug("ETL %s: %s: %s", name, verb, e)
