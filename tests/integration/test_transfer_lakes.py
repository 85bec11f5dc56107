"""Loads of snapshots of Iceberg and Delta tables, which pyiceberg, deltalake and ClickHouse write into S3."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.types import DoubleType

from storeside.operators import S3ToClickHouseOperator
from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from storeside.transfer.__main__ import main as command
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.lakes import snapshots
from storeside.transfer.publish.mirror import Mirror
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from storeside.transfer.state import lock
from tests.integration.test_transfer_crashes import dies
from tests.support import task_context, unique
from tests.transfers import Loading, jsonl, request_of

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.table import Table
    from types_boto3_s3 import S3Client


class Lake(Loading):
    """A bucket with one table of a lake, and a table of ClickHouse."""

    folder = "sales/orders/"
    form = ""

    def rows_of(self, *numbers: int) -> pa.Table:
        return pa.table({"n": pa.array(numbers, pa.int64()), "city": [f"city {n % 3}" for n in numbers]})

    def transfer(self, keys: str = "", *, snapshot: str = "", **options: Any) -> Transfer:
        keys, given = keys or self.folder, {"format": self.form, **options}
        made = super().transfer(keys)
        source = Source(self.bucket, keys, "storeside_s3", snapshot=snapshot)
        return Transfer(
            request_of(source, self.table, **given), made.client, made.s3, made.run_id, ledger=made.loads.client
        )

    def numbers(self) -> list[int]:
        return [n for (n,) in self.rows("n")]

    def write(self, *numbers: int) -> None:
        raise NotImplementedError

    def delete(self, condition: str) -> None:
        """Delete rows by rewriting their files."""
        raise NotImplementedError

    def compact(self) -> None:
        """Replace all files by one with the same rows."""
        raise NotImplementedError

    def widen(self) -> None:
        """Replace all files by one that also has the column `price`."""
        raise NotImplementedError

    def current(self) -> str:
        raise NotImplementedError


class Iceberg(Lake):
    form = "iceberg"

    def __init__(self, stack: Stack, clickhouse: Any, client: S3Client) -> None:
        from pyiceberg.catalog.memory import InMemoryCatalog

        super().__init__(stack, clickhouse, client)
        access, secret = s3.keys(stack)
        self.catalog = InMemoryCatalog(
            unique("catalog"),
            **{
                "warehouse": f"s3://{self.bucket}", "s3.endpoint": stack.url("s3"), "s3.access-key-id": access,
                "s3.secret-access-key": secret, "s3.region": s3.REGION,
            },
        )  # fmt: skip
        self.catalog.create_namespace("sales")

    @property
    def lake(self) -> Table:
        return self.catalog.load_table("sales.orders")

    def start(self, schema: pa.Schema, **options: Any) -> Table:
        return self.catalog.create_table(
            "sales.orders", schema, location=f"s3://{self.bucket}/{self.folder}".rstrip("/"), **options
        )

    def write(self, *numbers: int) -> None:
        rows = self.rows_of(*numbers)
        if not self.catalog.table_exists("sales.orders"):
            self.start(rows.schema)
        self.lake.append(rows)

    def delete(self, condition: str) -> None:
        self.lake.delete(condition)

    def compact(self) -> None:
        self.lake.overwrite(self.lake.scan().to_arrow())

    def widen(self) -> None:
        with self.lake.update_schema() as change:
            change.add_column("price", DoubleType())
        self.compact()

    def current(self) -> str:
        found = self.lake.current_snapshot()
        assert found
        return str(found.snapshot_id)


class Delta(Lake):
    form = "delta"

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.folder}"

    @property
    def options(self) -> dict[str, str]:
        access, secret = s3.keys(self.stack)
        return {
            "AWS_ENDPOINT_URL": self.stack.url("s3"), "AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": s3.REGION, "AWS_ALLOW_HTTP": "true", "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        }  # fmt: skip

    @property
    def lake(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.uri, storage_options=self.options)

    def append(self, rows: pa.Table, **options: Any) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.uri, rows, mode="append", storage_options=self.options, **options)

    def write(self, *numbers: int) -> None:
        self.append(self.rows_of(*numbers))

    def delete(self, condition: str) -> None:
        self.lake.delete(condition)

    def compact(self) -> None:
        self.lake.optimize.compact()

    def widen(self) -> None:
        from deltalake import write_deltalake

        rows = self.lake.to_pyarrow_table()
        rows = rows.append_column("price", pa.nulls(len(rows), pa.float64()))
        write_deltalake(self.uri, rows, mode="overwrite", schema_mode="overwrite", storage_options=self.options)

    def current(self) -> str:
        return str(self.lake.version())


@pytest.fixture
def iceberg(stack: Stack, clickhouse: Any, s3_client: S3Client) -> Iceberg:
    return Iceberg(stack, clickhouse, s3_client)


@pytest.fixture
def delta(stack: Stack, clickhouse: Any, s3_client: S3Client) -> Delta:
    return Delta(stack, clickhouse, s3_client)


@pytest.fixture(params=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest) -> Lake:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_each_snapshot_of_a_growing_table_is_loaded_once(lake: Lake, loader: str) -> None:
    lake.write(1, 2, 3)
    first = lake.load(loader=loader)
    assert (first.loaded, first.rows, first.snapshot) == (1, 3, lake.current())
    assert lake.types() == {"n": "Nullable(Int64)", "city": "Nullable(String)"}
    assert lake.load(loader=loader).loaded == 0
    lake.write(4, 5)
    second = lake.load(loader=loader)
    assert (second.listed, second.skipped, second.loaded, second.rows) == (2, 1, 1, 2)
    assert lake.rows() == [(n, f"city {n % 3}") for n in range(1, 6)]
    assert lake.load(on_overwrite="replace").removed == 0
    assert lake.numbers() == [1, 2, 3, 4, 5]


def test_rows_that_left_the_table_leave_clickhouse_too(lake: Lake) -> None:
    lake.write(1, 2, 3)
    lake.write(4, 5, 6)
    lake.load()
    old = lake.current()
    lake.delete("n = 5")
    with pytest.raises(TransferInputError, match=r"1 files that are loaded.*use on_overwrite='replace'"):
        lake.load()
    assert lake.numbers() == [1, 2, 3, 4, 5, 6]
    report = lake.load(on_overwrite="replace")
    assert (report.loaded, report.removed, lake.numbers()) == (1, 1, [1, 2, 3, 4, 6])
    lake.compact()
    report = lake.load(on_overwrite="replace")
    assert (report.loaded, report.removed, lake.numbers()) == (1, 2, [1, 2, 3, 4, 6])
    report = lake.load(on_overwrite="replace", snapshot=old)  # back in time
    assert (report.snapshot, lake.numbers()) == (old, [1, 2, 3, 4, 5, 6])
    lake.delete("n > 0")
    report = lake.load(on_overwrite="replace")
    assert (report.listed, lake.numbers()) == (0, [])


def test_old_rows_stay_if_no_new_file_can_be_loaded(lake: Lake) -> None:
    lake.write(1, 2, 3)
    lake.write(4, 5)
    lake.load()
    lake.widen()
    for _ in range(2):
        with pytest.raises(TransferInputError, match=r"1 object cannot be loaded, so none is: .*price"):
            lake.load(on_overwrite="replace")
        assert lake.numbers() == [1, 2, 3, 4, 5]
    report = lake.load(on_overwrite="replace", on_drift="add")
    assert (report.loaded, report.removed, lake.numbers()) == (1, 2, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("noticed", ["at once", "when files are removed"])
def test_old_rows_stay_if_the_plan_of_new_files_is_lost(delta: Delta, noticed: str) -> None:
    delta.write(1, 2)
    delta.load()
    delta.delete("n = 1")
    transfer = delta.transfer(on_overwrite="replace")
    prepared = transfer.prepare()
    transfer.plan.forget("load_plan")
    said = "another process has ended this load"
    if noticed != "at once":
        transfer.loads.last_totals = lambda planned: transfer.loads.totals()  # type: ignore[method-assign]
        said = r"1 files of the snapshot are not loaded into .*such as"
    with pytest.raises(TransferTransientError, match=said):
        transfer.run(prepared)
    assert delta.numbers() == [1, 2]
    assert (delta.load(on_overwrite="replace").removed, delta.numbers()) == (1, [2])


def test_a_snapshot_of_too_many_files_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_FILES", 2)
    lake.write(1)
    lake.write(2)
    assert lake.load().loaded == 2
    lake.write(3)
    with pytest.raises(
        TransferInputError, match=rf"snapshot {lake.current()} has 3 files, over 2: compact the table"
    ):
        lake.load()
    # an older version of Iceberg's format requires no numbers in the list of manifests
    monkeypatch.setattr(ManifestFile, "added_files_count", None)
    with pytest.raises(TransferInputError, match="has 3 files, over 2: compact the table"):
        lake.load()


def test_a_snapshot_of_too_many_files_is_refused_before_they_are_in_memory(
    iceberg: Iceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifests, which have all entries, are not even there; only their list is."""
    monkeypatch.setattr(snapshots, "MOST_FILES", 2)
    for n in range(3):
        iceberg.write(n)
    snapshot = iceberg.lake.current_snapshot()
    assert snapshot
    for manifest in snapshot.manifests(iceberg.lake.io):
        key = manifest.manifest_path.removeprefix(f"s3://{iceberg.bucket}/")
        iceberg.s3.delete_object(Bucket=iceberg.bucket, Key=key)
    with pytest.raises(TransferInputError, match="has 3 files, over 2: compact the table"):
        iceberg.load()


