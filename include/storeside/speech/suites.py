"""The suite of the rows of the speech manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from storeside.quality.errors import QualityError

NOT_EMPTY_COLUMNS: Final = ("object", "bucket", "source_object", "source_bucket", "codec")
HIGHEST_PEAK_DBFS = 0.1
QUIET_DBFS = -70
HIGHEST_BANDWIDTH_HZ = 384_000  # half the highest sample rate of recordings
HIGHEST_SNR_DB = 100  # the range of the levels that the estimate uses

NOT_NULL = "expect_column_values_to_not_be_null"
LENGTH = "expect_column_value_lengths_to_be_between"
BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"
REGEX = "expect_column_values_to_match_regex"
GREATER = "expect_column_pair_values_a_to_be_greater_than_b"

# Conditions of rows that cannot be those of audio. Samples of floating point, and of all lossy codecs, may exceed
# full scale.
SAMPLES_BEYOND_DURATION = "abs(toFloat64(samples) - round(duration_seconds * sample_rate)) > 1"
PCM_BELOW_SAMPLES = "match(codec, '^(pcm_|wav)') AND toFloat64(bytes) <= toFloat64(samples) * channels"
PEAK_OF_INTEGERS = f"match(codec, '^(pcm_([sua]|mulaw)|wav$|flac|alac|tta|ape)') AND peak_dbfs > {HIGHEST_PEAK_DBFS}"


@dataclass(frozen=True)
class SignalRanges:
    """The limits for the facts of a recording's signal; a row without a fact meets the limit for this fact.

    Shares are 0 to 1, the bandwidth is in Hz, the signal-to-noise ratio in dB. The defaults allow all
    possible values. Raises QualityError for limits that no recording can meet.
    """

    max_silence_share: float = 1
    max_clipped_share: float = 1
    min_bandwidth_hz: float = 0
    min_snr_db: float = 0

    def __post_init__(self) -> None:
        for name, most in (
            ("max_silence_share", 1),
            ("max_clipped_share", 1),
            ("min_bandwidth_hz", HIGHEST_BANDWIDTH_HZ),
            ("min_snr_db", HIGHEST_SNR_DB),
        ):
            if not 0 <= getattr(self, name) <= most:
                raise QualityError(f"{name} is {getattr(self, name)}: use 0 to {most}")

    def expectations(self) -> list[dict[str, Any]]:
        """Return the expectations about the columns of `SignalFacts`."""
        silence, clipped, bandwidth, snr = (
            self.max_silence_share, self.max_clipped_share, self.min_bandwidth_hz, self.min_snr_db,
        )  # fmt: skip
        return [
            _between("silence_share", f"share of silence is at most {silence}", 0, silence),
            _between("clipped_share", f"share of clipped samples is at most {clipped}", 0, clipped),
            _between("bandwidth_hz", f"bandwidth is at least {bandwidth} Hz", bandwidth, HIGHEST_BANDWIDTH_HZ),
            _between("snr_db", f"signal-to-noise ratio is at least {snr} dB", snr, HIGHEST_SNR_DB),
        ]


def speech_manifest_suite(
    sample_rate: int,
    channels: int,
    min_seconds: float,
    max_seconds: float,
    *,
    require_complete: bool = False,
    signal: SignalRanges | None = None,
) -> dict[str, Any]:
    """Return the suite of the manifest's rows, in the format of Great Expectations.

    Durations are in seconds, with both limits allowed; levels are in dB relative to full scale. Audio quieter than
    `QUIET_DBFS` is a warning; every other failure is critical. With `require_complete`, the recording's container
    states its length, and the recording has that length. With `signal`, the facts of the signal are in these ranges
    or missing. Raises QualityError for limits that no audio can meet.
    """
    if sample_rate < 1 or channels < 1 or not 0 <= min_seconds <= max_seconds:
        raise QualityError(
            f"no audio has {sample_rate} Hz, {channels} channels and {min_seconds} to {max_seconds} s: correct them"
        )
    levels = {"column_A": "peak_dbfs", "column_B": "rms_dbfs", "or_equal": True}
    expectations = [
        *(_of(NOT_NULL, f"{name} is present", column=name) for name in ("duration_seconds", "peak_dbfs", "rms_dbfs")),
        *(_of(LENGTH, f"{name} is not empty", column=name, min_value=1) for name in NOT_EMPTY_COLUMNS),
        _between("duration_seconds", f"duration is {min_seconds} to {max_seconds} s", min_seconds, max_seconds),
        _of(IN_SET, f"sample rate is {sample_rate} Hz", column="sample_rate", value_set=[sample_rate]),
        _of(IN_SET, f"channels are {channels}", column="channels", value_set=[channels]),
        _of(BETWEEN, "there are samples", column="samples", min_value=0, strict_min=True),
        _never("samples equal duration times sample rate, within one", SAMPLES_BEYOND_DURATION),
        _of(BETWEEN, "there are bytes", column="bytes", min_value=0, strict_min=True),
        _never("uncompressed audio has more bytes than samples in all channels", PCM_BELOW_SAMPLES),
        _never(f"peak of integer samples is at most {HIGHEST_PEAK_DBFS} dBFS", PEAK_OF_INTEGERS),
        _of(GREATER, "peak is not below the mean level", **levels, ignore_row_if="either_value_is_missing"),
        {
            **_between("rms_dbfs", f"mean level is at least {QUIET_DBFS} dBFS", QUIET_DBFS),
            "severity": "warning",
        },
        _of(REGEX, "checksum is SHA-256 in hexadecimal", column="checksum", regex="^[0-9a-f]{64}$"),
    ]
    if require_complete:
        expectations.append(
            _of(IN_SET, "the recording is known to be complete", column="complete", value_set=["yes"])
        )
    return {"name": "speech_manifest", "expectations": [*expectations, *(signal.expectations() if signal else ())]}


def _of(kind: str, description: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs, "description": description}


def _between(column: str, description: str, low: float, high: float | None = None) -> dict[str, Any]:
    return _of(BETWEEN, description, column=column, min_value=low, max_value=high)


def _never(description: str, condition: str) -> dict[str, Any]:
    query = f"SELECT * FROM {{batch}} WHERE {condition}"
    return _of("unexpected_rows_expectation", description, unexpected_rows_query=query)
