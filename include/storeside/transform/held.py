"""The copies of a cloud bucket's objects in the cluster: a job reads them, although the objects may have changed.

AIStore transforms and copies its own copy of a remote object, and reads the object only if there is none. So a job
first removes the copies that do not have the planned version. Afterwards, a result counts only if the copy that
AIStore then has of the object has the planned version.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket, evict
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.transform.listings import Listings

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

_WINDOW = 10_000
_STALL_SECONDS = 120.0
CHANGED = (
    "it was overwritten or deleted after the listing, so its result may be of another version: the next run processes"
    " the version that exists then"
)


class Held:
    """The cluster's copies of the source of one job.

    AIStore keeps no comparable versions of the objects of other AIStore clusters, so this class does nothing for
    them. With `by_now`, AIStore itself looks for newer versions while the job runs, and keeps no copies of them.
    """

    def __init__(
        self, client: Client, ledger: Ledger, scope: Scope, source: Bucket, listings: Listings, *, by_now: bool
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._scope = scope
        self._source = source
        self._listings = listings
        self._by_now = by_now
        self._applies = source.scheme != "ais"

    def list(self) -> None:
        """Record the copies before the plan, which tries objects again whose copies have other versions."""
        if self._applies:
            self._listings.held()

    def evict_stale(self) -> None:
        """Remove the copies of pending objects that do not have the planned versions."""
        after = ""
        while self._applies and (names := self._ledger.stale(self._scope, after, _WINDOW)):
            after = names[-1]
            log.info("%s: removing %d copies of other versions from the cluster", self._source, len(names))
            jobs.Follower(self._client, evict(self._client, self._source, names), _STALL_SECONDS).wait()

    def check(self) -> None:
        """Record which results are of other versions of their objects than the planned ones."""
        if not self._applies:
            return
        self._listings.held()
        if self._by_now or self._ledger.has_results_without_copies(self._scope):
            self._listings.now()
        else:
            self._ledger.drop(self._scope, "now")
        self._ledger.record_changed(self._scope, CHANGED, by_now=self._by_now)
