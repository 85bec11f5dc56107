"""The source of a transfer, and the table functions with which ClickHouse reads S3."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from storeside.aistore.buckets import Bucket, common_prefix
from storeside.aistore.markers import markers_of
from storeside.copying.s3_access import REQUESTER_PAYS, Access
from storeside.sql.quoting import literal
from storeside.transfer.base.errors import TransferInputError, named_file
from storeside.transfer.request import aistore_urls

# Keys that ClickHouse misreads. It interprets these characters as patterns, even if they are escaped, and refuses
# `//`. With the name of an archive it looks for an entry in the archive. It does not detect truncated zstd and lz4
# streams, and some builds cannot read bz2.
WILD = r"[*?{}\x00-\x1f\x7f]|//|(?i:\.(?:zip|tar|tar\.gz|tgz|tar\.xz|txz|tbz2?|tzst|7z|zstd?|lz4|bz2)$)"
# The version of a file whose rows differ from its content, as a snapshot of an Iceberg table has them: its ETag, this
# text, and a digest of what changes them. Only the worker reads such a file.
EDIT = "+rows-"
EDITED = r"\+rows-[0-9a-f]{16}$"
_GLOB = re.compile(r"\*\*|\*|\?|\{[^{}]*\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_ALTERNATIVES = 10_000
# Characters and wildcards of `keys`: more make an expression that RE2 refuses, or needs much memory for.
_LONGEST_KEYS = 4096
_MOST_WILDCARDS = 32
_ROLE = re.compile(r"arn:[\w-]+:iam::\d{12}:role/[\w+=,.@/-]+")
AISTORE = "ais://"
ICEBERG = "iceberg://"
# Schemes of buckets that AIStore reaches, and ClickHouse and the worker do not.
CLOUDS = ("gs", "az", "oci", "oc")


class Listed(NamedTuple):
    """One object of a listing; `size` is in bytes, `modified` a text such as ``2022-07-01T12:00:00.000Z``."""

    key: str
    etag: str
    size: int
    modified: str

    @property
    def modified_at(self) -> float:
        """The time `modified` in seconds since the epoch; 0 if the server states none."""
        try:
            return datetime.fromisoformat(self.modified).timestamp()
        except ValueError:
            return 0.0


@dataclass(frozen=True)
class Source:
    """Which objects to read, and how ClickHouse reaches them.

    :param bucket: name of an S3 bucket, or the URI of a bucket of AIStore, such as ``ais://results``
    :param keys: a prefix, or a pattern with ``*`` (within a folder), ``**``, ``?``, ``{a,b}`` or ``{0..9}``; the
        folder of an Iceberg or Delta table
    :param collection: named collection of ClickHouse with the URL and the credentials of S3, or with the header
        for AIStore
    :param endpoint: URL of S3 for ClickHouse without a collection, with the credentials of its environment or
        role; for AIStore the URL of a proxy, without which the worker reads
    :param cluster: cluster of ClickHouse whose replicas all read
    :param modified_after: load only objects that were last modified at this instant or later: a date and time
        with a time zone, such as ``2026-01-01T00:00:00+01:00``
    :param role_arn: role that ClickHouse assumes
    :param public: whether ClickHouse sends requests without credentials
    :param requester_pays: whether ClickHouse pays for its requests to a bucket of another account
    :param inventory: URI of a manifest of S3 Inventory, or of a folder of inventories; the bucket is not listed
        then
    :param snapshot: an Iceberg snapshot's id, the URI of an Iceberg metadata file, or a Delta version; without
        it, the current one is read
    :param catalogued: the URI of an Iceberg table in a catalogue, which states its current metadata file, such as
        ``iceberg://lakehouse/sales.orders``
    """

    bucket: str
    keys: str = ""
    collection: str = ""
    endpoint: str = ""
    cluster: str = ""
    modified_after: str = ""
    role_arn: str = ""
    public: bool = False
    requester_pays: bool = False
    inventory: str = ""
    snapshot: str = ""
    catalogued: str = ""

    def __post_init__(self) -> None:
        if self.in_aistore:
            if Bucket.parse(self.bucket).namespace:
                raise TransferInputError(f"bucket {self.bucket!r}: copy it into a bucket without a namespace first")
        elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]", self.bucket):
            raise TransferInputError(
                f"bucket {self.bucket!r}: a bucket's name has 3 to 63 letters, digits, '.', '-' or '_'"
            )
        if self.collection and not re.fullmatch(r"\w+", self.collection):
            raise TransferInputError(f"named collection {self.collection!r}: needs letters, digits and '_'")
        pattern(self.keys)
        if self.role_arn and (self.public or not _ROLE.fullmatch(self.role_arn)):
            raise TransferInputError(
                f"role {self.role_arn!r}: write arn:aws:iam::123456789012:role/name, and not together with `public`"
            )
        if self.since and self.in_aistore:
            raise TransferInputError(
                f"modified_after: AIStore lists no times of changes for {self.bucket}: omit it, and select keys"
            )

        if self.inventory and (self.in_aistore or in_aistore(place_of(self.inventory, "inventory")[0])):
            raise TransferInputError(
                f"inventory {self.inventory!r}: only S3 has inventories: write s3://bucket/folder/"
            )
        if self.catalogued:
            table_of(self.catalogued)

    @property
    def since(self) -> int:
        """The instant `modified_after` in whole seconds since the epoch, rounded down as S3's times are; else 0.

        Raises TransferInputError.
        """
        if not self.modified_after:
            return 0
        try:
            instant = datetime.fromisoformat(self.modified_after)
        except ValueError:
            instant = None
        if instant is None or instant.tzinfo is None:
            raise TransferInputError(
                f"modified_after {self.modified_after!r}: write a date and time with a time zone, such as"
                " 2026-01-01T00:00:00+01:00 or 2026-01-01T00:00:00Z"
            )
        return math.floor(instant.timestamp())

    @property
    def in_aistore(self) -> bool:
        """Whether the bucket is one of AIStore's."""
        return in_aistore(self.bucket)

    @property
    def only_by_worker(self) -> bool:
        """Whether ClickHouse cannot read it: with a named collection, it ignores the header of requester pays."""
        return not self.by_url if self.in_aistore else bool(self.requester_pays and self.collection)

    @property
    def by_url(self) -> bool:
        """Whether ClickHouse can read the objects with ``url()``, from AIStore; see `aistore_urls`."""
        return self.in_aistore and bool(self.endpoint)

    @property
    def uri(self) -> str:
        """The URI of bucket and keys, such as ``s3://trips/2026/``."""
        return uri_of(self.bucket, self.keys)

    @property
    def prefix(self) -> str:
        """The part of `keys` before the first pattern."""
        found = _GLOB.search(self.keys)
        return self.keys[: found.start()] if found else self.keys

    @property
    def regex(self) -> str:
        """The keys as a regular expression for ClickHouse's ``match``; a prefix matches all keys below it."""
        return pattern(self.keys)

    @property
    def markers(self) -> str:
        """A regular expression for the keys that a load ignores, although `regex` matches them; see `markers`."""
        return markers_of(self.keys)

    def ignores(self, key: str) -> bool:
        """Return whether a key is that of a marker, which the source's keys do not name."""
        return matches(self.markers, key)

    def selects(self, key: str) -> bool:
        """Return whether the keys match a key, as ClickHouse's ``match`` does: with RE2, whose cost is linear."""
        return matches(self.regex, key)

    def path_of(self, key: str) -> str:
        """Return the value of ClickHouse's column `_path` for an object."""
        return aistore_urls.object_path(self.bucket, key) if self.by_url else f"{self.bucket}/{key}"

    @property
    def key(self) -> str:
        """The expression for the key of the object that ClickHouse reads."""
        if self.by_url:
            return f"decodeURLComponent(substring(_path, {len(aistore_urls.root(self.bucket)) + 1}))"
        return f"substring(_path, {len(self.bucket.encode()) + 2})"

    def key_of(self, error: BaseException) -> str:
        """Return the key of the object that an error of S3 or ClickHouse names; empty if it names none."""
        return getattr(error, "key", "") or self.key_named(named_file(error))

    def key_named(self, file: str) -> str:
        """Return the key of the object that an error of ClickHouse names so; see `errors.named_file`."""
        return aistore_urls.key_of_url(self.bucket, file) if self.by_url else file.removeprefix(f"{self.bucket}/")

    def objects(self, keys: Sequence[str], form: str, structure: str = "", compression: str = "auto") -> str:
        """Return the table function that reads exactly these objects; none of them may be `wild` in S3."""
        if self.by_url:
            return self._url(aistore_urls.objects_url(self.endpoint, self.bucket, keys), form, structure, compression)
        if len(keys) == 1:
            path = quote(keys[0], safe="/")
        else:
            path = "{" + ",".join(quote(key, safe="/") for key in keys) + "}"
        return self._function(path, form, structure, compression)

    def among(self, keys: Sequence[str], form: str, structure: str = "", compression: str = "auto") -> str:
        """Return the table function of all objects below the common prefix of these keys; see `only`."""
        return self._function(f"{quote(common_prefix(keys), safe='/')}**", form, structure, compression)

    def only(self, keys: Sequence[str]) -> str:
        """Return the condition that selects these objects; ClickHouse does not open any others.

        With a condition on the bare `_path`, ClickHouse would request each object again.
        """
        return f"{self.key} IN ({', '.join(map(literal, keys))})"

    def probe(self) -> str:
        """Return the table function of all objects below the prefix, to test whether ClickHouse reaches them.

        AIStore has no listing for ClickHouse, so there it is that of an object which does not exist.
        """
        if self.by_url:
            return self.objects([aistore_urls.PROBE], "RawBLOB", "content String")
        prefix = "" if wild(self.prefix) else quote(self.prefix, safe="/")
        return self._function(f"{prefix}**", "One")

    def _url(self, url: str, form: str, structure: str, compression: str) -> str:
        arguments = {"url": url, "format": form, "structure": structure or "auto", "compression": compression}
        if self.collection:
            return f"url({self.collection}, {', '.join(f'{name} = {literal(v)}' for name, v in arguments.items())})"
        return f"url({literal(url)}, {literal(form)}, {literal(structure or 'auto')}, {literal(compression)})"

    def _function(self, path: str, form: str, structure: str = "", compression: str = "auto") -> str:
        arguments = {"format": form, "structure": structure, "compression_method": compression}
        given = {name: value for name, value in arguments.items() if value and value != "auto"}
        if self.collection:
            given |= {"no_sign_request": "1"} if self.public else {}
            given |= {"role_arn": self.role_arn} if self.role_arn else {}
            named = "".join(f", {name} = {literal(value)}" for name, value in given.items())
            return self._call(f"{self.collection}, filename = {literal(f'{self.bucket}/{path}')}{named}")
        url = f"{self.endpoint.rstrip('/')}/{self.bucket}/{path}"
        named = f"{', NOSIGN' if self.public else ''}, {literal(form)}, {literal(structure or 'auto')}"
        named += f", {literal(compression)}"
        if self.requester_pays:
            named += ", headers({} = {})".format(*map(literal, REQUESTER_PAYS))
        named += f", extra_credentials(role_arn = {literal(self.role_arn)})" if self.role_arn else ""
        return self._call(f"{literal(url)}{named}")

    def _call(self, arguments: str) -> str:
        return f"s3Cluster({literal(self.cluster)}, {arguments})" if self.cluster else f"s3({arguments})"


