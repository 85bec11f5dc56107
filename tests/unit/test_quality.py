"""The suite of the speech manifest, which ClickHouse's engine evaluates in this process."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from storeside.quality.errors import QualityError
from storeside.quality.given import load_suite
from storeside.speech.columns import RECORDING_COLUMNS
from storeside.speech.suites import NOT_EMPTY_COLUMNS, SignalRanges, speech_manifest_suite
from storeside.transfer.base.schema import Column
from storeside.transfer.staging.expectations import rules
from tests.statements import Engine

COLUMNS = {**dict.fromkeys(NOT_EMPTY_COLUMNS, "LowCardinality(String)"), "object": "String", **RECORDING_COLUMNS}
GOOD: dict[str, Any] = {
    "object": "a.wav", "bucket": "ais://speech", "source_object": "a.flac", "source_bucket": "s3://raw",
    "duration_seconds": 5.0, "sample_rate": 16_000, "channels": 1, "samples": 80_000, "bytes": 160_044,
    "peak_dbfs": -3.0, "rms_dbfs": -23.0, "checksum": "0" * 64, "codec": "pcm_s16le", "complete": "unknown",
    "silence_share": 0.2, "clipped_share": 0.001, "bandwidth_hz": 8_000.0, "snr_db": 30.0,
}  # fmt: skip
SUITE = speech_manifest_suite(16_000, 1, 1, 20)
RANGES = SignalRanges(max_silence_share=0.5, max_clipped_share=0.01, min_bandwidth_hz=7_000, min_snr_db=15)

SAMPLES_DIFFER = "samples equal duration times sample rate, within one"
TOO_FEW_BYTES = "uncompressed audio has more bytes than samples in all channels"
# column, value, descriptions of the only expectations that the row must violate
VIOLATIONS: list[tuple[str, Any, set[str]]] = [
    *((column, "", {f"{column} is not empty"}) for column in NOT_EMPTY_COLUMNS),
    *(("duration_seconds", value, {"duration is 1 to 20 s", SAMPLES_DIFFER}) for value in (0.5, 21.0, math.inf)),
    ("duration_seconds", math.nan, {"duration_seconds is present"}),
    ("sample_rate", 8_000, {"sample rate is 16000 Hz", SAMPLES_DIFFER}),
    ("channels", 3, {"channels are 1", TOO_FEW_BYTES}),
    ("samples", 0, {"there are samples", SAMPLES_DIFFER}),
    ("samples", 80_002, {SAMPLES_DIFFER}),
    ("samples", 79_998, {SAMPLES_DIFFER}),
    ("bytes", 0, {"there are bytes", TOO_FEW_BYTES}),
    ("bytes", 80_000, {TOO_FEW_BYTES}),
    ("peak_dbfs", 0.2, {"peak of integer samples is at most 0.1 dBFS"}),
    ("peak_dbfs", -30.0, {"peak is not below the mean level"}),
    ("peak_dbfs", math.nan, {"peak_dbfs is present"}),
    ("rms_dbfs", -71.0, {"mean level is at least -70 dBFS"}),
    ("rms_dbfs", -math.inf, {"mean level is at least -70 dBFS"}),
    ("rms_dbfs", math.nan, {"rms_dbfs is present"}),
    ("checksum", "0" * 63, {"checksum is SHA-256 in hexadecimal"}),
    ("checksum", "0" * 64 + "\n", {"checksum is SHA-256 in hexadecimal"}),
    ("checksum", "A" * 64, {"checksum is SHA-256 in hexadecimal"}),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine()
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    engine.command(f"CREATE OR REPLACE TABLE data.m (n UInt32, {columns}) ENGINE = Memory")
    yield engine
    engine.close()


def broken(engine: Engine, suite: Mapping[str, Any], *rows: Mapping[str, Any]) -> list[set[str]]:
    """Return the descriptions of the expectations that each row breaks."""
    engine.command("TRUNCATE TABLE data.m")
    names = ["n", *GOOD]
    engine.insert("data.m", [[n, *{**GOOD, **row}.values()] for n, row in enumerate(rows)], column_names=names)
    found = [set[str]() for _ in rows]
    columns = [Column(name, kind) for name, kind in COLUMNS.items()]
    for rule in rules(load_suite(suite).expectations, columns, "data.m"):
        for (n,) in engine.query(f"SELECT n FROM data.m WHERE {rule.broken}").result_rows:
            found[n].add(rule.expectation.check.description)
    return found


@pytest.fixture(scope="module")
def found(engine: Engine) -> list[set[str]]:
    """The expectations that row n breaks; VIOLATIONS[n] is the only fault of row n."""
    return broken(engine, SUITE, *({column: value} for column, value, _ in VIOLATIONS))


@pytest.mark.guarantee("manifest-invalid")
@pytest.mark.parametrize("row", range(len(VIOLATIONS)))
def test_each_violation_is_found_and_nothing_else(found: list[set[str]], row: int) -> None:
    assert found[row] == VIOLATIONS[row][2]


def test_every_expectation_has_a_violation() -> None:
    tried = set.union(*(descriptions for _, _, descriptions in VIOLATIONS))
    assert {e.check.description for e in load_suite(SUITE).expectations} == tried


def test_good_rows_break_nothing(engine: Engine) -> None:
    codecs = ["mp3float", "opus", "aac", "vorbis", "pcm_f32le"]
    rows: list[dict[str, Any]] = [
        {}, {"codec": "flac", "bytes": 9_000}, *({"samples": 80_000 + offset} for offset in (-1, 1)),
        *({"codec": codec, "peak_dbfs": 4.73} for codec in codecs),  # samples of these may exceed full scale
    ]  # fmt: skip
    assert broken(engine, SUITE, *rows) == [set()] * len(rows)


def test_silence_is_a_warning() -> None:
    severities = {e.check.description: e.severity for e in load_suite(SUITE).expectations}
    assert severities.pop("mean level is at least -70 dBFS") == "warning"
    assert set(severities.values()) == {"critical"}


def test_facts_of_the_signal_have_limits(engine: Engine) -> None:
    bad: dict[str, Any] = {"silence_share": 0.51, "clipped_share": 0.011, "bandwidth_hz": 3_900.0, "snr_db": 14.9}
    least: dict[str, Any] = {"silence_share": 0.5, "clipped_share": 0.01, "bandwidth_hz": 7_000.0, "snr_db": 15.0}
    rows = [bad, least, dict.fromkeys(bad), dict.fromkeys(bad, -1.0)]
    limited = speech_manifest_suite(16_000, 1, 1, 20, signal=RANGES)
    assert [len(one) for one in broken(engine, limited, *rows)] == [4, 0, 0, 4]
    possible = speech_manifest_suite(16_000, 1, 1, 20, signal=SignalRanges())
    assert [len(one) for one in broken(engine, possible, *rows)] == [0, 0, 0, 4]


@pytest.mark.parametrize("name", ["max_silence_share", "max_clipped_share", "min_bandwidth_hz", "min_snr_db"])
@pytest.mark.parametrize("value", [-0.1, 1e6, float("nan")])
def test_impossible_limits_are_refused(name: str, value: float) -> None:
    with pytest.raises(QualityError, match=f"{name} is .*: use 0 to "):
        SignalRanges(**{name: value})


@pytest.mark.parametrize("arguments", [(0, 1, 1, 2), (16_000, 0, 1, 2), (16_000, 1, 2, 1), (16_000, 1, -1, 1)])
def test_figures_that_no_audio_meets(arguments: tuple[int, int, float, float]) -> None:
    with pytest.raises(QualityError):
        speech_manifest_suite(*arguments)


def test_a_suite_can_demand_complete_recordings(engine: Engine) -> None:
    strict = speech_manifest_suite(16_000, 1, 1, 20, require_complete=True)
    rows = [{"complete": value} for value in ("yes", "unknown", "no")]
    reason = {"the recording is known to be complete"}
    assert broken(engine, strict, *rows) == [set(), reason, reason]
    assert broken(engine, SUITE, *rows) == [set()] * 3


def test_the_suite_is_one_of_great_expectations() -> None:
    """It is valid there, with the same expectations; no task imports the library, which needs 170 MB of memory."""
    code = (
        "import json, sys\n"
        "from storeside.speech.suites import SignalRanges, speech_manifest_suite\n"
        "suite = speech_manifest_suite(16_000, 1, 1, 20, require_complete=True, signal=SignalRanges())\n"
        "from storeside.quality.given import load_suite\n"
        "load_suite(suite)\n"
        "assert not {'great_expectations', 'pandas', 'numpy'} & set(sys.modules)\n"
        "from great_expectations.core.expectation_suite import ExpectationSuite\n"
        "found = ExpectationSuite(**suite).to_json_dict()['expectations']\n"
        "print(json.dumps([[one['type'], one['description']] for one in found]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    ours = speech_manifest_suite(16_000, 1, 1, 20, require_complete=True, signal=SignalRanges())["expectations"]
    assert json.loads(done.stdout.splitlines()[-1]) == [[one["type"], one["description"]] for one in ours]
