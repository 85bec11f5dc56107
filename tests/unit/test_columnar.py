"""Arrow objects on the worker: few requests, whatever the number of their messages."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.orc_arrow import ColumnarObject, check_end
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK


class Held(Content):
    """A content in memory that counts its requests."""

    def __init__(self, content: bytes) -> None:
        super().__init__(None, "bucket", "a.arrow", len(content))  # type: ignore[arg-type]
        self.content = content
        self.requests: list[int] = []

    def range(self, start: int, length: int) -> bytes:
        found = self.content[start : start + length]
        self.requests.append(len(found))
        return found

    def stream(self) -> Any:
        raise AssertionError("it is not read as a whole")


@pytest.mark.parametrize("form", ["arrow", "arrowstream"])
def test_many_short_messages_are_few_requests(form: Literal["arrow", "arrowstream"]) -> None:
    table = pa.table({"n": range(60_000), "s": [str(n) * 10 for n in range(60_000)]})
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    with new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=20)
    content = Held(sink.getvalue().to_pybytes())
    assert content.size > 2 * CHUNK
    schema, batches = ColumnarObject(content, form).rows()
    assert pa.Table.from_batches(batches, schema) == table
    readings = 1 if form == "arrow" else 2  # one of them looks for the end mark
    assert len(content.requests) <= readings * content.size / CHUNK + 14, "not one for each of 3000 messages"
    assert sum(content.requests) < (readings + 0.5) * content.size + 2 * CHUNK
    assert max(content.requests) <= CHUNK


def stream_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=7)
    return bytes(sink.getvalue().to_pybytes())


TABLE = pa.table(
    {
        "n": range(40),
        "s": [str(n) for n in range(40)],
        "d": pa.array([str(n % 3) for n in range(40)]).dictionary_encode(),
    }
)


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "zstd"}, {"use_legacy_format": True}, {"metadata_version": pa.ipc.MetadataVersion.V4}],
)
def test_only_a_whole_stream_ends_at_its_end_mark(options: dict[str, Any]) -> None:
    whole = stream_of(TABLE, **options)
    check_end(Held(whole))
    assert pa.Table.from_batches(ColumnarObject(Held(whole), "arrowstream").rows()[1]).num_rows == 40
    for end in range(len(whole)):
        with pytest.raises((LoadObjectError, OSError), match=r"truncated|corrupt header"):
            check_end(Held(whole[:end]))


@pytest.mark.parametrize("more", [b"\0", stream_of(TABLE), stream_of(TABLE.slice(0, 0)), b"\xff" * 4 + b"\0" * 4])
def test_bytes_after_the_end_mark_are_refused(more: bytes) -> None:
    """pyarrow and ClickHouse ignore them, and with them the rows of a second stream."""
    whole = stream_of(TABLE)
    with pytest.raises(LoadObjectError, match=f"^{len(more)} bytes follow the mark .* one stream per object$"):
        ColumnarObject(Held(whole + more), "arrowstream").columns()


def test_the_end_of_a_stream_is_found_without_its_rows() -> None:
    wide = pa.table({"n": range(4_000_000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wide.schema) as writer:
        writer.write_table(wide, max_chunksize=1_000_000)
    content = Held(sink.getvalue().to_pybytes())
    check_end(content)
    assert sum(content.requests) < content.size / 50