def source_of(extra: Mapping[str, Any], bucket: str, keys: str = "") -> Source:
    """Return the source that the extras of an AWS connection describe for ClickHouse.

    ClickHouse reads with its named collection ``clickhouse_collection``. Without one, it uses the credentials of its
    own environment and the endpoint ``clickhouse_endpoint``, or else the connection's ``endpoint_url``, or else AWS's
    endpoint of the region. With ``clickhouse_cluster``, all replicas of that cluster read (``s3Cluster``). ClickHouse
    assumes the role ``clickhouse_role_arn``; ``public`` and ``requester_pays`` also apply to it.
    """
    if in_aistore(bucket):
        return Source(bucket, keys)
    given = extra.get("clickhouse_endpoint") or extra.get("endpoint_url")
    endpoint = str(given or f"https://s3.{extra.get('region_name') or 'us-east-1'}.amazonaws.com")
    access = Access.of(extra)
    return Source(
        bucket, keys, extra.get("clickhouse_collection") or "", endpoint, extra.get("clickhouse_cluster") or "",
        role_arn=extra.get("clickhouse_role_arn") or "", public=access.public, requester_pays=access.requester_pays,
    )  # fmt: skip


def in_aistore(bucket: str) -> bool:
    """Return whether a transfer's bucket is one of AIStore's: its URI, such as ``ais://results``."""
    return bucket.startswith(AISTORE)


