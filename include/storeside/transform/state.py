"""The options, the current state and the summary of a bucket job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError


class Phase(StrEnum):
    """The next step of a bucket job."""

    ATTACHED = "attached"  # follow a job that already runs
    BUCKET = "bucket"  # submit all objects at once
    OBJECTS = "objects"  # submit windows of names
    RETRY = "retry"  # submit missing objects again
    QUARANTINE = "quarantine"  # copy objects that failed for good
    DONE = "done"


@dataclass(frozen=True)
class State:
    """The progress of a bucket job; small and serializable as JSON, so that it survives a deferral or a restart.

    `cursor` is the last submitted object name, and `retries` the number of retries so far. `not_before` (seconds
    since 1970) is the earliest time of the next submission. `job_seconds` is the duration of AIStore's jobs so far.
    `waits` means that the job belongs to another task, and that this task submits its job after that. `replaces`
    means that an in-place transform has made its results and is replacing the objects; see
    `storeside.transform.in_place`. `effect` is the effect of the job's scope at the beginning; None if it is unknown.
    """

    phase: Phase
    started: float
    listed: int = 0
    pending: int = 0
    known_bad: int = 0
    refused: int = 0
    cursor: str = ""
    job_id: str = ""
    etl_names: tuple[str, ...] = ()
    retries: int = 0
    not_before: float = 0
    job_seconds: float = 0
    waits: bool = False
    replaces: bool = False
    effect: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the state as values that JSON can represent."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """The outcome of a bucket job. `job_seconds` is the part of `seconds` that AIStore's jobs took.

    `examples` are (object, reason) of the first failures, and `known_failures` of the first `known_bad` objects,
    which failed for good in earlier runs; the ledger has all of them. `prepend` is the prefix of the results' names.
    `ignored` has the numbers of markers, which are not listed, by their patterns, such as ``_*``.
    """

    source: str
    destination: str
    effect: str
    listed: int
    skipped: int
    known_bad: int
    done: int
    failed: int
    bytes_in: int
    bytes_out: int
    seconds: float
    job_seconds: float = 0
    examples: tuple[tuple[str, str], ...] = ()
    known_failures: tuple[tuple[str, str], ...] = ()
    prepend: str = ""
    ignored: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a dictionary of bounded size."""
        return asdict(self)


@dataclass(frozen=True)
class Options:
    """Options of a bucket job.

    `prefix` or `names` select objects. `latest` makes AIStore look for newer versions in a remote source. `sync`
    removes results whose source was deleted there. With either of them, AIStore sends contents instead of file paths.
    `workers` is the number of concurrent objects per target (0: one per disk, -1: one). Without `continue_on_error`,
    a job ends at the first failure that AIStore notices (never over ``ws``), and untried objects stay pending.
    Objects that failed for good are copied to the bucket `quarantine`. The bucket `sidecars` is created if it does
    not exist, for transforms that store sidecars there.

    Without `keeps_result`, the results are intermediate, and every result at the destination belongs to this run.
    Call the function `acknowledge` after the results have been used: it records the objects as done, and the results
    may then be deleted. A result that this run has stored together with its object is not made again. `keep_etl`
    leaves the ETL running for the task that started it.
    """

    prefix: str = ""
    names: Sequence[str] | None = None
    retry_failed: bool = False
    latest: bool = False
    sync: bool = False
    workers: int = 0
    continue_on_error: bool = True
    quarantine: Bucket | None = None
    sidecars: Bucket | None = None
    keeps_result: bool = True
    keep_etl: bool = False

    def __post_init__(self) -> None:
        if self.names is not None and (self.prefix or self.sync):
            raise AIStoreInputError(
                "names of objects exclude a prefix and sync, which apply to whole buckets: choose one"
            )
