"""Datasets of the real HSDS to Parquet, ClickHouse and back; and the messages when something is wrong."""

from __future__ import annotations

import io
import itertools
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import h5pyd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.hsds import client as clients
from storeside.hsds.client import Client
from storeside.hsds.errors import HsdsCancelled, HsdsInputError, HsdsTransientError
from storeside.hsds.export import Export, Exporter
from storeside.hsds.export import Report as Exported
from storeside.hsds.imports import Import, Importer
from storeside.hsds.plan import Slab, plan
from storeside.operators.operators.hsds import HSDSExportDatasetOperator, HSDSImportDatasetOperator
from storeside.stack import cli
from storeside.stack.servers import hsds, s3
from storeside.stack.settings import CHECKOUT, Stack
from storeside.transfer.base.errors import TransferInputError
from tests.conftest import FOLDER
from tests.domains import put, server, write
from tests.support import process, s3_of_aistore, set_properties, unique, until
from tests.transfers import Loading

HOME = "/home/storeside"
TABLE = np.arange(600 * 70, dtype=np.int64).reshape(600, 70) * 7919 % 100_003


@pytest.fixture(scope="module")
def with_hsds(stack: Stack) -> Stack:
    return cli.up(FOLDER, only=("hsds",))


@pytest.fixture(scope="module")
def client(with_hsds: Stack) -> Client:
    return Client(server(with_hsds))


@pytest.fixture(autouse=True)
def level_of_the_log() -> Iterator[None]:
    """h5pyd sets the level of the root logger when it opens a file; later tests read logs."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written data can be read at once; HSDS takes two seconds to store them."""
    monkeypatch.setattr(Client, "flush", lambda *_: None)


@pytest.fixture(scope="module")
def table(client: Client) -> str:
    """A domain whose dataset /t is `TABLE`, in six chunks, compressed."""
    domain = f"{HOME}/{unique('table')}.h5"
    write(client, domain, "/t", TABLE, (100, 70), gzip=4)
    return domain


def resize(client: Client, domain: str, path: str, shape: list[int]) -> None:
    dataset = client.dataset(domain, path)
    body, headers = json.dumps({"shape": shape}), {"Content-Type": "application/json"}
    client._request("PUT", f"/datasets/{dataset.id}/shape", "it", {"domain": domain}, body, headers).close()


def read_part(loading: Loading, key: str) -> pa.Table:
    return pq.read_table(io.BytesIO(loading.s3.get_object(Bucket=loading.bucket, Key=key)["Body"].read()))


class Exports:
    """Exports of one dataset to one prefix."""

    def __init__(self, client: Client, loading: Loading, domain: str, path: str = "/t", **options: Any) -> None:
        self.client, self.loading = client, loading
        # three slabs of two chunks
        options = {"layout": "array", "slab_bytes": 120_000, **options}
        self.export = Export(domain, path, loading.bucket, "out", **options)

    def run(self, run_id: str = "one") -> Exported:
        return Exporter(self.client, self.loading.s3, self.export, run_id).run()

    def objects(self) -> dict[str, str]:
        """Return the ETag of each part."""
        listed = self.loading.s3.list_objects_v2(Bucket=self.export.bucket).get("Contents", ())
        return {o["Key"].removeprefix("out/"): o["ETag"] for o in listed}

    def read(self) -> pa.Table:
        """Return the content of the parts, ordered by the first index."""
        parts = [read_part(self.loading, f"out/{key}") for key in self.objects()]
        return pa.concat_tables(parts).sort_by("i0")

    def load(self, **options: Any) -> Any:
        return self.loading.load("out/part-", format="parquet", on_overwrite="replace", **options)


# --- to ClickHouse and exactly once


def test_an_array_is_in_clickhouse_as_it_was(client: Client, loading: Loading, table: str) -> None:
    exports = Exports(client, loading, table)
    report = exports.run()
    assert (report.parts, report.present, report.elements) == (3, 0, TABLE.size)
    assert report.bytes_read == TABLE.nbytes
    assert exports.load().rows == 600
    assert loading.types() == {"i0": "UInt64", "value": "Array(Int64)"}
    rows = loading.rows("i0, value", "i0")
    assert [i for i, _ in rows] == list(range(600))
    assert (np.array([value for _, value in rows]) == TABLE).all()


