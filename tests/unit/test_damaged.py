"""Damaged objects of all formats: reasons are sentences with a remedy, without the words of programmers.

Loads run in the process, without servers.
"""

from __future__ import annotations

import base64
import gzip
import io
import lzma
import random
import re
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, orc

from storeside.transfer.base.damage import explained, remedy_of, unreadable, words
from storeside.transfer.base.errors import plain
from storeside.transfer.formats.text_lines import with_line
from storeside.transfer.request.object_format import Format
from tests import avro_files
from tests.statements import Statements
from tests.transfers import Loaded, Refused, jsonl, parquet

FORBIDDEN = re.compile(r"DB::|Code:|std::|<unknown>|Buffer has gone|\b[a-z]\w*::\w|Stack trace|\.cpp\b|\.cc\b")
ROWS = [{"n": n, "s": f"text {n * 7919 % 1000}", "f": n / 3} for n in range(60)]
TABLE = pa.Table.from_pylist(ROWS)
CSV = b"n,s,f\n" + b"".join(f'{r["n"]},"{r["s"]}",{r["f"]}\n'.encode() for r in ROWS)
JSON = jsonl(ROWS)
LOADERS = ("pull", "push")


def by_arrow(kind: str, content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


def in_zip(content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.csv", content)
    return sink.getvalue()


def of_arrow(writer: Callable[..., Any]) -> bytes:
    sink = io.BytesIO()
    with writer(sink, TABLE.schema) as file:
        file.write_table(TABLE, 20)
    return sink.getvalue()


def of_orc(compression: str) -> bytes:
    sink = io.BytesIO()
    orc.write_table(TABLE, sink, compression=compression)
    return sink.getvalue()


def of_avro(codec: str) -> bytes:
    return avro_files.avro(avro_files.record(n="long", s="string", f="double"), ROWS, codec=codec, per_block=20)


WHOLE: dict[str, dict[str, bytes]] = {
    "csv": {
        "a.csv": CSV, "a.csv.gz": gzip.compress(CSV), "a.csv.zip": in_zip(CSV),
    },
    "tsv": {"a.tsv": CSV.replace(b",", b"\t")},
    "jsonl": {
        "a.jsonl": JSON, "a.jsonl.xz": lzma.compress(JSON), "a.jsonl.zst": by_arrow("zstd", JSON),
    },
    "parquet": {
        **{f"{c}.parquet": parquet(TABLE, compression=c, row_group_size=20) for c in ("gzip", "zstd")},
        "plain.parquet": parquet(TABLE, use_dictionary=False, data_page_version="2.0", compression="none"),
    },
    "orc": {"zlib.orc": of_orc("zlib"), "plain.orc": of_orc("uncompressed")},
    "arrow": {"a.arrow": of_arrow(ipc.new_file)},
    "arrowstream": {"a.arrows": of_arrow(ipc.new_stream)},
    "avro": {"null.avro": of_avro("null"), "deflate.avro": of_avro("deflate")},
}  # fmt: skip


def damaged(content: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield the content cut off, with a bit that differs, and with bytes that are 0 or missing."""
    at = rng.randrange(len(content))
    yield content[: len(content) // 2]
    yield content[:-1]
    yield content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    yield content[:at] + bytes(20) + content[at + 20 :]
    yield content[:at] + content[at + 20 :]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", WHOLE)
def test_reasons_for_damage_are_sentences(reading: Statements, form: str, loader: str) -> None:
    reading.create("n Int64, s String, f Float64")
    rng = random.Random(form)  # noqa: S311
    reading.put({
        f"{n}.{name}": content
        for name, whole in WHOLE[form].items()
        for n, content in enumerate([whole, *damaged(whole, rng)])
    })  # fmt: skip
    report = reading.load(loader=loader, format=form)
    reasons = reading.reasons()
    assert report.failed == len(reasons) > 1
    assert {key: reason for key, reason in reasons.items() if FORBIDDEN.search(reason)} == {}
    assert not any(key.startswith("0.") for key in reasons)
    damage = [reason for reason in reasons.values() if " is damaged" in reason or " broken: " in reason]
    assert [reason for reason in damage if "again" not in reason and "archive" not in reason] == []
    if form == "parquet":
        assert any(reason.startswith("it is damaged in column 's': ") for reason in damage)


def test_words_of_programmers_are_left_out() -> None:
    def error(text: str) -> Exception:
        return Exception(text)

    assert plain(error(
        "Code: 1001. DB::Exception: std::exception. Code: 1001, type: avro::Exception, e.what() = EOF reached, Stack"
        " trace (when copying this message, always include the lines below): 0. DB::f() @ 0x1: While executing X"
        " (STD_EXCEPTION) (version 26.9)"
    )) == "it is cut off: EOF reached (STD_EXCEPTION)"  # fmt: skip
    found = plain(error("Unexpected end of page data: read stage: ColumnData: column: s. (INCORRECT_DATA)"))
    assert found == "it is damaged in column 's': Unexpected end of page data (INCORRECT_DATA)"
    assert remedy_of(found) == "upload it again, or write it again"
    assert explained("Expected end of line: garbage", "INCORRECT_DATA") == "Expected end of line: garbage"
    stack = error(
        "Kernel error: Json error: Truncated record\n   0: <unknown>\n   1: <unknown>\n  12: clone3\n  at x.S"
    )
    assert words(stack) == "Kernel error: Json error: Truncated record"


def test_integers_of_128_bits_are_named(reading: Statements) -> None:
    """polars writes them with this schema of Arrow, which no other reader knows."""
    content = parquet({"n": [1]})
    (stored,) = re.findall(rb"/{5}[A-Za-z0-9+/]+=*", content)
    schema = base64.b64decode(stored)
    assert schema.count(b"\x40\0\0\0") == 1  # the width
    content = content.replace(stored, base64.b64encode(schema.replace(b"\x40\0\0\0", b"\x80\0\0\0")))
    reading.create("n Int64")
    reading.cases({"a": Refused(content, "a column has integers of 128 bits")}, ".parquet")
    assert "Decimal(38, 0)" in reading.reasons()["a.parquet"]
    assert "whole" not in unreadable(pa.ArrowNotImplementedError("Half floats not implemented"), "ORC")
    assert "whole" not in unreadable(pa.ArrowInvalid("Map keys must be annotated as required."), "Parquet")


@pytest.mark.parametrize("loader", LOADERS)
def test_an_open_quote_is_named_by_its_line(reading: Statements, loader: str) -> None:
    reading.create("n Int64, s String, t String")
    reading.cases({
        "open": Refused(b'n,s,t\n1,"a\nb",c\n2,"x,5\n3,y,4\n', "row 1 (line 4) has a quote that is not closed"),
        "good": Loaded(b'n,s,t\n1,"a\nb",c\n', [(1, "a\nb", "c")]),
    }, ".csv", loader=loader)  # fmt: skip
    fresh = reading.another()
    fresh.put({"a.csv": b'n,s,t\n1,"a\nb",c\n2,"x,5\n3,y,4\n'})
    with pytest.raises(Exception, match=r"row 1 \(line 4\) has a quote that is not closed: close it"):
        fresh.load(loader=loader)


@pytest.mark.parametrize("loader", LOADERS)
def test_rows_are_named_with_their_lines(reading: Statements, loader: str) -> None:
    reading.create("n Int64, s String")
    reading.cases({
        "value.csv": Refused(b'n,s\n1,"a\nb"\n1,y,z\n', re.compile(r"^row 1\b.*\(line 4\)", re.DOTALL)),
    }, "", "csv/", loader=loader, format="csv")  # fmt: skip
    reading.cases({
        "span.jsonl": Refused(b'{"n": 1,\n"s": "a"}\n\n{"n": "x", "s": "b"}\n', re.compile(r"row 1\b.*\(line 4\)")),
    }, "", "json/", loader=loader, format="jsonl")  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "text", "form", "line"),
    [
        ("row 0, column 'n': x", b"skip\nn\n1\n", "csv", 3),
        ("Cannot parse: (row 1) (CODE)", b"a,b\n1,2\n\n3,4\n", "csv", 4),
        ("column 'n': x: (row 2) (CODE)", b"{}\n\n{\n}\n{x}\n", "jsonl", 5),
        ("row 2 is not JSON (RFC 8259): x", b"{}\n{}\n{x}\n", "jsonl", 0),
        ("member 'row 3': x", b"{}\n{}\n{}\n{}\n{}\n", "jsonl", 0),
        ("row 9, column 'n': x", b"n\n1\n", "csv", 0),
        ("row 0, column 'n': x", b'[{"n": 1}]', "jsonl", 0),
    ],
)
def test_lines_are_those_of_an_editor(reason: str, text: bytes, form: Any, line: int) -> None:
    from storeside.transfer.request.object_format import Csv

    given = Format(form, Csv(skip_rows=1 if text.startswith(b"skip") else 0))
    assert with_line(reason, lambda: io.BytesIO(text), given) == (f"{reason} (line {line})" if line else reason)
