"""The operator that cuts recordings into utterances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.operators.arguments import is_literal, literal_errors
from storeside.operators.errors import OperatorInputError
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

    from storeside.transfer.request.template import Template
    from storeside.transform.naming import Naming
    from storeside.transformers.audio.formats import AudioFormat

T = TypeVar("T")

_OPTIONS = tuple(UtteranceOptions.__dataclass_fields__)
_FORMAT = ("container", "sample_rate", "channels", "keep_extension")


class CutArguments(EtlArguments, ExtensionsArguments, InPlaceArguments, total=False):
    """Arguments that `AISCutUtterancesOperator` shares with other transforms."""


class AISCutUtterancesOperator(AISTransformBucketOperator):
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
    """

    template_fields = (*AISTransformBucketOperator.template_fields, *_FORMAT, *_OPTIONS)

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
        **kwargs: Unpack[CutArguments],
    ) -> None:
        super().__init__(
            command=transformer_command("audio_utterances"), members="", prepend="", several_results=False,
            object_timeout=object_timeout,
            stall_seconds=object_timeout if stall_seconds is None else stall_seconds, **kwargs,
        )  # fmt: skip
        self.container = container
        self.sample_rate = sample_rate
        self.channels = channels
        self.threshold = threshold
        self.padding_seconds = padding_seconds
        self.merge_gap_seconds = merge_gap_seconds
        self.min_seconds = min_seconds
        self.max_seconds = max_seconds
        self.keep_extension = keep_extension
        for names, check in ((_FORMAT, self.audio), (_OPTIONS, self.utterances)):
            if all(is_literal(getattr(self, name)) for name in names):
                with literal_errors(self):
                    check()

    def audio(self) -> AudioFormat:
        """Return the format of utterances. Raises OperatorInputError for a format that they cannot have."""
        return _checked(utterance_format, {name: getattr(self, name) for name in _FORMAT})

    def utterances(self) -> UtteranceOptions:
        """Return the options of the detection. Raises OperatorInputError for values out of range."""
        return _checked(UtteranceOptions.from_values, {name: getattr(self, name) for name in _OPTIONS})

    def spec(self, context: Context) -> EtlSpec:
        """Add format and options to the ETL's environment."""
        spec = super().spec(context)
        variables = {**self.audio().environment(), **self.utterances().environment()}
        return replace(spec, environment={**spec.environment, **variables})

    def naming(self, context: Context) -> Naming:
        """Refuse recordings whose utterances loaders could not read."""
        naming, keeps = super().naming(context), self.audio().keep_extension
        return replace(naming, refuses=lambda name: unreadable(name, naming.destination(name), keeps))

    def renaming(self) -> dict[str, str]:
        """Give shards the extension ``tar``."""
        return {**shard_extensions(self.audio().keep_extension), **super().renaming()}


def _checked(build: Callable[[dict[str, Any]], T], values: dict[str, Any]) -> T:
    try:
        return build(values)
    except ValueError as e:  # transformers import no other package: their errors have no kind
        raise OperatorInputError(str(e)) from e
