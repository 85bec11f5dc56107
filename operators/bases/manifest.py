"""Base class of operators for the manifest of recordings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Required

from airflow.sdk import BaseOperatorLink

from storeside.aistore.buckets import Bucket
from storeside.operators.arguments import check_literals
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.links import RunPageLink
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import clickhouse, run_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.ledger.scope import Scope
    from storeside.speech.manifest import SpeechManifest


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


class ManifestOperator(FormOperator):
    """Base class of the manifest operators: bucket, facts and connections."""

    template_fields: Sequence[str] = ("bucket", "facts")
    results_before: Sequence[str] = ("effect",)
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

    def is_idle(self, context: Context) -> bool:
        """Return whether this run has neither facts nor staged rows; the tasks before it find no others then."""
        with airflow_errors():
            return not self.manifest(context).has_begun(AIStoreHook(self.aistore_conn_id).get_conn())

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
