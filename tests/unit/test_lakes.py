"""Snapshots of Iceberg and Delta tables, as far as no table is needed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import pytest

from storeside.transfer.errors import TransferInputError
from storeside.transfer.lakes import snapshot_of
from storeside.transfer.source import Source

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


@pytest.mark.parametrize(("form", "package"), [("iceberg", "pyiceberg"), ("delta", "deltalake")])
def test_a_missing_package_is_named(form: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TransferInputError, match=rf"{package} is not installed: pip install 'storeside\[lake\]'"):
        snapshot_of(cast("S3Client", None), form, Source("tables", "trips/"))