def bucket_uri(bucket: str) -> str:
    """Return the URI of a transfer's bucket, such as ``s3://trips`` or ``ais://results``."""
    return bucket if in_aistore(bucket) else f"s3://{bucket}"


def uri_of(bucket: str, keys: str = "") -> str:
    """Return the URI of a transfer's bucket and keys, such as ``s3://trips/2026/`` or ``ais://results/a.json``."""
    return f"{bucket_uri(bucket)}/{keys}"


def unmatched(uri: str) -> str:
    """Return the text that no object matches the URI, with the likely mistake in its keys."""
    keys = uri.partition("://")[2].partition("/")[2]
    hint = ""
    if re.match(r"\w+://", keys):
        hint = ": the keys begin with a bucket, which has a separate argument or field"
    elif keys.startswith("/"):
        hint = ": the keys begin with a slash; write them without it"
    elif keys != keys.strip():
        hint = ": the keys begin or end with a space"
    return f"no object matches {uri}{hint}"


def place_of(uri: str, name: str = "source") -> tuple[str, str]:
    """Return bucket and keys of the URI in the argument `name`, as `Source` takes them; the opposite of `uri_of`.

    Raises TransferInputError for other schemes than ``s3`` and ``ais``, and for a bucket in a namespace of AIStore.
    """
    scheme, _, path = uri.partition("://")
    bucket, _, keys = path.partition("/")
    if scheme in CLOUDS and bucket:
        raise TransferInputError(
            f"{name} {uri!r}: copy the bucket into AIStore with AISCopyBucketOperator, and load the copy,"
            f" ais://{bucket}/{keys}"
        )
    if scheme not in ("s3", "ais") or not bucket or bucket[0] in "@#":
        raise TransferInputError(
            f"{name} {uri!r}: write s3://bucket/prefix, or ais://bucket/prefix for a bucket without a namespace"
        )
    return (f"{AISTORE}{bucket}" if scheme == "ais" else bucket), keys


