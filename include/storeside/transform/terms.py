"""The terms of a bucket job: its ETL, names and options as they apply, and the scope of the results that count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.existing import described
from storeside.aistore.spec import EtlSpec
from storeside.ledger.scope import Scope
from storeside.transform.listings import Listings
from storeside.transform.naming import Naming, decisive
from storeside.transform.results import listings_of, naming_lists, require_stores
from storeside.transform.state import Options

if TYPE_CHECKING:
    from aistore.sdk import Client


@dataclass(frozen=True)
class Terms:
    """The terms of a job; `named` are the names of results, also of those that can have no list of results."""

    spec: EtlSpec | None
    naming: Naming
    options: Options
    named: Naming

    @classmethod
    def of(
        cls, client: Client, source: Bucket, destination: Bucket, spec: EtlSpec | None, naming: Naming,
        options: Options,
    ) -> Terms:  # fmt: skip
        """Apply the options of a job to its buckets and its ETL.

        Raises AIStoreInputError for options that exclude each other, and as `described` when `spec` has an existing
        ETL that does not run.
        """
        if options.sync and not source.is_remote:
            raise AIStoreInputError(
                f"sync follows deletions in a remote bucket, but {source} is not remote: leave it out"
            )
        if source.scheme != "ais" and not options.sync:
            options = replace(options, latest=False)  # `Held` compares the versions for the whole job
        if spec and (options.latest or options.sync):
            spec = spec.without_files()
        spec = described(client, spec) if spec else None
        if spec is None or not spec.has_several_results:
            return cls(spec, naming, options, naming)
        require_stores(destination, options)
        return cls(spec, naming_lists(naming), options, naming)

    @property
    def several(self) -> bool:
        """Whether objects have several results."""
        return self.spec is not None and self.spec.has_several_results

    def listings(self, otherwise: type[Listings]) -> type[Listings]:
        """Return the kind of listings in which only complete results count."""
        return listings_of(self.spec, otherwise)

    def scope(self, source: Bucket, destination: Bucket, run_id: str) -> Scope:
        """Return the key of the job's listings."""
        selection = repr((self.options.prefix, list(self.options.names or ()), self.named))
        prepend = self.named.prepend if self.options.keeps_result else ""
        effect = self.spec.effect if self.spec else ""
        digest = decisive(self.spec, self.named) if self.spec else ""
        return Scope(str(source), str(destination), effect, run_id, selection, prepend, digest)
