"""An object's origin, the steps that made it, the results made from it, and the tables with its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storeside import sql
from storeside.pages.movement import ORDERS
from storeside.pages.tables import FIRST, PAGE, At, Page, Tables, check, directed, of_status
from storeside.transfer.request.source import bucket_uri

SEARCHED = ("", "done", "failed", "left_out")
SORTS = ("name", "size", "when")
# The pages do not count more rows than this.
MOST_COUNTED = 10_000
_MOST_STEPS = 24
# Conditions of the searches. A result has its prefix, and then the name of its object except for the extension. So a
# search of the objects' names, which is faster, finds results without a prefix, too.
_BY_NAME = (
    "if({anywhere:Bool}, prepend != '' OR position(object, {stem:String}) > 0, startsWith(object, {stem:String}))"
    " AND if({anywhere:Bool}, position(object, {text:String}) > 0 OR position(destination_object, {text:String}) > 0,"
    " startsWith(object, {text:String}) OR startsWith(destination_object, {text:String}))"
)
_BY_RESULT = (
    "NOT {anywhere:Bool} AND prepend != '' AND NOT startsWith(object, {stem:String})"
    " AND startsWith(destination_object, {text:String})"
)


@dataclass(frozen=True)
class Place:
    """An object in a bucket; `bucket` is a URI."""

    bucket: str
    object: str

    @property
    def is_audio(self) -> bool:
        """Whether a user can listen to it: it is audio and AIStore holds it."""
        return self.bucket.startswith("ais://") and media_type(self.object) is not None


@dataclass(frozen=True)
class Step:
    """One step of a run: an object of one bucket became an object of another, or failed to."""

    source: Place
    destination: Place
    status: str
    reason: str
    effect: str
    bytes_in: int
    bytes_out: int
    run_id: str
    recorded: float

    @property
    def what(self) -> str:
        """The kind of step, as text."""
        return "transformed" if self.effect else "copied"


@dataclass(frozen=True)
class Lineage:
    """Everything known about an object: the steps from its origin, tables with its rows, its manifest row."""

    place: Place
    steps: tuple[Step, ...]
    places: tuple[Place, ...]
    loads: tuple[dict[str, Any], ...]
    manifest: dict[str, Any] | None

    @property
    def known(self) -> bool:
        """Whether anything is known about the object."""
        return bool(self.steps or self.loads or self.manifest)

    @property
    def audio(self) -> tuple[Place, ...]:
        """The playable versions of it, the original before its results."""
        done = {place for step in self.steps if step.status == "done" for place in (step.source, step.destination)}
        return tuple(place for place in self.places if place.is_audio and place in done)


_MEDIA = {
    "wav": "audio/wav", "flac": "audio/flac", "mp3": "audio/mpeg", "ogg": "audio/ogg", "opus": "audio/ogg",
    "m4a": "audio/mp4", "aac": "audio/aac",
}  # fmt: skip


def media_type(name: str) -> str | None:
    """Return an audio object's media type by its name; None if it is not audio that browsers play."""
    return _MEDIA.get(name.rpartition(".")[2].lower())


@dataclass(frozen=True)
class Search:
    """A search: names that begin with a text, or contain it (`anywhere`), in a bucket, with an outcome.

    `bucket` is a part of the name of a bucket or table. `sort` and `order` decide about the order. `source` and
    `destination` are whole names of buckets, and `reason` is the whole reason of an object, or of parts of it that
    were left out; loads have none of these three.
    """

    text: str = ""
    bucket: str = ""
    status: str = ""
    anywhere: bool = False
    sort: str = "name"
    order: str = "asc"
    source: str = ""
    destination: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        check("status", self.status, SEARCHED)
        check("sort", self.sort, SORTS)
        check("order", self.order, ORDERS)

    @property
    def stem(self) -> str:
        """The text without a possible extension."""
        folder, slash, name = self.text.rpartition("/")
        return folder + slash + (name.rpartition(".")[0] if "." in name else name)

    @property
    def asked(self) -> dict[str, Any]:
        """The parameters of the statements about objects."""
        return {
            "text": self.text, "stem": self.stem, "bucket": self.bucket, "status": self.status,
            "anywhere": self.anywhere, "of_source": self.source, "of_destination": self.destination,
            "reason": self.reason,
        }  # fmt: skip

    @property
    def asked_of_loads(self) -> dict[str, Any]:
        """The parameters of the statements about loads, whose buckets have no scheme."""
        return {**self.asked, "bucket": self.bucket.rpartition("://")[2]}

    @property
    def has_loads(self) -> bool:
        """Whether loads of tables may match."""
        return not (self.source or self.destination or self.reason)

    def directed(self, statement: str, at: At, value: str) -> str:
        """Return the statement in the order of the listing; `value` is what sorts it, if that is not the name."""
        by_name = self.sort == "name"
        return directed(
            statement, descending=(self.order == "desc") != bool(at.back), **_FOUND,
            ORDER_VALUE="" if by_name else "toInt64(SORTED) DIRECTION,", SORTED="0" if by_name else value,
        )  # fmt: skip

    def value(self, row: dict[str, Any]) -> int:
        """Return the value that a row is sorted by; 0 when the list is sorted by name."""
        found = {"name": 0, "when": row["recorded_ms"], "size": row.get("bytes_in", row.get("bytes"))}
        return int(found[self.sort])


