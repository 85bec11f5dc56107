"""Arrow objects on the worker: few requests, whatever the number of their messages."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest

from storeside.transfer.columnar import ColumnarObject
from storeside.transfer.content import Content
from storeside.transfer.streams import CHUNK


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
    assert len(content.requests) <= content.size / CHUNK + 10, "not one for each of 3000 messages"
    assert sum(content.requests) < 1.5 * content.size + 2 * CHUNK
    assert max(content.requests) <= CHUNK
