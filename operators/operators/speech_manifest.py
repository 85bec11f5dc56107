"""Operators that stage, validate and publish the manifest of recordings."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack, cast
from urllib.parse import urlsplit

from airflow.sdk.exceptions import AirflowFailException

from storeside.operators.arguments import check_literals, flag
from storeside.operators.bases.manifest import ManifestArguments, ManifestOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.movement import Movement, MovementOperator
from storeside.operators.outcome import check_policy
from storeside.operators.shared import as_bool, as_number, ledger, plain, run_columns

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template


class ClickHouseStageManifestOperator(ManifestOperator):
    """Brings the facts of this run from AIStore into a staging table of ClickHouse. Returns the number of rows.

    ClickHouse pulls the facts of up to 1,000 recordings itself. The facts of more recordings, 0.4 kB of each, pass
    through the task in batches. The table gets one row per object of the probe, no matter whether the probe or the
    transcode measured the object.

    :param effect: the ``effect`` in the result of the `AISProbeAudioOperator`
    """

    template_fields = (*ManifestOperator.template_fields, "effect")

    def __init__(self, *, effect: XComArg | str, **kwargs: Unpack[ManifestArguments]) -> None:
        super().__init__(**kwargs)
        self.effect = cast("str", effect)  # when the task runs

    def execute(self, context: Context) -> dict[str, int]:
        """Create a new staging table and fill it."""
        with airflow_errors():
            manifest = self.manifest(context)
            aistore = AIStoreHook(self.aistore_conn_id).get_conn()
            return asdict(manifest.stage(aistore, self.scope(context, self.effect)))


class GXValidateManifestOperator(ManifestOperator):
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
        *ManifestOperator.template_fields,
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


class ClickHousePublishManifestOperator(ManifestOperator, MovementOperator):
    """Publishes the validated rows in one atomic step, and records their objects as done.

    A task that runs again publishes nothing twice. Returns the number of rows of the bucket in ``speech.manifest``
    that this run has published.

    :param effect: the ``effect`` in the result of the `AISProbeAudioOperator` whose objects this task records as done
    """

    template_fields = (*ManifestOperator.template_fields, "effect")

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
        self._tell_rows(context, rows)
        return {"rows": rows}

    def is_idle(self, context: Context) -> bool:
        """Return whether the run has nothing to publish; report it then."""
        if idle := super().is_idle(context):
            self._tell_rows(context, 0)
        return idle

    def _tell_rows(self, context: Context, rows: int) -> None:
        moved = Movement("publish", self.bucket, "clickhouse://speech.manifest", rows, rows=rows)
        self.tell(context, moved, urlsplit(self.manifest(context).clickhouse.url).netloc)
