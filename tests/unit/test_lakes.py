"""Snapshots of Iceberg and Delta tables, as far as no table is needed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.lakes.delta import _is_value, _needed, _snapshot
from storeside.transfer.lakes.snapshots import snapshot_of
from storeside.transfer.request.source import Source
from storeside.transfer.types import partitions
from storeside.transfer.types.partitions import value_in
from tests.statements import Engine

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


MOMENT = datetime(2024, 1, 2, 3, 4, 5, 120_000)
OLD = datetime(1600, 1, 1, 23, 59, 59)
VALUES = {
    "timestamp": (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC), OLD.replace(tzinfo=UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [MOMENT, OLD]),
    # deltalake 1.6.6 writes -1.25 as `-1.-25`
    "decimal": (pa.decimal128(28, 2), [Decimal("1.25"), Decimal("-3.00"), Decimal("12345678901234567890123456.78")]),
    "double": (pa.float64(), [0.1, -2.5, 1e23, float("nan"), float("inf"), float("-inf")]),
    "float": (pa.float32(), [1.5, -2.0, 16777216.0]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_partition_values_of_delta_are_those_of_the_log(engine: Engine, tmp_path: Path, kind: str) -> None:
    stated, values = VALUES[kind]
    rows = pa.table({"n": range(len(values) + 1), "p": pa.array([*values, None], stated)})
    write_deltalake(tmp_path, rows, partition_by=["p"])
    found = _snapshot(DeltaTable(tmp_path), Source("lake", "t/"))
    assert (found.partitions, [c.name for c in found.stored], len(found.files)) == (("p",), ["n"], len(values) + 1)
    (column,) = (c for c in found.columns if c.name == "p")
    [(_, value)], checks = partitions.expressions([column], "key")
    read = []
    for key in found.files:
        query = f"SELECT {value}, {' OR '.join(check for check, _ in checks)} FROM (SELECT {literal(key)} AS key)"
        [(got, is_wrong)] = engine.query(query).result_rows
        assert not is_wrong
        read.append(got.replace(tzinfo=UTC) if kind == "timestamp" and got else got)
    assert sorted(map(str, read)) == sorted(map(str, [*values, None]))


@pytest.mark.parametrize(
    ("text", "value", "same"),
    [
        ("2024-01-02T03:04:05.12Z", MOMENT.replace(tzinfo=UTC), True),
        ("2024-01-02 03:04:05.12", MOMENT.replace(tzinfo=UTC), True),
        ("2024-01-02 03:04:05.12", MOMENT, True),
        ("2024-01-02T03:04:05.12Z", MOMENT.replace(tzinfo=timezone(timedelta(hours=1))), False),
        ("2024-01-02 03:04:06", MOMENT, False),
        ("x", MOMENT, False),
        (None, MOMENT, False),
        ("1.250", Decimal("1.25"), True),
        ("1.251", Decimal("1.25"), False),
        ("1,25", Decimal("1.25"), False),
        ("1E23", 1e23, True),
        ("0.1", 0.10000000149011612, True),  # of 32 bits
        ("1e39", 1e38, False),
        ("NaN", float("nan"), True),
        ("0", float("nan"), False),
        ("01", 1, False),
        ("true", True, True),
        ("1", True, False),
        (None, None, True),
        ("", None, False),
        (None, "", True),
    ],
)
def test_a_key_with_another_value_than_the_log_is_no_value(text: str | None, value: Any, same: bool) -> None:
    assert _is_value(text, value, "p", Source("lake", "t/")) is same


def test_timestamps_of_keys_in_iso_8601_are_read_in_utc(engine: Engine) -> None:
    key = "t/p=2024-01-02T03%3A04%3A05.12Z/x.parquet"
    assert value_in(key, "p") == "2024-01-02T03:04:05.12Z"
    [(_, value)], checks = partitions.expressions([Column("p", "Nullable(DateTime64(6, 'UTC'))")], "key")
    query = f"SELECT toString({value}), {checks[0][0]} FROM (SELECT {literal(key)} AS key)"
    assert engine.query(query).result_rows == [("2024-01-02 03:04:05.120000", 0)]
