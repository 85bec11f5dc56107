"""Formats and compressions, detected by content; samples; and malformed records of text."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from botocore.response import StreamingBody
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError
from hypothesis import given
from hypothesis import strategies as st

from storeside.transfer.base.errors import GoneError, LoadObjectError, TransferInputError, TransferTransientError
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK, Pieces, opened
from storeside.transfer.request.object_format import Csv, Format, compression_by_name, compression_of, format_of
from storeside.transfer.run.salvage import _blocks, salvage
from storeside.transfer.state.loads import Planned
from storeside.transfer.statements.reading import Reading
from storeside.transfer.types.conversion import reading


def by_arrow(kind: str) -> Callable[[bytes], bytes]:
    def compress(content: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, kind) as stream:
            stream.write(content)
        return sink.getvalue().to_pybytes()

    return compress


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": by_arrow("zstd"),
    "lz4": by_arrow("lz4"),
}


class Body:
    """A body of an answer that arrives in small pieces."""

    closed = False

    def __init__(self, content: bytes) -> None:
        self.file = io.BytesIO(content)

    def read(self, size: int) -> bytes:
        return self.file.read(min(size, 7))


def all_of(file: Any) -> bytes:
    content = b""
    while piece := file.read(100):
        content += bytes(piece)
    return content


@pytest.mark.parametrize("kind", COMPRESS)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3))
def test_compressed_content_is_opened_whole(kind: str, members: list[bytes]) -> None:
    """Also content of several members, as `cat a.gz b.gz` makes them."""
    content = b"".join(COMPRESS[kind](m) for m in members)
    assert compression_of(content[:10]) == kind
    assert all_of(opened(io.BytesIO(content), kind)) == b"".join(members)


def _framed(content: bytes) -> bytes:
    packed = pa.compress(content, codec="snappy", asbytes=True)
    return b"\xff\6\0\0sNaPpY\0" + (4 + len(packed)).to_bytes(3, "little") + bytes(4) + packed


def _hadoop(content: bytes) -> bytes:
    packed = pa.compress(content, codec="snappy", asbytes=True)
    return len(content).to_bytes(4, "big") + len(packed).to_bytes(4, "big") + packed


@pytest.mark.parametrize("kind", [*COMPRESS, "snappy", "hadoop-snappy"])
@pytest.mark.parametrize("size", [1, 7])
def test_compressed_content_may_arrive_in_pieces_of_any_size(kind: str, size: int) -> None:
    """A member of an archive does: no piece of it is larger than one of the archive."""
    content = b"".join(b"%d,%d\n" % (n, n * n) for n in range(1000))
    packed = {**COMPRESS, "snappy": _framed, "hadoop-snappy": _hadoop}[kind](content)
    pieces = Pieces(packed[at : at + size] for at in range(0, len(packed), size))
    assert all_of(opened(pieces, kind)) == content


@pytest.mark.parametrize(("kind", "pack", "first"), [("snappy", _framed, 11), ("hadoop-snappy", _hadoop, 1)])
def test_snappy_content_that_is_cut_off_is_told_from_the_whole(
    kind: str, pack: Callable[[bytes], bytes], first: int
) -> None:
    """Unless it ends after a chunk, such as the one of ten bytes that begins the framing format."""
    content = pack(b"1,2\n")
    for end in range(first, len(content)):
        with pytest.raises(OSError, match="truncated"):
            all_of(opened(io.BytesIO(content[:end]), kind))


@pytest.mark.parametrize("padding", [4, 3 * CHUNK])
def test_xz_may_have_padding_between_streams(padding: int) -> None:
    """The format of xz allows it; Python's reader drops the streams after it without an error."""
    content = lzma.compress(b"a" * 100) + bytes(padding) + lzma.compress(b"b\n") + bytes(padding)
    assert all_of(opened(io.BytesIO(content), "xz")) == b"a" * 100 + b"b\n"
    with pytest.raises(OSError, match="format not supported"):
        all_of(opened(io.BytesIO(content + b"a" * 100), "xz"))


