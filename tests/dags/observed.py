"""A DAG that loads and copies a bucket, run by Airflow in this process: for `integration/test_observability.py`.

Prints the asset events that it made, as JSON.
"""

from __future__ import annotations

import json
import os

from airflow.sdk import DAG, Asset

from storeside.operators import S3ToClickHouseOperator, StorageCopyBucketOperator

BUCKET, TABLE = os.environ.get("BUCKET", "bucket"), os.environ.get("TABLE", "data.observed")

with DAG("observed") as dag:
    load = S3ToClickHouseOperator(
        task_id="load", bucket=BUCKET, keys="in/", table=TABLE, deferrable=False, on_bad_rows="skip",
        on_failed_objects="report",
    )  # fmt: skip
    copy = StorageCopyBucketOperator(
        task_id="copy", source=f"s3://{BUCKET}", destination=f"s3://{BUCKET}-copy", prefix="in/",
        outlets=[Asset(name="copies", uri=f"s3://{BUCKET}-copy")],
    )  # fmt: skip
    load >> copy

if __name__ == "__main__":
    from airflow.models.asset import AssetEvent
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils
    from airflow.utils.session import create_session

    # as a worker does before it runs a task
    legacy = conf.getboolean("metrics", "legacy_names_on")
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=legacy)
    run = dag.test()
    with create_session() as session:
        events = [[e.source_task_id, e.asset.name, e.asset.uri, e.extra] for e in session.query(AssetEvent)]
    print("EVENTS", json.dumps({"state": run.state, "events": events}))
