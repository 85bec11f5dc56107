import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import great_expectations.expectations as gxe
import numpy as np
import pandas as pd
import pytest
from great_expectations.core.expectation_suite import ExpectationSuite
from great_expectations.expectations.row_conditions import Column
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storeside.quality.suite import NUMBER, QualityError, Suite
from storeside.quality.validation import Check, Verdict, combine, validate
from storeside.speech.suites import (
    MANIFEST_COLUMNS,
    NAME_COLUMNS,
    SUMMARY_COLUMNS,
    SignalRanges,
    speech_manifest_suite,
    summary_suite,
)

CHECKOUT = Path(__file__).resolve().parents[2]


def manifest(rows: int = 4, **columns: Any) -> pd.DataFrame:
    samples = np.arange(rows, dtype=np.uint64) * 1000 + 80_000
    good = {
        "object": [f"speech/{row:05d}.wav" for row in range(rows)],
        "bucket": "speech",
        "source_object": [f"raw/{row:05d}.flac" for row in range(rows)],
        "source_bucket": "raw",
        "duration_seconds": samples / 16_000,
        "sample_rate": np.full(rows, 16_000, np.uint32),
        "channels": np.ones(rows, np.uint8),
        "samples": samples,
        "bytes": samples * 2 + 44,
        "peak_dbfs": np.full(rows, -3.0),
        "rms_dbfs": np.full(rows, -23.0),
        "checksum": [f"{row:064x}" for row in range(rows)],
        "codec": "pcm_s16le",
    }
    return pd.DataFrame({**good, **columns})


def summary(**columns: Any) -> pd.DataFrame:
    good = {"rows": 4, "expected_rows": 4, "distinct_objects": 4, "distinct_buckets": 1, "seconds": 20.0}
    return pd.DataFrame([{**good, **columns}])


def check(*frames: pd.DataFrame, **options: Any) -> Verdict:
    return validate(frames, speech_manifest_suite(16_000, 1, 1, 20), key_column="object", **options)


def spoil(column: str, value: Any) -> pd.DataFrame:
    frame = manifest().astype({column: object})
    frame.loc[2, column] = value
    return frame


def suite(*expectations: Any) -> ExpectationSuite:
    return ExpectationSuite(name="own", expectations=list(expectations))


@pytest.mark.parametrize("codec", ["mp3float", "opus", "aac", "vorbis", "pcm_f32le"])
def test_samples_of_other_codecs_may_exceed_full_scale(codec: str) -> None:
    assert check(manifest(codec=codec, peak_dbfs=4.73)).success


def test_good_manifest_passes() -> None:
    verdict = check(manifest())
    assert verdict.success
    assert verdict.failed == ()
    assert str(verdict) == "passed, 4 rows"
    assert {outcome.element_count for outcome in verdict.expectations} == {4}


SAMPLES_DIFFER = "samples equal duration times sample rate, within one"
TOO_FEW_BYTES = "uncompressed audio has more bytes than samples in all channels"
# column, value, descriptions of the only expectations that the row must violate
VIOLATIONS: list[tuple[str, Any, set[str]]] = [
    *((column, None, {f"{column} is present"}) for column in MANIFEST_COLUMNS),
    *((column, "", {f"{column} is not empty"}) for column in (*NAME_COLUMNS, "codec")),
    *(("duration_seconds", value, {"duration is 1 to 20 s", SAMPLES_DIFFER}) for value in (0.5, 21.0, np.inf)),
    ("sample_rate", 8_000, {"sample rate is 16000 Hz", SAMPLES_DIFFER}),
    ("channels", 3, {"channels are 1", TOO_FEW_BYTES}),
    ("samples", 0, {"there are samples", SAMPLES_DIFFER}),
    ("samples", 80_002, {SAMPLES_DIFFER}),
    ("samples", 79_998, {SAMPLES_DIFFER}),
    ("bytes", 0, {"there are bytes", TOO_FEW_BYTES}),
    ("bytes", 80_000, {TOO_FEW_BYTES}),
    ("peak_dbfs", 0.2, {"peak of integer samples is at most 0.1 dBFS"}),
    ("peak_dbfs", -30.0, {"peak is not below the mean level"}),
    ("rms_dbfs", -71.0, {"mean level is at least -70 dBFS"}),
    ("rms_dbfs", -np.inf, {"mean level is at least -70 dBFS"}),
    ("rms_dbfs", np.nan, {"rms_dbfs is present"}),
    ("checksum", "0" * 63, {"checksum is SHA-256 in hexadecimal"}),
    ("checksum", "0" * 64 + "\n", {"checksum is SHA-256 in hexadecimal"}),
    ("checksum", "A" * 64, {"checksum is SHA-256 in hexadecimal"}),
]


