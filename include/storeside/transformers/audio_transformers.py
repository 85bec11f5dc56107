"""The built-in audio transforms by name; their parameters are environment variables."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits

from .transformer import Data, LeaveOut, Source, Transformer, WithFacts, WithSidecar

if TYPE_CHECKING:
    from storeside.transformers.audio.facts import AudioFacts
    from storeside.transformers.audio.suite import Sieve, Suite
    from storeside.transformers.audio.utterance_options import UtteranceOptions


class AudioTranscode:
    """Transcodes each object to one format."""

    opens_source = True

    def __init__(self, target: AudioFormat, limits: Limits) -> None:
        from storeside.transformers.audio.transcoding import engine

        self.mime_type = target.mime_type
        self._target = target
        self._limits = limits
        self._engine = engine(target)

    def transform(self, source: Source, _name: str, _arguments: str) -> Data:
        """Return the transcoded object. Raises AudioError, and LeaveOut for a short one."""
        data = self._engine(source, self._target, self._limits)
        if self._limits.min_seconds:
            from storeside.transformers.audio.facts import facts_of_wav, probe

            measured = facts_of_wav(data, self._target) if self._target.is_wav_s16 else probe(data, self._limits)
            _require_long(measured, self._limits)
        return data


class AudioProbe:
    """Replaces each object with its facts, as one line of JSON."""

    opens_source = True
    mime_type = "application/json"

    def __init__(self, limits: Limits) -> None:
        from storeside.transformers.audio import libav_decoder  # noqa: F401 - loads libav before the first object
        from storeside.transformers.audio.facts import probe

        self._limits = limits
        self._probe = probe

    def transform(self, source: Source, _name: str, _arguments: str) -> Data:
        """Return the fields of `AudioFacts` as JSON. Raises AudioError, and LeaveOut for a short recording."""
        facts = self._probe(source, self._limits)
        _require_long(facts, self._limits)
        return _json(facts)


class AudioTranscodeProbe:
    """Transcodes each object and measures it; leaves it out if its facts do not meet the suite.

    With `stores_facts`, the facts are a sidecar, which is named after the result. Their fields `complete`,
    `declared_seconds`, `ignored` and those of `SignalFacts` describe the source.
    """

    opens_source = True

    def __init__(
        self, target: AudioFormat, limits: Limits, suite: Suite | None = None, *, stores_facts: bool = True
    ) -> None:
        from storeside.transformers.audio import facts as audio_facts
        from storeside.transformers.audio.transcoding import measuring_engine

        self._engine = measuring_engine(target)
        self.mime_type = target.mime_type
        self._target = target
        self._limits = limits
        self._facts = audio_facts
        self._suite = suite
        self._stores_facts = stores_facts

    def transform(self, source: Source, name: str, _arguments: str) -> Data | WithSidecar | WithFacts:
        """Return the transcoded object and its facts. Raises AudioError, and LeaveOut."""
        data, signal, seconds = self._engine(source, self._target, self._limits)
        if self._target.is_wav_s16:
            facts = self._facts.facts_of_wav(data, self._target)
        else:
            facts = self._facts.probe(data, self._limits)
        _require_long(facts, self._limits)
        stated = self._facts.stated_of(source)
        whole = stated.completeness(seconds) if math.isinf(self._target.end_seconds) else "unknown"
        facts = replace(
            facts, complete=whole, declared_seconds=stated.seconds, ignored=stated.ignored, **asdict(signal)
        )
        result = WithSidecar(data, _json(facts), self._target.facts_name(name)) if self._stores_facts else data
        if not self._suite:
            return result
        if reason := self._suite.reason(asdict(facts)):
            raise LeaveOut(reason, asdict(facts))
        return WithFacts(result, _seconds(facts))


class AudioUtterances:
    """Cuts each recording into its utterances: a tar shard with the audio and the facts of each."""

    opens_source = True
    mime_type = "application/x-tar"

    def __init__(
        self, target: AudioFormat, options: UtteranceOptions, limits: Limits, suite: Suite | None = None
    ) -> None:
        from storeside.transformers.audio import utterances

        self._detector = utterances.Detector()
        self._shard = utterances.shard
        self._suite = suite
        self._target = target
        self._options = options
        self._limits = limits

    def transform(self, source: Source, name: str, _arguments: str) -> Data | WithFacts:
        """Return the shard; it has no members if there is no speech. Raises AudioError."""
        sieve = _sieve(self._suite)
        made = self._shard(source, name, self._target, self._options, self._limits, self._detector, sieve)
        return WithFacts(made, sieve.facts()) if sieve else made


class AudioSegments:
    """Cuts each recording into the segments that the job is given of it: a tar shard, as of utterances."""

    opens_source = True
    mime_type = "application/x-tar"

    def __init__(self, target: AudioFormat, limits: Limits, suite: Suite | None = None) -> None:
        from storeside.transformers.audio import given_segments, utterances

        self._segments = given_segments.segments
        self._shard = utterances.shard_of
        self._target = target
        self._limits = limits
        self._suite = suite

    def transform(self, source: Source, name: str, arguments: str) -> Data | WithFacts:
        """Return the shard. Raises AudioError, and LeaveOut for a recording of which no segments are given."""
        found = self._segments(arguments, self._limits)
        if not found:
            raise LeaveOut("no segments are given")
        sieve = _sieve(self._suite)
        made = self._shard(source, name, self._target, found, self._limits, sieve)
        return WithFacts(made, sieve.facts()) if sieve else made


def _sieve(suite: Suite | None) -> Sieve | None:
    if not suite:
        return None
    from storeside.transformers.audio.suite import Sieve

    return Sieve(suite)


def _require_long(facts: AudioFacts, limits: Limits) -> None:
    if facts.duration_seconds < limits.min_seconds:
        raise LeaveOut(f"shorter than {limits.min_seconds:g} s", _seconds(facts))


def _seconds(facts: AudioFacts) -> dict[str, float]:
    return {"duration_seconds": facts.duration_seconds}


def _json(facts: AudioFacts) -> bytes:
    return json.dumps(asdict(facts), allow_nan=False).encode() + b"\n"


def audio_transcode() -> Transformer:
    """Transcode to the format of the ``AUDIO_*`` variables; with ``SIDECAR_URL``, write facts there in the same pass.

    ``AUDIO_SUITE`` decides which recordings are left out. The results, and the command that identifies them, are the
    same with and without facts.
    """
    if os.environ.get("SIDECAR_URL"):
        return audio_transcode_probe()
    target, limits, suite = AudioFormat.from_environment(), Limits.from_environment(), _suite()
    return AudioTranscodeProbe(target, limits, suite, stores_facts=False) if suite else AudioTranscode(target, limits)


def audio_probe() -> Transformer:
    """Measure objects; ``AUDIO_MIN_SECONDS`` and ``AUDIO_MAX_SECONDS`` limit their length."""
    return AudioProbe(Limits.from_environment())


def audio_transcode_probe() -> Transformer:
    """Transcode to the format of the ``AUDIO_*`` variables and measure the result in one pass."""
    return AudioTranscodeProbe(AudioFormat.from_environment(), Limits.from_environment(), _suite())


def audio_utterances() -> Transformer:
    """Cut recordings into utterances: ``AUDIO_UTTERANCE_*`` has the options, ``AUDIO_*`` the format and the suite."""
    from storeside.transformers.audio.utterance_options import UtteranceOptions, utterance_format

    options = UtteranceOptions.from_environment()
    target = utterance_format(AudioFormat.variables())
    return AudioUtterances(target, options, Limits.from_environment(), _suite())


def audio_segments() -> Transformer:
    """Cut recordings into the segments that the job is given of them; ``AUDIO_*`` has the format and the suite."""
    from storeside.transformers.audio.utterance_options import utterance_format

    return AudioSegments(utterance_format(AudioFormat.variables()), Limits.from_environment(), _suite())


def _suite() -> Suite:
    from storeside.transformers.audio.suite import Suite

    return Suite.from_environment()


def audio_ffmpeg() -> Transformer:
    """Run the ffmpeg command with the ``FFMPEG_*`` variables; see `FfmpegSettings`."""
    from storeside.transformers.audio.ffmpeg import AudioFfmpeg
    from storeside.transformers.audio.ffmpeg_settings import FfmpegSettings

    from .settings import Settings

    return AudioFfmpeg(FfmpegSettings.from_environment(), Limits.from_environment(), Settings.from_environment())
