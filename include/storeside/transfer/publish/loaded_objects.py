"""After a load: deletes, moves or tags the loaded objects of its source, and repeats what failed before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside import sql
from storeside.copying.errors import passing_errors
from storeside.sql.quoting import literal
from storeside.transfer.base.errors import TransferCancelled, TransferTransientError, shown
from storeside.transfer.objects.object_changes import Due, SourceChanges, reason_of
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.source import bucket_uri
from storeside.transfer.state.loads import LONG_STATEMENT, SYNCHRONOUS, Loads, Planned
from storeside.transfer.tables.table import Destination

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

log = logging.getLogger(__name__)

_SLICE, _THREADS = 1000, 8
# If this number of objects in a row got no answer, S3 has gone: requests for the others would take hours.
_MOST_IN_A_ROW = 100
MOST_EXAMPLES = 20
_COLUMNS = ("destination", "bucket", "key", "version", "action", "state", "place", "reason", "run_id")


@dataclass(frozen=True)
class Handled:
    """Numbers of source objects that were deleted, moved or tagged, and that were `left`, with examples and reasons.

    An object that another version has replaced since its load counts as neither.
    """

    done: int = 0
    left: int = 0
    examples: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: Handled) -> Handled:
        examples = (*self.examples, *other.examples)[:MOST_EXAMPLES]
        return Handled(self.done + other.done, self.left + other.left, examples)


class SourceActions:
    """The objects of one source that were loaded into one table with an action.

    The ledger decides what is due: objects that it records as loaded with this action, and not yet as handled. So no
    object is forgotten after a crash between the load and the action, or between the steps of a move. `table` looks
    up the destination: an object that an earlier run or try loaded stays if its rows have been removed from there.
    """

    def __init__(
        self, loads: Loads, s3: S3Client, action: AfterLoad, stop: threading.Event,
        table: Callable[[], Destination | None],
    ) -> None:  # fmt: skip
        self.loads = loads
        self.action = action
        self.stop = stop
        self._unanswered = 0  # in a row
        self._gone: TransferTransientError | None = None
        self._s3 = s3
        self._table = table

    def run(self, keys: Sequence[str] | None = None) -> Handled:
        """Handle all due objects, or those of `keys`, which are in the bucket; return their numbers.

        An object that S3 refuses to change is recorded as failed and stays due. Raises TransferCancelled when the
        run is stopped, and TransferTransientError when S3 has gone.
        """
        if not self.action or keys == []:
            return Handled()
        handled = Handled()
        changes = SourceChanges(self._s3, self.loads.source, self.action)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="source") as threads:
            for some in self._due(keys):
                handled += self._handle(changes, some, threads)
        if handled.done or handled.left:
            log.info(
                "after_load %s: %d source objects done, %d left; storeside.source_objects has the reasons",
                self.action.action, handled.done, handled.left,
            )  # fmt: skip
        for key, reason in handled.examples:
            log.warning("left in the source: %s: %s", shown(key), reason)
        return handled

    def _handle(self, changes: SourceChanges, objects: Sequence[Due], threads: ThreadPoolExecutor) -> Handled:
        ended = self._each(changes.keep, self._without_rows(objects), threads)
        gone = {(o.key, o.version) for o in ended}
        objects = [o for o in objects if (o.key, o.version) not in gone]
        if self.action.action == "move":
            before = {(o.key, o.version): o.state for o in objects}
            tried = self._each(changes.copy, objects, threads)
            self._record([o for o in tried if o.state == "copied" and before[o.key, o.version] != "copied"])
            objects = [o for o in tried if o.state == "copied"]
            ended += [o for o in tried if o.state != "copied"]
        ended += self._each(changes.tag if self.action.action == "tag" else changes.delete, objects, threads)
        self._record(ended)
        left = [(o.key, o.reason) for o in ended if o.state == "failed"]
        return Handled(sum(o.state == "done" for o in ended), len(left), tuple(left[:MOST_EXAMPLES]))

    def _without_rows(self, objects: Sequence[Due]) -> list[Due]:
        """Return objects of earlier runs and tries without a row in the table: only the source has their rows."""
        if not (earlier := [o for o in objects if o.load_id]):
            return []
        planned = [Planned(o.key, o.version, 0, 0.0, o.load_id) for o in earlier]
        found = table.count(planned) if (table := self._table()) else {}
        return [o for o in earlier if o.load_id not in found]

    def _each(self, change: Callable[[Due], Due], objects: Sequence[Due], threads: ThreadPoolExecutor) -> list[Due]:
        from botocore.exceptions import BotoCoreError, ClientError

        def changed(o: Due) -> Due:
            if self.stop.is_set():
                raise TransferCancelled("the transfer was stopped: the next run continues with the source objects")
            if self._gone:
                raise self._gone
            try:
                found = change(o)
            except (BotoCoreError, ClientError, OSError) as e:
                self._unanswered = self._unanswered + 1 if isinstance(e, passing_errors()) else 0
                if self._unanswered >= _MOST_IN_A_ROW:
                    self._gone = TransferTransientError(
                        f"{e}: S3 did not answer for the last {_MOST_IN_A_ROW} objects of"
                        f" {bucket_uri(self.loads.source.bucket)}: a retry continues with the source objects"
                    )
                    raise self._gone from e
                # A failed deletion does not lose the place of the copy.
                return o.now("failed", reason_of(e))
            self._unanswered = 0
            return found

        return list(threads.map(changed, objects))

    def _due(self, keys: Sequence[str] | None) -> Iterator[list[Due]]:
        for start in range(0, len(keys), _SLICE) if keys is not None else (0,):
            some = keys[start : start + _SLICE] if keys is not None else ()
            those = f"key IN ({', '.join(map(literal, some))})"
            statement = sql.query("source_objects").replace("key IN ('')", those if some else "key IN ('')")
            key = version = ""
            while True:
                rows = self.loads.client.query(
                    statement,
                    parameters={
                        **self.loads.parameters, "key": key, "version": version, "all": keys is None,
                        "action": self.action.action, "rejected": self.action.rejected, "limit": _SLICE,
                    },
                    settings={"max_query_size": LONG_STATEMENT},
                ).result_rows  # fmt: skip
                if not rows:
                    break
                yield [Due(*row) for row in rows]
                key, version = rows[-1][:2]

    def _record(self, objects: Sequence[Due]) -> None:
        if not objects:
            return
        loads = self.loads
        loads.client.insert(
            "storeside.source_objects",
            [
                [
                    loads.destination, loads.source.bucket, o.key, o.version, self.action.action, o.state, o.place,
                    o.reason, loads.run_id,
                ]
                for o in objects
            ],
            column_names=_COLUMNS, column_type_names=["String"] * len(_COLUMNS), settings=SYNCHRONOUS,
        )  # fmt: skip
