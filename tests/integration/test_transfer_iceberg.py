"""Loads of tables that Iceberg's own implementation writes: row-level deletes, and columns by field id.

That implementation also reads each snapshot, and the table in ClickHouse must have the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.servers import s3
from storeside.stack.settings import Stack, default_folder
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.lakes.snapshots import catalog_of
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Report, Transfer
from storeside.transfer.state import lock
from tests import java_iceberg, maven
from tests.integration.test_transfer_crashes import dies
from tests.transfers import Loading, request_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

URI = "iceberg://lakehouse/sales.orders"
TABLE = "sales.orders"
COLUMNS = {"n": "long", "city": "string", "price": "decimal(9, 2)"}


@pytest.fixture(scope="module")
def java(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Iceberg's program, with the address of its catalogue's database."""
    if absent := maven.missing():
        pytest.skip(f"{absent} is not installed")
    folder = tmp_path_factory.mktemp("iceberg")
    access, secret = s3.keys(stack)
    properties = {
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}", "warehouse": "s3://unused",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint": stack.url("s3"),
        "s3.access-key-id": access, "s3.secret-access-key": secret, "s3.path-style-access": "true",
        "client.region": s3.REGION, "http-client.type": "urlconnection",
    }  # fmt: skip
    with java_iceberg.run(default_folder() / "cache" / "bench", "lakehouse", properties, folder / "log") as running:
        yield running, f"sqlite:///{folder / 'catalog.db'}"


