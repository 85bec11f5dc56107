"""Writes the listings of both buckets of a job into the ledger, which compares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket, common_prefix
from storeside.aistore.markers import MARKERS, marker, named_by
from storeside.aistore.names import is_folder_marker
from storeside.aistore.stored_objects import StoredObject, find_aistore, list_aistore, list_held
from storeside.ledger.listing import Row, destination_rows, source_row
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.transform.naming import Naming
from storeside.transform.state import ListSource, Options

if TYPE_CHECKING:
    from aistore.sdk import Client


class Listings:
    """Lists the buckets of one job into the ledger. `list_source` replaces AIStore's listing of the source.

    A transform has no use for markers of writers; a copy takes them, because tables such as those of Delta consist of
    them.
    """

    takes_markers = False

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        scope: Scope,
        source: Bucket,
        destination: Bucket,
        naming: Naming,
        options: Options,
        list_source: ListSource | None = None,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._scope = scope
        self._source = source
        self._destination = destination
        self._naming = naming
        self._options = options
        self._list_source = list_source or self._by_aistore
        # In the latest listing of the source: folder markers, and markers of writers by their patterns.
        self.left_out = 0
        self.ignored = Counter[str]()

    @property
    def is_remote(self) -> bool:
        """Whether the source is outside the cluster."""
        return self._source.is_remote

    def source(self, see: Callable[[str], None] | None = None) -> None:
        """Record the objects of the source, and the numbers of ignored markers; call `see` with each name."""
        self._ledger.record_listing(self._scope, "source", _seen(self.rows(), see) if see else self.rows())
        self._ledger.record_ignored(self._scope, self.ignored)

    def held(self) -> None:
        """Record the copies of the source's objects in the cluster, and their versions."""
        names = self._options.names
        prefix = self._options.prefix if names is None else common_prefix(names)
        wanted = set(names or ())
        copies = (c for c in list_held(self._client, self._source, prefix) if names is None or c.name in wanted)
        self._ledger.record_listing(self._scope, "held", ((c.name, "", c.size, c.version, "") for c in copies))

    def planned(self) -> None:
        """Record what else a job must know of its plan before its first submission."""

    def now(self) -> None:
        """Record the objects that the source has now."""
        self._ledger.record_listing(self._scope, "now", self.rows())

    def destination(self, side: str) -> None:
        """Record the objects of the destination as the listing `side`: ``before`` or ``after`` a job."""
        options = self._options
        # A result may have another extension, so a prefix ends before the extension.
        selected = common_prefix(options.names) if options.names else options.prefix
        folder, slash, last = selected.rpartition("/")
        prefix = self._naming.prepend + folder + slash + last.partition(".")[0]
        self._ledger.record_listing(self._scope, side, destination_rows(self.results(side, prefix)))

    def results(self, side: str, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects of the destination whose names start with `prefix`."""
        return list_aistore(self._client, self._destination, prefix)

    def _by_aistore(self) -> Iterator[StoredObject]:
        if self._options.names is None:
            return list_aistore(self._client, self._source, self._options.prefix)
        return self.find(self._options.names)

    def find(self, names: Sequence[str]) -> Iterator[StoredObject]:
        """Yield the objects of the source that have one of these names."""
        return find_aistore(self._client, self._source, names)

    def rows(self) -> Iterator[Row]:
        """Yield the source's rows, without folder markers unless names select them.

        A transform also leaves out markers of writers, unless its prefix or names select them.

        A name that AIStore cannot store, or whose result it cannot store, has a reason and no destination.
        """
        wanted = set(self._options.names or ())
        self.left_out, self.ignored = 0, Counter()
        all_named = self._options.names is not None
        takes_all = all_named or self.takes_markers or not self._scope.effect
        named = MARKERS if takes_all else named_by(self._options.prefix)
        for found in self._list_source():
            if not all_named and is_folder_marker(found.name, found.size):
                self.left_out += 1
                continue
            if kind := marker(found.name, named) or self._naming.ignored(found.name):
                self.ignored[kind] += 1
                continue
            wanted.discard(found.name)
            yield source_row(found, self._naming.destination(found.name), self._naming.refusal(found.name))
        for name in sorted(wanted):
            yield name, "", 0, "", f"{self._source} has no object of this name"


def _seen(rows: Iterator[Row], see: Callable[[str], None]) -> Iterator[Row]:
    for row in rows:
        see(row[0])
        yield row
