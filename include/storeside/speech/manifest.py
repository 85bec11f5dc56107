"""The speech manifest: collects the facts of a run's recordings for its load, and records their objects as done.

The facts are in AIStore, one object per recording. They become one object of JSON Lines beside them, which the normal
load (`storeside.transfer`) reads, checks against a suite, and publishes in one step.
"""

from __future__ import annotations

import hashlib
import logging
from filecmp import cmp
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket, objects_url
from storeside.aistore.jobs import Follower
from storeside.aistore.stored_objects import list_aistore
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.speech.facts import Collected, rows
from storeside.sql.answers import first_row
from storeside.transfer.request.request import MANIFEST, Request
from storeside.transfer.tables.quarantine import Quarantine
from storeside.transform.naming import Naming
from storeside.transform.outcomes import acknowledge
from storeside.transformers.audio.formats import CODECS

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient

log = logging.getLogger(__name__)

# Seconds without progress after which the deletion of facts is aborted.
_STALL_SECONDS = 120.0


class ManifestRequest(Request):
    """The load of the speech manifest, to which no other load may write."""

    reserved = MANIFEST


def facts_prefix(run_id: str, audio: Bucket) -> str:
    """Return the prefix of a run's facts about the audio in a bucket, such as ``3f2a…/``."""
    return _key(run_id, str(audio)) + "/"


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def facts_naming(run_id: str, audio: Bucket) -> Naming:
    """Return the naming of a run's facts: the whole object name and ``.json``, such as ``a.wav.json``.

    The facts of an object without an extension, or with one that is no supported container, have exactly its name,
    because AIStore then adds no ``.json``. All facts about the bucket `audio` are below one prefix.
    """
    return Naming({container: f"{container}.json" for container in CODECS}, facts_prefix(run_id, audio))


def facts_url(endpoint: str, facts: Bucket, run_id: str, audio: Bucket, prepend: str = "") -> str:
    """Return the URL below which a transcode writes a run's facts; see `facts_naming` for their names.

    `endpoint` is the URL of AIStore for the transformers; `audio` is the bucket of the results, and `prepend`
    precedes their names.
    """
    return objects_url(endpoint, facts, facts_prefix(run_id, audio) + prepend)


class SpeechManifest:
    """The manifest of the audio in `bucket` for one run, which may make the manifests of several buckets.

    `facts` is the AIStore bucket into which transcode and probe wrote. The object `key` in it has the run's rows.
    """

    def __init__(self, clickhouse: HttpClient, bucket: Bucket, facts: Bucket, run_id: str) -> None:
        self.clickhouse = clickhouse
        self.bucket = bucket
        self.facts = facts
        self.run_id = run_id
        self.prefix = facts_prefix(run_id, bucket)
        self.key = f"rows/{_key(run_id, str(bucket))}.jsonl"

    def has_begun(self, aistore: Any) -> bool:
        """Return whether the run has facts, or rows that are not loaded."""
        return any(True for prefix in (self.prefix, self.key) for _ in list_aistore(aistore, self.facts, prefix))

    def probes(self, effect: str) -> Scope:
        """Return the scope of this run's probes with an effect, which select the objects of the facts."""
        return Scope(str(self.bucket), str(self.facts), effect, self.run_id)

    def collect(self, aistore: Any, scope: Scope) -> Collected:
        """Store the run's rows as one object of JSON Lines, except rows that other runs have published.

        `scope` is the scope of the run's probes, with any selection: tasks may probe parts of a bucket. Only objects
        with a result of a probe get rows, because `finish` records these objects as done. Other facts may belong to
        objects that were transcoded but not delivered. A repeated call leaves an equal object as it is, so that no
        row is loaded again.

        Raises MissingFactsError when facts are missing, and UnreadableFactsError.
        """
        found = Collected()
        if not (probes := Ledger(self.clickhouse).parts(scope)):  # this run has recorded its objects as done
            return found
        with NamedTemporaryFile() as file:
            for line in rows(self.clickhouse, aistore, self.bucket, self.facts, probes, found):
                file.write(line)
            file.flush()
            self._store(aistore, Path(file.name), is_empty=not found.rows)
        log.info("%d facts (%d bytes), %d rows to load", found.facts, found.facts_bytes, found.rows)
        return found

    def _store(self, aistore: Any, path: Path, *, is_empty: bool) -> None:
        stored = self.facts.object(aistore, self.key)
        is_there = any(o.name == self.key for o in list_aistore(aistore, self.facts, self.key))
        if is_empty:
            if is_there:  # another run has published these rows meanwhile
                stored.delete()
        elif not (is_there and _is_same(stored, path)):
            stored.get_writer().put_file(path)

    def published(self) -> int:
        """Return the number of rows that this run has published."""
        return int(
            first_row(
                self.clickhouse.query(
                    "SELECT count() FROM speech.manifest WHERE bucket = {bucket:String} AND run_id = {run_id:String}",
                    parameters={"bucket": str(self.bucket), "run_id": self.run_id},
                )
            )[0]
        )

    def finish(self, aistore: Any, scope: Scope) -> None:
        """Record the objects of the loaded rows as done, those in the quarantine as failed, and delete the facts.

        A repeated call records nothing else, because the plans of the probes no longer exist.
        """
        acknowledge(Ledger(self.clickhouse), scope, self._fail_invalid)
        for prefix in (self.prefix, self.key):
            names = (o.name for o in list_aistore(aistore, self.facts, prefix))
            while window := list(islice(names, 10_000)):
                # a job that still ran could delete facts that the run stores again after it was cleared
                ended = Follower(aistore, self.facts.objects(aistore, window).delete(), _STALL_SECONDS).wait()
                if ended.error:
                    log.warning("%s: not all facts of this run are deleted: %s", self.facts, ended.error)

    def _fail_invalid(self, scope: Scope) -> None:
        if Quarantine(self.clickhouse, "speech", "manifest").exists():
            Ledger(self.clickhouse).settle_invalid(scope, str(self.facts), self.key)


def _is_same(stored: Any, path: Path) -> bool:
    """Return whether an object of AIStore has the content of a file."""
    with NamedTemporaryFile() as file:
        for piece in stored.get_reader():
            file.write(piece)
        file.flush()
        return cmp(file.name, path, shallow=False)
