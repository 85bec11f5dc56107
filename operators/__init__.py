"""The public API for DAG authors: ``from storeside.operators import S3ToClickHouseOperator, EtlSpec``.

Names outside `__all__` may change in any version; see docs/versions.md. A name is imported when it is first used, so
a DAG file that needs one operator does not load all of them: Airflow parses each DAG file again for every task.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storeside.aistore.spec import TRANSFORMER_IMAGE as TRANSFORMER_IMAGE
    from storeside.aistore.spec import EtlSpec as EtlSpec
    from storeside.aistore.spec import transformer_command as transformer_command
    from storeside.alerts.conditions import DeadLetters as DeadLetters
    from storeside.alerts.conditions import FailedObjects as FailedObjects
    from storeside.alerts.conditions import FailedTasks as FailedTasks
    from storeside.alerts.conditions import Freshness as Freshness
    from storeside.alerts.conditions import KnownFailures as KnownFailures
    from storeside.alerts.conditions import Lag as Lag
    from storeside.alerts.conditions import Volume as Volume
    from storeside.operators.bases.charts import chart_url_pattern as chart_url_pattern
    from storeside.operators.entries import must_match as must_match
    from storeside.operators.forms import params as params
    from storeside.operators.hooks.aistore import AIStoreHook as AIStoreHook
    from storeside.operators.hooks.hsds import HSDSHook as HSDSHook
    from storeside.operators.operators.aistore import AISCopyBucketOperator as AISCopyBucketOperator
    from storeside.operators.operators.aistore import AISTransformBucketOperator as AISTransformBucketOperator
    from storeside.operators.operators.aistore import AISTransformObjectsOperator as AISTransformObjectsOperator
    from storeside.operators.operators.aistore_etl import AISDeleteEtlOperator as AISDeleteEtlOperator
    from storeside.operators.operators.aistore_etl import AISInitEtlOperator as AISInitEtlOperator
    from storeside.operators.operators.aistore_etl import AISStartEtlOperator as AISStartEtlOperator
    from storeside.operators.operators.aistore_etl import AISStopEtlOperator as AISStopEtlOperator
    from storeside.operators.operators.aistore_inspect import AISInspectBucketOperator as AISInspectBucketOperator
    from storeside.operators.operators.aistore_object import AISGetObjectOperator as AISGetObjectOperator
    from storeside.operators.operators.aistore_object import AISTransformObjectOperator as AISTransformObjectOperator
    from storeside.operators.operators.alerts import SendAlertsOperator as SendAlertsOperator
    from storeside.operators.operators.alerts import alert_callback as alert_callback
    from storeside.operators.operators.clickhouse import S3ToClickHouseOperator as S3ToClickHouseOperator
    from storeside.operators.operators.doctor import CheckConnectionsOperator as CheckConnectionsOperator
    from storeside.operators.operators.hsds import HSDSExportDatasetOperator as HSDSExportDatasetOperator
    from storeside.operators.operators.hsds import HSDSImportDatasetOperator as HSDSImportDatasetOperator
    from storeside.operators.operators.lease_events import SqsLeaseS3EventsOperator as SqsLeaseS3EventsOperator
    from storeside.operators.operators.prefetch import AISPrefetchBucketOperator as AISPrefetchBucketOperator
    from storeside.operators.operators.redrive import SqsRedriveDeadLettersOperator as SqsRedriveDeadLettersOperator
    from storeside.operators.operators.s3_events import S3EventsToClickHouseOperator as S3EventsToClickHouseOperator
    from storeside.operators.operators.settle_events import SqsSettleS3EventsOperator as SqsSettleS3EventsOperator
    from storeside.operators.operators.shards import AISMakeShardsOperator as AISMakeShardsOperator
    from storeside.operators.operators.shards import AISSplitShardsOperator as AISSplitShardsOperator
    from storeside.operators.operators.speech import AISProbeAudioOperator as AISProbeAudioOperator
    from storeside.operators.operators.speech import AISTranscodeAudioOperator as AISTranscodeAudioOperator
    from storeside.operators.operators.speech import SqsSettleSpeechEventsOperator as SqsSettleSpeechEventsOperator
    from storeside.operators.operators.speech_export import (
        ClickHouseExportManifestOperator as ClickHouseExportManifestOperator,
    )
    from storeside.operators.operators.speech_manifest import (
        ClickHouseLoadManifestOperator as ClickHouseLoadManifestOperator,
    )
    from storeside.operators.operators.speech_manifest_steps import (
        ClickHousePublishManifestOperator as ClickHousePublishManifestOperator,
    )
    from storeside.operators.operators.speech_manifest_steps import (
        ClickHouseStageManifestOperator as ClickHouseStageManifestOperator,
    )
    from storeside.operators.operators.speech_manifest_steps import (
        GXValidateManifestOperator as GXValidateManifestOperator,
    )
    from storeside.operators.operators.storage import StorageCopyBucketOperator as StorageCopyBucketOperator
    from storeside.operators.operators.storage_measurements import (
        StorageBenchmarkOperator as StorageBenchmarkOperator,
    )
    from storeside.operators.operators.storage_measurements import StorageTuneOperator as StorageTuneOperator
    from storeside.operators.operators.throughput import AISMeasureThroughputOperator as AISMeasureThroughputOperator
    from storeside.operators.operators.transform_benchmark import (
        AISMeasureTransformsOperator as AISMeasureTransformsOperator,
    )
    from storeside.operators.operators.transform_benchmark import (
        AISRemoveMeasurementOperator as AISRemoveMeasurementOperator,
    )
    from storeside.operators.operators.utterances import AISCutSegmentsOperator as AISCutSegmentsOperator
    from storeside.operators.operators.utterances import AISCutUtterancesOperator as AISCutUtterancesOperator
    from storeside.operators.restrictions import check_form as check_form
    from storeside.operators.restrictions import form_choices as form_choices
    from storeside.operators.sensors.s3_events import SqsS3EventsSensor as SqsS3EventsSensor
    from storeside.operators.settings import dag_schedule as dag_schedule
    from storeside.operators.settings import dag_settings as dag_settings
    from storeside.operators.shared import only_when as only_when
    from storeside.operators.triggers.s3_events import S3EventsTrigger as S3EventsTrigger
    from storeside.speech.columns import FILTER_COLUMNS as FILTER_COLUMNS
    from storeside.speech.columns import SEGMENT_COLUMNS as SEGMENT_COLUMNS
    from storeside.speech.columns import UTTERANCE_COLUMNS as UTTERANCE_COLUMNS
    from storeside.transfer.request.after_load import AfterLoad as AfterLoad
    from storeside.transfer.request.column_options import Columns as Columns
    from storeside.transfer.request.object_format import Csv as Csv
    from storeside.transfer.request.object_format import MessageSchema as MessageSchema
    from storeside.transfer.request.options import LoadLimits as LoadLimits
    from storeside.transfer.request.options import ReadOptions as ReadOptions
    from storeside.transfer.request.options import TableOptions as TableOptions
    from storeside.transfer.request.table_keys import Expression as Expression
    from storeside.transfer.request.template import Template as Template
    from storeside.transfer.request.upsert import Upsert as Upsert

_NAMES = {
    "aistore.spec": ("EtlSpec", "TRANSFORMER_IMAGE", "transformer_command"),
    "alerts.conditions": (
        "DeadLetters", "FailedObjects", "FailedTasks", "Freshness", "KnownFailures", "Lag", "Volume",
    ),
    "operators.operators.aistore": (
        "AISCopyBucketOperator", "AISTransformBucketOperator", "AISTransformObjectsOperator",
    ),
    "operators.operators.aistore_etl": (
        "AISDeleteEtlOperator", "AISInitEtlOperator", "AISStartEtlOperator", "AISStopEtlOperator",
    ),
    "operators.operators.aistore_inspect": ("AISInspectBucketOperator",),
    "operators.operators.aistore_object": ("AISGetObjectOperator", "AISTransformObjectOperator"),
    "operators.operators.alerts": ("SendAlertsOperator", "alert_callback"),
    "operators.bases.charts": ("chart_url_pattern",),
    "operators.operators.clickhouse": ("S3ToClickHouseOperator",),
    "operators.operators.doctor": ("CheckConnectionsOperator",),
    "operators.entries": ("must_match",),
    "operators.restrictions": ("check_form", "form_choices"),
    "operators.hooks.aistore": ("AIStoreHook",),
    "operators.hooks.hsds": ("HSDSHook",),
    "operators.operators.hsds": ("HSDSExportDatasetOperator", "HSDSImportDatasetOperator"),
    "operators.operators.prefetch": ("AISPrefetchBucketOperator",),
    "operators.operators.redrive": ("SqsRedriveDeadLettersOperator",),
    "operators.operators.lease_events": ("SqsLeaseS3EventsOperator",),
    "operators.operators.s3_events": ("S3EventsToClickHouseOperator",),
    "operators.sensors.s3_events": ("SqsS3EventsSensor",),
    "operators.settings": ("dag_schedule", "dag_settings"),
    "operators.operators.settle_events": ("SqsSettleS3EventsOperator",),
    "operators.operators.shards": ("AISMakeShardsOperator", "AISSplitShardsOperator"),
    "operators.shared": ("only_when",),
    "operators.operators.speech": (
        "AISProbeAudioOperator", "AISTranscodeAudioOperator", "SqsSettleSpeechEventsOperator",
    ),
    "operators.operators.speech_export": ("ClickHouseExportManifestOperator",),
    "operators.operators.speech_manifest": ("ClickHouseLoadManifestOperator",),
    "operators.operators.speech_manifest_steps": (
        "ClickHousePublishManifestOperator", "ClickHouseStageManifestOperator", "GXValidateManifestOperator",
    ),
    "operators.operators.storage": ("StorageCopyBucketOperator",),
    "operators.operators.storage_measurements": ("StorageBenchmarkOperator", "StorageTuneOperator"),
    "operators.operators.throughput": ("AISMeasureThroughputOperator",),
    "operators.operators.transform_benchmark": ("AISMeasureTransformsOperator", "AISRemoveMeasurementOperator"),
    "operators.triggers.s3_events": ("S3EventsTrigger",),
    "operators.operators.utterances": ("AISCutSegmentsOperator", "AISCutUtterancesOperator"),
    "speech.columns": ("FILTER_COLUMNS", "SEGMENT_COLUMNS", "UTTERANCE_COLUMNS"),
    "transfer.request.after_load": ("AfterLoad",),
    "transfer.request.column_options": ("Columns",),
    "transfer.request.object_format": ("Csv", "MessageSchema"),
    "transfer.request.table_keys": ("Expression",),
    "transfer.request.template": ("Template",),
    "transfer.request.upsert": ("Upsert",),
    "transfer.request.options": ("LoadLimits", "ReadOptions", "TableOptions"),
}  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_MODULES, "params"])  # noqa: PLE0605 - computed from the one list of names


def __getattr__(name: str) -> Any:
    """Import a public name. Raises AttributeError for any other."""
    if name == "params":
        return import_module("storeside.operators.forms.params")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"storeside.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
