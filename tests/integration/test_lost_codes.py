"""Columns that have lost codes are listed from the ledger, the table and its objects."""

from __future__ import annotations

import pytest

from storeside.transfer.lost_codes import main
from tests.transfers import Loading, environment


def test_the_command(loading: Loading, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loading.create("zip Int64, n Float64")
    loading.put({f"{n}/a.csv": b"zip,n\n02134,1.50\n7,1e3\n" for n in (1, 2)} | {"2/b.csv": b"zip,n\n5,1\n"})
    loading.load(codes="number")
    loading.put({"2/new.csv": b"zip,n\n001,1\n"})
    for name, value in environment(loading.stack).items():
        monkeypatch.setenv(name, value)
    collection = ["--collection", "storeside_s3"]
    assert main([f"s3://{loading.bucket}", loading.table, *collection]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "column 'zip' (Int64): 2 values, such as '02134' in '1/a.csv'",
        "3 objects, 1 columns with codes that they do not keep",
    ]
    loading.s3.delete_object(Bucket=loading.bucket, Key="2/a.csv")
    assert main([f"s3://{loading.bucket}/2/", loading.table, *collection]) == 0
    assert main([f"s3://{loading.bucket}/3/", loading.table, *collection]) == 2
    assert f"the ledger has no object of s3://{loading.bucket}/3/ in {loading.table}" in capsys.readouterr().err
