"""Loads the current objects of the keys in events, as long as their messages are leased."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from storeside.aistore.names import is_folder_marker
from storeside.events.current import NOT_LISTED, Found, listed_around, look_at
from storeside.events.deliveries import FOLDER, LOADED, MARKER, UNTRIED, Outcome
from storeside.events.drained import Drained
from storeside.events.errors import TriedOutError
from storeside.events.lanes import LANES
from storeside.transfer.base.errors import (
    FailureKind,
    LoadObjectError,
    TransferCancelled,
    TransferTransientError,
    classify,
)
from storeside.transfer.publish.loaded_objects import Handled
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Listed
from storeside.transfer.run.engine import Transfer, validation_of
from storeside.transfer.staging.validation import Validation
from storeside.transfer.tables.servers import Servers

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# Seconds for which a run trusts the answer whether ClickHouse reads the bucket: each question lists objects.
_PULLS_SECONDS = 60.0
# Seconds before each further try of leased messages.
_DELAYS = (2.0, 5.0, 10.0, 30.0)


class ObjectLoads:
    """Loads objects in the lanes of a run, and adds their numbers to `drained`, which `lock` guards.

    For `client`, `s3`, `ledger` and `servers` see `Transfer`.
    """

    def __init__(
        self, request: Request, client: Client, s3: Any, run_id: str, ledger: Client, servers: Servers,
        drained: Drained, lock: threading.Lock, stop: threading.Event,
    ) -> None:  # fmt: skip
        self.request = request
        self.client = client
        self.s3 = s3
        self.run_id = run_id
        self.ledger = ledger
        self.servers = servers
        self.drained = drained
        self._lock = lock
        self.stop = stop
        self._validation: Validation | None = None
        self._transfers: dict[int, Transfer] = {}  # the last one of each lane
        self._pulls: tuple[float, bool] | None = None

    def expect(self) -> None:
        """Load the suite of the request, one check for all batches. Raises QualityError."""
        self._validation = validation_of(self.request)

    @property
    def verdict(self) -> dict[str, Any] | None:
        """The suite's verdict on the rows that were read; None without a suite."""
        return self._validation.verdict() if self._validation else None

    def record_validation(self) -> None:
        """Record the results of the suite over all rows that were read."""
        if self._validation:
            self.new_transfer().record(self._validation)

    def finish_actions(self) -> None:
        """Take the actions on source objects that an earlier run loaded and did not handle."""
        self._add(self.new_transfer().source_actions.run())

    def cancel(self) -> None:
        """Stop from any thread: receive no more messages, and kill running queries, also those of another process."""
        self.stop.set()
        for lane in range(LANES):
            (self._transfers.get(lane) or self.new_transfer(lane)).cancel()

    def leave(self) -> None:
        """Stop from any thread and let ClickHouse's queries run, because this process is about to end."""
        self.stop.set()
        for transfer in list(self._transfers.values()):
            transfer.leave()

    def load(self, keys: Sequence[str], lane: int) -> dict[str, Outcome]:
        """Load, and retry while the messages are leased: SQS counts each receive towards the dead-letter queue."""
        from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

        delays, is_first = iter(_DELAYS), True
        while True:
            try:
                # A listing also has objects for which S3 does not answer, so only the first try uses one.
                return self._load(keys, lane, use_listing=is_first)
            except (DatabaseError, OperationalError, TransferTransientError) as e:
                error = classify(e)
                if not isinstance(error, TransferTransientError) or self.stop.is_set():
                    raise
                if (delay := next(delays, None)) is None:
                    raise TriedOutError(str(error)) from e
            log.warning("retrying in %g s: %s", delay, error)
            self.stop.wait(delay)
            is_first = False

    def _load(self, keys: Sequence[str], lane: int, *, use_listing: bool) -> dict[str, Outcome]:
        """Load the current objects of these keys; return the outcome of each key."""
        if not keys:
            return {}
        self._transfers[lane] = transfer = self.new_transfer(lane)
        if self.stop.is_set():
            raise TransferCancelled("the transfer was stopped")
        around = listed_around(self.request.source, keys, self.s3) if use_listing else NOT_LISTED
        found = look_at(self.request.source, keys, self.client, self.s3, around, pull=self._ask_pulls(transfer))
        outcomes = {key: self._before_loading(found[key]) for key in keys}
        objects = [o for o in found.values() if isinstance(o, Listed) and not outcomes[o.key].is_final]
        states = transfer.loads.outcomes([o.key for o in objects])
        done_before = [o.key for o in objects if states.get((o.key, o.etag), ("",))[0] == "loaded"]
        outcomes |= dict.fromkeys(done_before, LOADED)
        self._add(transfer.source_actions.run(done_before))
        if objects := [o for o in objects if not outcomes[o.key].is_final]:
            report = transfer.run(transfer.prepare(objects, around.count))
            with self._lock:
                for name in ("rows", "rejected", "bytes", "handled", "left"):
                    setattr(self.drained, name, getattr(self.drained, name) + getattr(report, name))
            outcomes |= self._after_loading(objects, transfer.loads.outcomes([o.key for o in objects]))
        return outcomes

    def _add(self, handled: Handled) -> None:
        with self._lock:
            self.drained.handled += handled.done
            self.drained.left += handled.left

    def new_transfer(self, lane: int = 0) -> Transfer:
        """Return a transfer of a lane, which cleans up after the last one of the lane."""
        run_id = f"{self.run_id}/{uuid.uuid4().hex[:8]}"
        # Each lane cleans up after itself alone: the staging tables of the others are in use.
        owner = f"{self.run_id}\n{lane}" if lane else self.run_id
        transfer = Transfer(
            self.request, self.client, self.s3, run_id, owner=owner, ledger=self.ledger, servers=self.servers
        )
        transfer.validation = self._validation
        return transfer

    def _ask_pulls(self, transfer: Transfer) -> bool:
        """Return whether ClickHouse reads the objects itself, as an earlier batch has found out shortly before."""
        known, now = self._pulls, time.monotonic()
        if known is not None and now - known[0] < _PULLS_SECONDS:
            transfer.pulls = known[1]
        else:
            self._pulls = (now, transfer.pulls)
        return transfer.pulls

    def sweep(self) -> None:
        """Drop what an earlier try of this run has left in lanes that this try did not need."""
        for lane in set(range(LANES)) - self._transfers.keys():
            self.new_transfer(lane).sweep()

    def _before_loading(self, found: Found) -> Outcome:
        if found is None:
            if self.request.after_load.action in ("delete", "move"):
                return Outcome("skipped", "a load removed it, or it was deleted before it could be loaded")
            return Outcome("skipped", "it was deleted before it could be loaded")
        if isinstance(found, LoadObjectError):
            return _failed(found.kind, str(found))
        if found.modified_at < self.request.source.since:
            return Outcome("skipped", f"it was last modified before {self.request.source.modified_after}")
        if is_folder_marker(found.key, found.size):
            return FOLDER
        return MARKER if self.request.source.ignores(found.key) else UNTRIED

    def _after_loading(
        self, objects: Sequence[Listed], states: Mapping[tuple[str, str], tuple[str, FailureKind, str]]
    ) -> dict[str, Outcome]:
        """Return the outcomes of objects by key, from their `states` by key and version.

        A failure is final only if the object still has the planned version.
        """
        outcomes, failed = {}, {}
        for o in objects:
            state, kind, reason = states.get((o.key, o.etag), ("", FailureKind.NONE, ""))
            if state in ("loaded", "replaced"):  # in this version, or a later one
                outcomes[o.key] = LOADED
            elif state == "failed":
                outcomes[o.key], failed[o.key] = _failed(kind, reason), o.etag
            else:
                outcomes[o.key] = Outcome("undone", "it was not loaded, and the ledger has no reason")
        found = look_at(self.request.source, list(failed), self.client, self.s3, pull=False)
        for key, now in found.items():
            if now is None:
                outcomes[key] = Outcome("skipped", "it was deleted before it could be loaded")
            elif isinstance(now, Listed) and now.etag != failed[key]:
                reason = outcomes[key].reason
                outcomes[key] = Outcome("undone", f"it was overwritten while it was loaded: {reason}")
        return outcomes


def _failed(kind: FailureKind, reason: str) -> Outcome:
    return Outcome("failed" if kind.is_final else "undone", reason)
