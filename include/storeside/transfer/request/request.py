"""The request of a transfer: its source, its table and its options."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from storeside.aistore.markers import NONE
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.known_formats import KNOWN, FormatName, Kind, has_kind
from storeside.transfer.request.object_format import LAKES, Csv, Format, Lake, MessageSchema
from storeside.transfer.request.options import (
    HIDDEN_COLUMNS,
    REST,
    SYSTEM_COLUMNS,
    Batches,
    Expectations,
    LoadLimits,
    ReadOptions,
    TableOptions,
    require_choice,
    require_number,
)
from storeside.transfer.request.source import Source
from storeside.transfer.request.table_keys import Expression
from storeside.transfer.request.table_names import names_tables
from storeside.transfer.request.upsert import Upsert

LoadFormat = Literal["auto", FormatName, Lake]
Loader = Literal["auto", "pull", "push"]
OnDrift = Literal["fail", "add", "widen", "rest"]
OnBadRows = Literal["fail", "skip", "keep"]
OnOverwrite = Literal["append", "replace"]
CHOICES: dict[str, tuple[str, ...]] = {
    "format": ("auto", *KNOWN, *LAKES),
    "loader": get_args(Loader),
    "on_drift": get_args(OnDrift),
    "on_bad_rows": get_args(OnBadRows),
    "on_overwrite": get_args(OnOverwrite),
}

# Databases that no load may write to: their tables decide which objects count as loaded, which messages are done and
# which rows the pages show.
RESERVED = ("storeside", "storeside_staging", "system", "information_schema")
MANIFEST = "speech.manifest"
_TEN_YEARS = 10 * 366 * 24 * 3600


_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) ?%")


def _share_of(text: str) -> float:
    """Return the number that `remove_deleted` stands for, a percentage such as ``5 %``. Raises TransferInputError."""
    found = _SHARE.fullmatch(text.strip())
    if found is None:
        raise TransferInputError(f"remove_deleted {text!r}: write a percentage, such as '5 %'")
    return float(found[1]) / 100


def require_table(name: str) -> None:
    """Raise TransferInputError unless the name has a database and a table."""
    if not re.fullmatch(r"[^.]+\.[^.]+", name):
        raise TransferInputError(f"table {name!r}: write database.table")


@dataclass(frozen=True)
class Request:
    """A transfer from a bucket into a ClickHouse table; serializable as JSON. Raises TransferInputError.

    :param source: bucket and keys, with ClickHouse's way to them
    :param table: ``database.table``; a missing table is created from `table_options` and the columns of sampled
        objects. With ``{table}`` in the keys and here, `transfer.many` loads each object into the table that its key
        names
    :param format: format of the objects, or ``iceberg`` or ``delta``: then the load makes the table equal to a
        snapshot of the table in the folder `source.keys`, in one step and then by removing the rows of files that
        left it. With ``on_overwrite="append"`` it is refused if a loaded file left the table
    :param loader: with ``pull`` ClickHouse reads the objects, with ``push`` the worker streams them, and ``auto``
        pulls when ClickHouse can read the bucket. The worker reads buckets of AIStore
    :param on_drift: when an object's columns differ from the table's, ``fail`` fails the object, ``add`` adds its new
        columns, ``widen`` also widens types, and ``rest`` stores columns that the table lacks in the column ``_rest``
    :param on_bad_rows: when a row cannot be parsed, ``fail`` fails its object, ``skip`` skips and counts the row, and
        ``keep`` also stores it in ``<table>_rejected``
    :param on_overwrite: ``append`` keeps the rows of an object's earlier versions, ``replace`` replaces them
    :param read: how objects are read
    :param table_options: how a new table is created
    :param retry_failed: load objects again that failed for good in earlier runs
    :param all_or_nothing: publish all objects of the run in one step, or none if one fails
    :param overlap_seconds: if keys grow with time, list only keys after those loaded this many seconds before the
        newest; None lists all keys and misses none
    :param batches: sizes of batches
    :param limits: limits of one object
    :param expectations: a suite that checks the rows before they are published
    :param after_load: what happens to an object after its load
    :param remove_deleted: the largest share of the loaded objects whose rows are removed because a listing no longer
        has the objects, such as ``5 %``: if more are missing, the load fails and removes none. Empty keeps all rows
    :param replace_partition: the value of the table's partition that the listed objects are to replace as a whole, in
        one step, such as ``2026-01-05``; see `publish.partition`
    :param create_database: create the database of a missing table if it does not exist, either
    """

    # The reserved table that a subclass loads.
    reserved = ""

    source: Source
    table: str
    format: str = "auto"
    loader: str = "auto"
    on_drift: str = "fail"
    on_bad_rows: str = "fail"
    on_overwrite: str = "append"
    read: ReadOptions = field(default_factory=ReadOptions)
    table_options: TableOptions = field(default_factory=TableOptions)
    retry_failed: bool = False
    all_or_nothing: bool = False
    overlap_seconds: float | None = None
    batches: Batches = field(default_factory=Batches)
    limits: LoadLimits = field(default_factory=LoadLimits)
    expectations: Expectations = field(default_factory=Expectations)
    after_load: AfterLoad = field(default_factory=AfterLoad)
    remove_deleted: str = ""
    replace_partition: str = ""
    create_database: bool = True

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        if self.overlap_seconds is not None:
            require_number("overlap_seconds", self.overlap_seconds, 0, _TEN_YEARS)
        for options in (
            self.read, self.table_options, self.batches, self.limits, self.expectations, self.after_load,
        ):  # fmt: skip
            options.check()
        self.read.schema.check(self.format)
        self.after_load.check_source(self.source)
        if self.names_tables:
            self._check_tables()
        self._check_lake()
        self._check_upsert()
        self._check_removal()
        if self.source.in_aistore:
            self._check_aistore()
        elif self.source.only_by_worker and self.loader == "pull":
            raise TransferInputError(
                "loader 'pull': with a named collection, ClickHouse does not send that the requester pays: use"
                " 'auto', or give ClickHouse an endpoint and a role instead of the collection"
            )
        require_table(self.table)
        if self.table.partition(".")[0].lower() in RESERVED or self.table == MANIFEST != self.reserved:
            raise TransferInputError(
                f"table {self.table!r}: no load writes to {', '.join(RESERVED)} or {MANIFEST}: choose another table,"
                " such as data.trips; docs/versions.md explains how to move a table of an earlier version"
            )

        if self.source.inventory and self.overlap_seconds is not None:
            raise TransferInputError("overlap_seconds: an inventory has all keys: omit overlap_seconds or inventory")

    def _check_tables(self) -> None:
        for option, given in (
            (f"format {self.format!r}", self.is_lake), ("overlap_seconds", self.overlap_seconds is not None),
        ):  # fmt: skip
            if given:
                raise TransferInputError(
                    f"{option}: keys with {{table}} are those of many tables, in one listing: load each table with a"
                    " separate task"
                )

    def _check_lake(self) -> None:
        source = self.source
        if source.catalogued:
            self._check_catalogued()
        if not self.is_lake:
            if source.snapshot:
                raise TransferInputError(
                    f"snapshot {source.snapshot!r}: set format to {' or '.join(LAKES)}, or omit it"
                )
            return
        options = {
            "after_load": bool(self.after_load), "inventory": source.inventory,
            "modified_after": source.modified_after,
            "overlap_seconds": self.overlap_seconds is not None,
        }  # fmt: skip
        for name, given in options.items():
            if given:
                raise TransferInputError(f"{name}: format {self.format!r} reads the table's metadata: omit {name}")
        if source.in_aistore:
            raise TransferInputError(f"format {self.format!r}: only S3 has such sources: write s3://bucket/table/")
        if source.prefix != source.keys:
            raise TransferInputError(f"keys {source.keys!r}: write the folder of one table, without a pattern")
        is_file = self.format == "iceberg" and source.snapshot.endswith(("metadata.json", "metadata.json.gz"))
        if source.snapshot and not (is_file or source.snapshot.isdecimal()):
            raise TransferInputError(
                f"snapshot {source.snapshot!r}: write a snapshot's id or a version, or for Iceberg the URI of a"
                " metadata file: s3://bucket/table/metadata/00001-….metadata.json"
            )
        folder = f"{source.keys.rstrip('/')}/" if source.keys else ""
        object.__setattr__(self, "source", replace(source, keys=folder))

    def _check_catalogued(self) -> None:
        """Set the format of a table in a catalogue. Raises TransferInputError for another one."""
        if self.format not in ("auto", "iceberg"):
            raise TransferInputError(
                f"format {self.format!r}: {self.source.catalogued} is an Iceberg table: omit the format"
            )
        if "://" in self.source.snapshot:
            raise TransferInputError(
                f"snapshot {self.source.snapshot!r}: the catalogue states the metadata file: write a snapshot's id,"
                " or omit it"
            )
        object.__setattr__(self, "format", "iceberg")

    def _check_upsert(self) -> None:
        self.upsert.check((*SYSTEM_COLUMNS, *HIDDEN_COLUMNS))
        if not self.upsert:
            return
        if self.is_lake:
            raise TransferInputError(
                f"upsert: format {self.format!r} removes the rows of files that left the snapshot, and merges may"
                " have removed what they replaced: omit upsert, a snapshot has the current row of each key"
            )
        if self.on_overwrite == "replace":
            raise TransferInputError(
                "upsert: on_overwrite 'replace' would remove the rows of an object's earlier version, and merges may"
                " have removed what they replaced: use 'append', the rows with higher versions count"
            )
        options = self.table_options
        if options.sorting_key or "(" in options.engine:
            raise TransferInputError(
                "upsert: it decides order_by and the arguments of the engine: omit order_by, and write engine without"
                " arguments"
            )
        for option, sql in (("partition_by", options.partition_key), ("sharding_key", options.division)):
            self.upsert.require_of_key(option, sql)

    def _check_removal(self) -> None:
        option = "replace_partition" if self.replace_partition else "remove_deleted"
        if not (self.replace_partition or self.remove_deleted):
            return
        if self.remove_deleted and not 0 < _share_of(self.remove_deleted) <= 1:
            raise TransferInputError(f"remove_deleted {self.remove_deleted!r}: write a share above 0 %, up to 100 %")
        others = {
            f"format {self.format!r}": (self.is_lake, "it removes the rows of files that left the table anyway"),
            "after_load": (self.after_load.action in ("delete", "move"), "it deletes or moves the objects itself"),
            "inventory": (bool(self.source.inventory), "it may be older than the loaded objects"),
            "modified_after": (bool(self.source.modified_after), "older objects are not selected"),
            "overlap_seconds": (self.overlap_seconds is not None, "the listing has only the newest keys"),
            "upsert": (bool(self.upsert), "merges may have removed the rows that a deleted object replaced"),
            "remove_deleted": (
                bool(self.replace_partition and self.remove_deleted), "it removes the rows of deleted objects anyway",
            ),
        }  # fmt: skip
        for other, (given, why) in others.items():
            if given:
                raise TransferInputError(f"{option} excludes {other}: {why}. Omit one of them")

    @property
    def most_removed(self) -> float:
        """The largest share of the loaded objects whose rows may be removed, from 0 to 1."""
        return _share_of(self.remove_deleted) if self.remove_deleted else 0.0

    @property
    def names_tables(self) -> bool:
        """Whether the keys name the tables; see `table_names`. Raises TransferInputError."""
        return names_tables(self.source.keys, self.table)

    @property
    def upsert(self) -> Upsert:
        """The option for rows that are changes of keys."""
        return self.table_options.upsert

    @property
    def is_mirrored(self) -> bool:
        """Whether rows of objects go that the listing does not have."""
        return self.is_lake or bool(self.remove_deleted or self.replace_partition)

    @property
    def keeps_rest(self) -> bool:
        """Whether the column ``_rest`` gets columns that the table does not have."""
        return self.on_drift == "rest"

    @property
    def empties_nested(self) -> bool:
        """Whether lists and maps that are NULL become empty ones."""
        return self.read.on_null_nested == "empty"

    @property
    def is_lake(self) -> bool:
        """Whether the source is an Iceberg or Delta table."""
        return self.format in LAKES

    def _check_aistore(self) -> None:
        if self.loader == "pull" and not self.source.endpoint:
            raise TransferInputError(
                f"loader 'pull': ClickHouse needs the URL of AIStore's proxy to read {self.source.bucket}: give the"
                " source an endpoint, or use 'auto'"
            )
        if self.overlap_seconds is not None:
            raise TransferInputError(
                f"overlap_seconds: AIStore lists no times of changes for {self.source.bucket}: omit it"
            )

    def has_kind(self, kind: Kind) -> bool:
        """Return whether the format is chosen, and of a kind."""
        return has_kind(self.format, kind)

    def form(self, name: str) -> Format:
        """Return a format with this request's options."""
        return Format(name, self.read.csv, self.read.schema, self.read.joined)

    @property
    def digest(self) -> str:
        """A digest of the options that decide whether an object can be loaded: others cannot make it fail."""
        decisive = (
            self.format, self.loader, self.on_drift, self.on_bad_rows, asdict(self.read), asdict(self.table_options),
            asdict(self.limits), asdict(self.expectations),
        )  # fmt: skip
        return hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def markers(self) -> str:
        """The keys that a listing leaves out, as `Source.markers`; the files of a lake are none of them."""
        return NONE if self.is_lake else self.source.markers

    @property
    def own_columns(self) -> tuple[str, ...]:
        """The columns that the load fills itself: the requested system columns, and ``_rest`` if it is used."""
        return (*self.table_options.system_columns, *((REST,) if self.keeps_rest else ()))

    @property
    def at_once(self) -> bool:
        """Whether all objects of the run are published in one step."""
        return self.all_or_none or self.expectations.forbid_all

    @property
    def all_or_none(self) -> bool:
        """Whether nothing is published if an object fails; this always holds for a snapshot and for a partition."""
        return self.all_or_nothing or self.is_lake or bool(self.replace_partition)

    def to_dict(self) -> dict[str, Any]:
        """Return the request as values that JSON can represent."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """Create a request from the values of `to_dict`, also after a round trip through JSON."""
        given = dict(values)
        given["source"] = Source(**given["source"])
        read = given["read"]
        columns = Columns.from_dict(read.get("columns", {}))
        schema = MessageSchema(**read.get("schema", {}))
        given["read"] = ReadOptions(**{**read, "csv": Csv(**read["csv"]), "schema": schema, "columns": columns})
        options = dict(given["table_options"])
        for name in ("order_by", "partition_by", "ttl", "sharding_key"):
            if isinstance(options.get(name), Mapping):
                options[name] = Expression(**options[name])
        options["upsert"] = Upsert(**options.get("upsert", {}))
        given["table_options"] = TableOptions(**options)
        given["batches"] = Batches(**given["batches"])
        given["limits"] = LoadLimits(**given.get("limits", {}))
        given["expectations"] = Expectations(**given.get("expectations", {}))
        given["after_load"] = AfterLoad(**given.get("after_load", {}))
        return cls(**given)
