"""Text members of archives are one text, others are files; damaged archives, and what Python's own readers say."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storeside.transfer.base.errors import LimitError, LoadObjectError, TransferTransientError
from storeside.transfer.objects import archives
from storeside.transfer.objects.archives import Members, kind_by_name
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.members import members_of
from storeside.transfer.objects.streams import opened
from storeside.transfer.request.object_format import Csv, compression_of
from storeside.transfer.request.source import wild
from tests.shards import entry, tar
from tests.unit.test_transfer_content import COMPRESS, Stored

Files = Sequence[tuple[str, bytes]]
CSV = b"n,s\n1,one\n"
FILES = [("a.csv", CSV), ("sub/b.csv", b"n,s\r\n2,two"), ("readme.md", b"# n,s"), ("._a.csv", b"\0\1"), ("sub/", b"")]


def zipped(files: Files, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return made.getvalue()


KINDS: dict[str, Callable[[Files], bytes]] = {
    "x.tar": tar,
    "x.zip": zipped,
    "stored.ZIP": lambda files: zipped(files, zipfile.ZIP_STORED),
    "x.tar.gz": lambda files: gzip.compress(tar(files)),
    "x.tgz": lambda files: gzip.compress(tar(files)),
    "x.tar.bz2": lambda files: bz2.compress(tar(files)),
    "x.tar.xz": lambda files: lzma.compress(tar(files)),
    "x.tar.zst": lambda files: COMPRESS["zstd"](tar(files)),
    "x.tar.lz4": lambda files: COMPRESS["lz4"](tar(files)),
}


def content_of(key: str, content: bytes, form: str = "auto", csv: Csv | None = None, most: int = 1 << 30) -> Content:
    stored: Any = Stored(content)
    return Content(stored, "b", key, len(content), most=most, members=Members(form, csv or Csv()))


def read(key: str, content: bytes, form: str = "auto", csv: Csv | None = None, most: int = 1 << 30) -> bytes:
    file = content_of(key, content, form, csv, most).plain()
    found = b""
    while piece := file.read(1000):
        found += piece
    return found


@pytest.mark.parametrize("key", KINDS)
def test_text_members_are_one_text_with_one_header(key: str) -> None:
    content = content_of(key, KINDS[key](FILES))
    assert wild(key), "ClickHouse does not read it"
    assert content.compression == "archive"
    assert content.sample(1000) == b"n,s\n1,one\n2,two\n"
    assert content.title == "a.csv"
    assert read(key, KINDS[key](FILES)) == b"n,s\n1,one\n2,two\n"


@pytest.mark.parametrize("key", KINDS)
def test_compressed_members_and_arrays_of_objects(key: str) -> None:
    files = [
        ("a.jsonl.gz", gzip.compress(b'{"n":1}')), ("b.json", b'\xef\xbb\xbf[{"n":2},\n{"n":3}]'),
        ("c.ndjson", b""), ("d.jsonl.zst", COMPRESS["zstd"](b'{"n":4}\n')),
    ]  # fmt: skip
    assert read(key, KINDS[key](files)) == b'{"n":1}\n{"n":2}\n{"n":3}\n{"n":4}\n'
    assert b"".join(content_of(key, KINDS[key](files)).json_lines()) == b'{"n":1}\n{"n":2}\n{"n":3}\n{"n":4}\n'


def test_compressions_that_begin_with_other_bytes_are_found_in_members() -> None:
    """Frames that decoders skip, as pzstd writes them, and Hadoop's framing of snappy, which only names show."""
    skipped = b"\x50\x2a\x4d\x18\4\0\0\0abcd"
    zstd = skipped + skipped + pa.compress(CSV, codec="zstd", asbytes=True)
    assert read("x.tar", tar([("a.csv.zst", zstd)])) == CSV
    block = pa.compress(CSV, codec="snappy", asbytes=True)
    framed = len(CSV).to_bytes(4, "big") + len(block).to_bytes(4, "big") + block
    assert read("x.zip", zipped([("a.csv.snappy", framed)])) == CSV


def test_a_given_format_selects_members() -> None:
    files = [
        ("meta.json", b'{"n":1}'),
        ("a.csv", b"# made\nn\n1"),
        ("b.csv", b"# by\n\nn\n2\n"),
        ("c.parquet", b"PAR1"),
    ]
    assert read("x.zip", zipped(files), "jsonl") == b'{"n":1}\n'
    assert read("x.zip", zipped(files), "csv", Csv(skip_rows=1)) == b"# made\nn\n1\n2\n"
    assert read("x.zip", zipped(files[:3]), "csv", Csv(names=("n",))) == b"# made\nn\n1\n# by\n\nn\n2\n"
    header = b'"a\nb",c\n'
    quoted = [("1.csv", header + b"1,2\n"), ("2.csv", header + b"3,4\n")]
    assert read("x.tar", tar(quoted)) == header + b"1,2\n3,4\n"
    for header in (b'disk 5",c\n', b'"a\\"",c\n'):  # a quote within a field, and one that is escaped
        quoted = [("1.csv", header + b"1,2\n"), ("2.csv", header + b"3,4\n")]
        assert read("x.tar", tar(quoted), csv=Csv(escape="\\")) == header + b"1,2\n3,4\n"


