"""The operators that cut recordings into utterances, or into given segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.operators.arguments import check_literals, is_literal, literal_errors, refuse
from storeside.operators.errors import OperatorInputError
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.operators.aistore import (
    AISTransformBucketOperator,
    EtlArguments,
    ExtensionsArguments,
    InPlaceArguments,
)
from storeside.transformers.audio.utterance_options import (
    UtteranceOptions,
    shard_extensions,
    unreadable,
    utterance_format,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.speech.filters import Audio
    from storeside.transfer.request.template import Template
    from storeside.transform.given import Given
    from storeside.transform.naming import Naming
    from storeside.transformers.audio.formats import AudioFormat

T = TypeVar("T")

_OPTIONS = tuple(UtteranceOptions.__dataclass_fields__)
_FORMAT = ("container", "sample_rate", "channels", "keep_extension")


class CutArguments(EtlArguments, ExtensionsArguments, InPlaceArguments, total=False):
    """Arguments that `AISCutUtterancesOperator` shares with other transforms."""


class SegmentArguments(EtlArguments, ExtensionsArguments, total=False):
    """Arguments that `AISCutSegmentsOperator` shares with other transforms."""


class CuttingOperator(AISTransformBucketOperator):
    """Makes one WebDataset shard of each recording of a bucket, with the parts of it in an audio format."""

    template_fields = (*AISTransformBucketOperator.template_fields, *_FORMAT, "suite")
    parts: Audio

    def __init__(
        self,
        *,
        container: Literal["flac", "wav"] | Template = "flac",
        sample_rate: int | str = 16_000,
        channels: int | str = 1,
        keep_extension: bool | str = False,
        object_timeout: int = 1800,
        stall_seconds: float | None = None,
        suite: str | Mapping[str, object] = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            members="", prepend="", several_results=False, object_timeout=object_timeout,
            stall_seconds=object_timeout if stall_seconds is None else stall_seconds, **kwargs,
        )  # fmt: skip
        self.container = container
        self.sample_rate = sample_rate
        self.channels = channels
        self.keep_extension = keep_extension
        self.suite: str | Mapping[str, object] = suite
        check_literals(self, suite=self._check_suite)
        if all(is_literal(getattr(self, name)) for name in _FORMAT):
            with literal_errors(self):
                self.audio()

    def _check_suite(self, suite: str | Mapping[str, object]) -> None:
        if suite:
            from storeside.speech.filters import check_filter

            check_filter(suite, self.parts)

    def audio(self) -> AudioFormat:
        """Return the format of utterances. Raises OperatorInputError for a format that they cannot have."""
        return _checked(utterance_format, {name: getattr(self, name) for name in _FORMAT})

    def spec(self, context: Context) -> EtlSpec:
        """Add the format and the suite to the ETL's environment."""
        spec = super().spec(context)
        added = self.audio().environment()
        if self.suite:
            from storeside.speech.filters import filter_of

            added |= filter_of(self.suite, self.parts)
        return replace(spec, environment={**spec.environment, **added})

    def naming(self, context: Context) -> Naming:
        """Refuse recordings whose utterances loaders could not read."""
        naming, keeps = super().naming(context), self.audio().keep_extension
        return replace(naming, refuses=lambda name: unreadable(name, naming.destination(name), keeps))

    def renaming(self) -> dict[str, str]:
        """Give shards the extension ``tar``."""
        return {**shard_extensions(self.audio().keep_extension), **super().renaming()}


class AISCutUtterancesOperator(CuttingOperator):
    """Cuts each recording of a bucket into its utterances inside AIStore; see `AISTransformBucketOperator`.

    A recording ``talks/a.mp3`` becomes the WebDataset shard ``talks/a.tar`` with ``talks/a-00001.flac`` and
    ``talks/a-00001.json``, the facts, for each utterance. Silero VAD finds the utterances; docs/audio.md defines the
    facts. A recording without speech becomes a shard without members.

    :param container: ``flac`` or ``wav``, both of 16 bits
    :param sample_rate: Hz of the utterances
    :param channels: 1 to 8
    :param threshold: probability of speech, 0.2 to 0.95, at which speech begins; it ends at 0.15 less
    :param padding_seconds: seconds of the recording to keep before and after speech
    :param merge_gap_seconds: speech after a pause of fewer seconds belongs to the same utterance
    :param min_seconds: leave out speech that is shorter
    :param max_seconds: divide speech so that no utterance is longer, with its padding
    :param keep_extension: ``a.mp3`` becomes ``a.mp3.tar`` and not ``a.tar``, so that recordings whose names differ
        only in their extensions have different shards
    :param object_timeout: maximum seconds for one recording; an hour of audio takes about a minute of CPU time
    :param stall_seconds: seconds without progress after which the job is aborted; None means `object_timeout`
    :param suite: Great Expectations suite about the facts of each utterance. An utterance that breaks a critical
        expectation is left out of the shard, with the description of the first such expectation as the reason;
        docs/filters.md names the facts and expectations
    """

    template_fields = (*CuttingOperator.template_fields, *_OPTIONS)
    parts = "utterances"

    def __init__(
        self,
        *,
        container: Literal["flac", "wav"] | Template = "flac",
        sample_rate: int | str = 16_000,
        channels: int | str = 1,
        threshold: float | str = 0.5,
        padding_seconds: float | str = 0.3,
        merge_gap_seconds: float | str = 0.5,
        min_seconds: float | str = 0.25,
        max_seconds: float | str = 30.0,
        keep_extension: bool | str = False,
        object_timeout: int = 1800,
        stall_seconds: float | None = None,
        suite: str | Mapping[str, object] = "",
        **kwargs: Unpack[CutArguments],
    ) -> None:
        super().__init__(
            command=transformer_command("audio_utterances"), container=container, sample_rate=sample_rate,
            channels=channels, keep_extension=keep_extension, object_timeout=object_timeout,
            stall_seconds=stall_seconds, suite=suite, **kwargs,
        )  # fmt: skip
        self.threshold = threshold
        self.padding_seconds = padding_seconds
        self.merge_gap_seconds = merge_gap_seconds
        self.min_seconds = min_seconds
        self.max_seconds = max_seconds
        if all(is_literal(getattr(self, name)) for name in _OPTIONS):
            with literal_errors(self):
                self.utterances()

    def utterances(self) -> UtteranceOptions:
        """Return the options of the detection. Raises OperatorInputError for values out of range."""
        return _checked(UtteranceOptions.from_values, {name: getattr(self, name) for name in _OPTIONS})

    def spec(self, context: Context) -> EtlSpec:
        """Add the options of the detection to the ETL's environment."""
        spec = super().spec(context)
        return replace(spec, environment={**spec.environment, **self.utterances().environment()})


