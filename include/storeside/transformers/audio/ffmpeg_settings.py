"""The options and limits of the ffmpeg command, read from environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Filters with one audio stream as input and one as output. Filters that open files or sockets, load code, or wait are
# excluded: amovie, ametadata, asendcmd, azmq, arnndn, asr, firequalizer (dumpfile), ladspa, lv2, sofalizer, whisper,
# arealtime, acue.
FILTERS = frozenset(
    """
    acompressor acontrast acrusher adeclick adeclip adecorrelate adelay adenorm aderivative adrc adynamicequalizer
    adynamicsmooth aecho aemphasis aeval aexciter afade afftdn afftfilt aformat afreqshift afwtdn agate aintegral
    alimiter allpass aloop anequalizer anlmdn anull apad aphaser aphaseshift apsyclip apulsator aresample areverse
    asetnsamples asetpts asetrate asettb asoftclip asubboost asubcut asupercut asuperpass asuperstop atempo atilt
    atrim bandpass bandreject bass biquad bs2b channelmap compand compensationdelay crossfeed crystalizer dcshift
    deesser dialoguenhance dynaudnorm earwax ebur128 equalizer extrastereo haas hdcd highpass highshelf loudnorm
    lowpass lowshelf mcompand pan rubberband silenceremove speechnorm stereotools stereowiden superequalizer
    surround tiltshelf treble tremolo vibrato virtualbass volume
    """.split()  # noqa: SIM905 - words are easier to read
)
# The option of loudnorm (FFmpeg 7.1) that writes a file, and the number of options before it.
_LOUDNORM_FILE, _LOUDNORM_HARMLESS = "stats_file", 11
# Muxers that write one file, with its MIME type. Other muxers write several files or to the network (tee, segment,
# hls).
FORMATS = {
    "adts": "audio/aac", "aiff": "audio/aiff", "caf": "audio/x-caf", "f32le": "audio/pcm", "flac": "audio/flac",
    "ipod": "audio/mp4", "matroska": "audio/x-matroska", "mp3": "audio/mpeg", "mp4": "audio/mp4", "ogg": "audio/ogg",
    "opus": "audio/ogg", "s16le": "audio/pcm", "s24le": "audio/pcm", "w64": "audio/x-w64", "wav": "audio/wav",
    "webm": "audio/webm",
}  # fmt: skip
# Output options that refer to no file and affect only this output.
OUTPUT_OPTIONS = frozenset(
    """
    ab ac acodec application ar audio_bitrate b:a c:a channel_layout codec:a compression_level cutoff f fflags
    flags:a format frame_duration id3v2_version map_metadata movflags profile:a q:a sample_fmt ss strict t to vbr
    write_xing
    """.split()  # noqa: SIM905 - words are easier to read
)

# Muxers whose encoders accept any channel layout.
_ANY_LAYOUT = frozenset(("aiff", "caf", "f32le", "flac", "s16le", "s24le", "w64", "wav"))

Filter = tuple[str, list[Any], dict[str, Any]]


@dataclass(frozen=True)
class FfmpegSettings:
    """The filters and output options of the ffmpeg command, and the limits of one run.

    `filters` apply in this order to the first audio stream; each has a name, positional and named arguments. `output`
    has output options in the syntax of ffmpeg-python, including `format` (a key of `FORMATS`). A run may use
    `seconds` of CPU time, four times that in elapsed time, and `memory_bytes` of address space. Raises ValueError.
    """

    output: dict[str, Any]
    filters: list[Filter] = field(default_factory=list)
    seconds: int = 600
    memory_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"FFMPEG_OUTPUT: format {self.format!r} is not one of {', '.join(FORMATS)}")
        for name, value in self.output.items():
            if name not in OUTPUT_OPTIONS:
                raise ValueError(f"FFMPEG_OUTPUT: {name!r} is not one of {', '.join(sorted(OUTPUT_OPTIONS))}")
            _require_scalar("FFMPEG_OUTPUT", name, value)
        for name, positional, named in self.filters:
            if name not in FILTERS:
                raise ValueError(f"FFMPEG_FILTERS: {name!r} is not one of {', '.join(sorted(FILTERS))}")
            if name == "loudnorm" and (_LOUDNORM_FILE in named or len(positional) > _LOUDNORM_HARMLESS):
                raise ValueError(f"FFMPEG_FILTERS: loudnorm's {_LOUDNORM_FILE} writes a file, which is not allowed")
            given: list[tuple[str | int, Any]] = [*enumerate(positional), *named.items()]
            for option, value in given:
                if not str(option).replace("_", "").isalnum():  # "/option" would read a file
                    raise ValueError(f"FFMPEG_FILTERS: {name} has no option {option!r}")
                _require_scalar(f"FFMPEG_FILTERS: {name}", option, value)
        if self.seconds < 1 or self.memory_bytes < 1:
            raise ValueError("FFMPEG_SECONDS and FFMPEG_MEMORY_BYTES must be positive")

    @property
    def format(self) -> str:
        """The muxer's name."""
        return str(self.output.get("format", self.output.get("f")))

    @property
    def kept_channels(self) -> int:
        """The number of channels that results keep without mixing; 0 if ffmpeg may mix them."""
        free = self.format in _ANY_LAYOUT and "channel_layout" not in self.output
        return int(self.output.get("ac", 0)) if free else 0

    @property
    def mime_type(self) -> str:
        """The MIME type of results."""
        return FORMATS[self.format]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> FfmpegSettings:
        """Read the settings from the ``FFMPEG_*`` variables that `environment()` writes.

        ``FFMPEG_OUTPUT`` is a JSON object. ``FFMPEG_FILTERS`` is a JSON list of [name, [arguments], {named
        arguments}]; the last two are optional.
        """
        env = os.environ if environment is None else environment
        output = _json(env, "FFMPEG_OUTPUT", "{}")
        filters = _json(env, "FFMPEG_FILTERS", "[]")
        if not isinstance(output, dict) or not isinstance(filters, list):
            raise ValueError("FFMPEG_OUTPUT must be a JSON object and FFMPEG_FILTERS a JSON list")
        return cls(
            output=output,
            filters=[_filter(item) for item in filters],
            seconds=int(env.get("FFMPEG_SECONDS", cls.seconds)),
            memory_bytes=int(env.get("FFMPEG_MEMORY_BYTES", cls.memory_bytes)),
        )

    def environment(self) -> dict[str, str]:
        """Return the ``FFMPEG_*`` variables that pass these settings to the transformer."""
        return {
            "FFMPEG_OUTPUT": json.dumps(self.output),
            "FFMPEG_FILTERS": json.dumps(self.filters),
            "FFMPEG_SECONDS": str(self.seconds),
            "FFMPEG_MEMORY_BYTES": str(self.memory_bytes),
        }


def _json(environment: Mapping[str, str], variable: str, default: str) -> Any:
    try:
        return json.loads(environment.get(variable) or default)
    except ValueError as e:
        raise ValueError(f"{variable} is not JSON: {e}") from e


def _filter(item: Any) -> Filter:
    match item:
        case [str(name)]:
            return name, [], {}
        case [str(name), list(positional)]:
            return name, positional, {}
        case [str(name), dict(named)]:
            return name, [], named
        case [str(name), list(positional), dict(named)]:
            return name, positional, named
    raise ValueError(f"FFMPEG_FILTERS: {item!r} does not have the form [name, [arguments], {{named arguments}}]")


def _require_scalar(where: str, option: str | int, value: Any) -> None:
    if not isinstance(value, str | int | float):
        raise ValueError(f"{where}: {option} is {value!r} instead of a string or a number")