@pytest.fixture(scope="module")
def found() -> dict[int, set[str]]:
    """The expectations that row n violates; VIOLATIONS[n] is the only fault of row n."""
    frame = manifest(len(VIOLATIONS)).astype(object)
    frame[["duration_seconds", "samples", "bytes"]] = [5.0, 80_000, 160_044]
    for row, (column, value, _) in enumerate(VIOLATIONS):
        frame.loc[row, column] = value
    descriptions: dict[int, set[str]] = {row: set() for row in range(len(frame))}

    def note(keys: list[str], which: Check) -> None:
        for key in keys:
            descriptions[int(key)].add(which.description)

    frame["key"] = frame.index
    validate([frame], speech_manifest_suite(16_000, 1, 1, 20), key_column="key", on_failed=note)
    return descriptions


@pytest.mark.guarantee("manifest-invalid")
@pytest.mark.parametrize("row", range(len(VIOLATIONS)))
def test_each_violation_is_found_and_nothing_else(found: dict[int, set[str]], row: int) -> None:
    assert found[row] == VIOLATIONS[row][2]


def test_every_expectation_has_a_violation() -> None:
    tried = set.union(*(descriptions for _, _, descriptions in VIOLATIONS))
    assert {outcome.description for outcome in check().expectations} == tried


SIGNAL = {"silence_share": 0.2, "clipped_share": 0.001, "bandwidth_hz": 8_000.0, "snr_db": 30.0}
RANGES = SignalRanges(max_silence_share=0.5, max_clipped_share=0.01, min_bandwidth_hz=7_000, min_snr_db=15)


def check_signal(ranges: SignalRanges = RANGES, **spoiled: Any) -> set[tuple[str, int]]:
    """Return the failed expectations of a manifest whose third row has these values, with their numbers of rows."""
    frame = manifest(**SIGNAL).astype(dict.fromkeys(spoiled, object))
    for column, value in spoiled.items():
        frame.loc[2, column] = value
    verdict = validate([frame], speech_manifest_suite(16_000, 1, 1, 20, signal=ranges), key_column="object")
    return {(outcome.column, outcome.unexpected_count) for outcome in verdict.failed}


def test_facts_of_the_signal_have_limits() -> None:
    bad: dict[str, Any] = {"silence_share": 0.51, "clipped_share": 0.011, "bandwidth_hz": 3_900.0, "snr_db": 14.9}
    good: dict[str, Any] = {"silence_share": 0.5, "clipped_share": 0.01, "bandwidth_hz": 7_000.0, "snr_db": 15.0}
    each = {(column, 1) for column in bad}
    assert check_signal(**bad) == each
    assert check_signal(SignalRanges(), **bad) == set()
    assert check_signal(SignalRanges(), **dict.fromkeys(bad, -1.0)) == each
    assert check_signal(**good) == set()
    assert check_signal(**dict.fromkeys(bad)) == set()


