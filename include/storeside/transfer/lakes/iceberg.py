"""Reads the snapshots of Iceberg tables: https://iceberg.apache.org/spec/.

A load reads the data files by the names of their columns, while Iceberg identifies columns by numbers. So snapshots
for which the two differ are refused, and those with row-level deletes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import FileFormat, ManifestContent, read_manifest_list
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import IdentityTransform

from storeside.transfer.base.errors import LoadObjectError, TransferError, TransferInputError
from storeside.transfer.formats.avro_container import MAGIC, uncompressed
from storeside.transfer.lakes import snapshots
from storeside.transfer.lakes.snapshots import Snapshot, below, check_number, key_of, read, too_large
from storeside.transfer.objects.streams import unpacked
from storeside.transfer.request.object_format import compression_of
from storeside.transfer.request.source import Source, uri_of
from storeside.transfer.types.arrow_types import arrow_columns

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
    from types_boto3_s3 import S3Client

_METADATA = re.compile(r"(?:v(\d+)|(\d+)-[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_REWRITE = "rewrite the table's data files, for example with Spark's rewrite_data_files"


def snapshot(client: S3Client, source: Source) -> Snapshot:
    """Return the snapshot that `source` names: by its id, or the current one of a metadata file.

    Without the URI of a metadata file, the one with the highest version below the table's folder is used. Raises
    TransferInputError for a snapshot that cannot be loaded.
    """
    place = _metadata_file(client, source)
    files = _Files(client, source)
    try:
        metadata = TableMetadataUtil.parse_raw(files.content(place).decode())
        wanted = _wanted(metadata, source)
        if wanted is None:
            return Snapshot(source.uri, "none", {}, _columns(metadata.schema()))
        schema = _schema_of(wanted, metadata)
        found = _data_files(wanted, metadata, schema, files, source)
    except TransferError:
        raise
    except Exception as e:  # the readers of JSON and Avro raise errors of many types about damaged files
        raise TransferInputError(f"{place}: it cannot be read as Iceberg's metadata: {e}") from e
    return Snapshot(source.uri, str(wanted.snapshot_id), found, _columns(schema))


def _metadata_file(client: S3Client, source: Source) -> str:
    """Return the URI of the table's metadata file. Raises TransferInputError unless exactly one is the newest."""
    if "://" in source.snapshot:
        return source.snapshot
    folder = f"{source.keys}metadata/"
    versions: dict[int, list[str]] = {}
    for key in below(client, source.bucket, folder):
        if match := _METADATA.fullmatch(key.removeprefix(folder)):
            versions.setdefault(int(match[1] or match[2]), []).append(key)
    if not versions:
        raise TransferInputError(
            f"{source.uri}: there is no Iceberg table: {uri_of(source.bucket, folder)} has no *.metadata.json"
        )
    newest = versions[max(versions)]
    if len(newest) > 1:
        raise TransferInputError(
            f"{source.uri}: {' and '.join(sorted(newest))} have the same version, and only the table's catalog states"
            " which one is current: set `snapshot` to its URI (metadata_location)"
        )
    return uri_of(source.bucket, newest[0])


def _wanted(metadata: TableMetadata, source: Source) -> IcebergSnapshot | None:
    """Return the snapshot to load; None if the table has none yet."""
    if "://" in source.snapshot or not source.snapshot:
        return metadata.current_snapshot()
    if found := metadata.snapshot_by_id(int(source.snapshot)):
        return found
    known = ", ".join(str(s.snapshot_id) for s in metadata.snapshots[-5:]) or "no snapshots"
    raise TransferInputError(f"{source.uri}: it has no snapshot {source.snapshot}; the newest are {known}")


def _schema_of(wanted: IcebergSnapshot, metadata: TableMetadata) -> Schema:
    """Return the schema of a past snapshot, or the table's schema, which may be newer than its current snapshot."""
    is_past = wanted.snapshot_id != metadata.current_snapshot_id
    return _schemas(metadata)[wanted.schema_id] if is_past and wanted.schema_id is not None else metadata.schema()


def _data_files(
    wanted: IcebergSnapshot, metadata: TableMetadata, schema: Schema, files: _Files, source: Source
) -> dict[str, int]:
    """Return the sizes of the data files by key. Raises TransferInputError if a load cannot read one.

    The entries of manifests also have statistics of each column, so nothing else of them is kept.
    """
    names, inside = index_name_by_id(schema), set(source_names(schema))
    identities = {
        spec.spec_id: [f.source_id for f in spec.fields if isinstance(f.transform, IdentityTransform)]
        for spec in metadata.partition_specs
    }
    found: dict[str, int] = {}
    writers = set()
    for entry in _entries(wanted, files, source):
        _check_partitions(entry.data_file, identities, names, inside, source)
        found[key_of(entry.data_file.file_path, source)] = entry.data_file.file_size_in_bytes
        writers.add(entry.snapshot_id or 0)
        check_number(source, wanted.snapshot_id, len(found))  # the list of manifests may state no numbers
    _check_schemas(metadata, schema, writers, source)
    return found


