"""The parts of HSDS support that need no server: mapping of types, requests, connections, operators' arguments."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from botocore import exceptions as boto
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpys

from storeside.hsds import plan as plans
from storeside.hsds.client import Server
from storeside.hsds.errors import HsdsInputError, HsdsTransientError
from storeside.hsds.export import Export, Exporter, s3_call
from storeside.hsds.imports import Import
from storeside.hsds.mapping import Mapping
from storeside.hsds.plan import Slab, plan
from storeside.hsds.sources import chunks_of
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.hsds import server_of
from storeside.operators.operators.hsds import SLAB_BYTES, HSDSExportDatasetOperator, HSDSImportDatasetOperator
from storeside.stack import cli
from storeside.stack.servers import hsds
from storeside.stack.settings import CHECKOUT, Stack, StackError

SCALARS = st.sampled_from(["i1", "i2", "<i4", ">i4", "i8", "u1", ">u2", "u4", "u8", "f4", ">f8", "?"])


@st.composite
def blocks(draw: st.DrawFn, rank: int | None = None) -> tuple[Slab, np.ndarray[Any, Any]]:
    """A slab somewhere in a dataset, and its elements."""
    shape = draw(numpys.array_shapes(min_dims=rank or 1, max_dims=rank or 3, max_side=6))
    starts = [draw(st.integers(0, 1000)) for _ in shape]
    steps = [draw(st.integers(1, 3)) for _ in shape]
    places = zip(starts, shape, steps, strict=True)
    slab = Slab(tuple(range(start, start + (count - 1) * step + 1, step) for start, count, step in places))
    return slab, draw(numpys.arrays(np.dtype(draw(SCALARS)), shape, elements={"allow_nan": False}))


@given(blocks())
def test_a_long_table_has_every_element_at_its_place(block: tuple[Slab, np.ndarray[Any, Any]]) -> None:
    slab, elements = block
    table = Mapping(elements.dtype, elements.ndim, "long", range(0)).table(slab, elements)
    rows = list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    places = np.ndindex(*slab.shape)
    assert rows == [
        (*(d[i] for d, i in zip(slab.dimensions, place, strict=True)), elements[place].item()) for place in places
    ]


@given(st.one_of(blocks(2), blocks(3)))
def test_an_array_table_has_the_array(block: tuple[Slab, np.ndarray[Any, Any]]) -> None:
    slab, elements = block
    table = Mapping(elements.dtype, elements.ndim, "array", range(0)).table(slab, elements)
    assert table["i0"].to_pylist() == list(slab.dimensions[0])
    assert table["value"].to_pylist() == elements.tolist()


@given(blocks(2))
def test_a_wide_table_has_the_columns(block: tuple[Slab, np.ndarray[Any, Any]]) -> None:
    slab, elements = block
    table = Mapping(elements.dtype, 2, "wide", slab.dimensions[1]).table(slab, elements)
    assert table.column_names == ["i0", *(f"c{n}" for n in slab.dimensions[1])]
    assert [table[f"c{n}"].to_pylist() for n in slab.dimensions[1]] == elements.T.tolist()


@given(blocks())
def test_what_an_element_takes_is_not_underrated(block: tuple[Slab, np.ndarray[Any, Any]]) -> None:
    slab, elements = block
    mapping = Mapping(elements.dtype, elements.ndim, "long", range(0))
    booleans = 8 if elements.dtype == bool else 1  # Arrow has a bit for each
    assert mapping.table(slab, elements).nbytes <= mapping.element_bytes * slab.count + 64 * booleans


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=4), SCALARS)
def test_chunks_are_at_most_two_megabytes(shape: list[int], kind: str) -> None:
    dtype = np.dtype(kind)
    chunks = chunks_of(shape, dtype)
    assert math.prod(chunks) * dtype.itemsize <= 2 << 20
    assert all(1 <= chunk <= length for chunk, length in zip(chunks, shape, strict=True))


@pytest.mark.parametrize(
    ("dtype", "rank", "layout", "said"),
    [
        ("i8", 1, "array", "needs two dimensions, the dataset has 1: choose 'long'"),
        ("i8", 3, "wide", "needs two dimensions and single values: choose 'long' or 'array'"),
        ([("a", "i8"), ("b", "i8")], 2, "wide", "needs two dimensions and single values"),
        ([("a_b", "i8"), ("a", [("b", "i8")])], 1, "long", "columns a_b: exist twice"),
        ([("i0", "i8")], 1, "long", "columns i0: exist twice"),
        ("M8[s]", 1, "long", "there is no column type for elements of datetime64"),
    ],
)
def test_layouts_that_cannot_be(dtype: Any, rank: int, layout: str, said: str) -> None:
    with pytest.raises(HsdsInputError) as caught:
        Mapping(np.dtype(dtype), rank, layout, range(5))
    assert said in str(caught.value)


def test_a_table_is_not_too_wide() -> None:
    with pytest.raises(HsdsInputError, match="would make 1001 columns, more than 1000: choose 'array'"):
        Mapping(np.dtype("i8"), 2, "wide", range(1001))


def test_a_string_that_is_none_is_said() -> None:
    mapping = Mapping(np.dtype("S2"), 1, "long", range(0))
    assert mapping.schema.field("value").type == pa.string()
    with pytest.raises(HsdsInputError, match="column 'value': has strings that are not UTF-8"):
        mapping.table(Slab((range(1),)), np.array([b"\xff\xfe"]))


@pytest.mark.parametrize(
    "arguments",
    [
        {"slab_bytes": 10}, {"slab_bytes": 1 << 30}, {"workers": 0}, {"workers": 33}, {"compression": "rar"},
        {"layout": "tall"}, {"bucket": ""}, {"prefix": "/"},
    ],
)  # fmt: skip
def test_exports_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(HsdsInputError):
        Export(**{"domain": "/d", "path": "/p", "bucket": "b", "prefix": "p", **arguments})


@pytest.mark.parametrize("arguments", [{"gzip": 10}, {"gzip": -1}, {"slab_bytes": 1}, {"workers": 0}])
def test_imports_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(HsdsInputError):
        Import(**{"source": "a.h5", "domain": "/d", "path": "/p", **arguments})


@given(st.data())
def test_pieces_of_slabs_have_keys_of_their_own(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    slabs = plan(tuple(map(range, shape)), [2] * len(shape), 100, data.draw(st.sampled_from([100, 400, 10_000])))
    exporter = Exporter(None, None, Export("/d", "/p", "b", "p"), "one")  # type: ignore[arg-type]
    waiting, keys = list(slabs), []
    while waiting:
        piece = waiting.pop()
        halves = piece.halves() if data.draw(st.booleans()) else None
        if halves:
            waiting += halves
        else:
            keys.append(exporter._key(slabs, piece))
    assert len(set(keys)) == len(keys)


def test_what_keys_need_of_a_plan_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cut, cuts = plans._cut, []
    monkeypatch.setattr(plans, "_cut", lambda *of: cuts.append(of) or cut(*of))
    slabs = plan((range(2000), range(20)), (5, 10), 8, 400)
    exporter = Exporter(None, None, Export("/d", "/p", "b", "p"), "one")  # type: ignore[arg-type]
    keys = {exporter._key(slabs, slab) for slab in slabs}
    assert len(keys) == len(slabs) == 800
    assert len(cuts) == 2


# --- S3


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            boto.NoCredentialsError(),
            "s3://b/p: Unable to locate credentials: correct the bucket's name, or the connection",
        ),
        (boto.PartialCredentialsError(provider="env", cred_var="secret"), "s3://b/p: Partial credentials found"),
        (boto.ParamValidationError(report="Invalid bucket name"), "(?s)s3://b/p: .*Invalid bucket name: correct"),
        (boto.NoRegionError(), "s3://b/p: You must specify a region: correct"),
    ],
)
def test_what_s3_cannot_be_asked_for_is_not_tried_again(error: Exception, said: str) -> None:
    with pytest.raises(HsdsInputError, match=said):
        s3_call(raising(error), "s3://b/p")


@pytest.mark.parametrize(
    "error",
    [
        boto.EndpointConnectionError(endpoint_url="http://s3"), boto.ConnectTimeoutError(endpoint_url="http://s3"),
        boto.ReadTimeoutError(endpoint_url="http://s3"), boto.ConnectionClosedError(endpoint_url="http://s3"),
        boto.SSLError(endpoint_url="http://s3", error="EOF"), boto.HTTPClientError(error="reset"),
        boto.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        boto.CredentialRetrievalError(provider="iam-role", error_msg="timed out"),
    ],
)  # fmt: skip
def test_an_s3_that_is_not_reached_is_tried_again(error: Exception) -> None:
    with pytest.raises(HsdsTransientError, match="s3://b/p: S3 cannot be reached: "):
        s3_call(raising(error), "s3://b/p")


def raising(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


# --- connections


@pytest.mark.parametrize(
    ("connection", "endpoint"),
    [
        ({"host": "hsds", "port": 80}, "http://hsds:80"),
        ({"host": "hsds"}, "http://hsds:5101"),
        ({"host": "hsds", "schema": "https", "port": 443}, "https://hsds:443"),
        ({"host": "https://hsds.example", "port": 8443}, "https://hsds.example:8443"),
        ({"host": "https://hsds.example"}, "https://hsds.example"),
        ({"host": "x", "extra": json.dumps({"endpoint": "http+unix://%2Fa"})}, "http+unix://%2Fa"),
    ],
)
def test_the_endpoint_of_a_connection(connection: dict[str, Any], endpoint: str) -> None:
    found = server_of(Connection(conn_id="c", conn_type="http", login="ada", password="secret", **connection))
    assert (found.endpoint, found.username, found.password) == (endpoint, "ada", "secret")
    assert "secret" not in repr(found)


def test_connections_without_an_endpoint() -> None:
    with pytest.raises(HsdsInputError, match="connection c: needs the host of an HSDS service node"):
        server_of(Connection(conn_id="c", conn_type="http"))
    with pytest.raises(HsdsInputError, match="use http://"):
        Server("hsds:5101")


# --- operators


@pytest.mark.parametrize("operator", [HSDSExportDatasetOperator, HSDSImportDatasetOperator])
def test_template_fields_are_arguments(operator: Any) -> None:
    arguments = inspect.signature(operator.__init__).parameters
    assert set(operator.template_fields) <= set(arguments)
    assert arguments["slab_bytes"].default == SLAB_BYTES == Export("/d", "/p", "b", "p").slab_bytes


def test_errors_are_retried_when_that_helps() -> None:
    with pytest.raises(AirflowFailException, match="no such"), airflow_errors():
        raise HsdsInputError("no such")
    with pytest.raises(AirflowException, match="busy") as caught, airflow_errors():
        raise HsdsTransientError("busy")
    assert not isinstance(caught.value, AirflowFailException)


# --- the embedded server


def test_hsds_is_not_started_unless_asked_for(tmp_path: Path) -> None:
    assert not {name for stage in cli.STAGES for name in stage} - set(cli.ALL_PARTS)
    assert not set(hsds.PARTS) & set(cli.PARTS)
    stack = Stack.create(tmp_path, 1)
    assert hsds.connection(stack) is None
    with pytest.raises(StackError, match=r"there is no HSDS below .*: start it with 'up --only s3,hsds'"):
        hsds.login(stack)


def test_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"is too long for a socket .*set STORESIDE_HOME to a shorter path"):
        hsds._socket(Stack.create(tmp_path / ("x" * 90), 1), "hsds", "sn")


@pytest.mark.parametrize("prefix", ["out/values", "out/values/"])
def test_the_dag_loads_what_it_exports(prefix: str) -> None:
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(CHECKOUT / "dags" / "hsds_export.py").dags["hsds_export"]
    given = {**dag.params.dump(), "domain": "/home/a.h5", "dataset": "/values", "bucket": "arrays", "prefix": prefix}
    for task in dag.tasks:
        task.render_template_fields({"params": given})
    export, load = (dag.get_task(name) for name in ("export", "load"))
    made = Export(export.domain, export.dataset, export.bucket, export.prefix, export.selection, export.layout)
    assert (load.bucket, load.keys) == (made.bucket, made.keys) == ("arrays", "out/values/part-")
    assert load.on_overwrite == "replace"
