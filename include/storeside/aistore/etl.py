"""AIStore ETLs by specification: the same specification is the same ETL, and a running one is reused."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import math
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from storeside.aistore import jobs
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError, said
from storeside.aistore.lock import locked
from storeside.aistore.pods import PodWatch, Watched, is_final

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

COMMUNICATION_TYPES = ("ws", "hpush", "hpull")
# Image that the SDK's `Etl.init_class` uses; the tag is the Python version.
CLASS_IMAGE = f"aistorage/runtime_python:{sys.version_info.major}.{sys.version_info.minor}"
# Environment variable that identifies the specification of a running ETL; another ETL may have the same name.
MARK = "STORESIDE_SPEC"
# Names of ETLs: 6 to 32 characters of lower-case letters, digits and hyphens (AIStore, k8s.ValidateEtlName).
_PREFIX_LENGTH = 20
_ATTEMPTS = 3
# Longer than it takes to end an ETL: a task that waits longer is waiting for an ETL to start.
_END_SECONDS = 10.0
# Seconds between health checks of an ETL that does not answer.
_HEALTH_WAITS = (1.0, 3.0)
# AIStore's own time-out for an object also counts the time in the queue for a worker. The server's time-out must come
# first, because its error states the reason.
_QUEUE_SECONDS = 60


def check_communication(kind: str) -> None:
    """Raise AIStoreInputError for a communication type that AIStore does not have."""
    if kind not in COMMUNICATION_TYPES:
        raise AIStoreInputError(f"communication {kind!r} is not one of {', '.join(COMMUNICATION_TYPES)}")


@dataclass(frozen=True)
class EtlSpec:
    """One ETL: an image, its command and environment, and how AIStore sends objects to it.

    ``a >> b >> c`` is a chain: each object passes all stages in one request, and no intermediate result is stored.
    Two transforms that differ only in `environment` are two ETLs, because bucket transforms carry no arguments.
    Raises AIStoreInputError for a combination that AIStore 5.0 refuses or handles wrongly.
    :param label: readable part of the ETL's name
    :param image: container image of the transformer
    :param command: command of its container
    :param environment: variables that affect the results
    :param tuning: further variables, which affect the speed but not the results
    :param communication: ``ws``, ``hpush`` or ``hpull``
    :param direct_put: the transformer sends each result straight to the target that stores it
    :param file_access: the transformer reads objects from the target's disk; for ``hpush`` and ``ws``
    :param init_timeout: seconds within which the transformer must be ready
    :param object_timeout: seconds that the transformer may spend on one object
    :param resources: Kubernetes requests and limits of the container
    :param etl_name: name of the ETL in AIStore; it replaces an ETL of that name with another specification
    :param then: further stages of a chain; ``>>`` sets it
    :param payload: code that the transformer's image does not contain; `of_class` sets it
    """

    label: str
    image: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, str] = field(default_factory=dict)
    communication: str = "ws"
    direct_put: bool = True
    file_access: bool = True
    init_timeout: int = 60
    object_timeout: int = 300
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    etl_name: str = ""
    then: tuple[EtlSpec, ...] = ()
    payload: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_communication(self.communication)
        if self.communication == "ws" and not self.direct_put:
            raise AIStoreInputError(
                "AIStore 5.0 has no WebSocket transform without direct put: use hpush, or direct_put"
            )
        if self.then and not all(stage.direct_put for stage in self.stages):
            raise AIStoreInputError("the stages of a chain hand objects on by direct put: turn it on for all of them")
        if self.etl_name:
            from aistore.sdk.etl.etl import Etl

            try:
                Etl.validate_etl_name(self.etl_name)
            except ValueError as e:
                raise AIStoreInputError(str(e)) from e

    @classmethod
    def of_class(
        cls, server: type, *, label: str = "", dependencies: Sequence[str] = (), os_packages: Sequence[str] = (),
        **options: Any,
    ) -> EtlSpec:  # fmt: skip
        """Return the ETL of a Python class that extends one of the SDK's servers, sent as a pickle (``init_class``).

        The pod installs `dependencies` and `os_packages` before it starts. The class's module is sent with the class,
        so it may be a DAG file. Raises TypeError when the class is not a server.
        """
        import cloudpickle
        from aistore.sdk.etl.webserver import serialize_class

        module = sys.modules[server.__module__]
        by_value = module.__name__ not in ("__main__", "builtins") and not module.__name__.startswith("aistore.")
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            sent = serialize_class(server)
        finally:
            if by_value:
                cloudpickle.unregister_pickle_by_value(module)
        packages = {"PACKAGES": ",".join(dependencies), "OS_PACKAGES": ",".join(os_packages)}
        # the module is sent with the class and may change what the class does
        source = hashlib.sha256(inspect.getsource(module if by_value else server).encode()).hexdigest()
        return cls(
            label or server.__name__,
            CLASS_IMAGE,
            # pickles of one class differ between processes, but its source does not
            environment={"STORESIDE_SOURCE": source, **{n: v for n, v in packages.items() if v}},
            payload={"ETL_CLASS_PAYLOAD": sent},
            **options,
        )

    def __rshift__(self, other: EtlSpec) -> EtlSpec:
        return replace(self, then=(*self.then, *other.stages))

    @property
    def stages(self) -> tuple[EtlSpec, ...]:
        """The ETLs of the chain in order, each without its successors."""
        return (replace(self, then=()), *self.then)

    @property
    def name(self) -> str:
        """The ETL's name: the label and a hash of everything else, so the name identifies this specification."""
        if self.etl_name:
            return self.etl_name
        label = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.label.lower()).strip("-")
        if not label[:1].isalpha():  # Kubernetes: a service name begins with a letter
            label = f"etl-{label}"
        return f"{label[:_PREFIX_LENGTH].strip('-')}-{self.mark[:10]}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the chain's ETLs in order."""
        return tuple(stage.name for stage in self.stages)

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all ETLs that a job of this chain may start.

        Failed objects are retried over ``hpush``, and jobs with ``latest`` or ``sync`` send contents, not paths.
        """
        specs = (self, self.over("hpush"), self.without_files(), self.without_files().over("hpush"))
        return tuple(dict.fromkeys(name for spec in specs for name in spec.names))

    @property
    def request_timeout(self) -> str:
        """AIStore's time-out for one object, in AIStore's notation for durations."""
        return f"{self.object_timeout + _QUEUE_SECONDS}s"

    @property
    def mark(self) -> str:
        """A hash of everything that defines this ETL, except its successors in a chain."""
        fields = {n: getattr(self, n) for n in self.__dataclass_fields__ if n not in ("then", "payload", "etl_name")}
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=dict).encode()).hexdigest()

    @property
    def effect(self) -> str:
        """A hash that identifies the *result*: unlike `name` it does not depend on how the bytes travel."""
        effects = [[s.image, s.command, sorted(s.environment.items())] for s in self.stages]
        text = json.dumps(effects if self.then else effects[0])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def over(self, communication: str) -> EtlSpec:
        """Return the same chain with another communication type for all stages."""
        return self._each(communication=communication)

    def without_files(self) -> EtlSpec:
        """Return the same chain, with objects sent as contents instead of file paths."""
        return self._each(file_access=False)

    def _each(self, **changes: Any) -> EtlSpec:
        first, *others = (replace(stage, **changes) for stage in self.stages)
        return replace(first, then=tuple(others))

    def message(self) -> dict[str, Any]:
        """Return AIStore's message that starts this ETL (``ETLSpecMsg``, ext/etl/api.go).

        It is built here because SDK 2.0.0 leaves out the resources.
        """
        environment = {**self.environment, **self.tuning, **self.payload, MARK: self.mark}
        environment["OBJECT_TIMEOUT"] = str(self.object_timeout)
        if self.file_access:
            environment["ETL_DIRECT_FQN"] = "true"
        runtime: dict[str, Any] = {
            "image": self.image,
            "env": [{"name": n, "value": v} for n, v in environment.items()],
        }
        if self.command:
            runtime["command"] = list(self.command)
        message = {
            "name": self.name,
            "communication": f"{self.communication}://",
            "init_timeout": f"{self.init_timeout}s",
            "obj_timeout": self.request_timeout,
            "support_direct_put": self.direct_put,
            "runtime": runtime,
        }
        return (
            {**message, "resources": {k: dict(v) for k, v in self.resources.items()}} if self.resources else message
        )


def ensure(client: Client, spec: EtlSpec, pods: PodWatch | None = None) -> list[str]:
    """Start the ETLs of a chain, reuse those that run already, and return their names.

    `pods` watches the pods, so the error states why a pod does not start. Raises AIStoreInputError with the reason
    when a pod cannot start. Raises AIStoreTransientError when it may start later, for example after it was killed, or
    when an ETL must be replaced while transforms run. Raises StuckTargetError when a target answers no control call.
    """
    with jobs.naming_stuck_targets(client):
        return [_ensure(client, stage, pods) for stage in spec.stages]


def _ensure(client: Client, spec: EtlSpec, pods: PodWatch | None) -> str:
    attempt = 0
    while True:
        attempt += 1
        longest = spec.init_timeout + 60
        with locked(client, _lock(spec.name), stale_seconds=longest, patience_seconds=2 * longest):
            if _running(client, spec):
                return spec.name
            jobs.require_targets(client)  # with a stuck target, the start of an ETL fails only after minutes
            failure = _start(client, spec, pods)
        if failure is None:
            return spec.name
        reason, final = failure
        if attempt == _ATTEMPTS or final:
            kind = AIStoreInputError if final else AIStoreTransientError  # killed, or the reason is unknown
            raise kind(f"ETL {spec.name} (image {spec.image}) does not start: {reason}")
        log.warning("ETL %s: start %d of %d failed, trying again: %s", spec.name, attempt, _ATTEMPTS, reason)
        time.sleep(2)  # AIStore is still cancelling the first start; an immediate init fails with "context canceled"


def _start(client: Client, spec: EtlSpec, pods: PodWatch | None) -> tuple[str, bool] | None:
    """Start an ETL. Return None when it runs, otherwise the reason and whether a retry is useless."""
    from aistore.sdk.errors import AISError

    started = time.monotonic()
    try:
        with pods.watching(spec.name) if pods else nullcontext(Watched()) as watched:
            client.cluster().client.request("put", path="etl", timeout=spec.init_timeout + 30, json=spec.message())
    except AISError as e:
        discard(client, spec.name)  # a failed init leaves an entry that blocks the next init
        return watched.reason or said(e), watched.is_final or is_final(said(e))
    log.info("ETL %s runs after %.1f s", spec.name, time.monotonic() - started)
    return None


def _lock(name: str) -> str:
    """Return the name of the lock that a task holds while it starts or ends an ETL."""
    return f"ETL {name}"


def _running(client: Client, spec: EtlSpec) -> bool:
    """Tell whether the ETL runs beside every target: a restarted target lists the ETL but does not run it.

    An ETL of the same name with another specification is ended, unless transforms run: ending it would abort them.
    """
    from aistore.sdk.errors import AISError

    name = spec.name
    if not are_there(client, [name]):
        return False
    try:
        if spec.etl_name and mark_of(client, name) != spec.mark:
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
        log.warning("ETL %s does not run beside every target, starting it again: %s", name, said(e))
        discard(client, name)
        return False
    return True


def _check_health(client: Client, name: str) -> None:
    """Raise AISError when the ETL does not run beside every target, even after repeated checks some seconds apart."""
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
    """Return the mark that the ETL `name` was started with; empty if it was not started from an `EtlSpec`."""
    runtime = client.etl(name).view().init_msg.runtime
    environment = getattr(runtime, "env", None) or []
    return next((variable.value for variable in environment if variable.name == MARK), "")


def are_there(client: Client, names: Collection[str]) -> bool:
    """Tell whether AIStore lists all of these ETLs."""
    return set(names) <= {etl.id for etl in client.cluster().list_etls()}


def ours(client: Client) -> list[str]:
    """Return the names of all ETLs that were started from an `EtlSpec`."""
    return [etl.id for etl in client.cluster().list_etls() if mark_of(client, etl.id)]


def release(client: Client, names: Collection[str]) -> bool:
    """Stop and delete ETLs unless a transform runs anywhere in the cluster; return whether they are gone.

    Stopping any ETL aborts every bucket transform (AIStore 5.0, xreg.AbortKind). ETLs are not left behind idle,
    because a target can hang while it stops them if another target is lost.
    """
    if names and jobs.running_transforms(client):
        log.info("other transforms run: ETLs are left for them to end")
        return False
    try:
        for name in names:
            # starting an ETL has no time limit, so the task that starts one keeps the lock however old the lock is
            with locked(client, _lock(name), stale_seconds=math.inf, patience_seconds=_END_SECONDS):
                discard(client, name)
    except AIStoreTransientError as e:
        log.info("ETLs are left to others: %s", e)
        return False
    return True


def stop(client: Client, name: str) -> None:
    """Stop the ETL `name` and keep its specification, so that AIStore can start it again.

    Raises AIStoreTransientError while any transform runs: stopping would abort it.
    """
    from aistore.sdk.errors import AISError

    if running := jobs.running_transforms(client):
        raise AIStoreTransientError(f"stopping ETL {name} would abort {running[0]}, which runs: try later")
    try:
        client.etl(name).stop()
    except AISError as e:
        raise AIStoreInputError(f"ETL {name} cannot be stopped: {said(e)}") from e


def discard(client: Client, name: str) -> None:
    """Stop and delete the ETL `name` if it exists, even while transforms run; see `release`."""
    from aistore.sdk.errors import AISError

    for verb in ("stop", "delete"):
        try:
            getattr(client.etl(name), verb)()
        except AISError as e:
            log.debug("ETL %s: %s: %s", name, verb, e)