def _found(named: str) -> str:
    return sql.query("pages_objects_found").replace("NAMED", named)


_FOUND = {"FOUND_BY_NAME": _found(_BY_NAME), "FOUND_BY_RESULT": _found(_BY_RESULT)}


def search(tables: Tables, wanted: Search, at: At = FIRST, size: int = PAGE) -> Page[dict[str, Any]]:
    """Return copied and transformed objects. Raises PageInputError for an invalid cursor."""
    cursor = at.cursor(int, str, str, str, str)
    value, source, destination, name, prepend = cursor or (0, "", "", "", "")
    sorted_by = {"name": "", "when": "toUnixTimestamp64Milli(recorded_at)", "size": "bytes_in"}[wanted.sort]
    rows = of_status(
        tables, wanted.directed(sql.query("pages_objects"), at, sorted_by),
        **wanted.asked, size=size, is_first=cursor is None, by_name=wanted.sort == "name", after_value=value,
        after_source=source, after_destination=destination, after_object=name, after_prepend=prepend,
    )  # fmt: skip
    columns = "source", "destination", "object", "prepend"
    return at.page(rows, lambda row: (wanted.value(row), *(row[column] for column in columns)), size)


def search_loads(tables: Tables, wanted: Search, at: At = FIRST, size: int = PAGE) -> Page[dict[str, Any]]:
    """Return objects that were planned to be loaded into tables. Raises PageInputError for an invalid cursor."""
    if not wanted.has_loads:
        return Page([])
    cursor = at.cursor(int, str, str, str, str)
    value, table, of, key, version = cursor or (0, "", "", "", "")
    when = "toUnixTimestamp64Milli(toDateTime64(recorded_at, 3))"
    sorted_by = {"name": "", "when": when, "size": "bytes"}[wanted.sort]
    rows = of_status(
        tables, wanted.directed(sql.query("pages_keys"), at, sorted_by),
        **wanted.asked_of_loads, size=size, is_first=cursor is None, by_name=wanted.sort == "name", after_value=value,
        after_destination=table, after_bucket=of, after_key=key, after_version=version,
    )  # fmt: skip
    for row in rows:
        row["bucket_uri"] = bucket_uri(row["bucket"])
    columns = "destination", "bucket", "key", "version"
    return at.page(rows, lambda row: (wanted.value(row), *(row[column] for column in columns)), size)


@dataclass(frozen=True)
class Entry:
    """An object with all its outcomes on a page: its copies, its transforms and their facts, its loads."""

    place: Place
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Outcome:
    """One outcome of an object: where it went, in which state, and when in seconds since the epoch."""

    source: str
    destination: str
    status: str
    reason: str
    recorded: float


def entries(copied: Sequence[dict[str, Any]], loaded: Sequence[dict[str, Any]]) -> list[Entry]:
    """Return the rows of both listings by object, in their order.

    A result belongs to the entry of the object that it was made from, if that row is on the page, too.
    """
    found: dict[Place, tuple[Place, list[Outcome]]] = {}
    for row in copied:
        place = Place(row["source"], row["object"])
        result = Place(row["destination"], row["destination_object"])
        entry = found.setdefault(place, (place, []))
        entry[1].append(_outcome(row, row["source"], row["destination"]))
        if row["status"] == "done":
            _join(found, entry, result)
    for row in loaded:
        place = Place(row["bucket_uri"], row["key"])
        found.setdefault(place, (place, []))[1].append(_outcome(row, row["bucket_uri"], row["destination"]))
    unique = {id(entry[1]): entry for entry in found.values()}
    return [Entry(place, tuple(outcomes)) for place, outcomes in unique.values()]