def test_a_header_of_many_lines_is_read_in_linear_time() -> None:
    header = b'"' + b"\n" * 400_000 + b'",n\n'
    assert read("x.tar", tar([("a.csv", header + b"1,2\n"), ("b.csv", header + b"3,4\n")])) == header + b"1,2\n3,4\n"


def test_an_empty_member_of_csv_takes_no_row_from_the_next_one() -> None:
    assert read("x.tar", tar([("a.csv", b""), ("b.csv", CSV), ("c.csv", b"\n")])) == CSV
    # The reader leaves out as many lines of the whole text as it would of one member.
    files = [("a.csv", b"# made\n"), ("b.csv", b"# by\n" + CSV), ("c.csv", b"# for\n" + CSV)]
    assert read("x.tar", tar(files), "csv", Csv(skip_rows=1)) == b"# by\n" + CSV + b"1,one\n"
    files = [("a.csv", b""), ("b.csv", b"# by\n1\n"), ("c.csv", b"# for\n2\n")]
    assert read("x.tar", tar(files), "csv", Csv(names=("n",), skip_rows=1)) == b"# by\n1\n2\n"


def test_a_member_of_json_ends_with_its_last_document() -> None:
    halves = zipped([("a.jsonl", b'{"n":[1,'), ("b.jsonl", b"2]}")])
    with pytest.raises(LoadObjectError, match=r"member 'a\.jsonl': row 0 is not JSON"):
        list(content_of("x.zip", halves).json_lines())


@pytest.mark.parametrize(
    ("key", "content", "reason"),
    [
        ("x.zip", zipped([("a.csv", CSV), ("b.jsonl", b"{}")]), "'b.jsonl': it is jsonl, and 'a.csv' is not"),
        ("x.zip", zipped([("a.parquet", b"PAR1")]), "'a.parquet': it is parquet, and the load reads text"),
        ("x.zip", zipped([("a.csv", CSV), ("b.csv", b"s,n\n")]), "'b.csv': its header differs from that of 'a.csv'"),
        ("x.zip", zipped([("readme.md", b"")]), "the archive has no member that its name shows to be parquet, csv"),
        ("x.zip", zipped([("../a.csv", CSV)]), "'../a.csv': its name leads out"),
        ("x.zip", zipped([("a.csv", CSV)], zipfile.ZIP_LZMA), "'a.csv': the compression method lzma is not read"),
        ("x.zip", zipped([("a.csv", CSV)], zipfile.ZIP_BZIP2), "'a.csv': the compression method bzip2 is not read"),
        ("x.zip", b"PK\3\4\0\0" + bytes(100), "the archive is broken"),
        ("x.zip", zipped([("a.csv", CSV)]) + zipped([("b.csv", CSV)]), "its directory lacks its first member"),
        ("x.zip", zipped([("a.csv.gz", gzip.compress(CSV)[:-4])]), "'a.csv.gz': its compressed content is broken"),
        ("x.tar", tar([("a.csv", CSV)]) + tar([("b.csv", CSV)]), "is empty, and data follow"),
        ("x.tar", tar([("a.csv", CSV), ("a.csv", CSV)]), "'a.csv': the archive has several members of this name"),
        ("x.tar", tar([("./a.csv", CSV), ("a.csv", CSV)]), "'a.csv': the archive has several members of this name"),
        ("x.tar", entry("/etc/a.csv", CSV) + bytes(1024), "'/etc/a.csv': its name leads out"),
        ("x.tar", entry("a.csv", type=b"2", linkname="/etc/passwd"), "'a.csv': it is a symbolic link"),
        ("x.tar", tar([("a.csv", CSV)])[:515], "it ends within the member 'a.csv'"),
        ("x.tgz", gzip.compress(tar([("a.csv", CSV)])[:1024]), "without an end mark: it is truncated"),
        ("x.tgz", gzip.compress(tar([("a.csv", CSV)]))[:-3], "its compressed content is broken"),
        ("x.tar", b"a.csv" + bytes(2000), "it is not a tar archive"),
    ],
    ids=lambda given: given if isinstance(given, str) else "archive",
)  # fmt: skip
def test_what_is_refused(key: str, content: bytes, reason: str) -> None:
    with pytest.raises(LoadObjectError) as raised:
        read(key, content)
    assert reason in str(raised.value)


def test_encrypted_and_linked_members_of_zip_are_refused() -> None:
    content = bytearray(zipped([("a.csv", CSV)]))
    content[content.index(b"PK\1\2") + 8] |= 1
    content[6] |= 1
    with pytest.raises(LoadObjectError, match=r"'a\.csv': it is encrypted"):
        read("x.zip", bytes(content))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        link = zipfile.ZipInfo("a.csv")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(LoadObjectError, match="symbolic link"):
        read("x.zip", made.getvalue())


