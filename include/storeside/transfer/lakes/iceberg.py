"""Reads the snapshots of Iceberg tables: https://iceberg.apache.org/spec/.

A load reads the data files by the names of their columns, while Iceberg identifies columns by numbers. The worker
edits the files for which the two differ, and those with row-level deletes; see `edits`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    read_manifest_list,
)
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from storeside.transfer.base.errors import LoadObjectError, TransferError, TransferInputError
from storeside.transfer.formats.avro_container import MAGIC, uncompressed
from storeside.transfer.lakes import snapshots
from storeside.transfer.lakes.deletes import Deletes
from storeside.transfer.lakes.edits import REWRITE, Edit, Editor
from storeside.transfer.lakes.fields import Fields
from storeside.transfer.lakes.snapshots import Snapshot, below, check_number, key_of, read, too_large
from storeside.transfer.objects.streams import unpacked
from storeside.transfer.request.object_format import compression_of
from storeside.transfer.request.source import Source, uri_of
from storeside.transfer.types.arrow_types import arrow_columns

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
    from pyiceberg.types import StructType
    from types_boto3_s3 import S3Client

    from storeside.transfer.lakes.catalogs import Catalog

_METADATA = re.compile(r"(?:v(\d+)|(\d+)-[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
# The field id of the partition in an entry of a manifest.
_PARTITION = 102


def folder_of(client: S3Client, catalog: Catalog, uri: str) -> tuple[str, str]:
    """Return the bucket and the folder of a table in a catalogue, for a `Source`. Raises TransferError."""
    place = catalog.metadata_file(uri)
    bucket, _ = _in_s3(place, uri)
    try:
        location = json.loads(_Files(client, Source(bucket)).content(place))["location"]
    except TransferError:
        raise
    except Exception as e:
        raise TransferInputError(f"{place}: it cannot be read as Iceberg's metadata: {e}") from e
    bucket, folder = _in_s3(str(location), uri)
    return bucket, f"{folder.rstrip('/')}/"


def _in_s3(place: str, uri: str) -> tuple[str, str]:
    scheme, _, path = place.partition("://")
    bucket, _, key = path.partition("/")
    if scheme not in ("s3", "s3a", "s3n") or not (bucket and key.strip("/")):
        raise TransferInputError(f"{uri}: its files are at {place}, and a load reads tables in folders of S3 only")
    return bucket, key


def snapshot(client: S3Client, source: Source, catalog: Catalog | None = None) -> Snapshot:
    """Return the snapshot that `source` names: by its id, or the current one of a metadata file.

    The `catalog` of the source states the metadata file. Without it and without a file's URI, the one with the
    highest version below the table's folder is used. Raises TransferInputError for a snapshot that cannot be loaded.
    """
    if source.catalogued:
        if catalog is None:
            raise TransferInputError(f"{source.catalogued}: the load was given no catalogue: pass it as `catalog`")
        place = catalog.metadata_file(source.catalogued)
    else:
        place = _metadata_file(client, source)
    files = _Files(client, source)
    try:
        metadata = TableMetadataUtil.parse_raw(files.content(place).decode())
        wanted = _wanted(metadata, source)
        if wanted is None:
            return Snapshot(source.uri, "none", {}, _columns(metadata.schema()))
        schema = _schema_of(wanted, metadata)
        found = _data_files(wanted, metadata, schema, files)
    except TransferError:
        raise
    except Exception as e:  # the readers of JSON and Avro raise errors of many types about damaged files
        raise TransferInputError(f"{place}: it cannot be read as Iceberg's metadata: {e}") from e
    return Snapshot(
        source.uri, str(wanted.snapshot_id), found.sizes, _columns(schema), ignores_others=True,
        editor=Editor(client, source, found.edits) if found.edits else None, fields=Fields(schema),
    )  # fmt: skip


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
    past = metadata.schema_by_id(wanted.schema_id) if is_past and wanted.schema_id is not None else None
    return past or metadata.schema()


@dataclass(frozen=True)
class _Found:
    """The sizes of a snapshot's data files, and how the rows of some differ from their content, by key."""

    sizes: dict[str, int]
    edits: dict[str, Edit]


