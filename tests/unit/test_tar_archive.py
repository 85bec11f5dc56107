"""Valid tar archives are read as other programs read them, and hostile ones are refused."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from storeside.transformers.contract import tar_archive
from storeside.transformers.contract.tar_archive import BLOCK, END, Member, TarArchive, TarError
from tests.shards import entry, tar

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300)


def read(archive: bytes) -> list[tuple[Member, bytes]]:
    opened = TarArchive(io.BytesIO(archive), len(archive))
    return [(member, opened.content(member)) for member in opened]


def one(archive: bytes) -> Member:
    ((member, _),) = read(archive)
    return member


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@given(st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=5))
@example([("a" * 200, b"long")])
@example([("ü/" * 150 + "x", b"")])
def test_members_are_those_that_python_reads(form: int, files: list[tuple[str, bytes]]) -> None:
    try:
        archive = tar(files, form=form)
    except ValueError:  # a name that this form cannot express
        return
    with tarfile.open(fileobj=io.BytesIO(archive)) as theirs:
        expected = [(member.name, theirs.extractfile(member).read()) for member in theirs if member.isfile()]  # type: ignore[union-attr]
    ours = [(member.name, content) for member, content in read(archive) if not member.is_folder]
    assert ours == expected


@given(NAMES, st.integers(0, 5000))
def test_python_reads_our_headers(name: str, size: int) -> None:
    assume(not tar_archive.outside(name))
    member = Member(name, size, 0, 0o640, 1_700_000_000)
    archive = tar_archive.header(member, name, size) + bytes(size) + tar_archive.padding(size) + END
    with tarfile.open(fileobj=io.BytesIO(archive)) as theirs:
        (found,) = theirs.getmembers()
    assert found.name.rstrip("/") == name.rstrip("/")
    assert (found.size, found.mode, found.mtime) == (size, 0o640, 1_700_000_000)


def test_a_name_that_is_not_unicode_keeps_its_bytes() -> None:
    name = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
    assert one(tar([(name, b"x")], form=tarfile.GNU_FORMAT)).name == name
    member = one(tar([(name, b"x")], form=tarfile.PAX_FORMAT))
    assert one(tar_archive.header(member, member.name, 0) + END).name == name


@pytest.mark.parametrize(
    ("archive", "refusal"),
    [
        (entry("/etc/passwd"), "leads out of the shard"),
        (entry("a/../../b"), "leads out of the shard"),
        (entry(".."), "leads out of the shard"),
        (entry("/"), "name is not valid"),
        (entry("x" * 5000), "more than 4096 bytes"),
        (entry("a", pax_headers={"path": "/etc/shadow"}), "leads out of the shard"),
        (entry("a", pax_headers={"path": "a\0b"}), "name is not valid"),
        (entry("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "it is a symbolic link"),
        (entry("a", type=tarfile.LNKTYPE, linkname="../b"), "it is a hard link"),
        (entry("a", type=tarfile.CHRTYPE), "it is a character device"),
        (entry("a", type=tarfile.BLKTYPE), "it is a block device"),
        (entry("a", type=tarfile.FIFOTYPE), "it is a pipe"),
        (entry("a", type=b"S"), "it is a sparse file"),
        (entry("a", pax_headers={"GNU.sparse.size": "1000000000000"}), "it is a sparse file"),
        (entry("a", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), "it is a sparse file"),
        (entry("a", type=b"Z"), "it is of an unknown type"),
    ],
)
def test_members_that_no_program_should_use(archive: bytes, refusal: str) -> None:
    members = [member for member, _ in read(archive + tar([("after", b"x")]))]
    assert refusal in members[0].refusal
    assert [member.name for member in members[1:]] == ["after"], "the next one is found"
    assert not members[1].refusal


GOOD = tar([("a.txt", b"x" * 700), ("b.txt", b"y" * 10)])
SIZE_FIELD = slice(124, 136)


def damaged(at: int, content: bytes) -> bytes:
    return GOOD[:at] + content + GOOD[at + len(content) :]


def with_size(field: bytes) -> bytes:
    """An archive whose first header declares another size, with a valid checksum."""
    block = bytearray(GOOD[:BLOCK])
    block[SIZE_FIELD] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + GOOD[BLOCK:]


def pax(content: bytes) -> bytes:
    """A pax header with any content before a member."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(content)
    return header.tobuf(tarfile.USTAR_FORMAT) + content + tar_archive.padding(len(content)) + GOOD


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (b"", "it is empty"),
        (b"RIFF" + bytes(600), "it is not a tar archive"),
        (GOOD[:300], "ends at byte 0 without an end mark"),
        (GOOD[: BLOCK + 100], "ends within the member 'a.txt', which should have 700 bytes"),
        (GOOD[: 3 * BLOCK], "ends at byte 1536 without an end mark"),
        (GOOD[: 3 * BLOCK + 20], "ends at byte 1536 without an end mark"),
        (GOOD[: 5 * BLOCK], "ends at byte 2560 without an end mark"),
        (damaged(3 * BLOCK, b"damage"), "header at byte 1536 is damaged"),
        (with_size(b"77777777777\0"), "should have 8589934591 bytes"),
        (with_size(b"\x80" + b"\0" * 3 + b"\x7f" * 8), "which should have"),
        (with_size(b"\xff" * 12), "a size of -1 bytes"),
        (with_size(b"no number!!!"), "is not a tar archive"),
        (pax(b"1000000000 path=x\n"), "a record of pax is not valid"),
        (pax(b"9" * 5000), "a record of pax is not valid"),
        (pax(b"0 a=b\n"), "a record of pax is not valid"),
        (pax(b"11 path=xyz"), "a record of pax is not valid"),
        (pax(b"12 size=-10\n"), "'-10' is no size"),
        (pax(b"13 size=" + b"9999\n"), "should have 9999 bytes"),
        (pax(b"65 size=" + b"9" * 56 + b"\n"), "is no size"),
        (pax(b"1" * 70_000), "more than 65536"),
        (entry("y" * 300)[: 2 * BLOCK] * 9 + GOOD, "more than 8 headers"),
        (entry("y" * 300)[: 2 * BLOCK] + END, "belongs to no member"),
        (entry("y" * 300)[:BLOCK], "ends within the header"),
        (damaged(3 * BLOCK, bytes(BLOCK)), "header at byte 1536 is empty, and data follow"),
        (damaged(0, bytes(BLOCK)), "header at byte 0 is empty, and data follow"),
        (GOOD + GOOD, "several archives were joined"),
        (GOOD[: 3 * BLOCK] + bytes(2 << 20), "more than 1048576 zeros follow byte 1536"),
        (bytes(1 << 20), "more than 10240 zeros follow byte 0"),
    ],
)
def test_archives_that_are_damaged(archive: bytes, reason: str) -> None:
    with pytest.raises(TarError, match=reason):
        read(archive)


