"""Segments of a corpus, matched with the recordings of a bucket. They are on disk, so any number may be read."""

from __future__ import annotations

import os
import posixpath
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from storeside.transformers.contract.given_index import slot
from storeside.transformers.transformer import utf8

from .entries import MOST_SEGMENTS, Detail, Entry, Found, Place, SegmentsError

_TABLES = """
CREATE TABLE segment (
    key BLOB, folder BLOB, place TEXT, first REAL, last REAL, channel TEXT, id TEXT, text TEXT, speaker TEXT,
    language TEXT, fault TEXT
);
CREATE TABLE detail (folder BLOB, id TEXT, field TEXT, value TEXT);
CREATE TABLE place (folder BLOB, id BLOB, path BLOB);
CREATE TABLE seen (key BLOB, object BLOB, rank INTEGER);
"""
_DETAILS = ("text", "speaker", "language")
# After all files are read: Kaldi's details belong to the utterances of their folder, which are whole recordings if
# the folder has no `segments`; and `wav.scp` has the paths of recordings.
_JOINED = (
    "CREATE INDEX by_id ON detail (folder, id, field)",
    "INSERT INTO segment (key, folder, place, channel, id, text, speaker, language, fault)"
    " SELECT DISTINCT CAST(id AS BLOB), folder, shown(folder), '', id, '', '', '', '' FROM detail"
    " WHERE field = 'text' AND folder NOT IN (SELECT folder FROM segment WHERE folder IS NOT NULL)",
    *(
        f"UPDATE segment SET {field} = coalesce((SELECT value FROM detail AS d WHERE d.folder = segment.folder"
        f" AND d.id = segment.id AND d.field = '{field}'), {field})"
        for field in _DETAILS
    ),
    "UPDATE segment SET fault = 'the files in ' || shown(folder) || ' have several texts, speakers or languages of"
    " the utterance ' || id || ': keep one of each' WHERE (folder, id) IN"
    " (SELECT folder, id FROM detail GROUP BY folder, id, field HAVING count(DISTINCT value) > 1)",
    "CREATE INDEX by_place ON place (folder, id)",
    "UPDATE segment SET fault = 'wav.scp in ' || shown(folder) || ' has several paths of the recording '"
    " || shown(key) || ': keep one' WHERE (folder, key) IN"
    " (SELECT folder, id FROM place GROUP BY folder, id HAVING count(DISTINCT path) > 1)",
    "UPDATE segment SET key = coalesce((SELECT path FROM place AS p WHERE p.folder = segment.folder"
    " AND p.id = segment.key), key)",
    "CREATE INDEX by_key ON segment (key)",
    "CREATE TABLE key AS SELECT key, last_part(key) AS last, count(*) AS segments FROM segment GROUP BY key",
    "CREATE UNIQUE INDEX key_by_name ON key (key)",
    "CREATE INDEX key_by_last ON key (last)",
)
# Each name belongs to the objects that match it best. Names that several objects match equally well belong to none.
_OWNED = (
    "CREATE INDEX seen_by_key ON seen (key, rank)",
    "CREATE TABLE owner AS SELECT s.object AS object, s.key AS key, slot(s.object) AS slot, count(*) OVER"
    " (PARTITION BY s.key) AS owners FROM seen AS s INNER JOIN (SELECT key, min(rank) AS rank FROM seen GROUP BY key)"
    " AS best ON best.key = s.key AND best.rank = s.rank",
    "CREATE INDEX owner_by_object ON owner (slot, object)",
    "CREATE INDEX owner_by_key ON owner (key)",
)
_SCHEME = re.compile(r"[a-z0-9]+://[^/]*/")
_BATCH = 5_000
_SHOWN = 60


class Matched:
    """The segments of one job; see `storeside.transform.given.Beside`. Use `matched`, which closes it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._is_owned = False

    def load(self, found: Iterable[Found]) -> None:
        """Take all segments and details of the files. Raises SegmentsError for names that no object can have."""
        entries = iter(found)
        while batch := list(islice(entries, _BATCH)):
            self._insert("segment", [_row(one) for one in batch if isinstance(one, Entry)])
            self._insert("detail", [
                (os.fsencode(one.folder), one.id, one.field, one.value) for one in batch if isinstance(one, Detail)
            ])  # fmt: skip
            self._insert("place", [
                (os.fsencode(one.folder), os.fsencode(one.id), _key(one.path, one.folder)) for one in batch
                if isinstance(one, Place)
            ])  # fmt: skip
        for statement in _JOINED:
            self._database.execute(statement)

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def see(self, name: str) -> None:
        """Match an object with a name in the files: its own, without its extension, or the last part of either."""
        whole = os.fsencode(name)
        for rank, (column, key) in enumerate(_candidates(whole)):
            keys = self._database.execute(f"SELECT key FROM key WHERE {column} = ?", (key,)).fetchall()
            if keys:
                self._insert("seen", [(known, whole, rank) for (known,) in keys])
                return

    def _own(self) -> None:
        if not self._is_owned:
            for statement in _OWNED:
                self._database.execute(statement)
            self._is_owned = True

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Yield each recording with segments, and the entry that the transformer reads."""
        self._own()
        objects = self._database.execute("SELECT DISTINCT object FROM owner ORDER BY slot, object")
        for (name,) in objects:
            yield os.fsdecode(name), self._entry(name)

    def _entry(self, name: bytes) -> dict[str, Any]:
        ambiguous = self._database.execute(
            "SELECT key FROM owner WHERE slot = slot(?1) AND object = ?1 AND owners > 1", (name,)
        ).fetchone()
        if ambiguous:
            return {"refused": self._ambiguous(ambiguous[0])}
        rows = self._database.execute(
            "SELECT place, first, last, channel, id, text, speaker, language, fault FROM segment WHERE key IN"
            " (SELECT key FROM owner WHERE slot = slot(?1) AND object = ?1) ORDER BY first, last, rowid LIMIT ?2",
            (name, MOST_SEGMENTS + 1),
        ).fetchall()
        if reason := _refusal(rows):
            return {"refused": reason}
        return {"segments": [_segment(row) for row in rows]}

    def _ambiguous(self, key: bytes) -> str:
        names = self._database.execute("SELECT object FROM owner WHERE key = ? ORDER BY object LIMIT 2", (key,))
        examples = ", ".join(repr(os.fsdecode(name)) for (name,) in names)
        return (
            f"several recordings match the name {os.fsdecode(key)[:_SHOWN]!r} in the segments, such as {examples}:"
            " write the whole names of objects there"
        )

    def strays(self) -> Iterator[tuple[str, int]]:
        """Yield the names in the files that no recording of the bucket has, and the number of their segments."""
        self._own()
        query = "SELECT key, segments FROM key WHERE key NOT IN (SELECT key FROM owner) ORDER BY key"
        for key, segments in self._database.execute(query):
            yield os.fsdecode(key), segments
        query = (
            "SELECT id, count(*) FROM detail AS d WHERE NOT EXISTS (SELECT 1 FROM segment AS s"
            " WHERE s.folder = d.folder AND s.id = d.id) GROUP BY id ORDER BY id"
        )
        yield from self._database.execute(query)


