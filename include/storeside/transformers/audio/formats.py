"""Audio formats of results, and the changes to the audio; this module imports quickly."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# libav's default layouts, which the ffmpeg command's -ac uses as well.
LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
SAMPLE_RATES = range(4_000, 192_001)
# Extensions of recordings; results get the extension of their container.
EXTENSIONS = (
    "aac", "ac3", "aif", "aiff", "amr", "ape", "au", "caf", "dff", "dsf", "eac3", "flac", "m4a", "mka", "mp3", "mp4",
    "oga", "ogg", "opus", "tta", "w64", "wav", "webm", "wma", "wv",
)  # fmt: skip
# libav's names of muxers that differ from the containers' names.
MUXERS = {"m4a": "ipod"}

# Numbers of channels from 0, and the names of those of stereo.
_CHANNELS = range(64)
_SIDES = {"left": "1", "right": "2"}

_AAC_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 64_000, 88_200, 96_000)
_MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)


@dataclass(frozen=True)
class Codec:
    """libav's encoder of a codec and its limits.

    Rates (Hz) and channels are those that the encoder accepts (``ffmpeg -h encoder=…``). `bit_rates`, in bits per
    second, range from the minimum for one channel to the standard's maximum; the range is empty for a lossless codec.
    """

    encoder: str
    sample_format: str
    mime_type: str
    rates: Collection[int] = SAMPLE_RATES
    channels: Collection[int] = tuple(LAYOUTS)
    bit_rates: range = range(0)


Container = Literal["wav", "flac", "mp3", "ogg", "m4a"]
CodecName = Literal[
    "pcm_s16le", "pcm_s24le", "pcm_f32le", "pcm_u8", "pcm_mulaw", "pcm_alaw", "flac", "flac_s24", "mp3", "opus", "aac"
]  # fmt: skip
# container -> codec
CODECS: dict[str, dict[str, Codec]] = {
    "wav": {
        "pcm_s16le": Codec("pcm_s16le", "s16", "audio/wav"),
        "pcm_s24le": Codec("pcm_s24le", "s32", "audio/wav"),
        "pcm_f32le": Codec("pcm_f32le", "flt", "audio/wav"),
        "pcm_u8": Codec("pcm_u8", "u8", "audio/wav"),
        "pcm_mulaw": Codec("pcm_mulaw", "s16", "audio/wav"),
        "pcm_alaw": Codec("pcm_alaw", "s16", "audio/wav"),
    },
    "flac": {
        "flac": Codec("flac", "s16", "audio/flac"),
        "flac_s24": Codec("flac", "s32", "audio/flac"),  # the encoder keeps the upper 24 of 32 bits
    },
    "mp3": {"mp3": Codec("libmp3lame", "s16p", "audio/mpeg", _MP3_RATES, (1, 2), range(8_000, 320_001))},
    "ogg": {"opus": Codec("libopus", "s16", "audio/ogg", _OPUS_RATES, (1, 2, 5, 6, 7, 8), range(6_000, 256_001))},
    "m4a": {"aac": Codec("aac", "fltp", "audio/mp4", _AAC_RATES, (1, 2, 3, 4, 5, 6, 8), range(8_000, 512_001))},
}


@dataclass(frozen=True)
class AudioFormat:
    """The format that an object is transcoded to.

    Each object has one result: for several segments, transform the bucket several times. `trim_silence_dbfs` and
    `loudness_lufs` make the transform decode the recording twice. Raises ValueError for an unsupported combination.

    :param container: a key of `CODECS`
    :param codec: a codec of the container in `CODECS`
    :param sample_rate: Hz
    :param channels: 1 to 8, within the codec's limits
    :param bit_rate: bits per second, for lossy codecs; MP3 uses the nearest rate that is available at the sample
        rate. By default the encoder chooses
    :param start_seconds: start of the segment
    :param duration_seconds: maximum length of the segment; the audio after it is neither decoded nor checked
    :param trim_silence_dbfs: removes quieter audio at both ends, except for a tenth of a second
    :param loudness_lufs: integrated loudness (EBU R 128) of the result, which one gain for the whole recording
        achieves. The result stays quieter if its true peak would exceed -1 dBTP, and unchanged if its loudness cannot
        be measured, as with silence or less than 0.4 seconds
    :param keep_extension: a result's name keeps the extension of its recording: ``a.flac`` becomes ``a.flac.wav``, so
        that ``a.wav`` and ``a.mp3`` have results with different names
    :param channel: the only channel of the recording to transcode: "left" (the first), "right" (the second), or its
        number from 1. A result of one channel of telephone stereo has one speaker
    """

    container: str = "wav"
    codec: str = "pcm_s16le"
    sample_rate: int = 16_000
    channels: int = 1
    bit_rate: int | None = None
    start_seconds: float = 0.0
    duration_seconds: float | None = None
    trim_silence_dbfs: float | None = None
    loudness_lufs: float | None = None
    keep_extension: bool = False
    channel: str | None = None

    def __post_init__(self) -> None:
        if self.container not in CODECS:
            raise ValueError(f"container {self.container!r} is not one of {', '.join(CODECS)}")
        if self.codec not in CODECS[self.container]:
            known = ", ".join(CODECS[self.container])
            raise ValueError(f"container {self.container} cannot contain codec {self.codec!r}: use one of {known}")
        self._require_form()
        self._require_bit_rate()
        self._require_processing()
        if self.channel is not None and self.channels != 1:
            raise ValueError(f"channel {self.channel} is one channel: set channels to 1")
        if self.channel_index not in (None, *_CHANNELS):
            raise ValueError(f"channel {self.channel!r}: use left, right, or a number from 1 to {len(_CHANNELS)}")

    def _require_form(self) -> None:
        if self.sample_rate not in SAMPLE_RATES:
            raise ValueError(f"sample rate {self.sample_rate} Hz is outside 4000 to 192000")
        if self.sample_rate not in self.written_by.rates:
            known = ", ".join(map(str, self.written_by.rates))
            raise ValueError(f"{self.codec} does not support {self.sample_rate} Hz: use one of {known}")
        if self.channels not in self.written_by.channels:
            known = ", ".join(map(str, self.written_by.channels))
            raise ValueError(f"{self.codec} does not support {self.channels} channels: use one of {known}")

    def _require_bit_rate(self) -> None:
        if self.bit_rate is None:
            return
        rates = self.written_by.bit_rates
        if not rates:
            raise ValueError(f"{self.codec} is lossless or has a fixed bit rate: omit bit_rate")
        if self.bit_rate not in rates:
            raise ValueError(f"bit rate {self.bit_rate} of {self.codec} is outside {rates[0]} to {rates[-1]}")

    def _require_processing(self) -> None:
        for name, least, most in (
            ("start_seconds", 0.0, math.inf),
            ("duration_seconds", 0.001, math.inf),
            ("trim_silence_dbfs", -120.0, -1.0),
            ("loudness_lufs", -70.0, -5.0),  # the range of libav's loudnorm filter
        ):
            value = getattr(self, name)
            if value is not None and not (least <= value <= most and math.isfinite(value)):
                raise ValueError(f"{name} {value} is outside {least} to {most}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> AudioFormat:
        """Read the format from the ``AUDIO_*`` variables that `environment()` writes."""
        env = os.environ if environment is None else environment
        return cls._read({field: (name, env.get(name)) for field, (name, _) in _VARIABLES.items()})

    @staticmethod
    def variables(environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
        """Return the texts of the ``AUDIO_*`` variables by field, for `from_values`."""
        env = os.environ if environment is None else environment
        return {field: env.get(name) for field, (name, _) in _VARIABLES.items()}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> AudioFormat:
        """Return the format with these fields, whose values may be texts; None and "" mean the default.

        The default container is the one that contains the codec.
        """
        fitting = next((name for name, codecs in CODECS.items() if values.get("codec") in codecs), "")
        given = {**values, "container": values.get("container") or fitting}
        return cls._read({field: (field, value) for field, value in given.items()})

    @classmethod
    def _read(cls, values: Mapping[str, tuple[str, Any]]) -> AudioFormat:
        given: dict[str, Any] = {}
        for field, (name, value) in values.items():
            if value not in (None, "", "None"):
                try:
                    given[field] = _VARIABLES[field][1](value)
                except ValueError as e:
                    kind = "neither true nor false" if _VARIABLES[field][1] is _flag else "not a number"
                    raise ValueError(f"{name}={value!r} is {kind}") from e
        return cls(**given)

    def environment(self) -> dict[str, str]:
        """Return the ``AUDIO_*`` variables that pass this format to the transformer, without unused options."""
        return {_VARIABLES[field][0]: str(value) for field, value in asdict(self).items() if value not in (None, 0.0)}

    @property
    def written_by(self) -> Codec:
        """The codec's encoder and limits in libav."""
        return CODECS[self.container][self.codec]

    @property
    def mime_type(self) -> str:
        """The MIME type of transcoded objects."""
        return self.written_by.mime_type

    @property
    def is_wav_s16(self) -> bool:
        """Whether results are WAV of 16-bit PCM."""
        return (self.container, self.codec) == ("wav", "pcm_s16le")

    @property
    def is_whole(self) -> bool:
        """Whether results contain the complete recording at its original loudness."""
        return not self.start_seconds and self.duration_seconds is None and not self.is_measured

    @property
    def end_seconds(self) -> float:
        """The end of the segment in seconds of the recording; infinite without a segment."""
        return math.inf if self.duration_seconds is None else self.start_seconds + self.duration_seconds

    @property
    def is_measured(self) -> bool:
        """Whether the recording must be measured before it can be transcoded."""
        return self.trim_silence_dbfs is not None or self.loudness_lufs is not None

    @property
    def channel_index(self) -> int | None:
        """The number of the only channel to transcode, from 0; None for all, and -1 for none that exists."""
        if self.channel is None:
            return None
        number = _SIDES.get(self.channel, self.channel)
        return int(number) - 1 if number.isdecimal() and number.isascii() else -1

    @property
    def extensions(self) -> dict[str, str]:
        """The extension of the result for each extension of recordings, for AIStore's case-sensitive mapping."""
        names = [e for known in EXTENSIONS for e in (known, known.upper()) if e != self.container]
        return {e: f"{e}.{self.container}" if self.keep_extension else self.container for e in names}

    def facts_name(self, name: str) -> str:
        """Return the name of the facts about the result of the object `name`: the result's name with ``.json``.

        If the extension is not in `extensions`, the facts have exactly the result's name, because AIStore's mapping
        for the facts of a probe then replaces nothing.
        """
        stem, dot, extension = name.rpartition(".")
        if not dot or extension not in {self.container: "", **self.extensions}:
            return name
        return f"{stem}.{self.extensions.get(extension, extension)}.json"


def _flag(value: object) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


# The environment variable of each field, and the function that parses it.
_VARIABLES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "container": ("AUDIO_CONTAINER", str),
    "codec": ("AUDIO_CODEC", str),
    "sample_rate": ("AUDIO_SAMPLE_RATE", int),
    "channels": ("AUDIO_CHANNELS", int),
    "bit_rate": ("AUDIO_BIT_RATE", int),
    "start_seconds": ("AUDIO_START_SECONDS", float),
    "duration_seconds": ("AUDIO_DURATION_SECONDS", float),
    "trim_silence_dbfs": ("AUDIO_TRIM_SILENCE_DBFS", float),
    "loudness_lufs": ("AUDIO_LOUDNESS_LUFS", float),
    "keep_extension": ("AUDIO_KEEP_EXTENSION", _flag),
    "channel": ("AUDIO_CHANNEL", str),
}
