"""Loads of Iceberg tables that a catalogue names: SQL on SQLite, REST with a token or an OAuth client, and Glue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from storeside.operators import S3ToClickHouseOperator
from storeside.operators.arguments import LiteralArgumentError
from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from storeside.transfer.__main__ import main as command
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.lakes.snapshots import catalog_of
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from tests import glue_catalog, rest_catalog
from tests.integration.test_transfer_lakes import Iceberg
from tests.support import task_context
from tests.transfers import request_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

URI = "iceberg://lakehouse/sales.orders"
NAME = "lakehouse"


class Catalogued(Iceberg):
    """A table of a catalogue; `properties` are those of a reader, and `connection` is Airflow's."""

    def __init__(self, stack: Stack, clickhouse: Any, client: S3Client, folder: Path, kind: str) -> None:
        super().__init__(stack, clickhouse, client)
        self.closing = ExitStack()
        uri = f"sqlite:///{folder / 'catalog.db'}"
        self.catalog = SqlCatalog(NAME, **{**self.catalog.properties, "uri": uri})
        self.closing.callback(self.catalog.close)
        self.catalog.create_namespace("sales")
        self.properties: dict[str, Any] = {"type": "sql", "uri": uri}
        self.connection: dict[str, Any] = {"conn_type": "generic", "extra": self.properties}
        if kind == "sql":
            return
        if kind == "glue":
            self.on_glue(folder)
            return
        self.server = self.closing.enter_context(rest_catalog.serve(self.catalog))
        self.properties = {"type": "rest", "uri": self.server.url, "token": rest_catalog.TOKEN}
        self.connection = {"conn_type": "generic", "host": self.server.url, "password": rest_catalog.TOKEN}
        if kind == "oauth":
            client_id, secret = rest_catalog.CLIENT, rest_catalog.SECRET
            place = f"{self.server.url}/v1/oauth/tokens"
            self.properties = {
                "type": "rest", "uri": self.server.url, "credential": f"{client_id}:{secret}",
                "oauth2-server-uri": place,
            }  # fmt: skip
            self.connection |= {"login": client_id, "password": secret, "extra": {"oauth2-server-uri": place}}

    def on_glue(self, folder: Path) -> None:
        """Keep the table in Glue, to which the operator's connection to S3 gives access."""
        from pyiceberg.catalog.glue import GlueCatalog

        url = self.closing.enter_context(glue_catalog.serve(folder))
        place = {"type": "glue", "glue.endpoint": url, "glue.region": s3.REGION}
        access = {"glue.access-key-id": "key-of-glue", "glue.secret-access-key": "secret-of-glue"}
        self.properties = {**place, **access}
        self.connection = {"conn_type": "generic", "extra": place}
        self.catalog = GlueCatalog(NAME, **{**self.catalog.properties, **self.properties})  # type: ignore[assignment]
        self.catalog.create_namespace("sales")

    def transfer(self, keys: str = "", *, snapshot: str = "", **options: Any) -> Transfer:
        made = super().transfer(keys, snapshot=snapshot)
        catalog = catalog_of(URI, self.properties)
        source = Source(self.bucket, self.folder, "storeside_s3", snapshot=snapshot, catalogued=URI)
        return Transfer(
            request_of(source, self.table, **options), made.client, made.s3, made.run_id,
            ledger=made.loads.client, catalog=catalog,
        )  # fmt: skip

    def fork(self) -> None:
        """Leave a metadata file of the next version, as a commit does that failed."""
        key = self.lake.metadata_location.removeprefix(f"s3://{self.bucket}/")
        place, _, name = key.rpartition("/")
        number = int(name.partition("-")[0]) + 1
        self.s3.copy_object(
            Bucket=self.bucket, Key=f"{place}/{number:05}-abandoned.metadata.json",
            CopySource={"Bucket": self.bucket, "Key": key},
        )  # fmt: skip


def make(kind: str, *given: Any) -> Iterator[Catalogued]:
    stack, clickhouse, client, folder = given
    made = Catalogued(stack, clickhouse, client, folder, kind)
    with made.closing:
        yield made


@pytest.fixture(params=["sql", "token", "oauth", "glue"])
def lake(request: Any, stack: Stack, clickhouse: Any, s3_client: S3Client, tmp_path: Path) -> Iterator[Catalogued]:
    yield from make(request.param, stack, clickhouse, s3_client, tmp_path)


@pytest.fixture
def rest(stack: Stack, clickhouse: Any, s3_client: S3Client, tmp_path: Path) -> Iterator[Catalogued]:
    yield from make("token", stack, clickhouse, s3_client, tmp_path)


@pytest.fixture
def sql(stack: Stack, clickhouse: Any, s3_client: S3Client, tmp_path: Path) -> Iterator[Catalogued]:
    yield from make("sql", stack, clickhouse, s3_client, tmp_path)


def test_the_catalogue_states_the_current_snapshot(lake: Catalogued) -> None:
    lake.write(1, 2, 3)
    lake.write(4)
    lake.fork()
    lake.write(5)  # the folder has two metadata files of the same version now
    report = lake.load()
    assert (report.loaded, report.snapshot, lake.numbers()) == (3, lake.current(), [1, 2, 3, 4, 5])
    assert lake.load().loaded == 0
    old = lake.current()
    lake.delete("n = 4")
    report = lake.load(on_overwrite="replace")
    assert (report.removed, lake.numbers()) == (1, [1, 2, 3, 5])
    report = lake.load(on_overwrite="replace", snapshot=old)
    assert (report.snapshot, lake.numbers()) == (old, [1, 2, 3, 4, 5])


