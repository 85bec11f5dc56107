"""Operators of the speech pipeline: probe audio in the cluster, stage the facts, validate, publish, settle."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Required, Unpack, cast
from urllib.parse import urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowFailException

from storeside.aistore.buckets import Bucket
from storeside.operators.arguments import check_event_source, check_literals, flag
from storeside.operators.bases.queue import QueueArguments, QueueOperator
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.links import RunPageLink
from storeside.operators.movement import Movement, MovementOperator
from storeside.operators.operators.aistore import AISTransformBucketOperator, ProbeArguments, transformer_command
from storeside.operators.outcome import check_policy
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import as_bool, as_number, clickhouse, ledger, plain, run_columns, run_key

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from storeside.ledger.scope import Scope
    from storeside.operators.outcome import OnFailed
    from storeside.speech.manifest import SpeechManifest
    from storeside.transfer.request.template import Template
    from storeside.transform.naming import Naming
    from storeside.transform.state import Options


class AISProbeAudioOperator(AISTransformBucketOperator):
    """Measures each audio object inside AIStore.

    An ETL writes the facts (duration, rate, levels, checksum, …) as one small JSON object per audio object to
    `destination`, below a prefix of this run and the source. The task skips objects whose facts are already published
    (see `ClickHousePublishManifestOperator`) or stored by a transcode of this run (see `AISTranscodeAudioOperator`).
    If it skips all objects, it starts no ETL.
    """

    def __init__(self, **kwargs: Unpack[ProbeArguments]) -> None:
        super().__init__(
            command=transformer_command("audio_probe"), extensions=None, prepend="", members="", **kwargs
        )

    def naming(self, context: Context) -> Naming:
        """Return the names of facts, which are the same for the transcode of the same run."""
        from storeside.speech.manifest import facts_naming

        return facts_naming(run_key(context), Bucket.parse(self.source))

    def options(self) -> Options:
        """Return options with which the publishing task, not this job, records the objects as done."""
        return replace(super().options(), keeps_result=False)


class ManifestArguments(TaskArguments, total=False):
    """Arguments of the operators for the facts of recordings."""

    bucket: Required[str]
    """URI of the AIStore bucket whose audio the manifest describes"""
    facts: Required[str]
    """URI of the bucket that `AISTranscodeAudioOperator` and `AISProbeAudioOperator` wrote to"""
    aistore_conn_id: str
    """connection to AIStore"""
    clickhouse_conn_id: str
    """connection to ClickHouse"""


class _ManifestOperator(FormOperator):
    """Base class of the manifest operators: bucket, facts and connections."""

    template_fields: Sequence[str] = ("bucket", "facts")
    ui_color = "#fdf0d5"
    operator_extra_links: tuple[BaseOperatorLink, ...] = (RunPageLink(),)

    def __init__(
        self,
        *,
        bucket: str,
        facts: str,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bucket = bucket
        self.facts = facts
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        check_literals(self, bucket=Bucket.parse, facts=Bucket.parse)

    def scope(self, context: Context, effect: str) -> Scope:
        """Return the scope of this run's probes with this effect, which select the objects of the facts."""
        from storeside.ledger.scope import Scope

        return Scope(str(Bucket.parse(self.bucket)), str(Bucket.parse(self.facts)), effect, run_key(context))

    def manifest(self, context: Context) -> SpeechManifest:
        """Build the engine's manifest from the rendered arguments."""
        from storeside.speech.manifest import SpeechManifest

        return SpeechManifest(
            clickhouse(self.clickhouse_conn_id),
            Bucket.parse(self.bucket),
            Bucket.parse(self.facts),
            AIStoreHook(self.aistore_conn_id).clickhouse_endpoint,
            run_key(context),
            AIStoreHook(self.aistore_conn_id).clickhouse_collection,
        )


