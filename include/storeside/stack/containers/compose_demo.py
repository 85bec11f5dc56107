"""``python -m storeside.stack.containers.compose_demo FOLDER``: send recordings through the Compose stack's pipeline.

The addresses come from the connections in the environment, as in the doctor.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from storeside.doctor import connections
from storeside.sql import visibility
from storeside.stack.airflow.api import AirflowApi

BUCKET = "recordings"
DAG = "speech_pipeline"
URL = "http://api-server:8080"
_SECONDS = 600


def main(folder: str) -> int:
    """Upload the audio files of the folder, run the pipeline and print the manifest; return 1 if it failed."""
    systems = connections.systems(connections.found(os.environ, connections.IDS), BUCKET)
    reader = systems.pages or systems.clickhouse  # the loader may not read the manifest
    if systems.s3 is None or reader is None:
        print("error: the environment has no connections to S3 and ClickHouse", file=sys.stderr)
        return 1
    s3, clickhouse = systems.s3(), reader()
    if not Path(folder).is_dir():
        print(f"error: {folder} is not a folder: set RECORDINGS to a folder with audio files", file=sys.stderr)
        return 1
    files = sorted(path for path in Path(folder).iterdir() if path.suffix in (".flac", ".wav", ".mp3", ".ogg"))
    for path in files:
        s3.upload_file(str(path), BUCKET, f"demo/{path.name}")
    print(f"{len(files)} recordings in s3://{BUCKET}/demo/", flush=True)
    api = AirflowApi(URL, "admin", os.environ["AIRFLOW_ADMIN_PASSWORD"])
    deadline = time.monotonic() + _SECONDS
    while DAG not in {dag["dag_id"] for dag in api.get("dags", limit=100)["dags"]}:
        if time.monotonic() > deadline:
            print(f"error: Airflow has not parsed {DAG} after {_SECONDS} s: see 'docker compose logs dag-processor'")
            return 1
        time.sleep(2)
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
    conf = {"source": f"s3://{BUCKET}", "prefix": "demo/", "keep_extension": True}
    state = api.wait(DAG, api.trigger(DAG, conf), _SECONDS)["state"]
    print(f"{DAG}: {state}")
    rows = clickhouse.query(
        # The newest result of each recording: an earlier version or form may have given results other names.
        "SELECT object, round(duration_seconds, 1), sample_rate, round(rms_dbfs, 1) FROM speech.manifest FINAL"
        " WHERE startsWith(source_object, 'demo/') ORDER BY loaded_at DESC LIMIT 1 BY source_object",
        settings=visibility.stated([DAG]),
    ).result_rows
    for row in sorted(rows):
        print(*row, sep="\t")
    return 0 if state == "success" and len(rows) == len(files) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