def test_a_load_by_the_catalogue_continues_a_load_by_the_folder(sql: Catalogued) -> None:
    sql.write(1, 2)
    by_folder = Iceberg.transfer(sql)
    assert by_folder.run(by_folder.prepare()).loaded == 1
    sql.write(3)
    assert (sql.load().loaded, sql.numbers()) == (1, [1, 2, 3])


def test_the_command_and_the_operator_load_tables_of_catalogues(
    lake: Catalogued, connections: None, capsys: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    lake.write(1, 2)
    monkeypatch.setenv("AIRFLOW_CONN_LAKEHOUSE", json.dumps(lake.connection))
    operator = S3ToClickHouseOperator(
        task_id="load", source=URI, table=lake.table, on_overwrite="replace", deferrable=False
    )
    report = operator.execute(task_context())
    assert (report["snapshot"], lake.numbers()) == (lake.current(), [1, 2])
    told = f"{report}{caplog.text}{capsys.readouterr()}"
    found = lake.clickhouse.query("SELECT source, detail FROM storeside.runs FINAL").result_rows
    assert (URI, lake.current()) in [(source, json.loads(detail or "{}").get("snapshot")) for source, detail in found]
    for secret in (rest_catalog.TOKEN, rest_catalog.SECRET, "secret-of-glue"):
        assert secret not in told
        assert secret not in str(found)
    lake.delete("n = 2")
    for name, value in lake.variables().items():
        monkeypatch.setenv(name, value)
    for name, value in lake.properties.items():
        monkeypatch.setenv(
            f"PYICEBERG_CATALOG__LAKEHOUSE__{name.upper().replace('.', '__').replace('-', '_')}", value
        )
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())  # pyiceberg reads the environment when it is imported
    arguments = [URI, lake.table, "--on-overwrite", "replace", "--collection", "storeside_s3"]
    assert command([*arguments, "--preview"]) == 0
    assert lake.numbers() == [1, 2]
    assert command([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["removed"] == 1
    assert lake.numbers() == [1]


def test_errors_of_a_catalogue_name_the_remedy_and_no_secret(rest: Catalogued) -> None:
    with pytest.raises(TransferInputError, match=re.escape(f"{URI}: the catalogue 'lakehouse' has no such Iceberg")):
        rest.load()
    rest.write(1)
    rest.properties["token"] = "wrong-" + rest_catalog.TOKEN
    with pytest.raises(TransferInputError, match=r"refuses access .* correct its connection") as refused:
        rest.load()
    assert rest_catalog.TOKEN not in str(refused.value)
    rest.properties["token"] = rest_catalog.TOKEN
    rest.server.status = 503
    with pytest.raises(TransferTransientError, match="the catalogue does not answer"):
        rest.load()
    rest.server.status = 0
    assert rest.load().rows == 1
    rest.properties["uri"] = "http://127.0.0.1:1"
    with pytest.raises(TransferTransientError, match="the catalogue does not answer"):
        rest.load()


def test_a_table_names_no_class_that_a_worker_imports(rest: Catalogued, tmp_path: Path, monkeypatch: Any) -> None:
    """Its writers set the table's properties, and pyiceberg would import the class that `py-io-impl` names."""
    rest.write(1)
    (tmp_path / "chosen_by_a_table.py").write_text("class Files:\n    def __init__(self, given): raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    files = rest.lake.io
    rest.catalog._load_file_io = lambda *_, **__: files  # type: ignore[method-assign]  # the writer uses pyiceberg, too
    with rest.lake.transaction() as change:
        change.set_properties({"py-io-impl": "chosen_by_a_table.Files"})
    assert rest.load().rows == 1


def test_a_connection_without_an_address_is_refused(connections: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for connection, message in (
        ({"conn_type": "generic"}, "set its host to the catalogue's URL"),
        ({"conn_type": "generic", "extra": {"type": "sql"}}, "set its extra uri to a URL of SQLAlchemy"),
        ({"conn_type": "generic", "extra": {"type": "hive"}}, "the extra type is 'hive': set it to rest, sql, glue"),
        (
            {"conn_type": "generic", "login": "x", "password": "hidden", "extra": {"type": "sql", "uri": "no url"}},
            "its extra uri is no URL of SQLAlchemy",
        ),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_LAKEHOUSE", json.dumps(connection))
        operator = S3ToClickHouseOperator(task_id="load", source=URI, table="data.t")
        with pytest.raises(Exception, match=message) as refused:
            operator.execute(task_context())
        assert "hidden" not in str(refused.value)


def test_options_that_do_not_fit_a_catalogue_are_refused() -> None:
    source = Source("lake", "sales/orders", catalogued=URI)
    assert request_of(source, "data.t").format == "iceberg"
    for given, options, message in (
        (source, {"format": "delta"}, "is an Iceberg table: omit the format"),
        (
            Source("lake", "t", catalogued=URI, snapshot="s3://lake/t/metadata/1-a.metadata.json"), {},
            "the catalogue states the metadata file",
        ),
    ):  # fmt: skip
        with pytest.raises(TransferInputError, match=re.escape(message)):
            request_of(given, "data.t", **options)
    for uri in ("iceberg://lakehouse/orders", "iceberg:///a.b", "iceberg://lakehouse/a..b", "iceberg://l x/a.b"):
        with pytest.raises(TransferInputError, match=r"write iceberg://CATALOGUE/namespace.table"):
            Source("lake", catalogued=uri)
        with pytest.raises(LiteralArgumentError, match=r"write iceberg://CATALOGUE/namespace.table"):
            S3ToClickHouseOperator(task_id="load", source=uri, table="data.t")
