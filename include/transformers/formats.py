"""Audio formats that objects can be transcoded to; cheap to import."""

from __future__ import annotations

import os
from dataclasses import dataclass

LAYOUTS = {1: "mono", 2: "stereo"}
SAMPLE_RATES = range(4_000, 192_001)
# Encoders that take some rates only: libopus and libmp3lame, as libav lists them (`ffmpeg -h encoder=libopus`).
ENCODER_RATES = {
    "opus": (8_000, 12_000, 16_000, 24_000, 48_000),
    "mp3": (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
}
# Extensions of recordings, whose results get the extension of their container instead.
EXTENSIONS = ("aac", "aif", "aiff", "caf", "flac", "m4a", "mka", "mp3", "mp4", "oga", "ogg", "opus", "wav", "webm")

# container -> codec -> (libav encoder, sample format, MIME type)
CODECS: dict[str, dict[str, tuple[str, str, str]]] = {
    "wav": {
        "pcm_s16le": ("pcm_s16le", "s16", "audio/wav"),
        "pcm_s24le": ("pcm_s24le", "s32", "audio/wav"),
        "pcm_f32le": ("pcm_f32le", "flt", "audio/wav"),
    },
    "flac": {"flac": ("flac", "s16", "audio/flac")},
    "mp3": {"mp3": ("libmp3lame", "s16p", "audio/mpeg")},
    "ogg": {"opus": ("libopus", "s16", "audio/ogg")},
}


@dataclass(frozen=True)
class AudioFormat:
    """What an object is transcoded to.

    `container` and `codec` are keys of `CODECS`; `sample_rate` is in Hz; `channels` is 1 or 2.
    Raises ValueError for a combination that does not exist.
    """

    container: str = "wav"
    codec: str = "pcm_s16le"
    sample_rate: int = 16_000
    channels: int = 1

    def __post_init__(self) -> None:
        if self.container not in CODECS:
            raise ValueError(f"container {self.container!r} is not one of {', '.join(CODECS)}")
        if self.codec not in CODECS[self.container]:
            known = ", ".join(CODECS[self.container])
            raise ValueError(f"codec {self.codec!r} does not go into {self.container}: use one of {known}")
        if self.sample_rate not in SAMPLE_RATES:
            raise ValueError(f"sample rate {self.sample_rate} Hz is outside 4000 to 192000")
        rates = ENCODER_RATES.get(self.codec, SAMPLE_RATES)
        if self.sample_rate not in rates:
            raise ValueError(
                f"{self.codec} cannot have {self.sample_rate} Hz: use one of {', '.join(map(str, rates))}"
            )
        if self.channels not in LAYOUTS:
            raise ValueError(f"{self.channels} channels: use 1 or 2")

    @classmethod
    def from_environment(cls, environment: dict[str, str] | None = None) -> AudioFormat:
        """Read the format from ``AUDIO_*`` variables, as `environment()` writes them."""
        env = os.environ if environment is None else environment
        return cls(
            container=env.get("AUDIO_CONTAINER", cls.container),
            codec=env.get("AUDIO_CODEC", cls.codec),
            sample_rate=int(env.get("AUDIO_SAMPLE_RATE", cls.sample_rate)),
            channels=int(env.get("AUDIO_CHANNELS", cls.channels)),
        )

    def environment(self) -> dict[str, str]:
        """Return the ``AUDIO_*`` variables that hand this format to the transformer."""
        return {
            "AUDIO_CONTAINER": self.container,
            "AUDIO_CODEC": self.codec,
            "AUDIO_SAMPLE_RATE": str(self.sample_rate),
            "AUDIO_CHANNELS": str(self.channels),
        }

    @property
    def mime_type(self) -> str:
        """The MIME type of transcoded objects."""
        return CODECS[self.container][self.codec][2]

    @property
    def extensions(self) -> dict[str, str]:
        """How recordings' extensions change: AIStore's mapping, which is case-sensitive."""
        return {e: self.container for known in EXTENSIONS for e in (known, known.upper()) if e != self.container}
