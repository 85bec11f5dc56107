"""A bucket job as its caller drives it: the steps, the options, the current state and the summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError
from storeside.amounts import counted, others, rate, size

if TYPE_CHECKING:
    from aistore.sdk import Client

    from storeside.aistore.jobs import Follower
    from storeside.aistore.spec import EtlSpec
    from storeside.aistore.stored_objects import StoredObject
    from storeside.ledger.objects import Ledger

# Lists the source of a job in the place of AIStore.
ListSource: TypeAlias = "Callable[[], Iterable[StoredObject]]"


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

    :param phase: what the task does next
    :param started: time of the beginning, seconds since 1970
    :param listed: objects of the source
    :param pending: objects that the plan still has to process
    :param known_bad: objects that failed for good in earlier runs
    :param refused: objects whose names fit no result
    :param cursor: name of the last submitted object
    :param job_id: id of AIStore's job that runs
    :param etl_names: ETLs that the job uses
    :param retries: retries so far
    :param not_before: earliest time of the next submission, seconds since 1970
    :param job_seconds: seconds of AIStore's jobs so far
    :param waits: whether the job belongs to another task, and this task submits its own after that
    :param replaces: whether an in-place transform has made its results and is replacing the objects; see
        `storeside.transform.in_place`
    :param effect: effect of the job's scope at the beginning; None if it is unknown
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
    """The outcome of a bucket job.

    :param source: URI of the source
    :param destination: URI of the destination
    :param effect: identity of the transform: results of another effect are made again
    :param listed: objects of the source
    :param skipped: objects with a result of an earlier run, or of another run meanwhile
    :param known_bad: objects that failed for good in earlier runs
    :param done: objects with a new result
    :param failed: objects that failed for good
    :param bytes_in: bytes of the objects that were read
    :param bytes_out: bytes of their results
    :param seconds: seconds of the run
    :param job_seconds: the part of `seconds` that AIStore's jobs took
    :param examples: object and reason of the first failures; the ledger has all of them
    :param known_failures: object and reason of the first `known_bad` objects
    :param prepend: prefix of the results' names
    :param ignored: numbers of markers, which are not listed, by their patterns, such as ``_*``
    :param left_out_reasons: numbers of objects that the transformer left out, now or in an earlier run, by reason;
        rare reasons are counted together
    :param strays: names of which the job was given something, and that are no objects of the source
    :param stray_examples: the first of them
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
    left_out_reasons: Mapping[str, int] = field(default_factory=dict)
    strays: int = 0
    stray_examples: tuple[str, ...] = ()

    @property
    def left_out(self) -> int:
        """The number of objects that the transformer left out."""
        return sum(self.left_out_reasons.values())

    def line(self, done: str = "done") -> str:
        """Return one line for a log or a terminal; `done` is the participle for processed objects."""
        not_done = others(
            (self.failed, "failed"), (self.known_bad, "failed for good before"), (self.left_out, "left out"),
            (self.skipped, "unchanged"),
        )  # fmt: skip
        return (
            f"{self.source} -> {self.destination}: {counted(self.done, 'object')} {done}{not_done};"
            f" {size(self.bytes_in)} in, {size(self.bytes_out)} out, {self.seconds:.1f} s"
            f"{rate(self.done, self.seconds, 'objects')}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a dictionary of bounded size."""
        return {**asdict(self), "left_out": self.left_out}


@dataclass(frozen=True)
class Options:
    """Options of a bucket job.

    :param prefix: process objects whose names begin with this
    :param names: process only objects of these names
    :param retry_failed: process objects again that failed for good in earlier runs
    :param latest: look for newer versions in a remote source; AIStore then sends contents instead of file paths
    :param sync: remove results whose source was deleted; AIStore then sends contents, too
    :param workers: concurrent objects per target; 0: one per disk, -1: one
    :param continue_on_error: without it, a job ends at the first failure that AIStore notices (never over
        ``ws``), and untried objects stay pending
    :param quarantine: bucket that receives copies of objects that failed for good
    :param sidecars: bucket for a transform that stores sidecars; it is created if it does not exist
    :param keeps_result: without it, the results are intermediate, and every result at the destination belongs to
        this run: call `acknowledge` after they have been used, which records the objects as done, and the results
        may then be deleted; a result that this run has stored together with its object is not made again
    :param keep_etl: leave the ETL running for the task that started it
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


class Job(Protocol):
    """A job over the objects of a bucket, in the steps of `BucketJob`."""

    client: Client
    ledger: Ledger
    source: Bucket
    destination: Bucket
    options: Options

    @property
    def spec(self) -> EtlSpec | None:
        """The ETL that the job applies; None for a copy."""

    def begin(self) -> State:
        """Return the first state: follow a running job, resume a plan, or make one."""

    def preview(self) -> dict[str, int]:
        """Return how many objects the job would list, process, skip and refuse."""

    def submit(self, state: State) -> State:
        """Submit the next job of AIStore."""

    def follower(self, state: State, stall_seconds: float) -> Follower:
        """Return the follower that detects the end of the submitted job."""

    def advance(self, state: State, seconds: float = 0) -> State:
        """Continue after the submitted job, which took `seconds`."""

    def finish(self, state: State) -> Summary:
        """Record every outcome and return the summary."""
