"""Operators of the speech pipeline: they transcode and probe audio in the cluster, and settle its messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Unpack

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import transformer_command
from storeside.operators.arguments import check_event_source, check_literals, flag, is_literal, literal_errors
from storeside.operators.bases.queue import QueueArguments, QueueOperator
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.operators.aistore import AISTransformBucketOperator, ProbeArguments, TranscodeArguments
from storeside.operators.shared import as_bool, run_key
from storeside.transformers.audio.formats import AudioFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from storeside.aistore.spec import EtlSpec
    from storeside.transfer.request.template import Template
    from storeside.transform.naming import Naming
    from storeside.transform.state import Options
    from storeside.transformers.audio.formats import CodecName, Container

_AUDIO_OPTIONS = tuple(AudioFormat.__dataclass_fields__)


class AISTranscodeAudioOperator(AISTransformBucketOperator):
    """Transcodes a bucket of recordings inside AIStore; see `AISTransformBucketOperator`.

    :param container: ``wav``, ``flac``, ``mp3``, ``ogg`` or ``m4a``; empty for the container of the codec
    :param codec: a codec that the container supports, such as ``pcm_s16le``
    :param sample_rate: Hz
    :param channels: 1 to 8, as the codec allows
    :param bit_rate: bits per second, for lossy codecs
    :param start_seconds: leave out the audio before this second
    :param duration_seconds: maximum seconds of audio; leave out the rest
    :param trim_silence_dbfs: remove leading and trailing audio that is quieter than this
    :param loudness_lufs: integrated loudness (EBU R 128) of the results
    :param channel: transcode only this channel: ``left``, ``right``, or its number from 1. Recordings without it fail
    :param keep_extension: append the new extension instead of replacing the old one (``a.flac.wav``, not ``a.wav``),
        so that recordings whose names differ only in their extensions have different results
    :param facts: URI of a bucket for the facts about the results. The transformer writes them in the same pass, and
        the `AISProbeAudioOperator` of the same run uses them. Transformers reach the bucket at the connection's
        ``transformer_endpoint``. If the facts of an object cannot be stored, the object fails. The task does not
        transcode an object again only to get its facts
    :param suite: Great Expectations suite about the facts of each recording (see ``storeside.operators``'
        `S3ToClickHouseOperator`). A recording that breaks a critical expectation is left out, with the description of
        the first such expectation as the reason; docs/filters.md names the facts and expectations
    """

    template_fields = (*AISTransformBucketOperator.template_fields, *_AUDIO_OPTIONS, "facts", "suite")

    def __init__(
        self,
        *,
        container: Container | Literal[""] | Template = "wav",
        codec: CodecName | Template = "pcm_s16le",
        sample_rate: int | str = 16_000,
        channels: int | str = 1,
        bit_rate: int | str | None = None,
        start_seconds: float | str = 0.0,
        duration_seconds: float | str | None = None,
        trim_silence_dbfs: float | str | None = None,
        loudness_lufs: float | str | None = None,
        keep_extension: bool | str = False,
        channel: int | str | None = None,
        facts: str = "",
        suite: str | Mapping[str, object] = "",
        **kwargs: Unpack[TranscodeArguments],
    ) -> None:
        super().__init__(command=transformer_command("audio_transcode"), several_results=False, **kwargs)
        self.container = container
        self.codec = codec
        self.sample_rate = sample_rate
        self.channels = channels
        self.bit_rate = bit_rate
        self.start_seconds = start_seconds
        self.duration_seconds = duration_seconds
        self.trim_silence_dbfs = trim_silence_dbfs
        self.loudness_lufs = loudness_lufs
        self.keep_extension = keep_extension
        self.channel = channel
        self.facts = facts
        self.suite: str | Mapping[str, object] = suite
        check_literals(self, facts=Bucket.parse, suite=self._check_suite)
        if all(is_literal(getattr(self, name)) for name in _AUDIO_OPTIONS):
            with literal_errors(self):
                self.audio()

    def audio(self) -> AudioFormat:
        """Return the format of results. Raises OperatorInputError for a format that does not exist."""
        values = {name: getattr(self, name) for name in _AUDIO_OPTIONS}
        try:
            return AudioFormat.from_values(values)
        except ValueError as e:  # transformers import no other package: their errors have no kind
            raise OperatorInputError(str(e)) from e

    def _check_suite(self, suite: str | Mapping[str, object]) -> None:
        if not suite:
            return
        from storeside.speech.filters import check_filter

        check_filter(suite, "recordings")
        self._require_whole_recordings()

    def _require_whole_recordings(self) -> None:
        if self.members or (is_literal(self.in_place) and as_bool(self.in_place, "in_place")):
            raise OperatorInputError("suite: it judges whole recordings, so it excludes members and in_place")

    def options(self) -> Options:
        """Add the bucket of the facts."""
        return replace(super().options(), sidecars=Bucket.parse(self.facts) if self.facts else None)

    def spec(self, context: Context) -> EtlSpec:
        """Add the format and the suite to the ETL's environment.

        Its tuning gets the URL for facts, which changes no result.
        """
        if self.suite:
            self._require_whole_recordings()
        spec = super().spec(context)
        tuning = dict(spec.tuning)
        if self.facts:
            endpoint = AIStoreHook(self.aistore_conn_id).transformer_endpoint
            from storeside.speech.manifest import facts_url

            tuning["SIDECAR_URL"] = facts_url(
                endpoint, Bucket.parse(self.facts), run_key(context), Bucket.parse(self.destination), self.prepend
            )  # fmt: skip
        environment = {**spec.environment, **self.audio().environment()}
        if self.suite:
            from storeside.speech.filters import filter_of

            environment |= filter_of(self.suite, "recordings")
        return replace(spec, environment=environment, tuning=tuning)

    def renaming(self) -> dict[str, str]:
        """Give results the extension of their container."""
        return {**self.audio().extensions, **super().renaming()}


class AISProbeAudioOperator(AISTransformBucketOperator):
    """Measures each audio object inside AIStore.

    An ETL writes the facts (duration, rate, levels, checksum, …) as one small JSON object per audio object to
    `destination`, below a prefix of this run and the source. The task skips objects whose facts are already published
    (see `ClickHouseLoadManifestOperator`) or stored by a transcode of this run (see `AISTranscodeAudioOperator`).
    If it skips all objects, it starts no ETL.
    """

    def __init__(self, **kwargs: Unpack[ProbeArguments]) -> None:
        super().__init__(
            command=transformer_command("audio_probe"),
            extensions=None,
            prepend="",
            members="",
            several_results=False,
            **kwargs,
        )

    def naming(self, context: Context) -> Naming:
        """Return the names of facts, which are the same for the transcode of the same run."""
        from storeside.speech.manifest import facts_naming

        return facts_naming(run_key(context), Bucket.parse(self.source))

    def options(self) -> Options:
        """Return options with which the task of the load, not this job, records the objects as done."""
        return replace(super().options(), keeps_result=False)


class SqsSettleSpeechEventsOperator(QueueOperator):
    """Deletes, releases or dead-letters the messages of a run by the outcome of their recordings; a teardown task.

    The task deletes the messages of recordings that ``speech.manifest`` contains. It sends messages of recordings
    that failed for good to the dead-letter queue with their reasons, and releases all other messages. A recording
    that this run should have loaded counts as one failure; a recording that the run did not reach counts as none.
    Returns the numbers of messages deleted, released and sent to the dead-letter queue.

    :param source: bucket of this run's recordings, such as ``s3://recordings``
    :param prefix: prefix of these recordings
    :param complete: whether the run published its rows; if not, missing recordings do not count as failures
    """

    settles = True  # the messages that an operator before it leased
    template_fields = (*QueueOperator.template_fields, "source", "prefix", "complete")

    def __init__(
        self, *, source: str, prefix: str = "", complete: bool | str = True, **kwargs: Unpack[QueueArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.prefix = prefix
        self.complete = complete
        check_literals(self, source=check_event_source, complete=flag("complete"))

    def execute(self, context: Context) -> dict[str, int]:
        """Compare the messages with the ledger, record their outcomes, and delete or release them."""
        from storeside.speech.recordings import settle_run

        with airflow_errors():
            source, complete = str(Bucket.parse(self.source)), as_bool(self.complete, "complete")
        return self.settled(
            lambda queue, client, s3: settle_run(
                queue, client, s3, run_key(context), source, self.prefix, complete=complete
            )
        )
