"""Attacks through the names of objects in the log of a Delta table, which the worker copies into a folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from storeside.transfer.base.errors import TransferInputError
from tests.transfers import Loading


def put_table(loading: Loading, folder: Path) -> None:
    """Put a Delta table with a checkpoint into the bucket."""
    write_deltalake(folder, pa.table({"n": [1]}))
    DeltaTable(folder).create_checkpoint()
    loading.put({f"t/{file.relative_to(folder)}": file.read_bytes() for file in folder.rglob("*") if file.is_file()})


@pytest.mark.parametrize("name", ["_sidecars/{up}{place}", "{up}{place}", "_sidecars/a/{up}{place}", "_sidecars/a/b"])
def test_a_key_in_the_log_of_a_delta_table_writes_no_file(loading: Loading, tmp_path: Path, name: str) -> None:
    """The attacker may write objects into the table's folder."""
    put_table(loading, tmp_path / "table")
    victim = tmp_path / "victim.parquet"
    key = f"t/_delta_log/{name.format(up='../' * 8, place=str(victim)[1:])}"
    loading.put({key: b"import os"})
    listed = loading.s3.list_objects_v2(Bucket=loading.bucket)["Contents"]
    assert key in {o["Key"] for o in listed}
    assert loading.load("t/", format="delta").rows == 1
    assert not victim.exists()


def test_a_name_that_no_file_can_have_is_an_error_of_the_table(loading: Loading, tmp_path: Path) -> None:
    """The attacker may write objects into the table's folder."""
    put_table(loading, tmp_path / "table")
    loading.put({f"t/_delta_log/_sidecars/{'a' * 300}.parquet": b""})
    with pytest.raises(TransferInputError, match=r"version 0 of the table cannot be read: .*File name too long"):
        loading.load("t/", format="delta")
