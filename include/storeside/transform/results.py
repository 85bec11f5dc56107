"""Transforms with several results of each object: which lists count, and which results are removed.

A result of AIStore's job is then the list of an object's results. The job reads each new list. It counts only if the
destination has all results of it, as the server stored them. So an object whose server was killed between two results
is tried again, and all its results are made again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket, delete_objects
from storeside.aistore.errors import NO_REASON, AIStoreInputError
from storeside.aistore.many import read_many
from storeside.aistore.spec import EtlSpec
from storeside.ledger import results
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Pending, Scope
from storeside.transform.listings import Listings
from storeside.transform.members import ShardListings
from storeside.transform.naming import Naming
from storeside.transform.state import Options
from storeside.transformers.contract.results import Announced, announced_in, unfit_object

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

_WINDOW = 10_000
UNSTORED = f"{NO_REASON}, or not all of its results were stored; several results need a server of Storeside"


class ResultListings(Listings):
    """Listings in which a list of several results counts only if the destination has all of them."""

    def destination(self, side: str) -> None:
        """Record the objects of the destination, and after a job what the new lists announce."""
        super().destination(side)
        if side == "after":
            self._ledger.drop(self._scope, "incomplete")
            self._read(side)
            results.check(self._ledger, self._scope)

    def planned(self) -> None:
        """Record what lists announce that a killed run left, before the job replaces them."""
        self._read("before")

    def _read(self, side: str) -> None:
        after = ""
        while unread := results.unread(self._ledger, self._scope, side, after, _WINDOW):
            after = unread[-1].object
            results.record(self._ledger, self._scope, self._announced(unread))

    def _announced(self, lists: list[Pending]) -> Iterator[tuple[Pending, Iterator[Announced]]]:
        contents = chain.from_iterable(
            read_many(self._client, self._destination, ((p.destination_object, p.size) for p in lists))
        )
        for p, (_, content) in zip(lists, contents, strict=True):
            yield p, announced_in(content or b"", p.object)


def listings_of(spec: EtlSpec | None, otherwise: type[Listings]) -> type[Listings]:
    """Return the kind of listings in which only complete results of the ETL count."""
    if spec is not None and spec.has_several_results:
        return ResultListings
    return ShardListings if spec is not None and spec.in_shards else otherwise


def naming_lists(naming: Naming) -> Naming:
    """Return the same names, which refuse objects that can have no list of results."""
    refuses = naming.refuses

    def refusal(name: str) -> str | None:
        return unfit_object(name, naming.destination(name)) or (refuses(name) if refuses else None)

    return replace(naming, refuses=refusal)


def require_stores(destination: Bucket, options: Options) -> None:
    """Raise AIStoreInputError for a destination or an option that excludes several results."""
    if destination.is_remote:
        raise AIStoreInputError(
            f"several_results: {destination} is a remote bucket, whose versions of stored results AIStore does not"
            " tell: write to an ais:// bucket of this cluster, and copy it"
        )
    if options.sync:
        raise AIStoreInputError(
            "several_results excludes sync, with which AIStore removes all objects that no source object names"
        )
    if not options.keeps_result:
        raise AIStoreInputError("several_results are no intermediate results: keep them")


def remove_obsolete(client: Client, ledger: Ledger, scope: Scope, destination: Bucket) -> None:
    """Delete the results that objects own and no longer have, and record the others. Raises AISError."""
    results.find_obsolete(ledger, scope)
    after = ""
    while window := results.obsolete(ledger, scope, after, _WINDOW):
        after = window[-1]
        delete_objects(client, destination, window)
        log.info("%s: deleted %d results that their objects no longer have", destination, len(window))
    results.settle(ledger, scope)
