"""Snapshots of Iceberg and Delta tables: the files of which a table consists at one time, and its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.base.schema import MOMENT, Column, bare
from storeside.transfer.objects.content import s3_error
from storeside.transfer.request.source import Listed, Source, uri_of
from storeside.transfer.tables.table import Destination
from storeside.transfer.types.partitions import in_utc

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# A snapshot's files are in the worker's memory: their keys and sizes.
MOST_FILES = 300_000
# Bytes of one metadata file, and of all that a load reads, after they were unpacked: its reader holds it in memory.
MOST_BYTES = 256 << 20
MOST_TOTAL = 2 << 30
_S3 = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True)
class Snapshot:
    """One snapshot of the table `uri`: its id, its files with their sizes in bytes by key, and its columns.

    The values of the columns `partitions` are in the keys of the files, not in the files. With `ignores_others`,
    readers ignore columns of files that are not in `columns`.
    """

    uri: str
    id: str
    files: Mapping[str, int]
    columns: tuple[Column, ...] = ()
    partitions: tuple[str, ...] = ()
    ignores_others: bool = False

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
            yield found
        if missing:
            raise TransferInputError(
                f"{self.uri}: {len(missing)} files of snapshot {self.id} are missing, such as {min(missing)!r}: load"
                " a newer snapshot, or restore the files"
            )

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


def snapshot_of(client: S3Client, form: str, source: Source) -> Snapshot:
    """Return the snapshot that a source names, or the current one; `form` is ``iceberg`` or ``delta``.

    Raises TransferInputError for a table that cannot be loaded, and TransferTransientError.
    """
    module, package = ("iceberg", "pyiceberg") if form == "iceberg" else ("delta", "deltalake")
    try:
        import_module(package)
    except ImportError as e:
        raise TransferInputError(
            f"format {form!r}: the package {package} is not installed: pip install 'storeside[lake]', or see"
            " docs/running.md for the image"
        ) from e
    found: Snapshot = import_module(f"storeside.transfer.lakes.{module}").snapshot(client, source)
    return found


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
