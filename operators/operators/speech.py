"""Operators at the two ends of the speech pipeline: one probes audio in the cluster, one settles messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import transformer_command
from storeside.operators.arguments import check_event_source, check_literals, flag
from storeside.operators.bases.queue import QueueArguments, QueueOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.operators.aistore import AISTransformBucketOperator, ProbeArguments
from storeside.operators.shared import as_bool, run_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.transform.naming import Naming
    from storeside.transform.state import Options


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