@pytest.mark.parametrize("key", [key for key in KINDS if key != "x.tar"])
@pytest.mark.parametrize("name", ["a.csv", "a.bin"])
def test_bombs_stop_at_the_limit(key: str, name: str) -> None:
    bomb = KINDS[key]([(name, b"n\n" + bytes(3_000_000)), ("b.csv", b"n\n1\n")])
    if name == "a.bin" and kind_by_name(key) == "zip":  # other members of a zip archive are not read
        assert read(key, bomb, most=1000) == b"n\n1\n"
        return
    with pytest.raises(LimitError, match="more than 1000 bytes"):
        read(key, bomb, most=1000)
    nested = KINDS[key]([("a.csv.gz", gzip.compress(b"n\n" + bytes(30_000_000)))])
    with pytest.raises(LimitError, match="more than 1000000 bytes"):
        read(key, nested, most=1_000_000)


def test_a_large_directory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_LARGEST_DIRECTORY", 1000)
    with pytest.raises(LoadObjectError, match="the archive's directory exceeds"):
        read("x.zip", zipped([(f"{n}.csv", CSV) for n in range(100)]))


@pytest.mark.parametrize("key", ["x.tar", "stored.ZIP"])
def test_other_members_are_not_downloaded(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [("a.bin", bytes(40 << 20)), ("b.csv", CSV)]
    sizes: list[int] = []
    original = Content.range
    monkeypatch.setattr(Content, "range", lambda self, at, n: sizes.append(len(f := original(self, at, n))) or f)
    assert read(key, KINDS[key](files)) == CSV
    assert sum(sizes) < 20 << 20


@pytest.mark.parametrize("key", ["x.zip", "x.tar", "x.tgz"])
def test_texts_with_the_name_of_an_archive_are_texts(key: str) -> None:
    assert content_of(key, CSV).compression == ""
    assert content_of(key, gzip.compress(CSV)).compression == "gzip"
    assert content_of(key, b"").compression == ""


def by_python(key: str, content: bytes) -> list[bytes] | None:
    """Return the rows of all members as Python's own readers see them; None if they raise an error."""
    try:
        if kind_by_name(key) == "zip":
            with zipfile.ZipFile(io.BytesIO(content)) as z:
                return [line for info in z.infolist() for line in z.read(info).splitlines()]
        if (packed := compression_of(content)) in ("zstd", "lz4"):  # tarfile does not know them
            content = opened(io.BytesIO(content), packed).read(1 << 30)
        with tarfile.open(fileobj=io.BytesIO(content)) as t:
            return [line for m in t if (f := t.extractfile(m)) is not None for line in f.read().splitlines()]
    except Exception:
        return None


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_a_damaged_archive_has_all_rows_that_python_reads_or_fails(key: str, data: st.DataObject) -> None:
    files = [(f"{n}.jsonl", b"".join(b'{"n":%d}\n' % (n * 1000 + i) for i in range(30))) for n in range(3)]
    whole = KINDS[key](files)
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(1, len(content))))
    damaged = bytes(content[:cut])
    try:
        found = read(key, damaged, "jsonl").splitlines()
    except (LoadObjectError, OSError):  # the rows of a text whose compressed stream is broken raise OSError
        assert damaged != whole
        return
    if content_of(key, damaged).compression == "archive":
        assert found == by_python(key, damaged)


@pytest.mark.parametrize("key", KINDS)
def test_members_that_are_no_text_are_files_one_after_the_other(key: str) -> None:
    big = bytes(range(256)) * 10_000
    files = [
        ("a.parquet", b"PAR1" + big),
        ("b.md", b"#"),
        ("sub/b.pq.gz", gzip.compress(b"PAR1")),
        ("c.parquet", b""),
    ]
    content = content_of(key, KINDS[key](files))
    assert content.sample(7) == b"PAR1\0\1\2"
    assert content.title == "a.parquet"
    found = []
    for member in members_of(content):
        assert member.archive is None
        assert b"".join(member.stream()) == member.range(0, member.size) == member.read()
        assert member.range(4, 3) == b"\0\1\2"[: max(0, member.size - 4)]
        found.append((member.name, member.range(0, member.size)))
    assert found == [("a.parquet", b"PAR1" + big), ("sub/b.pq.gz", b"PAR1"), ("c.parquet", b"")]


@pytest.mark.parametrize("key", KINDS)
def test_all_members_together_have_a_limit(key: str) -> None:
    content = content_of(key, KINDS[key]([("a.parquet", bytes(9_000)), ("b.parquet", bytes(9_000))]), most=17_000)
    with pytest.raises(LimitError, match="more than 17000 bytes"):
        list(members_of(content))


def test_a_full_disk_is_no_fault_of_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "w+b"))  # noqa: SIM115
    with pytest.raises(TransferTransientError, match="No space left on device: free some space there, or set TMPDIR"):
        list(members_of(content_of("x.zip", zipped([("a.parquet", b"PAR1")]))))
