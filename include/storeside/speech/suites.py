"""The suites of the speech manifest: one for its rows, and one for the manifest as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.quality.suite import NUMBER, TEXT, QualityError, Suite

if TYPE_CHECKING:
    import pandas as pd

MANIFEST_COLUMNS: Mapping[str, str] = {
    "object": TEXT,
    "bucket": TEXT,
    "source_object": TEXT,
    "source_bucket": TEXT,
    "duration_seconds": NUMBER,
    "sample_rate": NUMBER,
    "channels": NUMBER,
    "samples": NUMBER,
    "bytes": NUMBER,
    "peak_dbfs": NUMBER,
    "rms_dbfs": NUMBER,
    "checksum": TEXT,
    "codec": TEXT,
}
SIGNAL_COLUMNS: Mapping[str, str] = dict.fromkeys(
    ("silence_share", "clipped_share", "bandwidth_hz", "snr_db"), NUMBER
)
NAME_COLUMNS = ("object", "bucket", "source_object", "source_bucket")
HIGHEST_PEAK_DBFS = 0.1
HIGHEST_BANDWIDTH_HZ = 384_000  # half the highest sample rate of recordings
HIGHEST_SNR_DB = 100  # the range of the levels that the estimate uses

SUMMARY_COLUMNS = ("rows", "expected_rows", "distinct_objects", "distinct_buckets", "seconds")
# The columns to select from a manifest for `summary_suite`; `expected_rows` is a query parameter.
SUMMARY_SELECT = (
    "count() AS rows, {expected_rows:UInt64} AS expected_rows, uniqExact(object) AS distinct_objects, "
    "uniqExact(bucket) AS distinct_buckets, sum(duration_seconds) AS seconds"
)


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

    def expectations(self) -> list[Any]:
        """Return the expectations about SIGNAL_COLUMNS."""
        gxe = _expectations()
        silence, clipped, snr = self.max_silence_share, self.max_clipped_share, self.min_snr_db
        return [
            gxe.ExpectColumnValuesToBeBetween(column=column, min_value=low, max_value=high, description=description)
            for column, low, high, description in (
                ("silence_share", 0, silence, f"share of silence is at most {silence}"),
                ("clipped_share", 0, clipped, f"share of clipped samples is at most {clipped}"),
                (
                    "bandwidth_hz",
                    self.min_bandwidth_hz,
                    HIGHEST_BANDWIDTH_HZ,
                    f"bandwidth is at least {self.min_bandwidth_hz} Hz",
                ),
                ("snr_db", snr, HIGHEST_SNR_DB, f"signal-to-noise ratio is at least {snr} dB"),
            )
        ]


def speech_manifest_suite(
    sample_rate: int,
    channels: int,
    min_seconds: float,
    max_seconds: float,
    min_rms_dbfs: float = -70,
    *,
    require_complete: bool = False,
    signal: SignalRanges | None = None,
) -> Suite:
    """Return the row-level suite of a manifest with MANIFEST_COLUMNS.

    Durations are in seconds, with both limits allowed; levels are in dB relative to full scale. Audio quieter than
    `min_rms_dbfs` is a warning; every other failure is critical. With `require_complete`, the manifest needs a column
    `complete` with the value "yes": the recording's container states its length, and the recording has that length.
    With `signal`, the manifest needs the columns SIGNAL_COLUMNS, whose values are in these ranges or missing.
    Raises QualityError for limits that no audio can meet.
    """
    gxe = _expectations()

    if sample_rate < 1 or channels < 1 or not 0 <= min_seconds <= max_seconds:
        raise QualityError(
            f"no audio has {sample_rate} Hz, {channels} channels and {min_seconds} to {max_seconds} s: correct them"
        )
    return Suite.of(
        "speech_manifest",
        [
            *(
                gxe.ExpectColumnValuesToNotBeNull(column=column, description=f"{column} is present")
                for column in MANIFEST_COLUMNS
            ),
            *(
                gxe.ExpectColumnValueLengthsToBeBetween(
                    column=column, min_value=1, description=f"{column} is not empty"
                )
                for column in NAME_COLUMNS
            ),
            gxe.ExpectColumnValuesToBeBetween(
                column="duration_seconds",
                min_value=min_seconds,
                max_value=max_seconds,
                description=f"duration is {min_seconds} to {max_seconds} s",
            ),
            gxe.ExpectColumnValuesToBeInSet(
                column="sample_rate", value_set=[sample_rate], description=f"sample rate is {sample_rate} Hz"
            ),
            gxe.ExpectColumnValuesToBeInSet(
                column="channels", value_set=[channels], description=f"channels are {channels}"
            ),
            _above_zero("samples", "there are samples"),
            gxe.ExpectColumnValuesToBeBetween(
                column="samples_beyond_duration",
                min_value=-1,
                max_value=1,
                description="samples equal duration times sample rate, within one",
            ),
            _above_zero("bytes", "there are bytes"),
            gxe.ExpectColumnValuesToBeBetween(
                column="pcm_bytes_beyond_samples",
                min_value=0,
                strict_min=True,
                description="uncompressed audio has more bytes than samples in all channels",
            ),
            gxe.ExpectColumnValuesToBeBetween(
                column="peak_of_integers_dbfs",
                max_value=HIGHEST_PEAK_DBFS,
                description=f"peak of integer samples is at most {HIGHEST_PEAK_DBFS} dBFS",
            ),
            gxe.ExpectColumnPairValuesAToBeGreaterThanB(
                column_A="peak_dbfs",
                column_B="rms_dbfs",
                or_equal=True,
                ignore_row_if="either_value_is_missing",
                description="peak is not below the mean level",
            ),
            gxe.ExpectColumnValuesToBeBetween(
                column="rms_dbfs",
                min_value=min_rms_dbfs,
                severity="warning",
                description=f"mean level is at least {min_rms_dbfs} dBFS",
            ),
            gxe.ExpectColumnValuesToMatchRegex(
                column="checksum", regex=r"\A[0-9a-f]{64}\Z", description="checksum is SHA-256 in hexadecimal"
            ),
            gxe.ExpectColumnValueLengthsToBeBetween(column="codec", min_value=1, description="codec is not empty"),
            *([_is_complete()] if require_complete else []),
            *(signal.expectations() if signal else []),
        ],
        columns={
            **MANIFEST_COLUMNS,
            **({"complete": TEXT} if require_complete else {}),
            **(SIGNAL_COLUMNS if signal else {}),
        },
        derived={
            "samples_beyond_duration": _samples_beyond_duration,
            "pcm_bytes_beyond_samples": _pcm_bytes_beyond_samples,
            "peak_of_integers_dbfs": _peak_of_integers_dbfs,
        },
    )


def summary_suite() -> Suite:
    """Return the suite of the one-row frame with SUMMARY_COLUMNS that SUMMARY_SELECT returns."""
    gxe = _expectations()

    return Suite.of(
        "speech_manifest_summary",
        [
            *(
                gxe.ExpectColumnValuesToNotBeNull(column=column, description=f"{column} is present")
                for column in SUMMARY_COLUMNS
            ),
            gxe.ExpectColumnPairValuesToBeEqual(
                column_A="rows",
                column_B="expected_rows",
                ignore_row_if="either_value_is_missing",
                description="there are as many rows as expected",
            ),
            gxe.ExpectColumnPairValuesToBeEqual(
                column_A="distinct_objects",
                column_B="rows",
                ignore_row_if="either_value_is_missing",
                description="no object is listed twice",
            ),
            gxe.ExpectColumnValuesToBeInSet(
                column="distinct_buckets", value_set=[1], description="all objects are in one bucket"
            ),
            _above_zero("seconds", "there is audio"),
        ],
        columns=dict.fromkeys(SUMMARY_COLUMNS, NUMBER),
        rows=1,
    )


def _expectations() -> Any:
    """Return the module of core expectations, whose names a type checker does not see as exported."""
    import great_expectations.expectations as gxe

    return gxe


def _is_complete() -> Any:
    gxe = _expectations()

    return gxe.ExpectColumnValuesToBeInSet(
        column="complete", value_set=["yes"], description="the recording is known to be complete"
    )


def _above_zero(column: str, description: str) -> Any:
    gxe = _expectations()

    return gxe.ExpectColumnValuesToBeBetween(column=column, min_value=0, strict_min=True, description=description)


def _samples_beyond_duration(frame: pd.DataFrame) -> pd.Series[Any]:
    expected = (frame["duration_seconds"] * frame["sample_rate"]).round()
    return frame["samples"].astype("Float64") - expected.astype("Float64")


def _pcm_bytes_beyond_samples(frame: pd.DataFrame) -> pd.Series[Any]:
    """Return `bytes` minus one byte per sample and channel; missing where the codec compresses."""
    left = frame["bytes"].astype("Float64") - frame["samples"].astype("Float64") * frame["channels"]
    return left.where(frame["codec"].str.match("pcm_|wav").fillna(False).astype(bool))


def _peak_of_integers_dbfs(frame: pd.DataFrame) -> pd.Series[Any]:
    """Return the peak; missing for codecs whose samples may exceed full scale: floating point, and all lossy ones."""
    integers = frame["codec"].str.match("pcm_([sua]|mulaw)|wav$|flac|alac|tta|ape")
    return frame["peak_dbfs"].astype("Float64").where(integers.fillna(False).astype(bool))
