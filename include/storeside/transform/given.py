"""Entries that a bucket job is given beside its objects, such as segments of recordings, and their way to servers.

The job matches the names in it with its listing, records a digest for each object, so that the outcome of an object
belongs to both, and stores an index (`storeside.transformers.contract.given_index`). A server reads the part of one
object from it. The index has the name of the job, so each try and each server of a job has the same one until the job
ends and deletes it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Protocol

from storeside.aistore.buckets import Bucket, delete_objects, objects_url
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.transform.listings import Listings
from storeside.transform.state import Options
from storeside.transformers.contract import given_index

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

BUCKET = Bucket("ais", "storeside-given")
# Names without an object that a summary and the log contain.
EXAMPLES = 5


class Beside(Protocol):
    """Entries of objects, by names that may differ from those of the objects."""

    def see(self, name: str) -> None:
        """Take note of an object of the job's source."""

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Yield each object that has an entry, and its entry of JSON values, in the order of `given_index.slot`."""
        ...

    def strays(self) -> Iterator[tuple[str, int]]:
        """Yield the names without an object, with the number of their entries."""
        ...


class Given:
    """The entries of one job; `read` opens them, which may take long.

    `endpoint` is the URL of AIStore for the transformers.
    """

    def __init__(self, read: Callable[[], AbstractContextManager[Beside]], endpoint: str) -> None:
        self._read = read
        self._endpoint = endpoint

    def beside(self, spec: EtlSpec, scope: Scope, options: Options) -> EtlSpec:
        """Return the ETL that reads the index of a job. Raises AIStoreInputError for an ETL that cannot."""
        if options.sync:
            raise AIStoreInputError("sync makes AIStore transform all objects, also files of segments: leave it out")
        return spec.given(objects_url(self._endpoint, BUCKET, scope.job))

    def record(self, client: Client, ledger: Ledger, scope: Scope, listings: Listings, *, store: bool) -> None:
        """List the source, record the digests of the objects' entries, and store the index if `store` is true."""
        with self._read() as beside:
            listings.source(beside.see)
            digests = ((name, "", 0, _digest(entry), "") for name, entry in beside.entries())
            count = ledger.record_listing(scope, "given", digests)
            strays = ledger.record_listing(scope, "stray", ((name, "", n, "", "") for name, n in beside.strays()))
            log.info("%d objects of %s are given entries; %d names are no objects of it", count, scope.source, strays)
            if store:
                self._store(client, scope, beside)

    @staticmethod
    def _store(client: Client, scope: Scope, beside: Beside) -> None:
        BUCKET.handle(client).create(exist_ok=True)
        with NamedTemporaryFile() as file:
            lines = ((given_index.slot(name), given_index.line(name, entry)) for name, entry in beside.entries())
            given_index.write(file.file, lines)
            file.flush()
            BUCKET.object(client, scope.job).get_writer().put_file(Path(file.name))

    @staticmethod
    def end(client: Client, scope: Scope) -> None:
        """Delete the index of a job that has ended."""
        BUCKET.handle(client).create(exist_ok=True)
        delete_objects(client, BUCKET, [scope.job])


def _digest(entry: Any) -> str:
    return hashlib.sha256(given_index.line("", entry)).hexdigest()[:16]