def test_a_long_hyperslab_has_the_indexes_of_the_dataset(client: Client, loading: Loading, table: str) -> None:
    exports = Exports(client, loading, table, layout="long", selection="90:310:3, -5:")
    exports.run()
    exports.load()
    wanted = [(i, j, int(TABLE[i, j])) for i in range(90, 310, 3) for j in range(65, 70)]
    assert loading.rows("i0, i1, value", "i0, i1") == wanted


def test_a_wide_hyperslab_has_a_column_for_each_second_index(client: Client, loading: Loading, table: str) -> None:
    exports = Exports(client, loading, table, layout="wide", selection=":, 2:8:2")
    exports.run()
    found = exports.read()
    assert found.column_names == ["i0", "c2", "c4", "c6"]
    assert (np.column_stack([found[name] for name in ("c2", "c4", "c6")]) == TABLE[:, 2:8:2]).all()


def test_what_is_exported_is_not_exported_again(client: Client, loading: Loading, table: str) -> None:
    exports = Exports(client, loading, table)
    exports.run("one")
    key = sorted(exports.objects())[1]
    loading.s3.delete_object(Bucket=loading.bucket, Key=f"out/{key}")
    again = exports.run("one")
    assert (again.parts, again.present, again.bytes_read) == (3, 2, TABLE.nbytes // 3)


@pytest.mark.guarantee("hsds-export")
def test_a_dataset_that_grew_is_loaded_where_it_changed(client: Client, loading: Loading) -> None:
    domain = f"{HOME}/{unique('grows')}.h5"
    write(client, domain, "/t", TABLE[:250], (100, 70))
    exports = Exports(client, loading, domain)
    exports.run("monday")
    exports.load()
    before = exports.objects()
    resize(client, domain, "/t", [600, 70])
    put(client, domain, "/t", TABLE)
    exports.run("tuesday")
    after = exports.objects()
    same = {key for key in before if after[key] == before[key]}
    assert [len(before), len(after), len(same)] == [2, 3, 1]
    assert exports.load().loaded == 2
    rows = loading.rows("i0, value", "i0")
    assert (np.array([value for _, value in rows]) == TABLE).all()
    assert exports.load().loaded == 0


def test_parts_that_the_dataset_lacks_are_deleted_and_foreign_ones_refused(
    client: Client, loading: Loading, table: str
) -> None:
    exports = Exports(client, loading, table)
    exports.run()
    exports.export = replace(exports.export, selection=":250")
    with pytest.raises(HsdsInputError, match=r"s3://.*/out/part-0+\.parquet: is not of this export.*another prefix"):
        exports.run()
    assert len(exports.objects()) == 3

    domain = f"{HOME}/{unique('shrinks')}.h5"
    write(client, domain, "/t", TABLE, (100, 70))
    shrinks = Exports(client, Loading(loading.stack, loading.clickhouse, loading.s3), domain)
    shrinks.run("one")
    resize(client, domain, "/t", [150, 70])
    assert shrinks.run("two").parts == 1
    assert list(shrinks.objects()) == ["part-000000000000.parquet"]


KILLED = """
import sys
from storeside.hsds.client import Client, Server
from storeside.hsds.export import Export, Exporter
from storeside.stack.servers import s3
import json
given = json.load(sys.stdin)
Exporter(Client(Server(**given["server"])), s3.client("s3", *given["s3"]), Export(**given["export"]), "one").run()
"""


def test_a_killed_export_goes_on_where_it_was(client: Client, loading: Loading, with_hsds: Stack, table: str) -> None:
    exports = Exports(client, loading, table, slab_bytes=5600, workers=1)
    given = {
        "server": vars(client.server),
        "s3": [with_hsds.url("s3"), *s3.keys(with_hsds)],
        "export": vars(exports.export),
    }
    worker = subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, cwd=CHECKOUT, text=True)
    assert worker.stdin
    json.dump(given, worker.stdin)
    worker.stdin.close()
    until(lambda: len(exports.objects()) >= 3, 30, "parts", 0.01)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    there = len(exports.objects())
    assert 3 <= there < 60
    exports.export = replace(exports.export, workers=2)
    report = exports.run("one")
    assert (report.parts, report.present) == (60, there)
    assert (np.array(exports.read()["value"].to_pylist()) == TABLE).all()


# --- types