@pytest.mark.parametrize("kind", COMPRESS)
@given(st.integers(1, 2999))
def test_content_that_is_cut_off_is_told_from_the_whole(kind: str, at: int) -> None:
    content = COMPRESS[kind](b"".join(b"%d,%d\n" % (n, n * n) for n in range(1000)))
    cut = content[: at % (len(content) - 1) + 1]
    with pytest.raises(OSError, match=r"(?i)truncated|ended before|cut"):
        all_of(opened(io.BytesIO(cut), kind))


@pytest.mark.parametrize("kind", ["snappy", "hadoop-snappy", "xz", "gzip", "bz2", "zstd", "lz4"])
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_content_or_an_error(kind: str, content: bytes) -> None:
    with suppress(OSError):
        all_of(opened(io.BytesIO(content), kind))


class Stored:
    """A store of one object: the part of boto3's client that content needs. It ignores conditions."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.bodies: list[io.BytesIO] = []  # of requests for the whole object

    def get_object(self, Range: str = "", **_: Any) -> dict[str, Any]:
        return {"ETag": '"e2"', "Body": self._body(Range)}

    def _body(self, Range: str) -> Any:
        if not Range:
            self.bodies.append(io.BytesIO(self.content))
            return StreamingBody(self.bodies[-1], len(self.content))
        bounds = re.fullmatch(r"bytes=(\d+)-(\d+)", Range)
        assert bounds
        start, end = map(int, bounds.groups())
        assert start <= end < len(self.content), "S3 refuses a range without content"
        return io.BytesIO(self.content[start : end + 1])


def stored(content: bytes, etag: str = "") -> Content:
    return Content(Stored(content), "b", "k", len(content), etag)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "begin",
    [lambda c: c.plain(), lambda c: begun(c.stream()), lambda c: begun(c.json_lines())],
    ids=["plain", "stream", "lines"],
)
def test_what_was_not_read_to_its_end_is_closed_while_an_error_holds_it(begin: Callable[[Content], Any]) -> None:
    content = stored(b"[1]\n" * CHUNK)
    client: Any = content.client
    with content.released():
        held = begin(content)
        (body,) = client.bodies
        assert not body.closed
    assert body.closed
    assert held is not None


def begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    next(pieces)
    return pieces


@pytest.mark.parametrize(
    "read",
    [lambda c: c.range(0, 3), lambda c: c.read(3), lambda c: next(c.stream()), lambda c: c.plain().read(3)],
    ids=["range", "file", "stream", "plain"],
)
def test_content_is_of_the_version_that_was_listed(read: Callable[[Content], bytes]) -> None:
    """AIStore ignores If-Match."""
    assert read(stored(b"abc")) == read(stored(b"abc", "e2")) == b"abc"
    with pytest.raises(GoneError, match="overwritten after it was listed"):
        read(stored(b"abc", "e1"))


def test_a_stream_of_another_version_than_its_beginning_is_refused() -> None:
    content = stored(b"abc", "e2")
    assert content.compression == ""
    content.etag = "e1"
    with pytest.raises(GoneError, match="overwritten after it was listed"):
        content.plain()


LINES = b"".join(b"%d,%d\n" % (n, n * 7919 % 10007) for n in range(5000))


@pytest.mark.parametrize("kind", ["", *COMPRESS])
@pytest.mark.parametrize("most", [300, 5_000, 1 << 20])
def test_a_sample_is_a_beginning_in_whole_lines(kind: str, most: int) -> None:
    content = COMPRESS[kind](LINES) if kind else LINES
    sample = stored(content).sample(most)
    assert LINES.startswith(sample)
    assert sample.endswith(b"\n")
    assert len(sample) >= (len(LINES) if most > len(LINES) else most // 3)


@pytest.mark.parametrize("kind", ["", *COMPRESS])
@pytest.mark.parametrize("text", [b"", b"a", b"a\nb", b"a\nb\n"])
def test_a_small_object_is_its_own_sample(kind: str, text: bytes) -> None:
    assert stored(COMPRESS[kind](text) if kind else text).sample(1 << 20) == text


def test_a_sample_of_broken_content_is_an_error() -> None:
    with pytest.raises(LoadObjectError, match="its gzip content is broken"):
        stored(b"\x1f\x8b" + b"\xff" * 100).sample(1000)


@given(st.binary(max_size=100), st.lists(st.tuples(st.integers(0, 120), st.integers(0, 50)), max_size=5))
def test_content_is_a_file(content: bytes, reads: list[tuple[int, int]]) -> None:
    file, reference = stored(content), io.BytesIO(content)
    for position, size in reads:
        assert file.seek(position) == reference.seek(position)
        assert file.read(size) == reference.read(size)
        assert file.tell() == reference.tell()
    assert file.seek(-1, io.SEEK_END) == max(len(content) - 1, 0)


@pytest.mark.parametrize(
    ("key", "head", "found"),
    [
        ("x", b"PAR1....", "parquet"),
        ("x.csv", b"PAR1....", "parquet"),
        ("x.csv", b'{"a": 1}', "jsonl"),
        ("x", b'\xef\xbb\xbf  {"a": 1}', "jsonl"),
        ("x.csv", b"a\n1\n", "csv"),
        ("X.CSV.GZ", b"a\n1\n", "csv"),
        ("x.ndjson", b"", "jsonl"),
        ("x", b"a,b\n1,2\n", "csv"),
        ("x.tsv.gz", b"a\tb,c\n", "tsv"),
        ("x", b"[ \n{}]", "jsonl"),
        ("x.orc", b"ORC\n\x01", "orc"),
        ("x", b"ORC,a\n", "csv"),
    ],
)
def test_formats_are_told_by_content_and_then_by_name(key: str, head: bytes, found: str) -> None:
    assert format_of(key, head) == found


@pytest.mark.parametrize(
    ("key", "head"),
    [("x", b""), ("x", b"\0,\0"), ("x", b"one word\na,b"), ("x.txt", b"tabs\tneed\ta delimiter\n")],
)
def test_a_format_is_not_guessed(key: str, head: bytes) -> None:
    with pytest.raises(TransferInputError, match="set `format`"):
        format_of(key, head)


@pytest.mark.parametrize(
    ("key", "found"), [("a.gz", "gzip"), ("a.ZST", "zstd"), ("a.csv", ""), ("gz", ""), ("a.snappy", "snappy")]
)
def test_compression_by_name(key: str, found: str) -> None:
    assert compression_by_name(key) == found


@pytest.mark.parametrize(
    "wrong",
    [
        {"delimiter": ""}, {"delimiter": "||"}, {"quote": "''"}, {"escape": "ab"}, {"skip_rows": -1},
        {"encoding": "klingon"},
    ],
)  # fmt: skip
def test_dialects_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TransferInputError, match=next(iter(wrong))):
        Csv(**wrong).check()


@pytest.mark.parametrize(
    ("options", "native"),
    [
        ({}, True), ({"delimiter": ";"}, True), ({"delimiter": "\t"}, True), ({"delimiter": " "}, False),
        ({"quote": "'"}, False),
        ({"escape": "\\"}, False), ({"null_values": ["NA"]}, True), ({"null_values": ["NA", "-"]}, False),
        ({"true_values": ["Y"]}, False), ({"encoding": "UTF_8"}, True), ({"encoding": "latin-1"}, False),
    ],
)  # fmt: skip
def test_which_dialects_clickhouse_reads(options: dict[str, Any], native: bool) -> None:
    assert Csv(**options).is_native == native


# records


@given(st.binary(max_size=400))
def test_records_lose_nothing(content: bytes) -> None:
    """Except blank lines, and line ends."""
    for form in (Format("jsonl"), Format("csv", Csv(names=("a", "b")))):
        records = list(TEXTS[form.name].records(Body(content), form))
        assert [n for n, _ in records] == list(range(len(records)))
        assert kept(b"".join(raw for _, raw in records), form) == kept(content, form)
        assert [r for block in _blocks(iter(records)) for r in block] == records


def kept(content: bytes, form: Format) -> list[bytes]:
    """Return the lines that are not blank, without line ends."""
    lines = [line.removesuffix(b"\r") for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    return [line for line in lines if line.strip(b"\r" if form.name == "csv" else b" \t\r")]


@given(st.binary(max_size=200))
def test_blank_lines_of_one_column_are_records(content: bytes) -> None:
    if b'"' in content:
        return
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    records = [raw for _, raw in TEXTS["csv"].records(Body(content), Format("csv", Csv(names=("a",))))]
    assert records == [line.removesuffix(b"\r") + b"\n" for line in lines]


FIELDS = st.text(st.sampled_from('ab,"\n;'), max_size=6)


@given(st.lists(st.lists(FIELDS, min_size=1, max_size=3), max_size=6))
def test_a_line_feed_within_quotes_ends_no_record(rows: list[list[str]]) -> None:
    lines = [",".join('"' + f.replace('"', '""') + '"' for f in row) for row in rows]
    records = list(TEXTS["csv"].records(Body("\n".join(lines).encode()), Format("csv", Csv(names=("a", "b")))))
    assert [raw.decode() for _, raw in records] == [line + "\n" for line in lines]


def test_a_quote_within_a_field_is_a_letter() -> None:
    lines = [b'1,5" pipe\n', b'"2",x\n', b'3,"a\n""b"\n', b'4,"5"" pipe"\n', b'5,"";"\n']
    records = list(TEXTS["csv"].records(Body(b"".join(lines)), Format("csv")))
    assert [raw for _, raw in records] == lines


class Resetting:
    """ClickHouse whose connection breaks once after the rows have arrived, behind clickhouse-connect.

    clickhouse-connect sends a body again if it still has it.
    """

    server_settings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self) -> None:
        self.arrived: list[bytes] = []

    def raw_insert(self, *_: Any, insert_block: Any, **__: Any) -> Any:
        for _ in range(2 if isinstance(insert_block, (bytes, str)) else 1):
            self.arrived.append(b"".join([insert_block] if isinstance(insert_block, bytes) else insert_block))
        if len(self.arrived) == 1:
            raise OperationalError("Connection reset by peer")
        return SimpleNamespace(summary={})


def test_rows_that_may_have_arrived_are_not_sent_again_into_the_same_table() -> None:
    client, rejected = Resetting(), list[Any]()
    content = stored(b"n\n1\n2\n")
    planned = Planned("k", "e", content.size, 0.0, 7)
    reading = Reading(Format("csv"), (Column("n", "Int64"),), (("n", "n"),))
    with pytest.raises(TransferTransientError, match="Connection reset"):
        salvage(client, content, reading, planned, "staging", (), "id", rejected.append)
    (body,) = client.arrived
    assert body.startswith(b"INSERT INTO ")
    assert body.endswith(b" FORMAT CSVWithNames\nn\n1\n2\n")
    assert rejected == []


class Refusing(Resetting):
    """ClickHouse that answers each INSERT with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__()
        self.error = DatabaseError(f"Code: {code}. DB::Exception: {text}", code=code)

    def raw_insert(self, *_: Any, **__: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("code", "text", "raised"),
    [
        (60, "Table storeside_staging.x does not exist. (UNKNOWN_TABLE)", TransferTransientError),
        (497, "loader: Not enough privileges. (ACCESS_DENIED)", TransferInputError),
        (241, "(total) memory limit exceeded. (MEMORY_LIMIT_EXCEEDED)", TransferTransientError),
    ],
)
def test_no_row_is_rejected_for_an_error_that_no_row_causes(code: int, text: str, raised: type[Exception]) -> None:
    client, rejected = Refusing(code, text), list[Any]()
    content = stored(b"n\n1\n2\n")
    planned = Planned("k", "e", content.size, 0.0, 7)
    reading = Reading(Format("csv"), (Column("n", "Int64"),), (("n", "n"),))
    with pytest.raises(raised):
        salvage(client, content, reading, planned, "staging", (), "id", rejected.append)
    assert rejected == []


