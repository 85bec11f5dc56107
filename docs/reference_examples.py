"""One example per operator for docs/reference.md: `make_reference.py` copies the calls, and a test runs this file."""

from __future__ import annotations

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG

from storeside.operators import (
    TRANSFORMER_IMAGE,
    AISCopyBucketOperator,
    AISCutSegmentsOperator,
    AISCutUtterancesOperator,
    AISDeleteEtlOperator,
    AISGetObjectOperator,
    AISInitEtlOperator,
    AISInspectBucketOperator,
    AISMakeShardsOperator,
    AISMeasureThroughputOperator,
    AISMeasureTransformsOperator,
    AISPrefetchBucketOperator,
    AISProbeAudioOperator,
    AISRemoveMeasurementOperator,
    AISSplitShardsOperator,
    AISStartEtlOperator,
    AISStopEtlOperator,
    AISTranscodeAudioOperator,
    AISTransformBucketOperator,
    AISTransformObjectOperator,
    AISTransformObjectsOperator,
    CheckConnectionsOperator,
    ClickHouseExportManifestOperator,
    ClickHouseLoadManifestOperator,
    EtlSpec,
    FailedObjects,
    FailedTasks,
    HSDSExportDatasetOperator,
    HSDSImportDatasetOperator,
    S3EventsToClickHouseOperator,
    S3ToClickHouseOperator,
    SendAlertsOperator,
    SqsLeaseS3EventsOperator,
    SqsRedriveDeadLettersOperator,
    SqsS3EventsSensor,
    SqsSettleS3EventsOperator,
    SqsSettleSpeechEventsOperator,
    StorageBenchmarkOperator,
    StorageCopyBucketOperator,
    StorageTuneOperator,
    TableOptions,
    Volume,
    transformer_command,
)

facts = EtlSpec("facts", TRANSFORMER_IMAGE, transformer_command("text_facts"))

with DAG("transforms", schedule=None) as transforms:
    AISCopyBucketOperator(task_id="copy", source="s3://texts", destination="ais://texts", prefix="2026/")
    AISPrefetchBucketOperator(task_id="prefetch", bucket="s3://texts", prefix="2026/")
    StorageCopyBucketOperator(task_id="copy_through", source="oci://texts", destination="ais://texts", prefix="2026/")
    AISTransformBucketOperator(
        task_id="transform",
        source="s3://texts",
        destination="ais://facts",
        etl=facts,
        extensions={"txt": "json"},
        on_failed_objects="report",
    )
    AISTransformObjectsOperator(
        task_id="some", source="ais://texts", destination="ais://facts", objects="part-{0001..0100}.txt", etl=facts
    )
    AISTransformObjectOperator(
        task_id="one",
        source="ais://texts",
        name="a.txt",
        destination="ais://facts",
        etl=facts,
    )
    AISGetObjectOperator(
        task_id="sample", source="ais://texts", name="a.txt", path="s3://aws_default@samples/a.json", etl=facts
    )
    AISInspectBucketOperator(task_id="inspect", source="ais://texts", etl=facts)
    AISMakeShardsOperator(
        task_id="make_shards",
        source="ais://recordings",
        destination="ais://train",
        objects="*.flac,*.json",
        name="train/shard-{:06d}.tar",
        shard_size=1 << 30,
    )
    AISSplitShardsOperator(
        task_id="split_shards", source="ais://train", destination="ais://train-files", members="*.flac,*.json"
    )
    CheckConnectionsOperator(task_id="check", bucket="recordings", sqs_queue="recordings-events")

with DAG("etls", schedule=None) as etls:
    start = AISInitEtlOperator(task_id="start_etl", etl=facts)
    end = AISDeleteEtlOperator(task_id="delete_etl", etl=facts)
    start >> end.as_teardown(setups=start)
    AISStopEtlOperator(task_id="stop_etl", etl_name="facts-mine")
    AISStartEtlOperator(task_id="start_again", etl_name="facts-mine")

