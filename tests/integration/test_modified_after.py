"""Loads of objects that were last modified at an instant or later, from listings and from events."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from storeside.transfer import cli
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.source import Listed, Source
from tests.mailboxes import Mailbox
from tests.support import next_second
from tests.transfers import Loading, jsonl

INDIA = timezone(timedelta(hours=5, minutes=30))


def old_and_new(loading: Loading) -> str:
    """Put two objects, and return the instant of the second one in another time zone."""
    loading.put({"old.jsonl": jsonl([{"n": 1}])})
    next_second()
    loading.put({"new.jsonl": jsonl([{"n": 2}])})
    modified: datetime = loading.s3.head_object(Bucket=loading.bucket, Key="new.jsonl")["LastModified"]
    return modified.astimezone(INDIA).isoformat()


@pytest.mark.parametrize("listed", [{}, {"overlap_seconds": 60.0}], ids=["all keys", "overlap"])
def test_listings(loading: Loading, listed: dict[str, Any]) -> None:
    instant = old_and_new(loading)

    def load(modified_after: str) -> int:
        transfer = loading.transfer(**listed)
        source = Source(loading.bucket, collection="storeside_s3", modified_after=modified_after)
        transfer = type(transfer)(
            type(transfer.request)(source, loading.table, **listed), transfer.client, transfer.s3, transfer.run_id,
            ledger=transfer.loads.client,
        )  # fmt: skip
        report = transfer.run(transfer.prepare())
        loading.check(report)
        return report.loaded

    assert load(instant) == 1
    assert loading.rows() == [(2,)]
    loading.put({"newer.jsonl": jsonl([{"n": 3}])})
    assert load(instant) == 1
    assert loading.rows() == [(2,), (3,)]
    assert "old.jsonl" not in loading.ledger()
    if not listed:  # with an overlap, keys before the loaded ones may be left out
        assert load("") == 1
        assert loading.rows() == [(1,), (2,), (3,)]


def test_events(mailbox: Mailbox) -> None:
    instant = old_and_new(mailbox)
    mailbox.arrive(2)
    found = mailbox.drain(modified_after=instant)
    assert (found.loaded, found.skipped, found.deleted, found.dead) == (1, 1, 2, 0)
    assert mailbox.rows() == [(2,)]
    ((_, reason),) = mailbox.events()["old.jsonl", "ObjectCreated:Put"]
    assert reason == f"it was last modified before {instant}"


@pytest.mark.parametrize("text", ["2026-01-01", "2026-01-01T00:00:00", "yesterday"])
def test_an_instant_needs_a_time_zone(text: str) -> None:
    with pytest.raises(TransferInputError, match="write a date and time with a time zone"):
        Source("trips", modified_after=text)


def test_the_instant_in_seconds() -> None:
    assert Source("trips", modified_after="1970-01-01T01:00:01.9+01:00").since == 1
    assert Source("trips").since == 0
    assert Listed("a", "e", 1, "1970-01-01T00:00:02.000Z").modified_at == 2
    assert Listed("a", "e", 1, "").modified_at == 0
    with pytest.raises(TransferInputError, match="AIStore lists no times"):
        Source("ais://trips", modified_after="2026-01-01T00:00:00Z")


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "given_source", lambda uri, collection: Source("trips"))
    given = ["s3://trips", "data.t", "--modified-after", "2026-01-01T00:00:00Z"]
    found = cli.request(cli.transfer_arguments("storeside.transfer", "").parse_args(given))
    assert found.source.modified_after == "2026-01-01T00:00:00Z"
