"""Archives that S3 events announce: each is loaded once and whole, or is a dead letter with the member at fault."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from tests.mailboxes import Mailbox
from tests.shards import tar
from tests.transfers import jsonl, parquet
from tests.unit.test_transfer_archives import KINDS, zipped

FORMS: dict[str, Callable[[range], bytes]] = {
    "jsonl": lambda numbers: jsonl([{"n": n} for n in numbers]),
    "parquet": lambda numbers: parquet({"n": list(numbers)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_archives_are_loaded_once_and_bad_ones_are_dead_letters(mailbox: Mailbox, form: str) -> None:
    make = FORMS[form]
    starts = range(0, 20 * len(KINDS), 20)
    good = {
        key: pack([(f"a.{form}", make(range(n, n + 10))), (f"b.{form}", make(range(n + 10, n + 20)))])
        for n, (key, pack) in zip(starts, KINDS.items(), strict=True)
    }
    total = 20 * len(good)
    bad = {
        "cut.tgz": good["x.tgz"][:-9],
        "member.tar.gz": gzip.compress(tar([(f"a.{form}", make(range(5))), (f"b.{form}", b"\0broken")])),
        "other.zip": zipped([("readme.md", b"# n")]),
    }
    mailbox.create("n UInt32")
    mailbox.put({**good, **bad, f"plain.{form}": make(range(total, total + 5))})
    mailbox.arrive(len(good) + len(bad) + 1)
    mailbox.send(*(mailbox.record(key) for key in good))  # each is announced a second time
    found = mailbox.drain(format=form)
    assert (found.loaded, found.dead, found.released) == (2 * len(good) + 1, len(bad), 0)
    assert mailbox.rows() == [(n,) for n in range(total + 5)]
    assert mailbox.depth() == (0, 0)
    dead = mailbox.dead()
    assert set(dead) == set(bad)
    assert f"member 'b.{form}': " in dead["member.tar.gz"]
    assert "the archive has no member" in dead["other.zip"]
    assert mailbox.drain(format=form).messages == 0

    mailbox.put({"member.tar.gz": gzip.compress(tar([(f"a.{form}", make(range(total + 5, total + 9)))]))})  # repaired
    mailbox.arrive(1)
    assert mailbox.drain(format=form).loaded == 1
    assert mailbox.rows() == [(n,) for n in range(total + 9)]