class ClickHouseStageManifestOperator(_ManifestOperator):
    """Brings the facts of this run from AIStore into a staging table of ClickHouse. Returns the number of rows.

    ClickHouse pulls the facts of up to 1,000 recordings itself. The facts of more recordings, 0.4 kB of each, pass
    through the task in batches. The table gets one row per object of the probe, no matter whether the probe or the
    transcode measured the object.

    :param effect: the ``effect`` in the result of the `AISProbeAudioOperator`
    """

    template_fields = (*_ManifestOperator.template_fields, "effect")

    def __init__(self, *, effect: XComArg | str, **kwargs: Unpack[ManifestArguments]) -> None:
        super().__init__(**kwargs)
        self.effect = cast("str", effect)  # when the task runs

    def execute(self, context: Context) -> dict[str, int]:
        """Create a new staging table and fill it."""
        with airflow_errors():
            manifest = self.manifest(context)
            aistore = AIStoreHook(self.aistore_conn_id).get_conn()
            return asdict(manifest.stage(aistore, self.scope(context, self.effect)))


class GXValidateManifestOperator(_ManifestOperator):
    """Checks every staged row of the manifest against Great Expectations suites in batches, so memory stays bounded.

    With `on_invalid_rows` ``fail``, an invalid row fails the task and nothing is published. With ``report``, the task
    removes invalid rows from the staging table, lists them, and records their objects as failed. It returns the
    verdict, logs it and stores it in ``storeside.runs``. Clear this task to validate the staged rows again; to
    restore removed rows, clear the staging task.

    :param sample_rate: Hz that every row must have
    :param channels: channels that every row must have
    :param min_seconds: shortest valid duration
    :param max_seconds: longest valid duration
    :param on_invalid_rows: ``fail`` or ``report``
    :param require_complete: accept a row only if its recording's container states the length and the recording has
        this length. Recordings in containers that state no length, such as AAC in ADTS, are then invalid
    :param max_silence_share: largest share of silent frames, 0 to 1; a row without this fact is valid, here and below
    :param max_clipped_share: largest share of clipped samples, 0 to 1
    :param min_bandwidth_hz: lowest effective bandwidth of the recording in Hz
    :param min_snr_db: lowest estimate of the signal-to-noise ratio in dB
    """

    template_fields = (
        *_ManifestOperator.template_fields,
        "sample_rate",
        "channels",
        "on_invalid_rows",
        "min_seconds",
        "max_seconds",
        "require_complete",
        "max_silence_share",
        "max_clipped_share",
        "min_bandwidth_hz",
        "min_snr_db",
    )
    ui_color = "#e2f0d9"

    def __init__(
        self,
        *,
        sample_rate: int | str = 16_000,
        channels: int | str = 1,
        min_seconds: float | str = 0.1,
        max_seconds: float | str = 3_600,
        on_invalid_rows: OnFailed | Template = "fail",
        require_complete: bool | str = False,
        max_silence_share: float | str = 1,
        max_clipped_share: float | str = 1,
        min_bandwidth_hz: float | str = 0,
        min_snr_db: float | str = 0,
        **kwargs: Unpack[ManifestArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.require_complete = require_complete
        self.sample_rate = sample_rate
        self.channels = channels
        self.min_seconds = min_seconds
        self.max_seconds = max_seconds
        self.on_invalid_rows = on_invalid_rows
        self.max_silence_share = max_silence_share
        self.max_clipped_share = max_clipped_share
        self.min_bandwidth_hz = min_bandwidth_hz
        self.min_snr_db = min_snr_db
        check_literals(
            self,
            on_invalid_rows=lambda value: check_policy(value, "on_invalid_rows"),
            require_complete=flag("require_complete"),
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Validate all staged rows and return the verdict as a dictionary of bounded size."""
        from storeside.quality.validation import combine, validate
        from storeside.speech.suites import SUMMARY_SELECT, SignalRanges, speech_manifest_suite, summary_suite

        started = time.monotonic()
        with airflow_errors():
            check_policy(self.on_invalid_rows, "on_invalid_rows")
            arguments = (
                as_number(self.sample_rate, "sample_rate", int),
                as_number(self.channels, "channels", int),
                as_number(self.min_seconds, "min_seconds", float),
                as_number(self.max_seconds, "max_seconds", float),
            )
            require_complete = as_bool(self.require_complete, "require_complete")
            signal = SignalRanges(
                as_number(self.max_silence_share, "max_silence_share", float),
                as_number(self.max_clipped_share, "max_clipped_share", float),
                as_number(self.min_bandwidth_hz, "min_bandwidth_hz", float),
                as_number(self.min_snr_db, "min_snr_db", float),
            )
            manifest = self.manifest(context)
        if not manifest.staged():  # before a suite is made, because the import of Great Expectations takes seconds
            self.log.info("no rows are staged: nothing to validate")
            return {"success": True, "rows": 0, "invalid": 0}
        manifest.forget_verdicts()
        with airflow_errors():
            suite = speech_manifest_suite(*arguments, require_complete=require_complete, signal=signal)
            rows = validate(
                manifest.frames(),
                suite,
                key_column="object",
                on_failed=lambda keys, check: (
                    manifest.mark_invalid(keys, check.description) if check.severity == "critical" else None
                ),
            )
            aggregates = manifest.aggregates(SUMMARY_SELECT, rows.rows)
            verdict = combine(rows, validate([aggregates], summary_suite(), key_column="rows"))
        invalid = manifest.invalid()
        self.log.info("%s", verdict)
        ledger(self.clickhouse_conn_id).record_run(
            {
                **run_columns(context),
                "kind": "validate",
                "source": self.bucket,
                "state": "done" if verdict.success else "failed",
                "listed": verdict.rows,
                "done": verdict.rows - invalid,
                "failed": invalid,
                "seconds": time.monotonic() - started,
                "detail": json.dumps(verdict.to_dict()),
            }
        )
        if verdict.success:
            return {**plain(verdict.to_dict()), "invalid": invalid}
        if self.on_invalid_rows == "fail" or not invalid:
            raise AirflowFailException(f"the manifest is not valid, nothing was published: {verdict}")
        manifest.leave_out_invalid()
        self.log.warning("%d invalid rows were removed and will not be published", invalid)
        return {**plain(verdict.to_dict()), "invalid": invalid}


class ClickHousePublishManifestOperator(_ManifestOperator, MovementOperator):
    """Publishes the validated rows in one atomic step, and records their objects as done.

    A task that runs again publishes nothing twice. Returns the number of rows of the bucket in ``speech.manifest``
    that this run has published.

    :param effect: the ``effect`` in the result of the `AISProbeAudioOperator` whose objects this task records as done
    """

    template_fields = (*_ManifestOperator.template_fields, "effect")

    def __init__(self, *, effect: XComArg | str, **kwargs: Unpack[ManifestArguments]) -> None:
        super().__init__(**kwargs)
        self.effect = cast("str", effect)  # when the task runs

    def execute(self, context: Context) -> dict[str, int]:
        """Publish the rows, record their objects as done, and remove staging tables and facts."""
        from storeside.ledger.objects import Ledger
        from storeside.transform.bucket_job import acknowledge

        with airflow_errors():
            manifest = self.manifest(context)
            scope = self.scope(context, self.effect)
            rows = manifest.publish(scope)
            self.log.info("%d rows of this run for %s are in speech.manifest", rows, self.bucket)
            acknowledge(Ledger(manifest.clickhouse), scope, manifest.fail_invalid)
            manifest.clean_up(AIStoreHook(self.aistore_conn_id).get_conn())
        moved = Movement("publish", self.bucket, "clickhouse://speech.manifest", rows, rows=rows)
        self.tell(context, moved, urlsplit(manifest.clickhouse.url).netloc)
        return {"rows": rows}


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