def test_a_run_that_was_overtaken_by_a_newer_snapshot_publishes_and_removes_nothing(iceberg: Iceberg) -> None:
    iceberg.write(1, 2, 3)
    late = iceberg.transfer(on_overwrite="replace")
    prepared = late.prepare()
    iceberg.delete("n = 2")
    iceberg.load(on_overwrite="replace")
    with pytest.raises(TransferTransientError, match="another run has loaded another state"):
        late.run(prepared)
    assert iceberg.numbers() == [1, 3]
    assert iceberg.load(on_overwrite="replace").loaded == 0


def test_a_plan_that_lost_its_files_removes_no_rows(delta: Delta) -> None:
    delta.write(1, 2)
    delta.load()
    transfer = delta.transfer(on_overwrite="replace")
    prepared = transfer.prepare()
    transfer.plan.forget("load_listings")
    with pytest.raises(TransferTransientError, match=r"the plan of .* has 0 of 1 files"):
        transfer.run(prepared)
    assert delta.numbers() == [1, 2]


def test_a_removal_that_was_interrupted_is_no_load_of_another_snapshot(delta: Delta) -> None:
    delta.write(1, 2)
    delta.load()
    delta.delete("n = 1")
    killed = delta.transfer(on_overwrite="replace")
    prepared = killed.prepare()
    gone = Mirror(killed.loads, prepared.listed, prepared.since).gone()
    killed.loads.record(gone, "publishing")
    killed.sweep()
    report = delta.load(on_overwrite="replace")
    assert (report.loaded, report.removed, delta.numbers()) == (1, 1, [2])


