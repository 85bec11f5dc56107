"""The state that all batches of a run share, and the table functions for their objects."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import common_prefix
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.beginning import beginning
from storeside.transfer.formats.parquet import Shape
from storeside.transfer.objects.content import Content, content_of
from storeside.transfer.publish.mirror import Mirror
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import wild
from storeside.transfer.state.loads import Loaded, Loads, Planned
from storeside.transfer.state.plan import Plan
from storeside.transfer.statements.projection import Readings
from storeside.transfer.statements.reading import Reading
from storeside.transfer.tables.servers import NO_SERVERS, Servers

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from storeside.transfer.tables.table import Destination

# From _MANY objects on, ClickHouse lists them, which also returns ETags and sizes, and does not send a request for
# each, unless the listing would have more than _LISTED times as many objects.
_MANY, _LISTED = 20, 16
# ClickHouse opens a Parquet object twice, for its footer and its rows. Its page cache, if the server has one, keeps
# up to this number of bytes of small objects between, in blocks that are not much larger than the objects.
_CACHED_BYTES = 128 << 20
_CACHED = {"use_page_cache_for_object_storage": 1, "page_cache_block_size": 64 << 10}


# The first rows of each object that a preview reads.
_PREVIEWED_ROWS = 1000
# Proofs of plain objects end when they have taken this number of seconds more than they have saved.
_MOST_LOST = 5.0


class Proofs:
    """The time that the proofs of a run have taken beyond that which they have saved; threads share it."""

    def __init__(self) -> None:
        self._lost = 0.0
        self._lock = threading.Lock()

    @property
    def pay(self) -> bool:
        """Whether further proofs are likely to take less time than they save."""
        return self._lost < _MOST_LOST

    def add(self, taken: float, saved: float) -> None:
        """Count a proof; all times are in seconds."""
        with self._lock:
            self._lost = max(0.0, self._lost + taken - saved)


@dataclass
class Work:
    """State that all batches of a run share.

    :param request: the request
    :param form: the reading of the objects' format
    :param client: client of the loading user, who needs no rights on the ledger; threads share it
    :param plan: the objects to load
    :param token: part of the names of the run's staging tables
    :param s3: client that reads the source
    :param push_all: the worker streams all objects
    :param stop: set when the run is to end
    :param shapes: shapes of Parquet objects, by the keys with which ClickHouse tells them apart
    :param alters: held while a batch changes the table's columns
    :param relists: an object that changed is looked up again; off where listings and responses write ETags
        differently
    :param neighbours: objects in the bucket below the common prefix, see `Transfer.prepare`
    :param servers: the other servers of the cluster of shards
    :param recent: the destination if it was found a moment ago, see `Preparation`
    :param mirror: checks that no other snapshot was loaded meanwhile
    :param is_untidy: a step has failed, so its staging tables may be left
    :param reads: `Snapshot.content_of` of the snapshot whose files are loaded
    :param stand_in: the table that takes the place of the destination, whose columns a preview must not change
    """

    request: Request
    form: Format
    client: Client
    plan: Plan
    token: str
    s3: Any
    push_all: bool
    stop: threading.Event = field(default_factory=threading.Event)
    shapes: dict[str, Shape] = field(default_factory=dict)
    alters: threading.Lock = field(default_factory=threading.Lock)
    relists: bool = True
    neighbours: int = 0
    servers: Servers = NO_SERVERS
    recent: Destination | None = None
    mirror: Mirror | None = None
    is_untidy: bool = False
    stand_in: str = ""
    reads: Callable[..., Content] | None = None

    @property
    def loads(self) -> Loads:
        """The ledger."""
        return self.plan.loads

    @property
    def keeps_codes(self) -> bool | None:
        """Whether columns of numbers refuse codes; in JSON they never do without `strict_json`."""
        return False if self.form.has_documents and not self.is_strict else self.request.read.keeps_codes

    @property
    def is_strict(self) -> bool:
        """Whether objects are JSON Lines that must be checked."""
        return self.form.has_documents and self.request.read.strict_json

    @property
    def most_rows(self) -> int:
        """The number of the first rows that a preview reads of each object; 0 reads all."""
        return _PREVIEWED_ROWS if self.stand_in else 0

    @cached_property
    def proofs(self) -> Proofs:
        """The cost of the proofs of plain objects."""
        return Proofs()

    @cached_property
    def readings(self) -> Readings:
        """How objects are read into the table."""
        return Readings(self.client, self.request.read.columns, self.request.upsert)

    def content(self, o: Planned) -> Content:
        """Return the content of an object, or of its first rows."""
        found = self.whole(o)
        return beginning(found, self.form, self.most_rows) if self.most_rows else found

    def whole(self, o: Planned) -> Content:
        """Return the whole content of an object; that of a file of a snapshot has the rows of the snapshot."""
        return (self.reads or content_of)(self.s3, self.request, o, o.version)

    def source(
        self, objects: Sequence[Planned], form: str, columns: str = "", compression: str = "auto"
    ) -> tuple[str, str]:
        """Return the table function of objects, and the condition that excludes others; empty if there are none.

        With the condition, ClickHouse raises no error for objects that no longer exist.
        """
        source = self.request.source
        keys = [o.key for o in objects]
        prefix = common_prefix(keys)
        if (
            self.relists
            and len(keys) >= _MANY
            and not source.cluster
            and not source.by_url
            and not wild(prefix)
            # a dropped or incomplete listing has fewer objects
            and len(keys) <= (self.neighbours or self.plan.listed_below(prefix)) <= _LISTED * len(keys)
        ):
            return source.among(keys, form, columns, compression), source.only(keys)
        return source.objects(keys, form, columns, compression), ""


@dataclass(frozen=True)
class How:
    """How to read objects that need special handling.

    `rest` lists the columns that are stored in the column `_rest`. `compression` is ClickHouse's name for the
    compression of the content if the objects' names suggest another. With `push`, the worker reads the objects; with
    `tidy`, it sends the rows that `records` yields; with `by_arrow`, those that pyarrow reads. With `exact`, columns
    of integers in JSON take numbers such as 5.0. `checked` objects have no name twice in an object of a `JSON`
    column. With `apart`, each value has its check, and the error of a refused value names its column: see `TOGETHER`,
    and `proof`.
    """

    rest: tuple[Column, ...] = ()
    compression: str = "auto"
    push: bool = False
    tidy: bool = False
    by_arrow: bool = False
    exact: bool = False
    checked: bool = False
    apart: bool = False


USUAL = How()


@dataclass(frozen=True)
class Plain:
    """How plain objects are read, and the pattern of an object that is not plain; see `proof`."""

    reading: Reading
    fault: re.Pattern[bytes]

    def fits(self, content: Content) -> bool:
        """Return whether a small object, whose content is held in memory, is plain."""
        text = b"" if content.compression else content.range(0, content.size)
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
        return bool(text) and self.fault.search(text) is None


@dataclass
class Group:
    """Objects that are read in the same way, each with its number of rows, or -1 if unknown before reading (text).

    Archives of formats with types are read `into` a table: each member decides how it is read, not `reading`.
    A worker that proves small objects to be plain reads them as `plain` states.
    """

    reading: Reading
    objects: list[Loaded]
    into: Destination | None = None
    plain: Plain | None = None

    @property
    def planned(self) -> list[Planned]:
        """The planned objects of the group."""
        return [o.planned for o in self.objects]


def cached(objects: Sequence[Planned]) -> dict[str, int]:
    """Return the settings that cache these objects' data; empty if they are too large."""
    return _CACHED if sum(o.size for o in objects) <= _CACHED_BYTES else {}