def types_file(path: Path) -> dict[str, Any]:
    """Write an HDF5 file with a dataset of each kind; return the Arrow type that each becomes."""
    rng = np.random.default_rng(5)
    nested = np.dtype([("a", "i2"), ("n", [("x", ">f8"), ("y", "S3")]), ("v", "f4", (3,))])
    with h5py.File(path, "w") as f:
        f["big_endian"] = rng.integers(-9, 9, (30, 7)).astype(">i4")
        f["half"] = rng.random((5, 4)).astype("f2")
        f["scalar"] = 3.5
        f["bools"] = rng.random(10) > 0.5
        f["complex"] = (rng.random((4, 3)) + 1j).astype("c16")
        f["fixed"] = np.array([b"ab", "é".encode(), b""], "S5")
        f.create_dataset("strings", data=np.array(["x", "é" * 700, ""] * 40, object), dtype=h5py.string_dtype())
        ragged = f.create_dataset("ragged", (50,), dtype=h5py.vlen_dtype("f4"))
        for i in range(50):
            ragged[i] = np.arange(i % 7, dtype="f4")
        f["compound"] = np.array([(n, (n / 3, b"abc"[: n % 4]), (n, 1, 2)) for n in range(20)], nested)
        mixed = np.dtype([("id", "i4"), ("name", h5py.string_dtype())])
        f["mixed"] = np.array([(1, "a"), (2, "éé")], mixed)
        f.create_dataset(
            "gzip", data=rng.integers(0, 5, (1000, 50)), chunks=(100, 50), compression="gzip", shuffle=True
        )
        f.create_dataset("enum", data=[0, 1, 2], dtype=h5py.enum_dtype({"A": 0, "B": 1, "C": 2}, basetype="i1"))
        f.create_dataset("opaque", data=np.array([b"12345678"] * 3, "V8"))
        arrays = f.create_dataset("arrays", (5,), dtype=np.dtype(("i4", (2, 3))))
        arrays[...] = np.arange(30).reshape(5, 2, 3)
    return {
        "big_endian": "int32", "half": "float", "scalar": "double", "bools": "bool", "fixed": "string",
        "strings": "string", "ragged": "list<element: float not null>", "gzip": "int64", "enum": "int8",
        "opaque": "binary", "arrays": "list<element: list<element: int32 not null> not null>",
    }  # fmt: skip


@pytest.mark.usefixtures("unflushed")
def test_every_type_goes_in_and_out(client: Client, loading: Loading, tmp_path: Path) -> None:
    path = tmp_path / "types.h5"
    kinds = types_file(path)
    domain = f"{HOME}/{unique('types')}.h5"
    client.create(domain, "/first", {"type": "H5T_STD_I8LE", "shape": [1]})
    with h5py.File(path) as file:
        wanted = {name: file[name][()] for name in file}

    def through(name: str) -> tuple[Any, pa.Table]:
        request = Import(str(path), domain, f"/deep/er/{name}", f"/{name}", gzip=5, slab_bytes=20_000)
        report = Importer(client, None, request, "one").run()
        exports = Export(domain, request.path, loading.bucket, name, slab_bytes=20_000)
        Exporter(client, loading.s3, exports, "one").run()
        keys = [o["Key"] for o in loading.s3.list_objects_v2(Bucket=loading.bucket, Prefix=f"{name}/")["Contents"]]
        return report, pa.concat_tables(read_part(loading, key) for key in keys)

    found = {name: through(name) for name in wanted}
    for name, kind in kinds.items():
        assert str(found[name][1].schema.field("value").type) == kind
        assert found[name][1]["value"].to_pylist() == plain(wanted[name])
    assert found["gzip"][0].slabs > 10
    assert [found["complex"][1][part].to_pylist() for part in "ri"] == [
        wanted["complex"].real.ravel().tolist(), wanted["complex"].imag.ravel().tolist(),
    ]  # fmt: skip
    assert found["mixed"][1].drop("i0").to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": "éé"}]
    assert found["compound"][1].drop("i0").to_pylist()[7] == {"a": 7, "n_x": 7 / 3, "n_y": "abc", "v": [7, 1, 2]}


def plain(values: Any) -> list[Any]:
    """Return elements as Python values."""
    if isinstance(values, float):
        return [values]
    if values.dtype.kind == "V":
        return [bytes(v) for v in values]
    if values.dtype.kind in "SO" and isinstance(values.flat[0], bytes):
        return [v.decode() for v in values]
    if values.dtype.kind == "O":
        return [v.tolist() for v in values]
    return list(values.tolist() if values.ndim == 3 else values.ravel().tolist())