@pytest.mark.parametrize("step", [25, pytest.param(1, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])
def test_a_crash_after_any_statement(delta: Delta, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A run that replaces a snapshot by the next one is killed, and repeated; then the table goes back in time."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    delta.write(1, 2, 3)
    delta.write(4, 5)
    delta.delete("n = 2")
    delta.compact()
    source = Source(delta.bucket, delta.folder, "storeside_s3")
    survived, is_killed = step // 2, True
    while is_killed:
        delta.load(on_overwrite="replace", snapshot="1")
        assert delta.numbers() == [1, 2, 3, 4, 5]
        newest = request_of(source, delta.table, "delta", on_overwrite="replace")
        is_killed = dies(delta, newest, delta.s3, survived)
        assert delta.numbers() == [1, 3, 4, 5], survived
        survived += step
    assert survived > 30


def test_row_level_deletes_of_clickhouse_are_applied(iceberg: Iceberg) -> None:
    """pyiceberg writes no row-level deletes; `test_transfer_iceberg` has those of Iceberg itself."""
    access, secret = s3.keys(iceberg.stack)
    place = f"'{iceberg.stack.url('s3')}/{iceberg.bucket}/{iceberg.folder}', '{access}', '{secret}'"
    table, settings = f"{iceberg.table}_lake", {"allow_insert_into_iceberg": 1}
    iceberg.clickhouse.command(f"CREATE TABLE {table} (n Int64) ENGINE = IcebergS3({place})", settings=settings)
    iceberg.clickhouse.command(f"INSERT INTO {table} VALUES (1), (2), (3)", settings=settings)
    assert iceberg.load().loaded == 1
    iceberg.clickhouse.command(f"ALTER TABLE {table} DELETE WHERE n = 2", settings=settings)
    report = iceberg.load(on_overwrite="replace")
    assert (report.loaded, report.rows, iceberg.numbers()) == (1, 2, [1, 3])


def test_columns_follow_iceberg(iceberg: Iceberg) -> None:
    iceberg.write(1, 2)
    iceberg.load()
    with iceberg.lake.update_schema() as change:
        change.add_column("price", DoubleType())
    iceberg.lake.append(pa.table({"n": [3], "city": ["c"], "price": [1.5]}))
    assert iceberg.load(on_drift="add").rows == 1
    assert iceberg.rows("n, price") == [(1, None), (2, None), (3, 1.5)]
    with iceberg.lake.update_schema() as change:
        change.rename_column("city", "town")
    with pytest.raises(TransferInputError, match=r"2 files that are loaded.*use on_overwrite='replace'"):
        iceberg.load()
    report = iceberg.load(on_overwrite="replace", on_drift="add")
    assert (report.loaded, iceberg.rows("n, town")[2]) == (2, (3, "c"))
    iceberg.compact()
    report = iceberg.load(on_overwrite="replace", on_drift="add")
    assert (report.loaded, report.removed, iceberg.rows("n, town")[2]) == (1, 2, (3, "c"))


def test_an_ambiguous_or_damaged_iceberg_table_is_refused(iceberg: Iceberg) -> None:
    with pytest.raises(TransferInputError, match="there is no Iceberg table"):
        iceberg.load()
    iceberg.write(1)
    place = iceberg.lake.metadata_location
    fork = f"{iceberg.folder}metadata/00001-abandoned.metadata.json"
    iceberg.put({fork: b"{}"})
    with pytest.raises(TransferInputError, match=r"have the same version.*metadata_location"):
        iceberg.load()
    with pytest.raises(TransferInputError, match="cannot be read as Iceberg's metadata"):
        iceberg.load(snapshot=f"s3://{iceberg.bucket}/{fork}")
    iceberg.s3.delete_object(Bucket=iceberg.bucket, Key=fork)
    with pytest.raises(TransferInputError, match=r"it has no snapshot 5; the newest are \d+"):
        iceberg.load(snapshot="5")
    (file,) = (task.file for task in iceberg.lake.scan().plan_files())
    key = file.file_path.removeprefix(f"s3://{iceberg.bucket}/")
    iceberg.put({key: b"other"})
    with pytest.raises(TransferInputError, match=r"has 5 bytes, but snapshot \d+ states"):
        iceberg.load(snapshot=place)
    iceberg.s3.delete_object(Bucket=iceberg.bucket, Key=key)
    with pytest.raises(TransferInputError, match=r"1 files of snapshot \d+ are missing"):
        iceberg.load()


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_partition_columns_of_delta_come_from_the_log(delta: Delta, loader: str) -> None:
    cities = ["a b", "ü/é", "50%", "x=y", "+", None]
    rows = pa.table({
        "n": range(6), "city": cities, "day": pa.array([0, 1, 2, 3, 4, None], pa.date32()), "code": [7] * 6,
    })  # fmt: skip
    delta.append(rows, partition_by=["city", "day", "code"])
    assert delta.load(loader=loader).loaded == 6
    assert [city for _, city in delta.rows("n, city")] == cities
    assert delta.types() == {
        "n": "Nullable(Int64)", "city": "Nullable(String)", "day": "Nullable(Date32)", "code": "Nullable(Int64)",
    }  # fmt: skip
    assert delta.query(f"SELECT countIf(code = 7), toString(min(day)) FROM {delta.table}") == [(6, "1970-01-01")]
    assert delta.load(loader=loader).loaded == 0
    delta.append(rows.set_column(1, "city", pa.array([""] * 6)))
    with pytest.raises(TransferInputError, match="the log states None for the column 'city', but the key ''"):
        delta.load(loader=loader)


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_partition_columns_of_delta_may_be_timestamps_and_numbers_with_fractions(delta: Delta, loader: str) -> None:
    moments = [datetime(2024, 1, 2, 3, 4, 5, 120_000, UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), None]
    prices, ratios = [Decimal("1.25"), Decimal("-3.00"), None], [0.1, -2.5, None]
    rows = pa.table({
        "n": range(3), "at": pa.array(moments, pa.timestamp("us", "UTC")),
        "price": pa.array(prices, pa.decimal128(10, 2)), "ratio": pa.array(ratios, pa.float64()),
    })  # fmt: skip
    delta.append(rows, partition_by=["at", "price", "ratio"])
    assert delta.load(loader=loader).loaded == 3
    assert delta.types() == {
        "n": "Nullable(Int64)", "at": "Nullable(DateTime64(6, 'UTC'))", "price": "Nullable(Decimal(10, 2))",
        "ratio": "Nullable(Float64)",
    }  # fmt: skip
    assert delta.rows("n, toUnixTimestamp64Micro(at), price, ratio") == [
        (n, at and int(at.timestamp() * 1_000_000), price, ratio)
        for n, (at, price, ratio) in enumerate(zip(moments, prices, ratios, strict=True))
    ]
    delta.query(f"ALTER TABLE {delta.table} MODIFY COLUMN at Nullable(DateTime64(6, 'Europe/Berlin'))")
    with pytest.raises(TransferInputError, match=r"the keys have timestamps in UTC: make it DateTime64\(6, 'UTC'\)"):
        delta.load(loader=loader)


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_columns_that_the_schema_of_delta_lacks_are_ignored(delta: Delta, loader: str) -> None:
    """Writers of change data add `_change_type` to files."""
    import pyarrow.parquet as pq

    delta.write(1)
    content = io.BytesIO()
    pq.write_table(delta.rows_of(2).append_column("_change_type", pa.array(["insert"])), content)
    key, size = "cdc.parquet", len(content.getvalue())
    delta.put({f"{delta.folder}{key}": content.getvalue()})
    add = {"path": key, "size": size, "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    commit(delta, 1, {"add": add})
    assert delta.load(loader=loader).rows == 2
    assert delta.rows() == [(1, "city 1"), (2, "city 2")]
    assert delta.load(loader=loader, on_drift="add").loaded == 0
    assert list(delta.types()) == ["n", "city"]


def test_a_version_without_files_creates_its_table(delta: Delta) -> None:
    from deltalake import DeltaTable

    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    DeltaTable.create(delta.uri, schema, partition_by=["at"], storage_options=delta.options)
    assert (delta.load().listed, delta.rows()) == (0, [])
    assert delta.types() == {"n": "Nullable(Int64)", "at": "Nullable(DateTime64(6, 'UTC'))"}
    assert delta.load(on_overwrite="replace").loaded == 0
    delta.append(pa.table({"n": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))}))
    assert delta.load().rows == 1


def test_a_log_is_read_from_its_last_checkpoint(delta: Delta) -> None:
    for n in range(4):
        delta.write(n)
    delta.lake.create_checkpoint()
    delta.write(4)
    for n in range(3):
        delta.s3.delete_object(Bucket=delta.bucket, Key=f"{delta.folder}_delta_log/{n:020}.json")
    assert (delta.load().snapshot, delta.numbers()) == ("4", [0, 1, 2, 3, 4])
    assert (delta.load(on_overwrite="replace", snapshot="3").removed, delta.numbers()) == (1, [0, 1, 2, 3])
    with pytest.raises(TransferInputError, match="it has no version 1; its log has 3 to 4"):
        delta.load(snapshot="1")


def test_a_checkpoint_with_sidecars_is_read(delta: Delta) -> None:
    """Its files have the names that Spark gives them: deltalake writes no checkpoint with sidecars."""
    import pyarrow.parquet as pq

    for n in range(3):
        delta.write(n)
    delta.lake.create_checkpoint()
    log, version, uuid = f"{delta.folder}_delta_log/", f"{2:020}", "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
    classic = f"{log}{version}.checkpoint.parquet"
    content = io.BytesIO(delta.s3.get_object(Bucket=delta.bucket, Key=classic)["Body"].read())
    files = pq.read_table(content, columns=["add", "remove"])
    (metadata,) = (row for row in pq.read_table(content, columns=["metaData"])["metaData"].to_pylist() if row)
    sidecar = io.BytesIO()
    pq.write_table(files.filter(pa.compute.is_valid(files["add"])), sidecar)
    name = f"{version}.checkpoint.{1:010}.{1:010}.{uuid}.parquet"
    stated = {"path": name, "sizeInBytes": len(sidecar.getvalue()), "modificationTime": 0}
    features = {"readerFeatures": ["v2Checkpoint"], "writerFeatures": ["v2Checkpoint"]}
    actions = [
        {"checkpointMetadata": {"version": 2}}, {"sidecar": stated},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"metaData": {**metadata, "format": {"provider": "parquet", "options": {}}, "configuration": {}}},
    ]  # fmt: skip
    delta.put({
        f"{log}_sidecars/{name}": sidecar.getvalue(), f"{log}{version}.checkpoint.{uuid}.json": jsonl(actions),
    })  # fmt: skip
    for key in (classic, f"{log}_last_checkpoint", *(f"{log}{n:020}.json" for n in range(2))):
        delta.s3.delete_object(Bucket=delta.bucket, Key=key)
    assert (delta.load().snapshot, delta.numbers()) == ("2", [0, 1, 2])