def _row(entry: Entry) -> tuple[Any, ...]:
    fault = entry.fault
    # SQLite has no NaN, and no text that is not Unicode
    texts = (entry.id, entry.text, entry.speaker, entry.language) if not fault else ("", "", "", "")
    times = (entry.start, entry.end) if not fault else (None, None)
    folder = os.fsencode(posixpath.dirname(entry.place)) if entry.is_kaldi else None
    key, place = _key(entry.recording, entry.place), utf8(entry.place)
    return key, folder, place, *times, utf8(entry.channel), *texts, utf8(fault)


def _key(name: str, place: str) -> bytes:
    """Return a name in a file without the scheme and bucket of a URI, and without a slash or ``./`` before it."""
    bucket = _SCHEME.match(name)
    known = name[bucket.end() :] if bucket else name
    known = posixpath.normpath("/" + known).lstrip("/")
    try:
        return os.fsencode(known)
    except UnicodeEncodeError as e:
        raise SegmentsError(f"{place}: the name of a recording, {name[:_SHOWN]!r}, is not Unicode") from e


def _candidates(name: bytes) -> Iterator[tuple[str, bytes]]:
    last = name.rpartition(b"/")[2]
    for column, found in (("key", name), ("key", last), ("last", last)):
        yield column, found
        stem, dot, extension = found.rpartition(b".")
        if dot and b"/" not in extension:
            yield column, stem


def _refusal(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return why a recording with these segments cannot be cut; empty if it can."""
    if len(rows) > MOST_SEGMENTS:
        return f"it has more than {MOST_SEGMENTS} segments: divide the recording"
    for row in rows:
        if row[-1]:
            return str(row[-1])
    whole = [row for row in rows if row[1] is None]
    if whole and len(rows) > 1:
        return (
            f"{whole[0][0]} has a text of the whole recording, and {rows[1][0]} has another text or segment of it:"
            " remove one of them"
        )
    channels = sorted({row[3] for row in rows if row[3]})
    if len(channels) > 1:
        return (
            f"its segments are of the channels {', '.join(channels[:_SHOWN])}: transcode each channel into its own"
            " recording (channel of a transcode), and divide the segments"
        )
    return _repeated(rows)


def _repeated(rows: Sequence[tuple[Any, ...]]) -> str:
    ids = Counter(row[4] for row in rows if row[4])
    for name, count in ids.most_common(1):
        if count > 1:
            return f"{count} of its segments have the id {name!r}: give each its own"
    known: dict[tuple[Any, ...], str] = {}
    for place, *told in rows:
        if (first := known.setdefault(tuple(told), place)) != place:
            return f"{place} repeats the segment in {first}: remove it"
    return ""


def _segment(row: tuple[Any, ...]) -> dict[str, Any]:
    _, start, end, _, *texts, _ = row
    times = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
    told = dict(zip(("id", "text", "speaker", "language"), texts, strict=True))
    return {**times, **{name: value for name, value in told.items() if value}}


@contextmanager
def matched(found: Iterable[Found]) -> Iterator[Matched]:
    """Yield the segments of these files, in a temporary database that SQLite removes. Raises SegmentsError."""
    database = sqlite3.connect("", isolation_level=None)  # on disk, without a name
    try:
        database.create_function("slot", 1, lambda name: slot(os.fsdecode(name)), deterministic=True)
        database.create_function("shown", 1, lambda name: utf8(os.fsdecode(name)), deterministic=True)
        database.create_function("last_part", 1, lambda name: name.rpartition(b"/")[2], deterministic=True)
        database.executescript(_TABLES)
        database.execute("PRAGMA journal_mode = OFF")
        segments = Matched(database)
        segments.load(found)
        yield segments
    finally:
        database.close()