class Orders(Loading):
    """A table of Iceberg, and its mirror in ClickHouse."""

    folder = "sales/orders/"

    def __init__(self, stack: Stack, clickhouse: Any, client: S3Client, java: Any) -> None:
        super().__init__(stack, clickhouse, client)
        self.java, self.uri = java
        self.name = f"sales.{self.table.partition('.')[2]}"
        self.files: list[str] = []

    def do(self, command: str, **given: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.java.do(command, self.name, **given)
        return answer

    def start(self, version: int = 2, by: tuple[str, ...] = (), columns: dict[str, str] = COLUMNS) -> None:
        fields = [
            {"id": n, "name": name, "required": False, "type": kind}
            for n, (name, kind) in enumerate(columns.items(), 1)
        ]
        schema = {"type": "struct", "schema-id": 0, "fields": fields}
        self.do(
            "create", version=version, by=by, schema=schema, location=f"s3://{self.bucket}/{self.folder}".rstrip("/")
        )

    def append(self, *rows: dict[str, Any], **given: Any) -> str:
        self.files.append(self.do("append", rows=rows, **given)["file"])
        return self.files[-1]

    def delete(self, kind: str, *places: tuple[str, int]) -> None:
        """Delete rows by the numbers of rows of files: with a file of positions, or with deletion vectors."""
        self.do(kind, deletes=[{"file": file, "position": position} for file, position in sorted(places)])

    def transfer(self, keys: str = "", **options: Any) -> Transfer:
        made = super().transfer(self.folder)
        catalogued = f"iceberg://lakehouse/{self.name}"
        catalog = catalog_of(catalogued, {"type": "sql", "uri": self.uri})
        source = Source(self.bucket, self.folder, "storeside_s3", catalogued=catalogued)
        given = {"on_overwrite": "replace", **options}
        return Transfer(
            request_of(source, self.table, **given), made.client, made.s3, made.run_id,
            ledger=made.loads.client, catalog=catalog,
        )  # fmt: skip

    def expected(self) -> list[tuple[str | None, ...]]:
        """Return the rows that Iceberg's own reader finds, as texts."""
        return sorted((tuple(row) for row in self.do("read")["rows"]), key=repr)

    def found(self, columns: str = "n, city, price") -> list[tuple[str | None, ...]]:
        texts = ", ".join(f"toString({name.strip()})" for name in columns.split(","))
        return sorted(self.rows(texts), key=repr)

    def numbers(self) -> list[int]:
        return [n for (n,) in self.rows("n")]

    def mirror(self, columns: str = "n, city, price", **options: Any) -> Report:
        """Load the current snapshot, and compare; a second load finds nothing to do."""
        report = self.load(**options)
        assert self.found(columns) == self.expected()
        again = self.load(**options)
        assert (again.loaded, again.removed) == (0, 0)
        return report


@pytest.fixture
def orders(stack: Stack, clickhouse: Any, s3_client: S3Client, java: Any) -> Orders:
    return Orders(stack, clickhouse, s3_client, java)


def row(n: int, city: str | None = "Köln", price: str | None = "1.25") -> dict[str, Any]:
    return {"n": n, "city": city, "price": price}


@pytest.mark.parametrize(("version", "kind"), [(2, "positions"), (3, "vector")])
@pytest.mark.parametrize("loader", ["pull", "push"])
def test_deletes_by_position_remove_exactly_their_rows(orders: Orders, version: int, kind: str, loader: str) -> None:
    orders.start(version)
    first = orders.append(*(row(n) for n in range(10)))
    second = orders.append(*(row(n) for n in range(10, 20)))
    assert orders.mirror(loader=loader).rows == 20
    orders.delete(kind, (first, 0), (first, 9))
    report = orders.mirror(loader=loader)
    assert (report.loaded, report.rows) == (1, 8)
    orders.delete(kind, (first, 4), (second, 5))  # one file of positions for two data files
    report = orders.mirror(loader=loader)
    assert (report.loaded, len(orders.found())) == (2, 16)
    orders.delete(kind, *((second, n) for n in range(10)))
    orders.append(row(99))
    orders.mirror(loader=loader)
    assert orders.numbers() == [1, 2, 3, 5, 6, 7, 8, 99]


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_by_values_remove_older_rows_only(orders: Orders, version: int) -> None:
    orders.start(version)
    orders.append(row(1), row(2, None), row(3, "Bonn"), row(4, "Bonn", None), row(5, None, None))
    orders.do("equality", columns=["city"], rows=[{"city": "Bonn"}, {"city": None}])
    orders.append(row(6, "Bonn"), row(7, None))
    orders.mirror()
    assert orders.numbers() == [1, 6, 7]
    orders.do("equality", columns=["city", "price"], rows=[{"city": None, "price": "1.25"}, {"city": "Köln"}])
    orders.mirror()
    assert orders.numbers() == [1, 6]
    orders.do("equality", columns=["n"], rows=[{"n": n} for n in range(100)])
    orders.mirror()
    assert orders.numbers() == []


def test_deletes_belong_to_a_partition_unless_their_spec_has_none(orders: Orders) -> None:
    orders.start()
    orders.append(row(1), row(2, "Bonn"))
    orders.do("partition", column="city")
    bonn = orders.append(row(1, "Bonn"), row(3, "Bonn"))
    orders.append(row(1, "Köln"), row(3, "Köln"))
    orders.do("equality", columns=["n"], rows=[{"n": 3}], **{"in": row(0, "Bonn")})
    orders.mirror()
    assert orders.found("n, city") == [("1", "Bonn"), ("1", "Köln"), ("1", "Köln"), ("2", "Bonn"), ("3", "Köln")]
    orders.delete("positions", (bonn, 0))
    orders.mirror()
    orders.do("equality", columns=["n"], rows=[{"n": 1}], spec=0)
    orders.mirror()
    assert orders.found("n, city") == [("2", "Bonn"), ("3", "Köln")]


def test_a_snapshot_with_deletes_is_not_appended(orders: Orders) -> None:
    orders.start()
    first = orders.append(row(1), row(2))
    orders.load()
    orders.delete("positions", (first, 0))
    with pytest.raises(TransferInputError, match=r"1 files that are loaded.*use on_overwrite='replace'"):
        orders.load(on_overwrite="append")
    assert orders.numbers() == [1, 2]


def test_renamed_widened_and_new_columns_are_found_by_their_ids(orders: Orders) -> None:
    orders.start(columns={"n": "int", "city": "string", "price": "decimal(9, 2)", "share": "float"})
    orders.append({**row(1), "share": 0.5}, {**row(2, None), "share": None})
    orders.load()
    orders.do("change", changes=[["rename", "city", "town"], ["add", "open", "date"]])
    orders.append({"n": 3, "town": "Bonn", "price": "2.25", "share": 1.5, "open": "2024-01-02"})
    orders.mirror("n, town, price, share, open", on_drift="widen")
    orders.do(
        "change", changes=[["widen", "n", "long"], ["widen", "share", "double"], ["widen", "price", "decimal(12, 2)"]]
    )
    orders.append({"n": 1 << 40, "town": "Ulm", "price": "1234567890.12", "share": 2.25, "open": None})
    orders.mirror("n, town, price, share, open", on_drift="widen")
    assert ("1", "Köln", "1.25", "0.5", None) in orders.found("n, town, price, share, open")


def test_a_column_that_was_dropped_and_made_again_is_null_in_older_files(orders: Orders) -> None:
    orders.start()
    first = orders.append(row(1, "Köln"), row(2, "Bonn"))
    orders.do("change", changes=[["drop", "city"]])
    orders.do("change", changes=[["add", "city", "string"]])
    orders.append(row(3, "Ulm"))
    stale = orders.append(row(4, "old"), row(5, "old"), schema=0)  # its writer began before the change
    orders.mirror("n, price, city")
    assert orders.found("n, city") == [("1", None), ("2", None), ("3", "Ulm"), ("4", None), ("5", None)]
    orders.delete("positions", (first, 1), (stale, 0))
    orders.mirror("n, price, city")
    orders.do("equality", columns=["city"], rows=[{"city": None}])
    orders.mirror("n, price, city")
    assert orders.numbers() == [3]


def test_a_new_column_has_its_initial_default_in_older_files(orders: Orders) -> None:
    orders.start(3)
    orders.append(row(1))
    orders.do("change", changes=[["default", "land", "string", "DE"]])
    orders.append({**row(2), "land": None})
    orders.mirror("n, city, price, land")
    assert orders.found("n, land") == [("1", "DE"), ("2", None)]


def test_the_schema_of_a_file_that_the_table_has_forgotten_is_in_its_footer(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storeside.transfer.lakes import iceberg
    from storeside.transfer.lakes.fields import Fields

    orders.start()
    orders.append(row(1))
    orders.do("change", changes=[["rename", "city", "town"]])
    monkeypatch.setattr(iceberg, "_fields", lambda metadata, schema: Fields(schema))
    with pytest.raises(TransferInputError, match="has columns under other names than the table"):
        orders.load()


def test_a_damaged_deletion_vector_refuses_the_load(orders: Orders) -> None:
    orders.start(3)
    first = orders.append(*(row(n) for n in range(5)))
    orders.load()
    orders.delete("vector", (first, 2))
    (key,) = (
        o["Key"] for o in orders.s3.list_objects_v2(Bucket=orders.bucket)["Contents"] if o["Key"].endswith("puffin")
    )
    content = orders.s3.get_object(Bucket=orders.bucket, Key=key)["Body"].read()
    for damaged in (content[:20] + bytes([content[20] ^ 1]) + content[21:], content[:10]):
        orders.s3.put_object(Bucket=orders.bucket, Key=key, Body=damaged)
        with pytest.raises(TransferInputError, match="the deletion vector at byte 4 is damaged"):
            orders.load()
        assert orders.numbers() == [0, 1, 2, 3, 4]
    orders.s3.put_object(Bucket=orders.bucket, Key=key, Body=content)
    orders.mirror()
    assert orders.numbers() == [0, 1, 3, 4]


@pytest.mark.parametrize("step", [25, pytest.param(1, marks=[pytest.mark.chaos, pytest.mark.timeout(3600)])])
def test_a_crash_after_any_statement(orders: Orders, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Runs that load new deletes are killed, and repeated: no deleted row is left, and no other row is lost."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    orders.start()
    first = orders.append(*(row(n) for n in range(10)))
    orders.append(*(row(n) for n in range(10, 20)))
    orders.load()
    survived, deleted, is_killed = step // 2, 0, True
    while is_killed and deleted < 10:
        orders.delete("positions", (first, deleted))
        deleted += 1
        source = Source(orders.bucket, orders.folder, "storeside_s3")
        request = request_of(source, orders.table, "iceberg", on_overwrite="replace")
        is_killed = dies(orders, request, orders.s3, survived)
        assert orders.load().loaded == 0
        assert orders.numbers() == [*range(deleted, 20)]
        survived += step
    assert survived > 30
