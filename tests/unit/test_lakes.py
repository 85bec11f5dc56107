"""Snapshots of Iceberg and Delta tables, as far as no table is needed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import pytest

from storeside.transfer.delta import _needed
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


def test_only_files_of_the_protocol_are_copied_from_the_log_of_a_delta_table() -> None:
    version, uuid = f"{7:020}", "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
    wanted = [
        f"{version}.checkpoint.parquet", f"{version}.checkpoint.{uuid}.json", f"{version}.json", f"{8:020}.json",
        f"_sidecars/{uuid}.parquet", f"_sidecars/{version}.checkpoint.{1:010}.{1:010}.{uuid}.parquet",
    ]  # fmt: skip
    others = [
        "_sidecars/../../../x.parquet", "_sidecars/../x.py", "_sidecars/a/b.parquet", "_sidecars/..", "_sidecars/",
        f"_sidecars/{uuid}.parquet\n", "../x.parquet", "/etc/x.parquet", f"{version}.checkpoint.../x.parquet",
        f"../{version}.json", f"{version}.json/x", f"{version}.checkpoint.{'x' * 300}.json", f"{6:020}.json",
        "_last_checkpoint", f"{version}.crc", "\u0667" * 20 + ".json",
    ]  # fmt: skip
    assert _needed([*others, *wanted], 8) == wanted
