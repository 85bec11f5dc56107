"""Values of text and of typed objects that a conversion could change: each is loaded whole, or its object fails."""

from __future__ import annotations

from typing import Any

import pytest

from storeside.stack.settings import Stack
from tests.transfers import Loading, jsonl

pytestmark = pytest.mark.timeout(180)

LOADERS = ("pull", "push")


@pytest.fixture
def loading(stack: Stack, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_digests_stay_texts(loading: Loading, form: str) -> None:
    """Only a UUID in the notation of a UUID column becomes one: its text stays the same."""
    row = {
        "md5": "d41d8cd98f00b204e9800998ecf8427e",
        "capitals": "61F0C404-5CB3-11E7-907B-A6006AD3DBA0",
        "uuid": "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
    }
    text = f"{','.join(row)}\n{','.join(row.values())}\n".encode()
    loading.put({"x": text if form == "csv" else jsonl([row])})
    loading.load(format=form)
    assert loading.rows("toString(md5), toString(capitals), toString(uuid)") == [tuple(row.values())]
    assert list(loading.types().values()) == ["Nullable(String)", "Nullable(String)", "Nullable(UUID)"]