with DAG("speech", schedule=None) as speech:
    transcode = AISTranscodeAudioOperator(
        task_id="transcode",
        source="s3://recordings",
        destination="ais://speech",
        sample_rate=16_000,
        channels=1,
        facts="ais://speech-facts",
    )
    probe = AISProbeAudioOperator(task_id="probe", source="ais://speech", destination="ais://speech-facts")
    load = ClickHouseLoadManifestOperator(
        task_id="load",
        bucket="ais://speech",
        facts="ais://speech-facts",
        effect="{{ ti.xcom_pull('probe')['effect'] }}",
        sample_rate=16_000,
        channels=1,
        on_invalid_rows="report",
    )
    transcode >> probe >> load
    lease = SqsLeaseS3EventsOperator(task_id="lease", sqs_queue="recordings-events", lease_seconds=3600)
    settle = SqsSettleSpeechEventsOperator(task_id="settle", sqs_queue="recordings-events", source="s3://recordings")
    lease >> transcode
    load >> settle.as_teardown(setups=lease)
    ClickHouseExportManifestOperator(
        task_id="export",
        bucket="ais://speech",
        destination="s3://datasets/train/cuts.jsonl.gz",
        format="lhotse_cuts",
        clickhouse_conn_id="clickhouse_exports",
    )
    AISCutSegmentsOperator(
        task_id="cut_segments", source="s3://talks", destination="ais://segments", segments="s3://talks/segments.rttm"
    )
    AISCutUtterancesOperator(task_id="cut", source="s3://talks", destination="ais://utterances", max_seconds=20)

with DAG("loads", schedule=None) as loads:
    load = S3ToClickHouseOperator(
        task_id="load",
        source="s3://trips/2026/**.parquet",
        table="analytics.trips",
        table_options=TableOptions(order_by="pickup_time"),
        on_drift="add",
    )
    load >> SendAlertsOperator(
        task_id="alerts",
        notifiers=[SmtpNotifier(to="team@example.com")],
        conditions=[FailedTasks(), FailedObjects(), Volume()],
    )
    S3EventsToClickHouseOperator(
        task_id="events", sqs_queue="trips-events", bucket="trips", table="analytics.trips", on_bad_rows="keep"
    )
    SqsRedriveDeadLettersOperator(task_id="redrive", sqs_queue="trips-events", redrive=True)
    HSDSExportDatasetOperator(
        task_id="from_hsds", domain="/home/storeside/grid", dataset="/wind", bucket="arrays", prefix="wind/"
    )
    HSDSImportDatasetOperator(
        task_id="to_hsds", source="s3://arrays/wind/", domain="/home/storeside/copy", dataset="/wind"
    )

with DAG("waiting", schedule="@daily", max_active_runs=1) as waiting:
    wait = SqsS3EventsSensor(
        task_id="wait",
        sqs_queue="texts-events",
        timeout=3600,
        soft_fail=True,
        lease_seconds=1800,
    )
    waited = AISTransformBucketOperator(task_id="then", source="s3://texts", destination="ais://facts", etl=facts)
    done = SqsSettleS3EventsOperator(
        task_id="settle",
        sqs_queue="texts-events",
        source="s3://texts",
        destination="ais://facts",
    )
    wait >> waited >> done.as_teardown(setups=wait)

with DAG("measurements", schedule=None) as measurements:
    AISMeasureThroughputOperator(task_id="throughput", bucket="ais://bench", dataset_size="2GiB")
    measure = AISMeasureTransformsOperator(task_id="measure", source="ais://recordings", objects=200)
    measure >> AISRemoveMeasurementOperator(task_id="remove", measured="measure", retries=20).as_teardown()
    StorageBenchmarkOperator(task_id="benchmark", backends=["s3://bench", "oci://bench@oci_default"])
    StorageTuneOperator(task_id="tune", backends=["s3://bench"])