def _join(found: dict[Place, tuple[Place, list[Outcome]]], entry: tuple[Place, list[Outcome]], result: Place) -> None:
    """Let a result have the entry of its object, with the outcomes that an earlier row gave it."""
    other = found.setdefault(result, entry)
    if other is entry:
        return
    entry[1].extend(other[1])
    for place, one in list(found.items()):
        if one is other:
            found[place] = entry


def _outcome(row: dict[str, Any], source: str, destination: str) -> Outcome:
    return Outcome(source, destination, row["status"], row["reason"], row["recorded_ms"] / 1000)


def count(tables: Tables, wanted: Search) -> int:
    """Return how many outcomes of copied and transformed objects match, at most `MOST_COUNTED` + 1.

    With a status, this includes objects that had it in old versions of rows, until ClickHouse merges these.
    """
    statement = replace(wanted, sort="name").directed(sql.query("pages_objects_total"), FIRST, "")
    none = dict.fromkeys(("after_source", "after_destination", "after_object", "after_prepend"), "")
    rows = tables.rows(
        statement, **wanted.asked, **none, is_first=True, by_name=True, after_value=0, limit=MOST_COUNTED + 1,
        candidates=4 * MOST_COUNTED,
    )  # fmt: skip
    return _count(rows)


def count_loads(tables: Tables, wanted: Search) -> int:
    """Return how many object versions of loads match, at most `MOST_COUNTED` + 1; see `count`."""
    if not wanted.has_loads:
        return 0
    return _count(tables.rows(sql.query("pages_keys_total"), **wanted.asked_of_loads, limit=MOST_COUNTED + 1))


def _count(rows: list[dict[str, Any]]) -> int:
    return int(rows[0]["objects"]) if rows else 0


def lineage(tables: Tables, place: Place) -> Lineage:
    """Follow an object back to its origin, and from there to all results made from it."""
    found: dict[tuple[Place, Place], Step] = {}
    before = list(_follow(tables, place, back=True, found=found))
    after = list(_follow(tables, place, back=False, found=found))
    places = tuple(dict.fromkeys([*reversed(before), place, *after]))
    order = {known: n for n, known in enumerate(places)}
    steps = tuple(sorted(found.values(), key=lambda step: (order[step.source], order[step.destination])))
    return Lineage(place, steps, places, tuple(_loads(tables, places)), _manifest(tables, places, steps))


def is_done(tables: Tables, place: Place) -> bool:
    """Return whether the ledger has the object in a step that is done, within what the visitor may see.

    The names in other rows were only found or planned: no job of Storeside has read or written such an object.
    """
    return bool(tables.rows(sql.query("pages_done"), bucket=place.bucket, object=place.object))


def _follow(tables: Tables, place: Place, *, back: bool, found: dict[tuple[Place, Place], Step]) -> Iterator[Place]:
    """Yield the places in one direction, nearest first; add the steps on the way to `found`."""
    statement = sql.query("pages_made_from") if back else sql.query("pages_made_into")
    ahead, seen = [place], {place}
    while ahead and len(found) < _MOST_STEPS:
        here = ahead.pop(0)
        for row in tables.rows(statement, bucket=here.bucket, object=here.object):
            step = _step(row)
            found.setdefault((step.source, step.destination), step)
            other = step.source if back else step.destination
            if other not in seen:
                seen.add(other)
                ahead.append(other)
                yield other


def _step(row: dict[str, Any]) -> Step:
    return Step(
        Place(row["source"], row["object"]),
        Place(row["destination"], row["destination_object"]),
        row["status"], row["reason"], row["effect"], row["bytes_in"], row["bytes_out"], row["run_id"],
        row["recorded_ms"] / 1000,
    )  # fmt: skip


def _loads(tables: Tables, places: tuple[Place, ...]) -> Iterator[dict[str, Any]]:
    for place in places:
        bucket = place.bucket.removeprefix("s3://")
        rows = tables.rows(sql.query("pages_loads_of"), bucket=bucket, object=place.object)
        yield from ({**row, "bucket": place.bucket, "key": place.object} for row in rows)


def _manifest(tables: Tables, places: tuple[Place, ...], steps: tuple[Step, ...]) -> dict[str, Any] | None:
    """Return the object's row in the manifest, with the time of its publication.

    The row itself has the time when a task staged it. The task that publishes it records the facts as done.
    """
    for place in reversed(places):
        if rows := tables.rows(sql.query("pages_manifest_of"), bucket=place.bucket, object=place.object):
            row = rows[0]
            published = [s.recorded for s in steps if s.source == place and s.run_id == row["run_id"]]
            return {**row, "recorded_ms": max([row["recorded_ms"], *(1000 * at for at in published)])}
    return None