@pytest.mark.usefixtures("unflushed")
def test_content_of_variable_length_is_cut_to_size(
    client: Client, loading: Loading, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = [f"{n}:" + "x" * (n % 50) * 100 for n in range(200)]
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file.create_dataset("s", data=texts, dtype=h5py.string_dtype())
    domain = f"{HOME}/{unique('strings')}.h5"
    sent: list[int] = []
    request, dataset = Client.write, Client.dataset

    def counted(self: Client, of: Any, slab: Slab, content: bytes) -> None:
        sent.append(len(content))
        request(self, of, slab, content)

    monkeypatch.setattr(Client, "write", counted)
    monkeypatch.setattr(Client, "dataset", lambda *given: replace(dataset(*given), most_bytes=30_000))
    Importer(client, None, Import(str(tmp_path / "s.h5"), domain, "/s"), "one").run()
    assert len(sent) > 10
    assert max(sent) < 30_000
    exports = Exports(client, loading, domain, "/s", layout="long", slab_bytes=20_000)
    report = exports.run("one")
    parts = exports.objects()
    assert len(parts) > len(plan((range(200),), (200,), 264, 20_000))
    assert exports.read()["value"].to_pylist() == texts
    again = exports.run("one")
    assert (again.present, again.bytes_read, report.present) == (len(parts), 0, 0)


# --- into HSDS


def parquet(loading: Loading, key: str, found: pa.Table, **options: Any) -> None:
    sink = io.BytesIO()
    pq.write_table(found, sink, **options)
    loading.put({key: sink.getvalue()})


def everything(client: Client, domain: str, path: str) -> np.ndarray[Any, Any]:
    dataset = client.dataset(domain, path)
    content = client.read(dataset, Slab(tuple(map(range, dataset.shape))), 1 << 30)
    return np.frombuffer(content, dataset.dtype).reshape(dataset.shape)


@pytest.mark.usefixtures("unflushed")
def test_parquet_of_an_export_comes_back(client: Client, loading: Loading, table: str, tmp_path: Path) -> None:
    Exports(client, loading, table).run()
    domain = f"{HOME}/{unique('back')}.h5"
    source = f"s3://{loading.bucket}/out/"
    request = Import(source, domain, "/array", layout="array", slab_bytes=50_000)
    Importer(client, loading.s3, request, "one").run()
    assert (everything(client, domain, "/array") == TABLE).all()

    columns: dict[str, Any] = {
        "id": np.arange(1000, dtype="u2"),
        "x": np.linspace(0, 1, 1000),
        "name": [f"n{n}" for n in range(1000)],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=130)
    Importer(client, None, Import(str(tmp_path), domain, "/table", slab_bytes=20_000), "one").run()
    exports = Exports(client, Loading(loading.stack, loading.clickhouse, loading.s3), domain, "/table", layout="long")
    exports.run()
    assert exports.read().drop("i0").to_pydict() == {**columns, "id": list(range(1000)), "x": columns["x"].tolist()}

    kinds = [pa.field("i0", pa.uint64(), nullable=False), ("c0", pa.float64()), ("c1", pa.float64())]
    wide = pa.table({"i0": [0, 1], "c0": [1.0, 2.0], "c1": [0.5, 1.5]}, pa.schema(kinds))
    pq.write_table(wide, tmp_path / "w.parquet")
    Importer(client, None, Import(str(tmp_path / "w.parquet"), domain, "/wide", layout="wide"), "one").run()
    assert everything(client, domain, "/wide").tolist() == [[1, 0.5], [2, 1.5]]


@pytest.mark.usefixtures("unflushed")
def test_a_stopped_import_goes_on_and_a_finished_one_writes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("t", data=TABLE, chunks=(10, 70))
    domain = f"{HOME}/{unique('stopped')}.h5"
    request = Import(str(tmp_path / "t.h5"), domain, "/t", slab_bytes=5600)
    importer = Importer(client, None, request, "one")
    written = Client.write
    count = itertools.count()

    def stopping(*given: Any) -> None:
        written(*given)
        if next(count) == 20:
            importer.stop.set()

    monkeypatch.setattr(Client, "write", stopping)
    with pytest.raises(HsdsCancelled, match="the import was stopped: start it again to continue"):
        importer.run()
    monkeypatch.setattr(Client, "write", written)
    report = Importer(client, None, request, "one").run()
    assert 16 <= report.present < 60
    assert report.bytes_written == (60 - report.present) * 5600
    assert (everything(client, domain, "/t") == TABLE).all()
    assert Importer(client, None, request, "one").run().bytes_written == 0


@pytest.mark.parametrize(
    ("columns", "layout", "said"),
    [
        ({"a": [1, None]}, "table", "column 'a': has NULL, which HDF5 lacks"),
        ({"a": ["x", "y"]}, "wide", "needs columns of numbers only"),
        ({"a": [[1], [2, 3]]}, "array", "lists without 1 values, as in the first row"),
        ({"a": [[1], [2]]}, "table", "column 'a' has lists: choose 'array'"),
        ({"a": [1], "b": [1.5]}, "wide", "column 'b' is double: cast them to one type"),
        ({"a": [{"b": 1}]}, "table", "column 'a': HDF5 has no type for struct"),
        ({"a": [1], "b": [2]}, "array", "needs one column of lists of numbers"),
    ],
)
def test_parquet_that_hdf5_cannot_hold(client: Client, tmp_path: Path, columns: Any, layout: str, said: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    request = Import(str(tmp_path / "x.parquet"), f"{HOME}/{unique('bad')}.h5", "/x", layout=layout)
    with pytest.raises(HsdsInputError, match=said):
        Importer(client, None, request, "one").run()


def test_sources_that_cannot_be_read(client: Client, loading: Loading, table: str, tmp_path: Path) -> None:
    (tmp_path / "bad.h5").write_bytes(b"no HDF5")
    (tmp_path / "bad.parquet").write_bytes(b"no Parquet")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["t"] = [1, 2]
    for source, said in (
        (tmp_path / "bad.h5", "cannot be opened as HDF5"),
        (tmp_path / "none.h5", "cannot be opened as HDF5"),
        (tmp_path / "bad.parquet", "is not a Parquet file that can be read"),
        (tmp_path / "none.parquet", "this file does not exist on the worker"),
        ("s3://no-such-bucket-here/x", "S3 refuses it .NoSuchBucket"),
        (f"s3://{loading.bucket}/none/", "there are no Parquet files to import"),
        (tmp_path / "other.h5", r"exists with int64 \(600, 70\), but the source has int64 \(2,\)"),
    ):
        with pytest.raises(HsdsInputError, match=said):
            Importer(client, loading.s3, Import(str(source), table, "/t"), "one").run()
    with pytest.raises(HsdsInputError, match="has no dataset '/nothing' with values"):
        Importer(client, None, Import(str(tmp_path / "other.h5"), table, "/n", "/nothing"), "one").run()


# --- errors and their messages


def test_what_is_not_there_or_not_allowed(with_hsds: Stack, client: Client, loading: Loading, table: str) -> None:
    reader, stranger = Client(server(with_hsds, "reader")), Client(replace(client.server, password="wrong"))
    for who, domain, path, said in (
        (client, f"{HOME}/none.h5", "/t", f"domain '{HOME}/none.h5': HSDS has no object of this name: correct"),
        (client, table, "/none", f"dataset '/none' of '{table}': HSDS has no object of this name: correct"),
        (client, HOME, "/t", f"domain '{HOME}': is a folder: choose a domain in it"),
        (reader, table, "/t", f"domain '{table}': user 'reader' lacks the permission: ask the owner to grant it"),
        (stranger, table, "/t", "HSDS refuses user 'storeside' with this password: correct the connection"),
    ):
        with pytest.raises(HsdsInputError) as caught:
            Exports(who, loading, domain, path).run()
        assert said in str(caught.value)
    with pytest.raises(HsdsInputError, match="'700:' is out of range, the dataset has 600"):
        Exports(client, loading, table, selection="700:").run()
    exports = Exports(client, loading, table)
    assert exports.objects() == {}
    exports.export = replace(exports.export, bucket="no-such-bucket-here")
    with pytest.raises(HsdsInputError, match=r"S3 refuses it \(NoSuchBucket\)"):
        exports.run()


def test_a_dataset_that_is_deleted_meanwhile(
    client: Client, loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = f"{HOME}/{unique('deleted')}.h5"
    write(client, domain, "/t", TABLE, (100, 70))
    put_object, dataset = loading.s3.put_object, client.dataset(domain, "/t")

    def delete_then_put(**given: Any) -> None:
        if not deleted:
            deleted.append(True)
            with client._request("DELETE", f"/datasets/{dataset.id}", "it", {"domain": domain}):
                pass
        put_object(**given)

    deleted: list[bool] = []
    monkeypatch.setattr(loading.s3, "put_object", delete_then_put)
    with pytest.raises(HsdsInputError, match=rf"dataset '/t' of '{domain}': (it was deleted|HSDS has no object)"):
        Exports(client, loading, domain, slab_bytes=5600, workers=1).run()


def test_a_request_that_is_too_large(client: Client) -> None:
    domain = f"{HOME}/{unique('large')}.h5"
    kind = {"class": "H5T_STRING", "length": "H5T_VARIABLE", "charSet": "H5T_CSET_UTF8", "strPad": "H5T_STR_NULLTERM"}
    client.create(domain, "/s", {"type": kind, "shape": [1]})
    with pytest.raises(
        HsdsInputError, match=r"the request is larger than HSDS accepts: choose smaller slabs.*\(413\)"
    ):
        client.write(client.dataset(domain, "/s"), Slab((range(1),)), bytes(101 << 20))


def test_large_arrays_are_written_at_once(with_hsds: Stack) -> None:
    """HSDS refuses writes while chunks that are not stored yet fill a node's cache; h5pyd does not repeat them."""
    login = hsds.login(with_hsds)
    user = {"endpoint": login.endpoint, "username": login.username, "password": login.password}
    values = np.random.default_rng(0).integers(0, 1000, (8000, 2200))
    domains = [f"{HOME}/{unique('large')}.h5" for _ in range(3)]

    def fill(domain: str) -> None:
        with h5pyd.File(domain, "w", **user) as file:
            file.create_dataset("v", values.shape, "i8", chunks=(240, 2200))[...] = values

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, domains))
    for domain in domains:
        with h5pyd.File(domain, "r", **user) as file:
            assert (file["v"][...] == values).all()


@pytest.mark.parametrize("name", ["hsds-dn0", "hsds-sn"])
def test_a_killed_node_is_waited_for(
    client: Client, loading: Loading, with_hsds: Stack, table: str, name: str
) -> None:
    node = process(with_hsds, name)
    exports = Exports(client, loading, table, slab_bytes=5600)
    with ThreadPoolExecutor(1) as pool:
        export = pool.submit(exports.run)
        until(exports.objects, 10, "part", 0.01)
        node.kill()
        assert export.result().parts == 60
    assert process(with_hsds, name).pid != node.pid
    assert (np.array(exports.read()["value"].to_pylist()) == TABLE).all()


def test_a_server_that_is_gone_may_come_back(
    client: Client, loading: Loading, table: str, monkeypatch: pytest.MonkeyPatch, with_hsds: Stack
) -> None:
    monkeypatch.setattr(clients, "_WAITS", ())
    gone = Client(replace(client.server, endpoint="http+unix://%2Ftmp%2Fnothing.sock"))
    with pytest.raises(HsdsTransientError, match=r"the connection to HSDS at .* failed"):
        Exports(gone, loading, table).run()


# --- operators


def test_operators_export_and_import(
    with_hsds: Stack, client: Client, loading: Loading, table: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow.sdk.execution_time.context import OutletEventAccessors

    from storeside.stack.airflow.airflow import connections

    for name, value in connections(with_hsds).items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(value))
    run = type("Run", (), {"dag_id": "d", "run_id": unique("run")})()

    def context_of(task_id: str) -> Any:
        instance = type("Instance", (), {"dag_id": "d", "task_id": task_id, "map_index": -1})()
        return {"dag_run": run, "ti": instance, "outlet_events": OutletEventAccessors()}

    context = context_of("export")
    export = HSDSExportDatasetOperator(
        task_id="export", domain=table, dataset="/t", bucket=loading.bucket, prefix="op/", layout="array"
    )
    assert export.execute(context)["elements"] == TABLE.size
    domain = f"{HOME}/{unique('operator')}.h5"
    source = f"s3://{loading.bucket}/op/part-"
    import_ = HSDSImportDatasetOperator(task_id="import", source=source, domain=domain, dataset="/t", layout="array")
    import_.execute(context_of("import"))
    assert (everything(client, domain, "/t") == TABLE).all()
    kinds = loading.query(
        "SELECT kind, state, done FROM storeside.runs FINAL WHERE run_id = {run:String}", run=f"d/{run.run_id}"
    )
    assert sorted(kinds) == [("export", "done", 1), ("import", "done", 1)]

    export.dataset = "/none"
    with pytest.raises(AirflowFailException, match="HSDS has no object of this name"):
        export.execute(context)
    export.layout = "tall"
    with pytest.raises(AirflowFailException, match="layout 'tall': choose one of long, wide, array"):
        export.execute(context)
    export.layout = "long"
    monkeypatch.setattr(clients, "_WAITS", ())
    wrong = {"conn_type": "http", "extra": {"endpoint": "http+unix://%2Ftmp%2Fnothing.sock"}}
    monkeypatch.setenv("AIRFLOW_CONN_HSDS_DEFAULT", json.dumps(wrong))
    with pytest.raises(AirflowException, match="the connection to HSDS at") as caught:
        export.execute(context)
    assert not isinstance(caught.value, AirflowFailException)


# --- storage


def test_commands_export_and_import(
    with_hsds: Stack, client: Client, loading: Loading, table: str, tmp_path: Path
) -> None:
    """Parquet of one command is the source of the other; a second export of the same run writes nothing."""
    login, domain = server(with_hsds), f"{HOME}/{unique('back')}.h5"
    variables = loading.variables() | {
        "HS_ENDPOINT": login.endpoint, "HS_USERNAME": login.username, "HS_PASSWORD": login.password
    }  # fmt: skip

    def run(*arguments: str) -> Any:
        command = [sys.executable, "-m", "storeside", *arguments, "--json"]
        done = subprocess.run(
            command, cwd=CHECKOUT, env=variables, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert login.password not in done.stdout + done.stderr
        return json.loads(done.stdout)

    export = ["hsds-export", table, "/t", f"s3://{loading.bucket}/out", "--layout", "array", "--run-id", "one"]
    assert run(*export)["elements"] == TABLE.size
    assert run(*export)["present"] == 1
    run("hsds-import", f"s3://{loading.bucket}/out", domain, "/t", "--layout", "array", "--gzip", "4")
    back = client.dataset(domain, "/t")
    assert back.shape == TABLE.shape
    found = np.empty_like(TABLE)
    client.read_into(back, Slab(tuple(map(range, back.shape))), memoryview(found).cast("B"))
    assert np.array_equal(found, TABLE)


def test_domains_can_lie_in_s3(stack: Stack, loading: Loading) -> None:
    cli.up(FOLDER, only=("hsds-s3",))
    client = Client(server(stack, part="hsds-s3"))
    domain = f"{HOME}/{unique('s3')}.h5"
    write(client, domain, "/t", TABLE, (100, 70))
    client.flush(domain)
    listed = loading.s3.list_objects_v2(Bucket=hsds.BUCKET)["Contents"]
    assert sum(o["Size"] for o in listed) >= TABLE.nbytes
    exports = Exports(client, loading, domain)
    exports.run()
    assert (np.array(exports.read()["value"].to_pylist()) == TABLE).all()


def test_parts_can_lie_in_aistore(client: Client, loading: Loading, with_hsds: Stack, table: str) -> None:
    loading.s3 = s3_of_aistore(with_hsds)
    loading.s3.create_bucket(Bucket=loading.bucket)
    exports = Exports(client, loading, table)
    exports.run("one")
    with pytest.raises(HsdsInputError, match="is not of this export"):  # AIStore's own buckets keep no metadata
        exports.run("one")
    assert (np.array(exports.read()["value"].to_pylist()) == TABLE).all()


def test_parts_in_aistore_are_loaded_once_where_it_has_etags(
    client: Client, loading: Loading, with_hsds: Stack, table: str
) -> None:
    loading.s3 = s3_of_aistore(with_hsds)
    loading.s3.create_bucket(Bucket=loading.bucket)
    exports = Exports(client, loading, table)
    exports.run("one")
    parts = {"collection": "storeside_aistore", "format": "parquet"}
    with pytest.raises(TransferInputError, match=rf"ais://{loading.bucket} checksum.type=md5"):
        loading.load("out/part-", **parts)
    for key in exports.objects():
        loading.s3.delete_object(Bucket=loading.bucket, Key=f"out/{key}")
    set_properties(with_hsds, loading.bucket, checksum={"type": "md5"})
    exports.run("two")
    assert loading.load("out/part-", **parts).loaded == 3
    exports.read()  # this changes the times that AIStore lists
    assert loading.load("out/part-", **parts).skipped == 3
    assert loading.query(f"SELECT count() FROM {loading.table}") == [(len(TABLE),)]
