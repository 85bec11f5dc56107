"""The fuzzed code: all engines that read a recording, as one transformer."""

from __future__ import annotations

import contextlib
from typing import Any

from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio_transformers import AudioProbe, AudioTranscode

MEMORY_LIMIT = 1 << 30
LIMITS = Limits(seconds=6 * 3600)


class Engines:
    """All ways of reading a recording as one transformer; an inline request's arguments choose the way."""

    mime_type = "application/octet-stream"
    needs = frozenset(("commands",))
    opens_source = True

    def __init__(self) -> None:
        from storeside.transformers.audio.ffmpeg import AudioFfmpeg
        from storeside.transformers.audio.ffmpeg_settings import FfmpegSettings
        from storeside.transformers.settings import Settings

        settings = FfmpegSettings({"format": "wav", "ar": 16_000, "ac": 1}, seconds=10, memory_bytes=MEMORY_LIMIT)
        self._engines: dict[str, Any] = {
            "native": AudioTranscode(AudioFormat(), LIMITS),
            "pyav": AudioTranscode(AudioFormat("wav", "pcm_s24le"), LIMITS),
            "probe": AudioProbe(LIMITS),
        }
        with contextlib.suppress(FileNotFoundError):  # there is no ffmpeg here
            self._engines["ffmpeg"] = AudioFfmpeg(settings, LIMITS, Settings())

    def transform(self, source: Any, name: str, arguments: str) -> Any:
        """Return what the engine makes of the object."""
        return self._engines.get(arguments, self._engines["pyav"]).transform(source, name, arguments)
