"""AIStore ETLs by specification: the same specification is the same ETL, and one that runs is reused."""

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
from typing import Any

from . import jobs
from .errors import TransformError, TransientTransformError, said
from .pods import PodWatch, Watched, is_final

log = logging.getLogger(__name__)

COMMUNICATION_TYPES = ("ws", "hpush", "hpull")
# What `init_class` runs on, see the SDK's `Etl.init_class`; the tag is the Python version.
CLASS_IMAGE = f"aistorage/runtime_python:{sys.version_info.major}.{sys.version_info.minor}"
# Tells a running ETL's specification from another one under the same name.
MARK = "STORESIDE_SPEC"
# Names of ETLs: 6 to 32 characters of lower-case letters, digits and hyphens (AIStore, k8s.ValidateEtlName).
_PREFIX_LENGTH = 20
_ATTEMPTS = 3
# Longer than ending an ETL takes: who waits for more waits for a start.
_END_SECONDS = 10.0
# Seconds between looks at an ETL that does not answer.
_HEALTH_WAITS = (1.0, 3.0)
# AIStore's own time-out of an object counts the time that it waits for a worker too; the server's comes first, as it
# says why.
_QUEUE_SECONDS = 60


@dataclass(frozen=True)
class EtlSpec:
    """One ETL: an image, its command and environment, and how AIStore talks to it.

    `communication` is ``ws``, ``hpush`` or ``hpull``; timeouts are seconds, `object_timeout` that of an object in the
    transformer. Bucket transforms carry no arguments, so what differs between two transforms stands in `environment`,
    and each gets its own ETL. `tuning` is environment too, for what changes the speed and not the results.
    `resources` are Kubernetes' requests and limits. With `etl_name` the ETL is called so, and replaces one of that
    name that is specified otherwise. ``a >> b >> c`` is a chain: each object passes all stages in one go, and nothing
    is stored in between. Raises ValueError for a combination that AIStore 5.0 refuses or gets wrong.
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
        if self.communication not in COMMUNICATION_TYPES:
            raise ValueError(f"communication {self.communication!r} is not one of {', '.join(COMMUNICATION_TYPES)}")
        if self.communication == "ws" and not self.direct_put:
            raise ValueError("AIStore 5.0 has no WebSocket transform without direct put: use hpush, or direct_put")
        if self.then and not all(stage.direct_put for stage in self.stages):
            raise ValueError("the stages of a chain hand objects on by direct put: turn it on for all of them")
        if self.etl_name:
            from aistore.sdk.etl.etl import Etl

            Etl.validate_etl_name(self.etl_name)

    @classmethod
    def of_class(
        cls, server: type, *, label: str = "", dependencies: Sequence[str] = (), os_packages: Sequence[str] = (),
        **options: Any,
    ) -> EtlSpec:  # fmt: skip
        """Return the ETL of a Python class that extends one of the SDK's servers, sent as it is (``init_class``).

        `dependencies` and `os_packages` are installed in its pod before it starts. The class's module goes along, so
        it may be a DAG file. Raises TypeError when the class is not a server.
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
        # what goes along with the class may change what it does
        source = hashlib.sha256(inspect.getsource(module if by_value else server).encode()).hexdigest()
        return cls(
            label or server.__name__,
            CLASS_IMAGE,
            # pickles of one class differ between processes, its source does not
            environment={"STORESIDE_SOURCE": source, **{n: v for n, v in packages.items() if v}},
            payload={"ETL_CLASS_PAYLOAD": sent},
            **options,
        )

    def __rshift__(self, other: EtlSpec) -> EtlSpec:
        return replace(self, then=(*self.then, *other.stages))

    @property
    def stages(self) -> tuple[EtlSpec, ...]:
        """The ETLs of the chain in their order, each without what follows it."""
        return (replace(self, then=()), *self.then)

    @property
    def name(self) -> str:
        """The ETL's name: the label and a hash of everything else, so that it stands for this specification."""
        if self.etl_name:
            return self.etl_name
        label = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.label.lower()).strip("-")
        if not label[:1].isalpha():  # Kubernetes: the name of a service begins with a letter
            label = f"etl-{label}"
        return f"{label[:_PREFIX_LENGTH].strip('-')}-{self.mark[:10]}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the chain's ETLs in their order."""
        return tuple(stage.name for stage in self.stages)

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all ETLs that a job of this chain may start.

        What failed is tried again over ``hpush``, and jobs with ``latest`` or ``sync`` are handed contents.
        """
        specs = (self, self.over("hpush"), self.without_files(), self.without_files().over("hpush"))
        return tuple(dict.fromkeys(name for spec in specs for name in spec.names))

    @property
    def request_timeout(self) -> str:
        """How long AIStore waits for an object, as it writes durations."""
        return f"{self.object_timeout + _QUEUE_SECONDS}s"

    @property
    def mark(self) -> str:
        """A hash of all that makes this ETL what it is, apart from what follows it in a chain."""
        fields = {n: getattr(self, n) for n in self.__dataclass_fields__ if n not in ("then", "payload", "etl_name")}
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=dict).encode()).hexdigest()

    @property
    def effect(self) -> str:
        """What identifies the *result*: unlike `name` it does not depend on how the bytes travel."""
        effects = [[s.image, s.command, sorted(s.environment.items())] for s in self.stages]
        text = json.dumps(effects if self.then else effects[0])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def over(self, communication: str) -> EtlSpec:
        """Return the same chain with all stages talked to in another way."""
        return self._each(communication=communication)

    def without_files(self) -> EtlSpec:
        """Return the same chain with contents handed to it instead of paths of files."""
        return self._each(file_access=False)

    def _each(self, **changes: Any) -> EtlSpec:
        first, *others = (replace(stage, **changes) for stage in self.stages)
        return replace(first, then=tuple(others))

    def message(self) -> dict[str, Any]:
        """Return AIStore's message that starts this ETL (``ETLSpecMsg``, ext/etl/api.go).

        Written here because SDK 2.0.0 leaves out the resources.
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