def _entries(wanted: IcebergSnapshot, files: _Files, source: Source) -> Iterator[ManifestEntry]:
    """Yield the entries of the data files. Raises TransferInputError for row-level deletes and other formats."""
    # pyiceberg's own list comes from a cache of the process, which knows manifests by their paths alone
    manifests = [*read_manifest_list(files.new_input(wanted.manifest_list))]
    stated = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)
    check_number(source, wanted.snapshot_id, stated)
    for manifest in manifests:
        entries = manifest.fetch_manifest_entry(files)
        if manifest.content == ManifestContent.DELETES and entries:
            raise TransferInputError(
                f"{source.uri}: snapshot {wanted.snapshot_id} has {len(entries)} files of row-level deletes, such as"
                f" {entries[0].data_file.file_path}, which a load cannot apply: {_REWRITE}, so that no delete is left"
            )
        for entry in entries:
            if entry.data_file.file_format != FileFormat.PARQUET:
                raise TransferInputError(
                    f"{source.uri}: {entry.data_file.file_path} is {entry.data_file.file_format.value}: only data"
                    f" files in Parquet can be loaded: {_REWRITE}"
                )
            yield entry


def _check_schemas(metadata: TableMetadata, schema: Schema, writers: Iterable[int], source: Source) -> None:
    """Raise TransferInputError if a data file may have a column under another name, or lack a column with a value.

    `writers` has the ids of the snapshots that added data files.
    """
    schemas = _schemas(metadata)
    written = {s.snapshot_id: s.schema_id for s in metadata.snapshots}
    used = {written.get(writer) for writer in writers}
    names = index_name_by_id(schema)
    for number in schemas if None in used else used:
        older = schemas.get(number if number is not None else -1)
        if older is not None:
            _check_names(index_name_by_id(older), names, source)
            _check_defaults(index_name_by_id(older), schema, source)


def source_names(schema: Schema) -> list[str]:
    """Return the names of a schema's columns."""
    return [field.name for field in schema.fields]


def _check_names(older: Mapping[int, str], names: Mapping[int, str], source: Source) -> None:
    numbers = {name: number for number, name in names.items()}
    for number, name in older.items():
        if names.get(number, name) != name or numbers.get(name, number) != number:
            raise TransferInputError(
                f"{source.uri}: the column {name!r} was renamed or made again after data files were written, so their"
                f" names differ from the table's: {_REWRITE}"
            )


def _check_defaults(older: Mapping[int, str], schema: Schema, source: Source) -> None:
    for field in schema.fields:
        if field.field_id not in older and field.initial_default is not None:
            raise TransferInputError(
                f"{source.uri}: older data files lack the column {field.name!r}, whose initial default a load does"
                f" not know: {_REWRITE}"
            )


def _check_partitions(
    file: DataFile, identities: Mapping[int, list[int]], names: Mapping[int, str], inside: set[str], source: Source
) -> None:
    counts = file.value_counts or {}
    for number in identities.get(file.spec_id, ()) if counts else ():
        if number not in counts and (name := names.get(number)) in inside:
            raise TransferInputError(
                f"{source.uri}: {file.file_path} lacks the column {name!r}, whose value is only in the table's"
                f" metadata: {_REWRITE}"
            )


def _schemas(metadata: TableMetadata) -> dict[int, Schema]:
    return {schema.schema_id: schema for schema in metadata.schemas}


def _columns(schema: Schema) -> tuple[Any, ...]:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return tuple(arrow_columns(schema_to_pyarrow(schema, include_field_ids=False)))


class _Files(FileIO):
    """The metadata files of a table, read with the clients of the load and unpacked within limits."""

    def __init__(self, client: S3Client, source: Source) -> None:
        super().__init__()
        self.client = client
        self.source = source
        self._total = 0

    def content(self, location: str) -> bytes:
        """Return a file by its URI, without compression. Raises TransferError, and OSError for a damaged file."""
        packed = read(self.client, self.source.bucket, key_of(location, self.source))
        try:
            content = self._unpacked(packed, location)
        except OverflowError:
            raise too_large(location, snapshots.MOST_BYTES) from None
        except LoadObjectError as e:
            raise OSError(str(e)) from e
        self._total += len(content)
        if self._total > snapshots.MOST_TOTAL:
            raise too_large(self.source.uri, snapshots.MOST_TOTAL)
        return content

    def _unpacked(self, packed: bytes, location: str) -> bytes:
        if packed.startswith(MAGIC):
            content, entries = uncompressed(packed, snapshots.MOST_BYTES)
            if entries > (most := 2 * snapshots.MOST_FILES):  # some are of files that left the table
                raise TransferInputError(f"{location}: it has {entries} entries, over {most}: rewrite the manifests")
            return content
        return unpacked(packed, "gzip", snapshots.MOST_BYTES) if compression_of(packed) == "gzip" else packed

    def new_input(self, location: str) -> _File:
        """Return a file by its URI."""
        return _File(location, self)

    def new_output(self, location: str) -> Any:
        """Raise NotImplementedError: a load writes nothing into its source."""
        raise NotImplementedError

    def delete(self, location: Any) -> None:
        """Raise NotImplementedError: a load deletes nothing in its source."""
        raise NotImplementedError


class _File(InputFile):
    """One metadata file."""

    def __init__(self, location: str, files: _Files) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return len(self._files.content(self.location))

    def exists(self) -> bool:
        """Return True: `open` raises an error for a file that does not exist."""
        return True

    def open(self, seekable: bool = True) -> Any:
        """Return the content. Raises TransferError."""
        return io.BytesIO(self._files.content(self.location))
