"""The recommended settings of AIStore's backend for OCI."""

from __future__ import annotations

from typing import Any

import pytest

from storeside.copying.multipart import MIB, Settings
from storeside.measure.oci_settings import SIZES, THREADS, targets_environment
from storeside.measure.tuner import Direction, Measurement
from storeside.operators import StorageTuneOperator


def measured(direction: Direction, size: int, part: int = 0, threads: int = 1) -> Measurement:
    return Measurement(direction, size * MIB, bool(part), Settings(part or 1, part or 1, threads), 1.0, 2.0)


def test_segments_of_the_largest_size_above_the_largest_whole_one() -> None:
    found = [
        measured("put", 1),
        measured("put", 4),
        measured("put", 16, 2 * MIB, 8),
        measured("put", 64, 5 * MIB, 13),
    ]
    assert targets_environment(found) == {
        "OCI_MAX_UPLOAD_SEGMENT_SIZE": "5120KiB",
        "OCI_MULTI_PART_UPLOAD_THRESHOLD": "4096KiB",
        "OCI_MULTI_PART_UPLOAD_MAX_THREADS": "13",
    }


def test_each_direction_has_variables_of_its_own() -> None:
    found = [measured("get", 1, MIB // 2, 2), measured("get", 64, 8 * MIB, 16), measured("put", 64)]
    assert targets_environment(found) == {
        "OCI_MAX_DOWNLOAD_SEGMENT_SIZE": "8192KiB",
        "OCI_MULTI_PART_DOWNLOAD_THRESHOLD": "512KiB",
        "OCI_MULTI_PART_DOWNLOAD_MAX_THREADS": "16",
    }
    assert targets_environment([]) == {}


def test_a_size_that_is_faster_whole_stays_whole() -> None:
    found = [measured("put", 4, MIB, 4), measured("put", 16), measured("put", 64, 8 * MIB, 8)]
    assert targets_environment(found)["OCI_MULTI_PART_UPLOAD_THRESHOLD"] == "16384KiB"


def test_values_are_within_aistores_bounds() -> None:
    found = [measured("put", 64, 100, 100)]
    environment = targets_environment(found)
    assert environment["OCI_MAX_UPLOAD_SEGMENT_SIZE"] == f"{SIZES[0] // 1024}KiB"
    assert environment["OCI_MULTI_PART_UPLOAD_MAX_THREADS"] == str(THREADS[1])


class Endpoint:
    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint


@pytest.mark.parametrize(
    ("endpoint", "part", "logged"),
    [
        ("oci https://objectstorage.eu-frankfurt-1.oraclecloud.com", 8 * MIB, "OCI_MAX_UPLOAD_SEGMENT_SIZE=8192KiB"),
        ("oci https://objectstorage.eu-frankfurt-1.oraclecloud.com", 0, "AIStore's own settings suit"),
        ("s3 https://s3.eu-west-1.amazonaws.com", 8 * MIB, ""),
    ],
)
def test_the_operator_logs_them_for_oci_alone(
    endpoint: str, part: int, logged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = StorageTuneOperator(task_id="tune", backends=["oci://bench"])
    found: Any = [(Endpoint(endpoint), measured("put", 64, part, 8))]

    task._recommend_to_aistore(found)
    said = capsys.readouterr().out
    assert logged in said
    assert ("OCI_" in said) == ("OCI_" in logged)