def commit(delta: Delta, version: int, *actions: dict[str, Any]) -> None:
    delta.put({f"{delta.folder}_delta_log/{version:020}.json": jsonl(actions)})


def test_delta_tables_whose_files_do_not_show_their_rows_are_refused(delta: Delta) -> None:
    with pytest.raises(TransferInputError, match="there is no Delta table"):
        delta.load()
    delta.write(1, 2)
    first = delta.s3.get_object(Bucket=delta.bucket, Key=f"{delta.folder}_delta_log/{0:020}.json")["Body"].read()
    actions = [json.loads(line) for line in first.splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)

    def protocol(*features: str) -> dict[str, Any]:
        names = {"readerFeatures": [*features], "writerFeatures": [*features]}
        return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **names}}

    commit(delta, 1, protocol("deletionVectors"))
    assert delta.load().rows == 2  # the table may have deletion vectors, but no file has one
    place = {"pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
    vector = {"storageType": "u", "cardinality": 1, **place}
    commit(delta, 2, {"add": {**add, "deletionVector": vector}})
    with pytest.raises(TransferInputError, match="version 2 has deletion vectors"):
        delta.load()
    schema = json.loads(metadata["schemaString"])
    for n, field in enumerate(schema["fields"]):
        field["metadata"] = {"delta.columnMapping.id": n, "delta.columnMapping.physicalName": f"col-{n}"}
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    mapped = {**metadata, "configuration": mapping, "schemaString": json.dumps(schema)}
    commit(delta, 2, {"metaData": mapped}, protocol("columnMapping"))
    with pytest.raises(TransferInputError, match=r"columnMapping.mode is 'name'"):
        delta.load()
    commit(delta, 2, protocol("catalogManaged"))
    with pytest.raises(TransferInputError):
        delta.load()
    commit(delta, 2, {"add": {**add, "path": f"s3://elsewhere/{add['path']}"}})
    with pytest.raises(TransferInputError, match="outside the table's folder"):
        delta.load()
    assert delta.numbers() == [1, 2]


def test_options_that_do_not_fit_a_table_are_refused() -> None:
    source = Source("lake", "sales/orders")
    assert request_of(source, "data.t", "delta").source.keys == "sales/orders/"
    for options, message in (
        ({"after_load": AfterLoad("delete")}, "after_load: format 'delta' reads the table's metadata"),
        ({"overlap_seconds": 5.0}, "overlap_seconds: format 'delta'"),
        ({"source": Source("lake", "sales/*")}, "write the folder of one table"),
        ({"source": Source("ais://lake")}, "only S3 has such sources"),
        ({"source": Source("lake", snapshot="yesterday")}, "write a snapshot's id or a version"),
        ({"format": "csv", "source": Source("lake", snapshot="1")}, "set format to iceberg or delta"),
    ):
        given = {"source": source, "format": "delta", **options}
        with pytest.raises(TransferInputError, match=re.escape(message)):
            request_of(given.pop("source"), "data.t", given.pop("format"), **given)


def test_the_command_and_the_operator_load_tables(
    lake: Lake, connections: None, capsys: Any, monkeypatch: Any
) -> None:
    lake.write(1, 2)
    for name, value in lake.variables().items():
        monkeypatch.setenv(name, value)
    uri, old = f"s3://{lake.bucket}/{lake.folder}", lake.current()
    arguments = [uri, lake.table, "--format", lake.form, "--on-overwrite", "replace", "--collection", "storeside_s3"]
    assert command([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["snapshot"] == old
    lake.delete("n = 2")
    operator = S3ToClickHouseOperator(
        task_id="load", source=uri.rstrip("/"), table=lake.table, format=lake.form, on_overwrite="replace",
        deferrable=False,
    )  # fmt: skip
    report = operator.execute(task_context())
    assert (report["snapshot"], report["removed"], lake.numbers()) == (lake.current(), 1, [1])
    assert command([*arguments, "--snapshot", old]) == 0
    assert lake.numbers() == [1, 2]