def test_rows_before_the_header_are_no_records() -> None:
    form = Format("csv", Csv(skip_rows=2))
    assert list(TEXTS[form.name].records(Body(b'one "\ntwo\na,b\n1,2'), form)) == [(0, b"a,b\n"), (1, b"1,2\n")]


def test_a_reader_that_stops_early_releases_its_connection() -> None:
    bodies: list[io.BytesIO] = []

    class Kept(Stored):
        def _body(self, Range: str) -> Any:
            if Range:
                return super()._body(Range)
            bodies.append(io.BytesIO(self.content))
            return StreamingBody(bodies[-1], len(self.content))

    content = Content(Kept(b"abc" * CHUNK), "b", "k", 3 * CHUNK)
    stream = content.stream()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert content.plain().read(3) == b"abc"
    assert [body.closed for body in bodies] == [True, True]


@pytest.mark.parametrize(("kind", "read"), [("UInt64", "UInt64"), ("Int8", "Int64"), ("UInt128", "String")])
def test_integers_of_csv_dialects_are_read_whole(kind: str, read: str) -> None:
    assert reading(Format("csv", Csv(quote="'")), kind) == f"Nullable({read})"


CUT = "n,s\n1,a\n2,{q}two\nlines{q}\n3,{q}a cut\n"


