"""A viewer of pages tries to listen to objects that no page shows; a server in AIStore's place sees the requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.sdk import Connection
from fastapi.testclient import TestClient

from tests.attacks.names import NAMES, by_class, listening
from tests.unit.test_pages import Tables, airflow, known, pages, tables

__all__ = ["airflow", "known", "pages", "tables"]


@pytest.fixture
def asked(known: dict[str, Connection]) -> Iterator[list[str]]:
    """The requests to AIStore."""
    with listening() as (url, paths):
        host, _, port = url.rpartition("://")[2].partition(":")
        known["aistore_default"] = Connection(
            conn_id="aistore_default", conn_type="aistore", host=host, port=int(port)
        )
        yield paths


# Without the classes that the ending of audio makes harmless, or that no address can have.
HARMLESS = ("ends at the parent", "folder", "none", "no Unicode")
LISTED = {name: f"{text}.wav" for name, text in NAMES.items() if name not in HARMLESS}


@pytest.mark.parametrize("name", **by_class(LISTED))
def test_a_name_that_leads_to_another_bucket(pages: TestClient, tables: Tables, asked: list[str], name: str) -> None:
    """The ledger has the name as done: an earlier version did not check it."""
    tables.answers["pages_done"] = [{"found": 1}]
    answer = pages.get("/audio", params={"bucket": "ais://speech", "object": name})
    assert (answer.status_code, asked) == (404, [])


BUCKETS = ("ais://..", "ais://.", "ais://../canary", "ais://a/../canary", "ais://a?canary", "ais://a%2f..", "canary")


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_that_is_none(pages: TestClient, tables: Tables, asked: list[str], bucket: str) -> None:
    tables.answers["pages_done"] = [{"found": 1}]
    answer = pages.get("/audio", params={"bucket": bucket, "object": "canary.wav"})
    assert answer.status_code in (400, 404)
    assert asked == []


def test_an_object_of_a_failed_step(pages: TestClient, tables: Tables, asked: list[str]) -> None:
    """A failed row needs no object: a listing, or a form, has put its name into the ledger."""
    step = {"source": "ais://speech", "destination": "ais://canary", "object": "a.wav", "destination_object": "a.wav"}
    failed = {**step, "status": "failed", "reason": "", "version": "", "effect": "", "bytes_in": 1, "bytes_out": 0}
    for statement in ("pages_made_into", "pages_made_from"):
        tables.answers[statement] = [{**failed, "run_id": "d/r", "recorded_ms": 1}]
    for bucket in ("ais://speech", "ais://canary"):
        answer = pages.get("/audio", params={"bucket": bucket, "object": "a.wav"})
        assert (answer.status_code, asked) == (404, [])


def test_control_an_object_of_a_done_step_is_requested(pages: TestClient, tables: Tables, asked: list[str]) -> None:
    tables.answers["pages_done"] = [{"found": 1}]
    pages.get("/audio", params={"bucket": "ais://speech", "object": "a/b.wav"})
    assert asked
    assert all("/v1/objects/speech/a/b.wav?" in path for path in asked)