def _data_files(wanted: IcebergSnapshot, metadata: TableMetadata, schema: Schema, files: _Files) -> _Found:
    """Return the data files of a snapshot. Raises TransferInputError if a load cannot read one.

    The entries of manifests also have statistics of each column, so nothing else of them is kept.
    """
    source = files.source
    fields = _fields(metadata, schema)
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    names, inside = index_name_by_id(schema), set(source_names(schema))
    deletes = Deletes(source, {number for number, spec in specs.items() if spec.is_unpartitioned()})
    found = _Found({}, {})
    manifests = _manifests(wanted, files)
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            for entry in _entries(manifest, files):
                deletes.add(entry)
                check_number(source, wanted.snapshot_id, len(deletes))
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            continue
        for entry in _entries(manifest, files):
            file = entry.data_file
            if file.file_format != FileFormat.PARQUET:
                raise TransferInputError(
                    f"{source.uri}: {file.file_path} is {file.file_format.value}: only data files in Parquet can be"
                    f" loaded: {REWRITE}"
                )
            constants = _constants(file, specs[file.spec_id])
            if not fields.decisive:
                _check_partitions(file, constants, names, inside, source)
            edit = Edit(
                file.file_path, deletes.of(entry), fields if fields.decisive else None,
                {number: value for number, value in constants.items() if value is not None},
            )  # fmt: skip
            key = key_of(file.file_path, source)
            found.sizes[key] = file.file_size_in_bytes
            if edit.deletes or edit.fields:
                found.edits[key] = edit
            check_number(source, wanted.snapshot_id, len(found.sizes))  # the list of manifests may state no numbers
    return found


def _manifests(wanted: IcebergSnapshot, files: _Files) -> list[ManifestFile]:
    """Return the manifests of a snapshot. Raises TransferInputError if they state too many files."""
    # pyiceberg's own list comes from a cache of the process, which knows manifests by their paths alone
    manifests = [*read_manifest_list(files.new_input(wanted.manifest_list))]
    stated = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)
    check_number(files.source, wanted.snapshot_id, stated)
    return manifests


def _entries(manifest: ManifestFile, files: _Files) -> Iterator[ManifestEntry]:
    """Yield the live entries of a manifest, with the sequence numbers and the partition that they inherit.

    pyiceberg reads manifests without the places of deletion vectors, in tables of all versions.
    """
    content = _Loaded(manifest.manifest_path, files.content(manifest.manifest_path))
    with AvroFile[Record](content) as whole:
        partition = cast("StructType", whole.schema.find_type(_PARTITION))
    entry_schema = manifest_entry_schema_with_data_file(3, data_file_with_partition(partition, 3))
    with AvroFile[ManifestEntry](
        content, entry_schema, read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:  # fmt: skip
        for entry in reader:
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            is_new = entry.status == ManifestEntryStatus.ADDED or manifest.sequence_number == 0
            if entry.sequence_number is None and is_new:
                entry.sequence_number = manifest.sequence_number
            entry.data_file.spec_id = manifest.partition_spec_id
            yield entry


def _fields(metadata: TableMetadata, schema: Schema) -> Fields:
    """Return the table's columns, with those that a file may have under another name or lack a value of.

    A file may be older than the schema of the snapshot that added it: its writer may have begun before a change.
    """
    names = index_name_by_id(schema)
    numbers = {name: number for number, name in names.items()}
    decisive = set()
    for older in map(index_name_by_id, metadata.schemas):
        for number, name in older.items():
            if names.get(number, name) != name:
                decisive.add(number)
            if numbers.get(name, number) != number:
                decisive.add(numbers[name])
        decisive |= {
            n for n in names if n not in older and schema.find_field(n).initial_default is not None
        }  # fmt: skip
    return Fields(schema, tuple((n, names[n], str(schema.find_field(n).initial_default)) for n in sorted(decisive)))


def source_names(schema: Schema) -> list[str]:
    """Return the names of a schema's columns."""
    return [field.name for field in schema.fields]


def _constants(file: DataFile, spec: PartitionSpec) -> dict[int, Any]:
    """Return the values of columns that are the partition of a file, by field id."""
    return {
        field.source_id: file.partition[n]
        for n, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform)
    }


def _check_partitions(
    file: DataFile, constants: Mapping[int, Any], names: Mapping[int, str], inside: set[str], source: Source
) -> None:
    counts = file.value_counts or {}
    for number in constants if counts else ():
        if number not in counts and (name := names.get(number)) in inside:
            raise TransferInputError(
                f"{source.uri}: {file.file_path} lacks the column {name!r}, whose value is only in the table's"
                f" metadata: {REWRITE}"
            )


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


class _Loaded(InputFile):
    """A metadata file in memory."""

    def __init__(self, location: str, content: bytes) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        """Return True."""
        return True

    def open(self, seekable: bool = True) -> Any:
        """Return the content."""
        return io.BytesIO(self._content)


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