@pytest.mark.parametrize(("options", "encoding"), [
    ({}, "utf-8"), ({"quote": "'"}, "utf-8"), ({"encoding": "utf-16"}, "utf-16"),
    ({"encoding": "latin-1"}, "latin-1"), ({"quote": "'", "escape": "\\"}, "utf-8"),
])  # fmt: skip
def test_a_sample_of_csv_may_end_within_quotes(options: Mapping[str, Any], encoding: str) -> None:
    form = Format("csv", Csv(**options))
    quote = form.csv.quote
    rows = [b"n,s\n", b"1,a\n", f"2,{quote}two\nlines{quote}\n".encode()]
    assert TEXTS["csv"].sample(CUT.format(q=quote).encode(encoding), form) == rows
    assert TEXTS["csv"].sample(CUT.format(q=quote).replace("\n", "\r\n").encode(encoding), form)[:2] == rows[:2]
    if encoding == "utf-16":  # the sample ends with half a line feed
        assert TEXTS["csv"].sample(CUT.format(q=quote).encode(encoding)[:-1], form) == rows
    with pytest.raises(LoadObjectError, match="its first row does not end within a sample of 10 bytes"):
        TEXTS["csv"].sample(f"n,s\n1,{quote}ab\n".encode(encoding), form)


def test_escaped_quotes_open_and_close_nothing() -> None:
    form = Format("csv", Csv(quote="'", escape="\\"))
    lines = [b"n,s\n", b"1,\\'a\n", b"2,\\x'b\n", b"3,'it\\'s\nhere'\n"]
    assert TEXTS["csv"].sample(b"".join(lines), form) == lines


def test_text_with_a_wrong_encoding_is_an_error_of_the_object() -> None:
    with pytest.raises(LoadObjectError, match="it is not utf-16"):
        TEXTS["csv"].sample(b"\xff\xfea,b\n\x00\xd8\x00\xd8", Format("csv", Csv(encoding="utf-16")))
