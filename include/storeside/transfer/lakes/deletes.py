"""Finds the row-level deletes of an Iceberg snapshot that apply to a data file.

The rules are those of the specification's section "Scan planning": https://iceberg.apache.org/spec/#scan-planning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFileContent, FileFormat

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.lakes.edits import PATH, REWRITE, DeleteFile
from storeside.transfer.lakes.snapshots import key_of
from storeside.transfer.request.source import Source

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry

# The numbers of further fields of an entry.
_REFERENCED, _OFFSET, _LENGTH = 17, 18, 19


class Deletes:
    """The deletes of a snapshot; `everywhere` are the numbers of specs without partitions.

    Each is stored with its sequence number: it deletes no rows that were added later.
    """

    def __init__(self, source: Source, everywhere: Container[int]) -> None:
        self.source, self.everywhere = source, everywhere
        self._vectors: dict[str, tuple[int, DeleteFile]] = {}
        self._of_files: defaultdict[str, list[tuple[int, DeleteFile]]] = defaultdict(list)
        self._positions: defaultdict[Any, list[tuple[int, DeleteFile]]] = defaultdict(list)
        self._values: defaultdict[Any, list[tuple[int, DeleteFile]]] = defaultdict(list)
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def add(self, entry: ManifestEntry) -> None:
        """Add a file of deletes. Raises TransferInputError for one that a load cannot apply."""
        file, sequence = entry.data_file, entry.sequence_number or 0
        self._number += 1
        if file.content == DataFileContent.EQUALITY_DELETES:
            if not file.equality_ids:
                raise self._refused(file, "states no columns for its deletes by values")
            found = self._file(file, FileFormat.PARQUET, columns=tuple(sorted(file.equality_ids)))
            everywhere = file.spec_id in self.everywhere
            self._values[None if everywhere else _partition(file)].append((sequence, found))
        elif file.file_format == FileFormat.PUFFIN:
            path = file._data[_REFERENCED]
            if path is None or file._data[_OFFSET] is None or not file._data[_LENGTH]:
                raise self._refused(file, "states no place of a deletion vector")
            if path in self._vectors:
                raise self._refused(file, f"has a second deletion vector for {path}")
            found = self._file(file, FileFormat.PUFFIN, offset=file._data[_OFFSET], length=file._data[_LENGTH])
            self._vectors[path] = (sequence, found)
        else:
            found = self._file(file, FileFormat.PARQUET)
            path = file._data[_REFERENCED] or _only_path(file)
            (self._of_files[path] if path else self._positions[_partition(file)]).append((sequence, found))

    def of(self, entry: ManifestEntry) -> tuple[DeleteFile, ...]:
        """Return the deletes that apply to a data file; a deletion vector includes its position deletes."""
        file, sequence = entry.data_file, entry.sequence_number or 0
        path, partition = file.file_path, _partition(file)
        vector = self._vectors.get(path)
        found = [o for s, o in (*self._values[None], *self._values[partition]) if s > sequence]
        if vector is not None and vector[0] >= sequence:
            return (*found, vector[1])
        positions = (*self._of_files.get(path, ()), *self._positions.get(partition, ()))
        return (*found, *(o for s, o in positions if s >= sequence))

    def _file(self, file: DataFile, expected: FileFormat, **more: Any) -> DeleteFile:
        if file.file_format != expected:
            raise self._refused(
                file, f"is {file.file_format.value}, and a load applies deletes in Parquet and Puffin"
            )
        key = key_of(file.file_path, self.source)
        return DeleteFile(key, file.file_size_in_bytes, file.record_count, **more)

    def _refused(self, file: DataFile, why: str) -> TransferInputError:
        return TransferInputError(f"{self.source.uri}: the file of deletes {file.file_path} {why}: {REWRITE}")


def _partition(file: DataFile) -> tuple[Any, ...]:
    return (file.spec_id, *(file.partition[n] for n in range(len(file.partition))))


def _only_path(file: DataFile) -> str:
    """Return the only data file of which a file deletes rows, by its statistics; empty if there may be several.

    Statistics may be cut off, so two equal bounds count only if they name a whole file.
    """
    least, most = (bounds.get(PATH, b"") if bounds else b"" for bounds in (file.lower_bounds, file.upper_bounds))
    text = least.decode(errors="replace")
    return text if least == most and text.endswith(".parquet") else ""