def test_a_manifest_without_facts_of_the_signal_is_valid() -> None:
    verdict = validate(
        [manifest(**dict.fromkeys(SIGNAL))],
        speech_manifest_suite(16_000, 1, 1, 20, signal=RANGES),
        key_column="object",
    )
    assert verdict.success


@pytest.mark.parametrize("name", ["max_silence_share", "max_clipped_share", "min_bandwidth_hz", "min_snr_db"])
@pytest.mark.parametrize("value", [-0.1, 1e6, float("nan")])
def test_impossible_limits_are_refused(name: str, value: float) -> None:
    with pytest.raises(QualityError, match=f"{name} is .*: use 0 to "):
        SignalRanges(**{name: value})


def test_silence_is_a_warning_and_does_not_fail_the_verdict() -> None:
    verdict = check(spoil("rms_dbfs", -71.0))
    (failed,) = verdict.failed
    assert failed.severity == "warning"
    assert verdict.success
    assert str(verdict) == ("passed, 4 rows: warning: mean level is at least -70 dBFS (rms_dbfs), not met in 1 of 4")


def test_a_row_without_a_key_has_an_empty_one() -> None:
    verdict = check(spoil("object", None))
    assert not verdict.success
    assert verdict.failed[0].examples == (("", None),)


def test_compressed_audio_may_have_fewer_bytes_than_samples() -> None:
    assert check(manifest(codec="flac", bytes=np.full(4, 9_000, np.uint64))).failed == ()


