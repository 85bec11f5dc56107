"""Snapshots of Iceberg and Delta tables: the files of which a table consists at one time, and its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.base.schema import MOMENT, Column, bare
from storeside.transfer.objects.content import Content, content_of, s3_error
from storeside.transfer.request.source import EDIT, Listed, Source, table_of, uri_of
from storeside.transfer.tables.table import Destination
from storeside.transfer.types.partitions import in_utc

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from storeside.transfer.lakes.catalogs import Catalog
    from storeside.transfer.lakes.edits import Editor
    from storeside.transfer.lakes.fields import Fields
    from storeside.transfer.request.request import Request
    from storeside.transfer.state.loads import Planned

# A snapshot's files are in the worker's memory: their keys and sizes.
MOST_FILES = 300_000
# Bytes of one metadata file, and of all that a load reads, after they were unpacked: its reader holds it in memory.
MOST_BYTES = 256 << 20
MOST_TOTAL = 2 << 30
# Requests at once for the footers of files.
_THREADS = 8
_S3 = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True)
class Snapshot:
    """One snapshot of the table `uri`: its id, its files with their sizes in bytes by key, and its columns.

    The values of the columns `partitions` are in the keys of the files, not in the files. With `ignores_others`,
    readers ignore columns of files that are not in `columns`. An `editor` reads the files whose rows differ from
    their content, and `fields` are the columns that all other files must have.
    """

    uri: str
    id: str
    files: Mapping[str, int]
    columns: tuple[Column, ...] = ()
    partitions: tuple[str, ...] = ()
    ignores_others: bool = False
    editor: Editor | None = None
    fields: Fields | None = None

    @property
    def stored(self) -> list[Column]:
        """The columns that the files have."""
        return [column for column in self.columns if column.name not in self.partitions]

    def listed(self, pages: Iterable[Sequence[Listed]]) -> Iterator[list[Listed]]:
        """Yield the objects of a listing that are files of the snapshot.

        Raises TransferInputError if a file is missing, or has another size than the snapshot states.
        """
        missing = set(self.files)
        for page in pages:
            found = [o for o in page if o.key in missing]
            for o in found:
                if o.size != self.files[o.key]:
                    raise TransferInputError(
                        f"{self.uri}: {o.key!r} has {o.size} bytes, but snapshot {self.id} states"
                        f" {self.files[o.key]}:"
                        " it was overwritten: write its rows into the table again"
                    )
            missing.difference_update(o.key for o in found)
            yield [self._edited(o) for o in found]
        if missing:
            raise TransferInputError(
                f"{self.uri}: {len(missing)} files of snapshot {self.id} are missing, such as {min(missing)!r}: load"
                " a newer snapshot, or restore the files"
            )

    def _edited(self, o: Listed) -> Listed:
        """Return an object with the version of its rows, if they differ from its content."""
        if self.editor is None or (edit := self.editor.edits.get(o.key)) is None:
            return o
        return o._replace(etag=f"{o.etag}{EDIT}{edit.digest}")

    def content_of(self, client: S3Client, request: Request, o: Planned, etag: str) -> Content:
        """Return the content of a file with the rows that it has in the snapshot; see `content.content_of`."""
        if self.editor is not None and EDIT in o.version:
            return self.editor.content(o)
        return content_of(client, request, o, etag)

    def refuse_other_names(self, client: S3Client, source: Source, planned: Iterable[Planned]) -> None:
        """Raise TransferInputError if a planned file has a column of the table under another name."""
        if (fields := self.fields) is None:
            return
        read = import_module("storeside.transfer.lakes.edits").refuse_other_names
        others = [o for o in planned if EDIT not in o.version]
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(lambda o: read(client, source, fields, o), others):
                pass

    def refuse_other_zones(self, destination: Destination) -> None:
        """Raise TransferInputError for a column that would read the UTC timestamps in keys in another zone."""
        for column in self.columns:
            kind = destination.type_of(column.name)
            is_moment = column.name in self.partitions and in_utc(column.type)
            if is_moment and kind and MOMENT.fullmatch(bare(kind)) and not in_utc(kind):
                raise TransferInputError(
                    f"column {column.name!r} of {destination.name} is {kind}, but the keys have timestamps in UTC:"
                    f" make it {bare(column.type)}"
                )


def snapshot_of(client: S3Client, form: str, source: Source, catalog: Catalog | None = None) -> Snapshot:
    """Return the snapshot that a source names, or the current one; `form` is ``iceberg`` or ``delta``.

    A source in a catalogue also needs the `catalog`.

    Raises TransferInputError for a table that cannot be loaded, and TransferTransientError.
    """
    module = reader_of(form)
    found: Snapshot = module.snapshot(client, source, *((catalog,) if source.catalogued else ()))
    return found


def catalog_of(uri: str, properties: Mapping[str, Any] | None = None) -> Catalog:
    """Return the catalogue of a table's URI, such as ``iceberg://lakehouse/sales.orders``.

    `properties` are pyiceberg's; without them, its own configuration is used. Raises TransferInputError.
    """
    name, _ = table_of(uri)
    reader_of("iceberg")
    found: Catalog = import_module("storeside.transfer.lakes.catalogs").Catalog(name, properties or {})
    return found


def folder_of(client: S3Client, catalog: Catalog, uri: str) -> tuple[str, str]:
    """Return the bucket and the folder of a table in a catalogue, for a `Source`. Raises TransferError."""
    found: tuple[str, str] = reader_of("iceberg").folder_of(client, catalog, uri)
    return found


def reader_of(form: str) -> Any:
    """Return the module that reads tables of a format. Raises TransferInputError if its package is missing."""
    module, package = ("iceberg", "pyiceberg") if form == "iceberg" else ("delta", "deltalake")
    try:
        import_module(package)
    except ImportError as e:
        raise TransferInputError(
            f"format {form!r}: the package {package} is not installed: pip install 'storeside[lake]', or see"
            " docs/running.md for the image"
        ) from e
    return import_module(f"storeside.transfer.lakes.{module}")


def check_number(source: Source, snapshot: object, files: int) -> None:
    """Raise TransferInputError if a snapshot has more files than a worker holds in memory."""
    if files > MOST_FILES:
        raise TransferInputError(
            f"{source.uri}: snapshot {snapshot} has {files} files, over {MOST_FILES}: compact the table"
        )


def key_of(path: str, source: Source) -> str:
    """Return the key of a table's file by its URI; ClickHouse writes a path within the bucket, such as ``/a/b``.

    Raises TransferInputError unless it is below the table's folder.
    """
    scheme = next(filter(path.startswith, _S3), "")
    whole = f"{source.bucket}{path}" if path.startswith("/") else path.removeprefix(scheme)
    bucket, _, key = whole.partition("/")
    if not (scheme or path.startswith("/")) or bucket != source.bucket or not key.startswith(source.keys):
        raise TransferInputError(
            f"{source.uri}: the file {path} is outside the table's folder: copy the table into one folder"
        )
    return key


def read(client: S3Client, bucket: str, key: str) -> bytes:
    """Return an object of a table's metadata. Raises TransferError, also for one of more than `MOST_BYTES`."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = client.get_object(Bucket=bucket, Key=key)
        if answer["ContentLength"] > MOST_BYTES:
            answer["Body"].close()
            raise too_large(uri_of(bucket, key), MOST_BYTES)
        return answer["Body"].read()
    except (BotoCoreError, ClientError) as e:
        raise _error(e, bucket, key) from e


def too_large(place: str, most: int) -> TransferInputError:
    """Return the error for a metadata file, or the table of many, that takes too much memory."""
    return TransferInputError(
        f"{place}: its metadata has more than {most >> 20} MB when it is unpacked: let the table expire old snapshots"
        " or make a checkpoint, and rewrite its manifests or its log into smaller files"
    )


def below(client: S3Client, bucket: str, prefix: str) -> dict[str, int]:
    """Return the sizes in bytes of the objects below a prefix of a table's metadata, by key. Raises TransferError."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {o["Key"]: o["Size"] for page in pages for o in page.get("Contents", ())}
    except (BotoCoreError, ClientError) as e:
        raise _error(e, bucket, prefix) from e


def _error(error: Any, bucket: str, key: str) -> Exception:
    found = s3_error(error, bucket, key)
    return TransferInputError(f"{uri_of(bucket, key)}: {found}") if isinstance(found, LoadObjectError) else found