def ensure(client: Any, spec: EtlSpec, pods: PodWatch | None = None) -> list[str]:
    """Make the ETLs of a chain run and return their names; those that run already are reused.

    `pods` watches the pods, so that one that does not start says why. Raises TransformError when a pod cannot start,
    with the reason, and TransientTransformError when it may start later, such as one that was killed, or when an ETL
    has to be replaced while transforms run. Raises StuckTargetError when a target answers no control call.
    """
    with jobs.naming_stuck_targets(client):
        return [_ensure(client, stage, pods) for stage in spec.stages]


def _ensure(client: Any, spec: EtlSpec, pods: PodWatch | None) -> str:
    attempt = 0
    while True:
        attempt += 1
        longest = spec.init_timeout + 60
        with jobs.alone(client, _lock(spec.name), stale_seconds=longest, patience_seconds=2 * longest):
            if _running(client, spec):
                return spec.name
            jobs.require_targets(client)  # starting an ETL beside a stuck target takes minutes to fail
            failure = _start(client, spec, pods)
        if failure is None:
            return spec.name
        reason, final = failure
        if attempt == _ATTEMPTS or final:
            kind = TransformError if final else TransientTransformError  # killed, or nobody saw why
            raise kind(f"ETL {spec.name} (image {spec.image}) does not start: {reason}")
        log.warning("ETL %s: start %d of %d failed, trying again: %s", spec.name, attempt, _ATTEMPTS, reason)
        time.sleep(2)  # AIStore still cancels what it began; an immediate init fails with "context canceled"


def _start(client: Any, spec: EtlSpec, pods: PodWatch | None) -> tuple[str, bool] | None:
    """Start an ETL; returns why it does not start, and whether trying again is no use, or None when it runs."""
    from aistore.sdk.errors import AISError

    started = time.monotonic()
    try:
        with pods.watching(spec.name) if pods else nullcontext(Watched()) as watched:
            client.cluster().client.request("put", path="etl", timeout=spec.init_timeout + 30, json=spec.message())
    except AISError as e:
        discard(client, spec.name)  # a failed init leaves an entry that blocks the next one
        return watched.reason or said(e), watched.is_final or is_final(said(e))
    log.info("ETL %s runs after %.1f s", spec.name, time.monotonic() - started)
    return None