def test_an_empty_record_of_pax_leaves_the_value_of_the_header() -> None:
    """As POSIX states for pax: a member whose name is deleted this way was left out by loads."""
    assert [member.name for member, _ in read(pax(b"8 path=\n8 size=\n"))] == ["a.txt", "b.txt"]


@pytest.mark.parametrize("end", [BLOCK, 2 * BLOCK, tarfile.RECORDSIZE, 1 << 20])
def test_any_number_of_zeros_that_programs_write_ends_an_archive(end: int) -> None:
    assert [member.name for member, _ in read(GOOD[: 5 * BLOCK] + bytes(end))] == ["a.txt", "b.txt"]
    assert not read(bytes(min(end, tarfile.RECORDSIZE)))


@pytest.mark.parametrize(("name", "kind"), [("td/a.txt", tarfile.REGTYPE), ("td/", tarfile.DIRTYPE)])
def test_times_of_incremental_archives_are_no_part_of_names(name: str, kind: bytes) -> None:
    """GNU tar with `-g` writes the times of access and of the last change where POSIX has the start of a name."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[156:157] = kind
    block[345:369] = b"15302063532\0" * 2
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    assert one(bytes(block) + END).name == name.rstrip("/")


def test_folders_and_comments_are_no_files() -> None:
    folder = entry("data/", type=tarfile.DIRTYPE, mode=0o755)
    comment = tarfile.TarInfo.create_pax_global_header({"comment": "a commit"})
    found = [(member.name, member.is_folder, member.refusal) for member, _ in read(comment + folder + GOOD)]
    assert found == [("data", True, ""), ("a.txt", False, ""), ("b.txt", False, "")]


@given(st.data())
@settings(max_examples=300)
def test_no_bytes_lead_to_another_error(data: st.DataObject) -> None:
    archive = bytearray(tar([("a" * 150, b"x" * 600), ("b", b"")], form=data.draw(st.sampled_from([1, 2]))))
    for _ in range(data.draw(st.integers(1, 6))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    archive = archive[: data.draw(st.integers(0, len(archive)))]
    members: Iterable[tuple[Member, bytes]] = ()
    try:
        members = read(bytes(archive))
    except TarError:
        return
    assert sum(len(content) for _, content in members) <= len(archive)
