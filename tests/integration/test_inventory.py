"""Loads of a bucket whose objects an inventory lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from storeside.stack.settings import Stack
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.objects.inventory import Inventory
from storeside.transfer.request.source import Source
from tests.inventories import FIELDS, FORMATS, Entry, digest, file, publish
from tests.support import unique
from tests.transfers import Loading, jsonl

KEYS = ("2026/a b+c%2F.jsonl", "2026/\u00e9\u4e00.jsonl", "2026/z.jsonl", "2025/old.jsonl")
NOW = datetime(2026, 11, 24, 1, 2, 3, 456000, UTC)


class Inventoried(Loading):
    """A bucket with objects, and a place for its inventories."""

    def __init__(self, stack: Stack, clickhouse: Any, s3: Any) -> None:
        super().__init__(stack, clickhouse, s3)
        self.place = unique("inventories")
        s3.create_bucket(Bucket=self.place)
        self.put({key: jsonl([{"n": n}]) for n, key in enumerate(KEYS)})

    @property
    def uri(self) -> str:
        """The folder of the inventories."""
        return f"s3://{self.place}/trips/daily/"

    def entries(self) -> list[Entry]:
        found = self.s3.list_objects_v2(Bucket=self.bucket)["Contents"]
        return [Entry(o["Key"], o["Size"], o["LastModified"], o["ETag"].strip('"')) for o in found]

    def inventory(self, form: str, *parts: list[Entry], fields: tuple[str, ...] = FIELDS) -> None:
        files = [file(form, self.bucket, part, fields) for part in parts]
        publish(self.s3, self.place, "trips/daily/", self.bucket, form, files, fields)

    def run(self, keys: str = "", uri: str = "") -> Any:
        transfer = self.transfer(keys)
        source = Source(self.bucket, keys, "storeside_s3", inventory=uri or self.uri)
        transfer = type(transfer)(
            type(transfer.request)(source, self.table, table_options=transfer.request.table_options),
            transfer.client, transfer.s3, transfer.run_id, ledger=transfer.loads.client,
        )  # fmt: skip
        report = transfer.run(transfer.prepare())
        self.check(report)
        return report


@pytest.fixture
def inventoried(stack: Stack, clickhouse: Any, s3_client: Any) -> Inventoried:
    return Inventoried(stack, clickhouse, s3_client)


@pytest.mark.parametrize("form", FORMATS)
def test_the_objects_of_an_inventory_are_loaded_once(inventoried: Inventoried, form: str) -> None:
    entries = inventoried.entries()
    inventoried.put({"2026/newer.jsonl": jsonl([{"n": 9}])})
    more = [
        Entry("2026/", 0, NOW, "e"),
        Entry("2026/x_$folder$", 0, NOW, "e"),
        Entry("2026/z.jsonl", 5, NOW, "old", is_latest=False),
        Entry("2026/deleted.jsonl", None, NOW, None, is_delete_marker=True),
    ]
    inventoried.inventory(form, entries[:2], entries[2:] + more)
    assert (inventoried.run("2026/").loaded, inventoried.rows()) == (3, [(0,), (1,), (2,)])
    again = inventoried.run()
    assert (again.listed, again.loaded, again.skipped) == (4, 1, 3)
    assert inventoried.rows() == [(n,) for n in range(4)]
    listed = inventoried.load()  # a listing has the newer object, and the same versions of the others
    assert (listed.loaded, listed.skipped) == (1, 4)


def test_objects_that_changed_since_fail_and_the_others_are_loaded(inventoried: Inventoried) -> None:
    inventoried.inventory("Parquet", inventoried.entries())
    inventoried.put({"2026/z.jsonl": jsonl([{"n": 50}])})
    inventoried.s3.delete_object(Bucket=inventoried.bucket, Key="2025/old.jsonl")
    report = inventoried.run()
    assert (report.loaded, report.failed) == (2, 2)
    assert {key for key, _ in report.failures} == {"2026/z.jsonl", "2025/old.jsonl"}
    assert inventoried.load().loaded == 1
    assert inventoried.rows() == [(0,), (1,), (50,)]


def test_the_newest_complete_inventory_is_used(inventoried: Inventoried) -> None:
    inventoried.inventory("CSV", inventoried.entries())
    inventoried.s3.put_object(Bucket=inventoried.place, Key="trips/daily/2026-11-25T01-00Z/manifest.json", Body=b"{")
    inventoried.s3.put_object(Bucket=inventoried.place, Key="trips/daily/hive/dt=2026-11-26/symlink.txt", Body=b"x")
    assert inventoried.run("2025/").loaded == 1
    assert inventoried.run(uri=f"{inventoried.uri}2026-11-24T01-00Z/manifest.json").loaded == 3


def _change(name: str, value: Any) -> Callable[[Inventoried], None]:
    def change(given: Inventoried) -> None:
        key = "trips/daily/2026-11-24T01-00Z/manifest"
        manifest = json.loads(given.s3.get_object(Bucket=given.place, Key=f"{key}.json")["Body"].read())
        body = json.dumps({**manifest, name: value}).encode()
        given.s3.put_object(Bucket=given.place, Key=f"{key}.json", Body=body)
        given.s3.put_object(Bucket=given.place, Key=f"{key}.checksum", Body=digest(body).encode())

    return change


def _spoil(suffix: str) -> Callable[[Inventoried], None]:
    def spoil(given: Inventoried) -> None:
        found = given.s3.list_objects_v2(Bucket=given.place)["Contents"]
        key = next(o["Key"] for o in found if suffix in o["Key"])
        given.s3.put_object(Bucket=given.place, Key=key, Body=b"spoilt")

    return spoil


def _delete(suffix: str) -> Callable[[Inventoried], None]:
    def delete(given: Inventoried) -> None:
        for o in given.s3.list_objects_v2(Bucket=given.place)["Contents"]:
            if suffix in o["Key"]:
                given.s3.delete_object(Bucket=given.place, Key=o["Key"])

    return delete


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_change("sourceBucket", "other"), "it lists the bucket other, not loading-"),
        (_change("fileFormat", "XML"), "unknown format 'XML'"),
        (
            _change("fileSchema", "Bucket, Key, Size"),
            "it lacks LastModifiedDate, ETag: add Size, Last",
        ),
        (_change("fileSchema", "Key, Size, LastModifiedDate, ETag"), "it does not have the columns of the manifest"),
        (_change("files", None), "it is not a manifest of S3 Inventory"),
        (_change("creationTimestamp", "yesterday"), "it is not a manifest of S3 Inventory"),
        (_change("files", [{"key": "none", "MD5checksum": "x"}]), "none: it was deleted"),
        (_spoil("/data/"), "its MD5 digest is not that of the manifest"),
        (_spoil("manifest.json"), "manifest.checksum differs"),
        (_delete("manifest"), "it has no folder such as 2026-01-01T01-00Z/ with a manifest"),
    ],
)
def test_an_invalid_inventory_is_refused_before_anything_is_loaded(
    inventoried: Inventoried, spoil: Callable[[Inventoried], None], error: str
) -> None:
    inventoried.inventory("CSV", inventoried.entries())
    spoil(inventoried)
    with pytest.raises(TransferInputError, match=error):
        inventoried.run()
    assert inventoried.ledger() == {}


@pytest.mark.parametrize("form", FORMATS)
def test_times_and_sizes_are_those_of_listings(inventoried: Inventoried, form: str) -> None:
    inventoried.inventory(form, [Entry("a", 2**40, NOW, "e-12")])
    (batch,) = Inventory.find(inventoried.s3, inventoried.uri, inventoried.bucket).read(inventoried.s3, "")
    (row,) = batch.to_pylist()
    assert (row["key"], row["size"], row["etag"]) == ("a", 2**40, "e-12")
    assert datetime.fromisoformat(row["modified"]).replace(microsecond=0) == NOW.replace(microsecond=0)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"bucket": "ais://trips", "inventory": "s3://inventories/"}, "only S3 has inventories"),
        ({"bucket": "trips", "inventory": "ais://inventories/"}, "only S3 has inventories"),
        ({"bucket": "trips", "inventory": "inventories"}, "inventory 'inventories': write s3://bucket/prefix"),
    ],
)
def test_an_inventory_is_one_of_s3(given: dict[str, str], error: str) -> None:
    with pytest.raises(TransferInputError, match=error):
        Source(**given)  # type: ignore[arg-type]