def in_catalogue(uri: str) -> bool:
    """Return whether a source's URI names a table in a catalogue, such as ``iceberg://lakehouse/sales.orders``."""
    return uri.startswith(ICEBERG)


def table_of(uri: str) -> tuple[str, tuple[str, ...]]:
    """Return a catalogue's name, and the namespace and name of a table, of a URI; see `in_catalogue`.

    Raises TransferInputError for other texts.
    """
    catalogue, _, table = uri.removeprefix(ICEBERG).partition("/")
    parts = tuple(table.split("."))
    if not (in_catalogue(uri) and re.fullmatch(r"[\w.-]+", catalogue) and len(parts) > 1 and all(parts)):
        raise TransferInputError(
            f"source {uri!r}: write {ICEBERG}CATALOGUE/namespace.table, such as {ICEBERG}lakehouse/sales.orders"
        )
    return catalogue, parts


def wild(key: str) -> bool:
    """Return whether ClickHouse would read only a part of this object, or other objects, by its key."""
    return re.search(WILD, key) is not None


def matches(regex: str, key: str) -> bool:
    """Return whether an expression of RE2 matches anywhere in a key, as ClickHouse's ``match`` does."""
    import re2

    # RE2 keeps the expressions that it has compiled. Keys that are not UTF-8 are bytes, too.
    return re2.search(regex.encode("utf-8", "surrogateescape"), key.encode("utf-8", "surrogateescape")) is not None


def pattern(keys: str) -> str:
    """Return `keys` as an anchored regular expression of RE2.

    Raises TransferInputError for unbalanced braces, and for keys that are too long or have too many wildcards.
    """
    if len(keys) > _LONGEST_KEYS or keys.count("*") > _MOST_WILDCARDS:
        raise TransferInputError(
            f"keys {keys[:80]!r}: write at most {_LONGEST_KEYS} characters and {_MOST_WILDCARDS} '*'"
        )
    found, end = [], 0
    for match in _GLOB.finditer(keys):
        found.append(_plain(keys[end : match.start()], keys))
        found.append(_part(match.group(), keys))
        end = match.end()
    found.append(_plain(keys[end:], keys))
    return f"(?s)^{''.join(found)}{'' if end == 0 else '$'}"


def _plain(text: str, keys: str) -> str:
    if "{" in text or "}" in text:
        raise TransferInputError(f"keys {keys!r}: close each brace, and do not nest braces")
    return re.escape(text)


def _part(glob: str, keys: str) -> str:
    if glob[0] != "{":
        return {"**": ".*", "*": "[^/]*", "?": "[^/]"}[glob]
    parts = []
    for choice in glob[1:-1].split(","):
        if bounds := _RANGE.fullmatch(choice):
            low, high = bounds.groups()
            if not int(low) <= int(high) < int(low) + _MOST_ALTERNATIVES:
                raise TransferInputError(
                    f"keys {keys!r}: {glob} is not ascending, or has over {_MOST_ALTERNATIVES} numbers"
                )
            width = len(low) if low.startswith("0") else 0
            parts.append("|".join(str(n).zfill(width) for n in range(int(low), int(high) + 1)))
        else:
            parts.append(re.escape(choice))
    return f"(?:{'|'.join(parts)})"
