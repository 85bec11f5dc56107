"""Columns of facts in ClickHouse, and their types: those of recordings, of utterances, and of given segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_AUDIO: Final = {
    "duration_seconds": "Float64",
    "sample_rate": "UInt32",
    "channels": "UInt8",
    "samples": "UInt64",
    "bytes": "UInt64",
    "peak_dbfs": "Float64",
    "rms_dbfs": "Float64",
    "checksum": "String",
}
_SHARES: Final = ("silence_share", "clipped_share")
_SIGNAL: Final = {
    **dict.fromkeys(_SHARES, "Nullable(Float64)"),
    "bandwidth_hz": "Nullable(Float64)",
    "snr_db": "Nullable(Float64)",
}
RECORDING_COLUMNS: Final[Mapping[str, str]] = {
    **_AUDIO,
    "codec": "String",
    "complete": "String",
    "declared_seconds": "Nullable(Float64)",
    "ignored": "String",
    **_SIGNAL,
}
UTTERANCE_COLUMNS: Final[dict[str, str]] = {
    "shard": "String",
    "member": "String",
    "recording": "String",
    "recording_sha256": "String",
    "utterance": "UInt32",
    "start_seconds": "Float64",
    "end_seconds": "Float64",
    "duration_seconds": _AUDIO["duration_seconds"],
    "speech_probability": "Float64",
    **_AUDIO,
    "codec": "LowCardinality(String)",
    **_SIGNAL,
    **dict.fromkeys(_SHARES, "Float64"),  # never unknown: an utterance has samples
}
TEXTS: Final = ("text", "speaker", "language")
SEGMENT_COLUMNS: Final[dict[str, str]] = {
    **{name: kind for name, kind in UTTERANCE_COLUMNS.items() if name != "speech_probability"},
    "segment": "String",
    "text": "String",
    "speaker": "String",
    "language": "LowCardinality(String)",
}
# Those that a suite adds: why an utterance or segment is not in its shard, NULL if it is, and the rate of its text.
FILTER_COLUMNS: Final[dict[str, str]] = {
    "left_out": "LowCardinality(Nullable(String))",
    "words_per_second": "Nullable(Float64)",
}