@pytest.mark.parametrize("offset", [-1, 1])
def test_one_sample_of_rounding_is_allowed(offset: int) -> None:
    frame = manifest()
    frame["samples"] = frame["samples"].astype(np.int64) + offset
    assert check(frame).failed == ()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"sample_rate": "16000"}, "column sample_rate must hold numbers; it holds string"),
        ({"sample_rate": [16_000, 16_000, "16000", 16_000]}, "column sample_rate must hold numbers; it holds mixed"),
        ({"rms_dbfs": True}, "column rms_dbfs must hold numbers; it holds boolean"),
        ({"bytes": pd.Timestamp("2026-01-01")}, "column bytes must hold numbers; it holds datetime64"),
        ({"checksum": 7}, "column checksum must hold text; it holds integer"),
        ({"object": b"name"}, "column object must hold text; it holds bytes"),
    ],
)
def test_wrong_kind_of_value_is_an_error(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(QualityError, match=message):
        check(manifest(), manifest(**columns))


def test_missing_columns_are_named() -> None:
    with pytest.raises(
        QualityError, match="speech_manifest needs the columns samples, codec; the frame has object, "
    ):
        check(manifest().drop(columns=["samples", "codec"]))
    with pytest.raises(QualityError, match="no key column object"):
        check(manifest().drop(columns="object"))


@pytest.mark.parametrize("kind", ["numpy_nullable", "pyarrow"])
def test_nullable_columns_are_checked_alike(kind: Any) -> None:
    frame = spoil("rms_dbfs", None).convert_dtypes(dtype_backend=kind)
    (failed,) = check(frame).failed
    assert (failed.column, failed.unexpected_count) == ("rms_dbfs", 1)
    assert check(manifest().convert_dtypes(dtype_backend=kind)).failed == ()


def test_a_column_of_nothing_but_nulls_fails_for_every_row() -> None:
    frame = manifest(samples=[None] * 4, checksum=[None] * 4)
    assert [(failed.column, failed.unexpected_count) for failed in check(frame).failed] == [
        ("samples", 4),
        ("checksum", 4),
    ]


def test_low_cardinality_text_and_foreign_index() -> None:
    frame = manifest().astype({"codec": "category", "bucket": "category"})
    frame.loc[3, "rms_dbfs"] = -90
    (failed,) = check(frame.set_index(pd.Index([7, 7, 9, 9]))).failed
    assert failed.examples == (("speech/00003.wav", -90.0),)


def test_frames_are_left_as_they_were() -> None:
    frame = manifest()
    check(frame)
    pd.testing.assert_frame_equal(frame, manifest())


@pytest.mark.parametrize("frames", [[], [manifest(0)]])
def test_empty_manifest_is_told_by_the_summary(frames: list[pd.DataFrame]) -> None:
    verdict = check(*frames)
    assert (verdict.success, verdict.rows) == (True, 0)
    assert str(verdict) == "passed, 0 rows, so nothing was checked row by row"
    empty = summary(rows=0, expected_rows=4, distinct_objects=0, distinct_buckets=0, seconds=0.0)
    both = combine(verdict, validate([empty], summary_suite(), key_column="rows"))
    assert not both.success
    assert [failed.description for failed in both.failed] == [
        "there are as many rows as expected",
        "all objects are in one bucket",
        "there is audio",
    ]


@pytest.mark.parametrize(
    ("columns", "description"),
    [
        ({"expected_rows": 5}, "there are as many rows as expected"),
        ({"distinct_objects": 3}, "no object is listed twice"),
        ({"distinct_buckets": 2}, "all objects are in one bucket"),
        ({"seconds": 0.0}, "there is audio"),
        *(({column: None}, f"{column} is present") for column in SUMMARY_COLUMNS),
    ],
)
def test_summary_finds_what_rows_cannot_tell(columns: dict[str, Any], description: str) -> None:
    assert validate([summary()], summary_suite(), key_column="rows").failed == ()
    verdict = validate([summary(**columns)], summary_suite(), key_column="rows")
    assert [failed.description for failed in verdict.failed] == [description]
    assert not verdict.success


@pytest.mark.parametrize("frames", [[], [summary(), summary()], [summary().iloc[:0]]])
def test_summary_of_other_than_one_row_is_an_error(frames: list[pd.DataFrame]) -> None:
    with pytest.raises(QualityError, match="is for a frame of 1 rows"):
        validate(frames, summary_suite(), key_column="rows")


def test_verdict_over_windows_equals_the_whole() -> None:
    frame = manifest(20)
    frame.loc[::7, "rms_dbfs"] = 3.0
    frame.loc[5:10, "checksum"] = None
    frame.loc[19, "duration_seconds"] = float("nan")
    whole = check(frame)
    assert [failed.unexpected_count for failed in whole.failed] == [1, 6, 3]
    for size in (6, 19):
        assert check(*(frame.iloc[start : start + size] for start in range(0, 20, size))) == whole


def test_windows_are_taken_one_at_a_time() -> None:
    seen: list[int] = []

    def frames() -> Any:
        for number in range(3):
            assert len(seen) == number
            yield manifest(rms_dbfs=-90.0)

    validate(
        frames(),
        speech_manifest_suite(16_000, 1, 1, 20),
        key_column="object",
        on_failed=lambda keys, _: seen.append(len(keys)),
    )
    assert seen == [4, 4, 4]


def test_all_failed_keys_reach_the_callback_and_few_the_verdict() -> None:
    got: list[tuple[list[str], Check]] = []
    frame = manifest(100)
    frame.loc[5:94, "peak_dbfs"] = 1.0
    verdict = check(
        frame.iloc[:60], frame.iloc[60:], max_examples=3, on_failed=lambda keys, which: got.append((keys, which))
    )
    assert [key for keys, _ in got for key in keys] == list(frame["object"].iloc[5:95])
    assert {which.column for _, which in got} == {"peak_of_integers_dbfs"}
    (failed,) = verdict.failed
    assert failed.unexpected_count == 90
    assert failed.examples == tuple((f"speech/{row:05d}.wav", 1.0) for row in (5, 6, 7))


@pytest.mark.parametrize("max_examples", [0, 1, 20])
def test_verdict_is_json_and_of_bounded_size(max_examples: int) -> None:
    frame = manifest(
        200,
        object=["o" * 5_000] * 200,
        checksum=["c" * 5_000] * 200,
        rms_dbfs=np.where(np.arange(200) % 2, np.inf, np.nan),
        duration_seconds=[None] * 200,
        sample_rate=np.full(200, 8_000, np.uint32),
    )
    verdict = check(frame, max_examples=max_examples)
    text = json.dumps(verdict.to_dict(), allow_nan=False)
    assert len(text) < 12_000 + max_examples * 10_000
    assert max(len(outcome.examples) for outcome in verdict.expectations) == max_examples
    record = json.loads(text)
    assert (record["success"], record["rows"]) == (False, 200)
    if max_examples == 20:
        values = {outcome.description: outcome.examples[0][1] for outcome in verdict.failed}
        assert values["rms_dbfs is present"] == "NaN"
        assert values["peak is not below the mean level"] == [-3.0, "Infinity"]
        assert values["checksum is SHA-256 in hexadecimal"] == "c" * 200


@pytest.mark.parametrize(
    "expectation",
    [
        gxe.ExpectColumnValuesToBeUnique(column="object"),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["object", "bucket"]),
        gxe.ExpectColumnValuesToBeIncreasing(column="bytes"),
        gxe.ExpectColumnMaxToBeBetween(column="bytes", max_value=3),
        gxe.ExpectTableRowCountToEqual(value=4),
        gxe.ExpectColumnValuesToBeOfType(column="bytes", type_="uint64"),
    ],
)
def test_what_a_window_cannot_decide_is_refused(expectation: Any) -> None:
    with pytest.raises(QualityError, match="cannot be decided row by row"):
        validate([manifest()], suite(expectation), key_column="object")


