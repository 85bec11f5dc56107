"""The statements that `tests/statements.py` runs in the process are those of a load."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storeside.transfer.request.source import Source
from storeside.transfer.staging.grouping import Grouping
from storeside.transfer.staging.loader import Reader
from storeside.transfer.staging.work import USUAL, Work
from storeside.transfer.state.loads import Planned
from storeside.transfer.tables.table import existing
from tests.statements import Engine, Files, Objects, Statements, statement_of
from tests.transfers import jsonl, parquet, request_of

OBJECTS = {
    "jsonl": {"a.jsonl": jsonl([{"n": 1, "s": "x"}]), "b.jsonl": jsonl([{"n": 2, "s": "y"}])},
    "csv": {"a b.csv": b"n,s\n1,x\n"},
    "parquet": {"a.parquet": parquet({"n": [1], "s": ["x"]})},
}
# A table function with its arguments, and an argument that is text.
CALL = re.compile(r"(?<=FROM )(s3|file)\((?:[^()']|'(?:[^'\\]|\\.)*')*\)")
TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")


class Recorder:
    """A client that only keeps the statements which fill staging tables."""

    def __init__(self, client: Engine) -> None:
        self.server_settings = client.server_settings
        self.kept: list[tuple[str, Any]] = []

    def command(self, statement: str, settings: Any) -> None:
        self.kept.append((statement, settings))

    def query(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(result_rows=[])

    def raw_insert(self, _: str, *, insert_block: Any, settings: Any, compression: str | None) -> Any:
        statement, form = statement_of(next(insert_block), compression)
        more: dict[str, Any] = {"fmt": form, "compression": compression}
        more["body"] = b"".join(insert_block)
        self.kept.append((f"INSERT INTO {statement}", {**settings, **more}))
        return SimpleNamespace(summary={})


def statements(source: Source, client: Engine, table: str, objects: list[Planned], folder: Path, form: str,
               *, pushed: bool) -> list[tuple[str, Any]]:  # fmt: skip
    """Return the statements and settings with which a load of these objects fills a staging table."""
    request = request_of(source, table, form, strict_json=False, system_columns=("_object", "_row_number"))
    kept: Any = Recorder(client)
    work = Work(request, request.form(form), kept, SimpleNamespace(listed_below=len), "t", Objects(folder), pushed)  # type: ignore[arg-type]
    groups = Grouping(work, pushed=True).groups(objects, existing(client, table))
    Reader(work, pushed=pushed).read("load_1", groups, USUAL)
    return list(kept.kept)


@pytest.mark.parametrize("loader", ["pull", "push"])
@pytest.mark.parametrize("form", OBJECTS)
@pytest.mark.parametrize("collection", ["", "storeside_s3"])
def test_only_the_table_function_differs(
    reading: Statements, engine: Engine, tmp_path: Path, form: str, loader: str, collection: str
) -> None:
    reading.create("n Int64, s String, _object String, _row_number UInt64")
    reading.put(OBJECTS[form])
    planned = [Planned(key, "", len(content), 0.0, n) for n, (key, content) in enumerate(OBJECTS[form].items(), 1)]
    endpoint = str(tmp_path)
    sources = Files(reading.bucket, endpoint=endpoint), Source(reading.bucket, "", collection, endpoint)
    files, real = (
        statements(source, engine, reading.table, planned, tmp_path, form, pushed=loader == "push")
        for source in sources
    )
    if loader == "push":
        assert files == real
        return
    ((here, settings), (there, others)) = files[0], real[0]
    assert settings.pop("query_id") != ""
    assert {name: value for name, value in others.items() if name != "query_id"} == settings
    length = len(f"{reading.bucket}/") + 1
    # The paths of files begin with their folder.
    plain = re.sub(rf"\b{length + len(endpoint) + 1}\b", str(length), here.replace(f"{endpoint}/", ""))
    ((texts, called),) = ((TEXT.findall(call[0]), call) for call in CALL.finditer(here))
    assert called[1] == "file"
    assert [call[1] for call in CALL.finditer(there)] == ["s3"]
    assert CALL.sub("", plain) == CALL.sub("", there)
    for argument in texts[1:3]:  # format and columns
        assert argument in there


def test_statements_of_the_helper_are_those_of_the_reader(reading: Statements, engine: Engine) -> None:
    """The engine runs what the reader composes: see the test above for its equality with a load's."""
    reading.put(OBJECTS["jsonl"])
    reading.create("n Int64, s String")
    engine.statements.clear()
    assert reading.load().rows == 2
    assert reading.load().rows == 0
    (statement,) = engine.statements
    assert f"FROM file('{reading.folder}/{reading.bucket}/{{a.jsonl,b.jsonl}}', 'JSONEachRow'" in statement
