"""AIStore ETLs by specification: the same specification is the same ETL, and one that runs is reused."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .errors import TransformError

log = logging.getLogger(__name__)

COMMUNICATION_TYPES = ("ws", "hpush", "hpull")
# Names of ETLs: 6 to 32 characters of lower-case letters, digits and hyphens (AIStore, k8s.ValidateEtlName).
_PREFIX_LENGTH = 20


@dataclass(frozen=True)
class EtlSpec:
    """One ETL: an image, its command and environment, and how AIStore talks to it.

    `communication` is ``ws``, ``hpush`` or ``hpull``; timeouts are seconds. Bucket transforms carry no
    arguments, so what differs between two transforms stands in `environment`, and each gets its own ETL. `tuning`
    is environment too, for what changes the speed and not the results.
    Raises ValueError for a combination that AIStore 5.0 refuses.
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

    def __post_init__(self) -> None:
        if self.communication not in COMMUNICATION_TYPES:
            raise ValueError(f"communication {self.communication!r} is not one of {', '.join(COMMUNICATION_TYPES)}")
        if self.communication == "ws" and not self.direct_put:
            raise ValueError("AIStore 5.0 has no WebSocket transform without direct put: use hpush, or direct_put")

    @property
    def name(self) -> str:
        """The ETL's name: the label and a hash of everything else, so that it stands for this specification."""
        text = json.dumps(asdict(self), sort_keys=True)
        label = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.label.lower()).strip("-")
        if not label[:1].isalpha():  # Kubernetes: the name of a service begins with a letter
            label = f"etl-{label}"
        return f"{label[:_PREFIX_LENGTH].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    @property
    def effect(self) -> str:
        """What identifies the *result*: unlike `name` it does not depend on how the bytes travel."""
        text = json.dumps([self.image, self.command, sorted(self.environment.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def ensure(client: Any, spec: EtlSpec, attempts: int = 3) -> str:
    """Make the ETL of `spec` run and return its name; one that runs already is reused.

    Raises TransformError when its pod cannot start, with AIStore's reason.
    """
    from aistore.sdk.errors import AISError

    attempt = 0
    while True:
        attempt += 1
        if _running(client, spec.name):
            return spec.name
        started = time.monotonic()
        try:
            client.etl(spec.name).init(
                image=spec.image,
                command=list(spec.command) or None,
                comm_type=spec.communication,
                init_timeout=f"{spec.init_timeout}s",
                obj_timeout=f"{spec.object_timeout}s",
                direct_put=spec.direct_put,
                direct_file_access=spec.file_access,
                **spec.environment,
                **spec.tuning,
            )
        except AISError as e:
            if _running(client, spec.name):  # another task was faster
                return spec.name
            discard(client, spec.name)  # a failed init leaves an entry that blocks the next one
            if attempt == attempts:
                raise TransformError(f"ETL {spec.name} (image {spec.image}) does not start: {e}") from e
            log.warning("ETL %s: start %d of %d failed, trying again: %s", spec.name, attempt, attempts, e)
            time.sleep(2)  # AIStore still cancels what it began; an immediate init fails with "context canceled"
        else:
            log.info("ETL %s runs after %.1f s", spec.name, time.monotonic() - started)
            return spec.name


def _running(client: Any, name: str) -> bool:
    """Tell whether the ETL runs beside every target: one that was restarted lists it without having it."""
    from aistore.sdk.errors import AISError

    if not any(etl.id == name for etl in client.cluster().list_etls()):
        return False
    try:
        client.cluster().client.request("get", path=f"etl/{name}/health")
    except AISError as e:
        log.warning("ETL %s does not run beside every target, starting it again: %s", name, e)
        discard(client, name)
        return False
    return True


def release(client: Any, names: Iterable[str]) -> None:
    """Stop and delete ETLs, unless a transform runs somewhere in the cluster.

    Stopping any ETL aborts every bucket transform (AIStore 5.0, xreg.AbortKind). Idle ones are not left behind
    because a target can hang in stopping them when another target is lost.
    """
    if any(
        job.startswith("etl-") and not job.startswith("etl-inline") for job in client.cluster().list_running_jobs()
    ):
        log.info("other transforms run: ETLs are left for them to end")
        return
    for name in names:
        discard(client, name)


def discard(client: Any, name: str) -> None:
    """Stop and delete the ETL `name` if it is there, whatever else runs; see `release`."""
    from aistore.sdk.errors import AISError

    for verb in ("stop", "delete"):
        try:
            getattr(client.etl(name), verb)()
        except AISError as e:
            log.debug("ETL %s: %s: %s", name, verb, e)