def test_expectation_that_raises_is_an_error_not_a_verdict() -> None:
    for expectation in (
        gxe.ExpectColumnValuesToBeBetween(column="checksum", min_value=0),
        gxe.ExpectColumnValuesToBeBetween(column="absent", min_value=0),
    ):
        with pytest.raises(QualityError, match=r"expect_column_values_to_be_between \(\w+\) cannot be checked: "):
            validate([manifest()], suite(expectation), key_column="object")
    with pytest.raises(QualityError, match="no expectations"):
        validate([manifest()], suite(), key_column="object")


def test_row_condition_counts_the_rows_it_selects() -> None:
    expectation = gxe.ExpectColumnValuesToBeInSet(
        column="bytes", value_set=[1], row_condition=Column("samples") > 81_000
    )
    (outcome,) = validate([manifest(), manifest()], suite(expectation), key_column="object").expectations
    assert (outcome.element_count, outcome.unexpected_count) == (4, 4)
    assert [key for key, _ in outcome.examples] == ["speech/00002.wav", "speech/00003.wav"] * 2


@pytest.mark.parametrize("arguments", [(0, 1, 1, 2), (16_000, 0, 1, 2), (16_000, 1, 2, 1), (16_000, 1, -1, 1)])
def test_figures_that_no_audio_meets(arguments: tuple[int, int, float, float]) -> None:
    with pytest.raises(QualityError):
        speech_manifest_suite(*arguments)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    values=st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=30),
    size=st.integers(1, 31),
    mostly=st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]),
)
def test_counts_are_those_of_a_plain_loop(values: list[int | None], size: int, mostly: float) -> None:
    frame = pd.DataFrame({"key": [str(row) for row in range(len(values))], "value": pd.array(values, "Int64")})
    windows = [frame.iloc[start : start + size] for start in range(0, len(frame), size)]
    failed: dict[str, list[str]] = {}
    verdict = validate(
        windows,
        suite(
            gxe.ExpectColumnValuesToNotBeNull(column="value", mostly=mostly),
            gxe.ExpectColumnValuesToBeBetween(column="value", max_value=4, mostly=mostly),
        ),
        key_column="key",
        max_examples=2,
        on_failed=lambda keys, which: failed.setdefault(which.expectation, []).extend(keys),
    )
    present, small = verdict.expectations
    nulls = [str(row) for row, value in enumerate(values) if value is None]
    large = [str(row) for row, value in enumerate(values) if value is not None and value > 4]
    held = len(values) - len(nulls)
    assert verdict.rows == present.element_count == small.element_count == len(values)
    assert (present.unexpected_count, small.unexpected_count, small.missing_count) == (
        len(nulls),
        len(large),
        len(nulls),
    )
    assert present.success == (not values or held / len(values) >= mostly)
    assert small.success == (not held or (held - len(large)) / held >= mostly)
    assert failed.get("expect_column_values_to_not_be_null", []) == nulls
    assert failed.get("expect_column_values_to_be_between", []) == large
    assert [key for key, _ in small.examples] == large[:2]
    assert verdict.success == (present.success and small.success)