class AISCutSegmentsOperator(CuttingOperator):
    """Cuts each recording of a bucket into given segments inside AIStore, with their texts.

    A recording ``talks/a.mp3`` becomes the WebDataset shard ``talks/a.tar`` with ``talks/a-00001.flac``, the facts
    ``talks/a-00001.json``, and the text ``talks/a-00001.txt`` of each segment. Recordings without segments are left
    out. The task reads only the files of segments, and no audio. When the segments or texts of a recording change,
    the next run cuts this recording again. docs/audio.md describes the files, and what happens to wrong segments.

    :param segments: URI of a file of segments in a bucket that AIStore reads, or of a folder of them, which ends with
        a slash: ``ais://corpus/talks.rttm``, ``s3://corpus/data/train/``. The ending of a name tells the format:
        ``.rttm``, ``.stm``, ``.ctm``, ``.TextGrid``, ``.jsonl`` and ``.json`` (also NeMo's manifests),
        ``.trans.txt``, ``.txt``, ``.lab``, and the files of Kaldi's data folders. The files may be beside the
        recordings
    :param container: ``flac`` or ``wav``, both of 16 bits
    :param sample_rate: Hz of the cut segments
    :param channels: 1 to 8
    :param keep_extension: ``a.mp3`` becomes ``a.mp3.tar`` and not ``a.tar``, so that recordings whose names differ
        only in their extensions have different shards
    :param object_timeout: maximum seconds for one recording
    :param stall_seconds: seconds without progress after which the job is aborted; None means `object_timeout`
    :param suite: Great Expectations suite about the facts of each segment, such as its words per second and language.
        A segment that breaks a critical expectation is left out of the shard, with the description of the first such
        expectation as the reason; docs/filters.md names the facts and expectations
    """

    template_fields = (*CuttingOperator.template_fields, "segments")
    parts = "segments"
    refused = ("in_place",)

    def __init__(
        self,
        *,
        segments: str,
        container: Literal["flac", "wav"] | Template = "flac",
        sample_rate: int | str = 16_000,
        channels: int | str = 1,
        keep_extension: bool | str = False,
        object_timeout: int = 1800,
        stall_seconds: float | None = None,
        suite: str | Mapping[str, object] = "",
        **kwargs: Unpack[SegmentArguments],
    ) -> None:
        refuse(self, kwargs)
        super().__init__(
            command=transformer_command("audio_segments"), container=container, sample_rate=sample_rate,
            channels=channels, keep_extension=keep_extension, object_timeout=object_timeout,
            stall_seconds=stall_seconds, suite=suite, **kwargs,
        )  # fmt: skip
        self.segments = segments
        check_literals(self, segments=_require_files)

    def given(self) -> Given:
        """Return the segments, which a job reads when it makes its plan."""
        from storeside.speech.segments.files import segments_at
        from storeside.transform.given import Given

        hook = AIStoreHook(self.aistore_conn_id)
        return Given(lambda: segments_at(hook.get_conn(), self.segments), hook.transformer_endpoint)

    def naming(self, context: Context) -> Naming:
        """Leave out files of segments and texts that are beside the recordings."""
        from storeside.speech.segments.names import pattern_of

        return replace(super().naming(context), ignores=pattern_of)


def _require_files(uri: str) -> None:
    from storeside.speech.segments.names import place_of

    place_of(uri)


def _checked(build: Callable[[dict[str, Any]], T], values: dict[str, Any]) -> T:
    try:
        return build(values)
    except ValueError as e:  # transformers import no other package: their errors have no kind
        raise OperatorInputError(str(e)) from e