def _lock(name: str) -> str:
    """Return the name of the lock that a task holds while it starts or ends an ETL."""
    return f"ETL {name}"


def _running(client: Any, spec: EtlSpec) -> bool:
    """Tell whether the ETL runs beside every target: one that was restarted lists it without having it.

    One of the same name with another specification is ended, unless transforms run, which that would abort.
    """
    from aistore.sdk.errors import AISError

    name = spec.name
    if not are_there(client, [name]):
        return False
    try:
        if spec.etl_name and mark_of(client, name) != spec.mark:
            if jobs.running_transforms(client):
                raise TransientTransformError(
                    f"ETL {name} runs with another specification, and stopping it would abort transforms that run:"
                    " wait for them, or choose another name"
                )
            log.info("ETL %s runs with another specification: replacing it", name)
            discard(client, name)
            return False
        _check_health(client, name)
    except AISError as e:
        if any(job.startswith("etl-bck[") for job in jobs.running_transforms(client)):
            raise TransientTransformError(
                f"ETL {name} does not run beside every target ({said(e)}), and starting it again would abort bucket"
                " transforms that run: try later"
            ) from e
        log.warning("ETL %s does not run beside every target, starting it again: %s", name, said(e))
        discard(client, name)
        return False
    return True


def _check_health(client: Any, name: str) -> None:
    """Raise AISError when the ETL does not run beside every target, also when asked again after some seconds."""
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


def mark_of(client: Any, name: str) -> str:
    """Return the mark that the ETL `name` was started with; empty when something else has started it."""
    runtime = client.etl(name).view().init_msg.runtime
    environment = getattr(runtime, "env", None) or []
    return next((variable.value for variable in environment if variable.name == MARK), "")


def are_there(client: Any, names: Collection[str]) -> bool:
    """Tell whether AIStore has all of these ETLs."""
    return set(names) <= {etl.id for etl in client.cluster().list_etls()}


def ours(client: Any) -> list[str]:
    """Return the names of all ETLs that were started from an `EtlSpec`."""
    return [etl.id for etl in client.cluster().list_etls() if mark_of(client, etl.id)]


def release(client: Any, names: Collection[str]) -> bool:
    """Stop and delete ETLs, unless a transform runs somewhere in the cluster; returns whether they are gone.

    Stopping any ETL aborts every bucket transform (AIStore 5.0, xreg.AbortKind). Idle ones are not left behind
    because a target can hang in stopping them when another target is lost.
    """
    if names and jobs.running_transforms(client):
        log.info("other transforms run: ETLs are left for them to end")
        return False
    try:
        for name in names:
            # starting an ETL may take any time, so a task that starts one keeps its lock, however old the lock is
            with jobs.alone(client, _lock(name), stale_seconds=math.inf, patience_seconds=_END_SECONDS):
                discard(client, name)
    except TransientTransformError as e:
        log.info("ETLs are left to others: %s", e)
        return False
    return True


def stop(client: Any, name: str) -> None:
    """Stop the ETL `name` and keep its specification, so that AIStore can start it again.

    Raises TransientTransformError while any transform runs: stopping would abort it.
    """
    from aistore.sdk.errors import AISError

    if running := jobs.running_transforms(client):
        raise TransientTransformError(f"stopping ETL {name} would abort {running[0]}, which runs: try later")
    try:
        client.etl(name).stop()
    except AISError as e:
        raise TransformError(f"ETL {name} cannot be stopped: {said(e)}") from e


def discard(client: Any, name: str) -> None:
    """Stop and delete the ETL `name` if it is there, whatever else runs; see `release`."""
    from aistore.sdk.errors import AISError

    for verb in ("stop", "delete"):
        try:
            getattr(client.etl(name), verb)()
        except AISError as e:
            log.debug("ETL %s: %s: %s", name, verb, e)
