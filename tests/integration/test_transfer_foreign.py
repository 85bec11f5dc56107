"""Objects that other tools wrote, or damaged: their rows are loaded as they are, or the reason states what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from storeside.transfer.after_load import AfterLoad
from storeside.transfer.columns import Columns
from storeside.transfer.errors import TransferInputError
from tests.transfers import Loading

pytestmark = pytest.mark.timeout(180)

LOADERS = ("pull", "push")


@pytest.fixture
def loading(stack: Any, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


def keys(loading: Loading) -> list[str]:
    return [found["Key"] for found in loading.s3.list_objects_v2(Bucket=loading.bucket).get("Contents", [])]


NOT_ONE_HEADER = {
    b"a,b\r1,x\r2,y\r": "its rows end with carriage returns alone: convert them to line feeds",
    b"\n<html>Error 403</html>": "its only row is XML or HTML, such as an error of a server: upload it again",
    "größe,b".encode("cp1252"): "its only row is no text in UTF-8: set `format`, or its encoding (csv.encoding)",
    b"a,\x01b\n": "its only row is no text in UTF-8: set `format`, or its encoding (csv.encoding)",
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("content", NOT_ONE_HEADER)
def test_a_text_that_is_no_header_alone_keeps_its_object(loading: Loading, loader: str, content: bytes) -> None:
    loading.put({"a.csv": content})
    with pytest.raises(TransferInputError, match=NOT_ONE_HEADER[content].replace("(", r"\(").replace(")", r"\)")):
        loading.load(loader=loader, after_load=AfterLoad("delete"))
    assert keys(loading) == ["a.csv"]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "options", [{"on_drift": "add"}, {"on_drift": "rest"}, {"chosen": Columns(select=("b",))}], ids=["add", "rest", "b"]
)
def test_a_text_that_is_no_header_keeps_its_object_beside_a_table(
    loading: Loading, loader: str, options: dict[str, Any]
) -> None:
    loading.create("a Nullable(Int64), b Nullable(String)")
    loading.put({"a.csv": b"a,b\r1,x\r2,y\r", "b.csv": b"a,b\n3,z\n", "c.csv": b"a,b\n"})
    report = loading.load(loader=loader, after_load=AfterLoad("delete"), **options)
    assert (report.loaded, report.rows, list(loading.reasons())) == (2, 1, ["a.csv"])
    assert keys(loading) == ["a.csv"]
    assert not any("\r" in name for name in loading.types())