def test_importing_the_modules_does_not_load_the_engine() -> None:
    code = (
        "import sys, storeside.speech.suites, storeside.quality.validation, storeside.stack.speech_corpus\n"
        "assert not {'great_expectations', 'pandas', 'numpy', 'av'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)


def test_nothing_is_written_or_printed(tmp_path: Path) -> None:
    code = (
        "import pandas as pd\n"
        "from storeside.speech.suites import summary_suite\n"
        "from storeside.quality.validation import validate\n"
        "row = dict(rows=1, expected_rows=1, distinct_objects=1, distinct_buckets=1, seconds=1.0)\n"
        "assert validate([pd.DataFrame([row])], summary_suite(), key_column='rows').success"
    )
    environment = {"PYTHONPATH": str(CHECKOUT / "include"), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_suite_can_demand_complete_recordings() -> None:
    strict = speech_manifest_suite(16_000, 1, 1, 20, require_complete=True)
    frame = manifest(complete=["yes", "yes", "unknown", "no"])
    verdict = validate([frame], strict, key_column="object")
    assert not verdict.success
    assert [(outcome.description, outcome.unexpected_count) for outcome in verdict.failed] == [
        ("the recording is known to be complete", 2)
    ]
    assert validate([manifest(complete="yes")], strict, key_column="object").success
    assert check(frame).success
    with pytest.raises(QualityError, match="needs the columns complete"):
        validate([manifest()], strict, key_column="object")


def test_a_table_of_any_kind_has_its_own_suite() -> None:
    """The runner knows nothing of speech: columns, derived columns and the number of rows are those of the suite."""
    trips = Suite.of(
        "trips",
        [gxe.ExpectColumnValuesToBeBetween(column="speed", max_value=130, description="speed is at most 130 km/h")],
        columns={"km": NUMBER, "hours": NUMBER},
        derived={"speed": lambda frame: frame["km"] / frame["hours"]},
        rows=3,
    )
    frame = pd.DataFrame({"trip": ["a", "b", "c"], "km": [50, 300, 10], "hours": [1, 2, 1]})
    (failed,) = validate([frame], trips, key_column="trip").failed
    assert failed.examples == (("b", 150.0),)
    assert "speed" not in frame.columns
    with pytest.raises(QualityError, match="trips needs the columns hours"):
        validate([frame.drop(columns="hours")], trips, key_column="trip")
    with pytest.raises(QualityError, match="trips is for a frame of 3 rows, not 2"):
        validate([frame.iloc[:2]], trips, key_column="trip")


def test_without_staged_rows_great_expectations_is_not_loaded() -> None:
    code = (
        "import sys; from types import SimpleNamespace; from storeside.operators import GXValidateManifestOperator;"
        " task = GXValidateManifestOperator(task_id='t', bucket='ais://a', facts='ais://b');"
        " task.manifest = lambda context: SimpleNamespace(staged=lambda: 0);"
        " assert task.execute({}) == {'success': True, 'rows': 0, 'invalid': 0};"
        " sys.exit('great_expectations' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
