"""Operators that load the manifest of recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Unpack, cast
from urllib.parse import urlsplit

from airflow.sdk import BaseHook

from storeside.aistore.buckets import Bucket
from storeside.operators.arguments import check_literals, flag, refuse
from storeside.operators.bases.load import LoadArguments
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.hooks.transfer import ledger_connection
from storeside.operators.movement import Movement
from storeside.operators.operators.clickhouse import S3ToClickHouseOperator
from storeside.operators.outcome import check_policy
from storeside.operators.shared import as_bool, as_number, clickhouse, run_key
from storeside.transfer.request.options import Expectations, ReadOptions

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context, XComArg

    from storeside.operators.outcome import OnFailed
    from storeside.speech.manifest import ManifestRequest, SpeechManifest
    from storeside.transfer.request.template import Template


class ConnectionArguments(TaskArguments, total=False):
    """Connections of the operators for the facts of recordings."""

    aistore_conn_id: str
    """connection to AIStore"""
    clickhouse_conn_id: str
    """connection to ClickHouse"""


# Arguments of loads, which these operators choose themselves.
OF_LOADS = {*LoadArguments.__annotations__, *signature(S3ToClickHouseOperator.__init__).parameters} - {
    *TaskArguments.__annotations__,
    *ConnectionArguments.__annotations__,
    "bucket",
    "self",
    "kwargs",
}


class ClickHouseLoadManifestOperator(S3ToClickHouseOperator):
    """Loads the facts of this run's recordings into ``speech.manifest``, one row per recording.

    The task collects the facts, 0.4 kB each, as one object of JSON Lines in the bucket `facts`, and loads it as
    `S3ToClickHouseOperator` does: once, checked against a suite of Great Expectations, and published in one step.
    Then it records the recordings as done and deletes the facts. There is one row per object of the probe, no matter
    whether the probe or the transcode measured the object.

    With `on_invalid_rows` ``report``, invalid rows go to ``speech.manifest_quarantine`` with their reasons, and their
    recordings are recorded as failed. A task that runs again publishes nothing twice. Returns the engine's `Report`
    as a dictionary.

    :param bucket: URI of the AIStore bucket whose audio the manifest describes
    :param facts: URI of the bucket that `AISTranscodeAudioOperator` and `AISProbeAudioOperator` wrote to
    :param effect: the ``effect`` in the result of the `AISProbeAudioOperator`
    :param sample_rate: Hz that every row must have
    :param channels: channels that every row must have
    :param min_seconds: shortest valid duration
    :param max_seconds: longest valid duration
    :param on_invalid_rows: ``fail`` the task and publish nothing, or ``report``: quarantine these rows and publish
        the others
    :param require_complete: accept a row only if its recording's container states the length and the recording has
        this length. Recordings in containers that state no length, such as AAC in ADTS, are then invalid
    :param max_silence_share: largest share of silent frames, 0 to 1; a row without this fact is valid, here and below
    :param max_clipped_share: largest share of clipped samples, 0 to 1
    :param min_bandwidth_hz: lowest effective bandwidth of the recording in Hz
    :param min_snr_db: lowest estimate of the signal-to-noise ratio in dB
    """

    refused = tuple(OF_LOADS)
    results_before = ("effect",)
    template_fields = (
        *S3ToClickHouseOperator.template_fields, "facts", "effect", "sample_rate", "channels", "on_invalid_rows",
        "min_seconds", "max_seconds", "require_complete", "max_silence_share", "max_clipped_share",
        "min_bandwidth_hz", "min_snr_db",
    )  # fmt: skip
    ui_color = "#fdf0d5"

    def __init__(
        self,
        *,
        bucket: str,
        facts: str,
        effect: XComArg | str,
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
        **kwargs: Unpack[ConnectionArguments],
    ) -> None:
        refuse(self, kwargs)
        super().__init__(
            source=facts, table="", format="jsonl", loader="push", on_overwrite="replace", retry_failed=True,
            read=ReadOptions(strict_json=False), **kwargs,
        )  # fmt: skip
        self.table = "speech.manifest"  # other loads may not write to it
        self.bucket = bucket
        self.facts = facts
        self.effect = cast("str", effect)  # when the task runs
        self.sample_rate = sample_rate
        self.channels = channels
        self.min_seconds = min_seconds
        self.max_seconds = max_seconds
        self.on_invalid_rows = on_invalid_rows
        self.require_complete = require_complete
        self.max_silence_share = max_silence_share
        self.max_clipped_share = max_clipped_share
        self.min_bandwidth_hz = min_bandwidth_hz
        self.min_snr_db = min_snr_db
        check_literals(
            self,
            bucket=Bucket.parse,
            facts=Bucket.parse,
            on_invalid_rows=lambda value: check_policy(value, "on_invalid_rows"),
            require_complete=flag("require_complete"),
        )
        self._manifest: SpeechManifest | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect the rows, load them, and record their objects as done."""
        with airflow_errors():
            self._suite()  # raises for invalid limits before the facts are read
        self.collect(context)
        report = self.load(context)
        self.finish_run(context)
        return report

    def collect(self, context: Context) -> dict[str, int]:
        """Store the rows of the run in the bucket of the facts; return the numbers of facts, their bytes and rows."""
        with airflow_errors():
            aistore = AIStoreHook(self.aistore_conn_id).get_conn()
            manifest = self.manifest(context)
            return asdict(manifest.collect(aistore, manifest.probes(self.effect)))

    def load(self, context: Context) -> dict[str, Any]:
        """Load the collected rows that meet the suite; return the report."""
        with airflow_errors():
            self.suite = self._suite()
            self.on_failed_expectations = "fail" if self.on_invalid_rows == "fail" else "quarantine"
            self._manifest = self.manifest(context)
        return super().execute(context)

    def finish_run(self, context: Context) -> int:
        """Record the outcome of the objects, delete the facts, and return the number of published rows."""
        with airflow_errors():
            manifest = self.manifest(context)
            manifest.finish(AIStoreHook(self.aistore_conn_id).get_conn(), manifest.probes(self.effect))
            rows = manifest.published()
        self.log.info("%d rows of this run for %s are in speech.manifest", rows, self.bucket)
        return rows

    def is_idle(self, context: Context) -> bool:
        """Return whether this run has neither facts nor rows; the tasks before it find no others then."""
        with airflow_errors():
            manifest = self.manifest(context)
            if manifest.has_begun(AIStoreHook(self.aistore_conn_id).get_conn()):
                return False
        moved = Movement("load", self.origin, f"clickhouse://{self.table}", 0, rows=0)
        self.tell(context, moved, urlsplit(manifest.clickhouse.url).netloc)
        return True

    def manifest(self, context: Context) -> SpeechManifest:
        """Build the engine's manifest from the rendered arguments."""
        from storeside.speech.manifest import SpeechManifest

        buckets = Bucket.parse(self.bucket), Bucket.parse(self.facts)
        return SpeechManifest(clickhouse(self.clickhouse_conn_id), *buckets, run_key(context))

    def place(self) -> tuple[str, str]:
        """Return the object with the rows of the run."""
        return str(Bucket.parse(self.facts)), self._manifest.key if self._manifest else ""

    @property
    def origin(self) -> str:
        """The URI of the bucket that the rows describe."""
        return str(Bucket.parse(self.bucket))

    def request_type(self) -> type[ManifestRequest]:
        """Return the request that may load the manifest."""
        from storeside.speech.manifest import ManifestRequest

        return ManifestRequest

    def _expectations(self) -> Expectations:
        """Return the check of the rows; examples in its verdict name recordings."""
        return replace(super()._expectations(), key_column="object")

    def _connection(self) -> Connection:
        """Return the connection of the user that writes Storeside's tables: the manifest is one of them."""
        return ledger_connection(BaseHook.get_connection(self.clickhouse_conn_id))

    def _suite(self) -> Mapping[str, Any]:
        from storeside.speech.suites import SignalRanges, speech_manifest_suite

        check_policy(self.on_invalid_rows, "on_invalid_rows")
        return speech_manifest_suite(
            as_number(self.sample_rate, "sample_rate", int),
            as_number(self.channels, "channels", int),
            as_number(self.min_seconds, "min_seconds", float),
            as_number(self.max_seconds, "max_seconds", float),
            require_complete=as_bool(self.require_complete, "require_complete"),
            signal=SignalRanges(
                as_number(self.max_silence_share, "max_silence_share", float),
                as_number(self.max_clipped_share, "max_clipped_share", float),
                as_number(self.min_bandwidth_hz, "min_bandwidth_hz", float),
                as_number(self.min_snr_db, "min_snr_db", float),
            ),
        )
