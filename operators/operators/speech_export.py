"""The operator that exports the manifests of recordings and utterances for training frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import BaseHook, BaseOperatorLink

from storeside.aistore.buckets import Bucket
from storeside.operators.arguments import check_literals, flag
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.transfer import clickhouse_client, source
from storeside.operators.links import RunPageLink
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import as_bool, run_key
from storeside.speech.export import ExportError, check_target, export, query_of
from storeside.transfer.request.source import in_aistore, place_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.speech.export import ManifestFormat
    from storeside.transfer.request.template import Template


class ClickHouseExportManifestOperator(FormOperator):
    """Writes the published rows of a bucket's recordings, or the utterances of a table, into S3: for NeMo or Lhotse.

    ClickHouse writes the object itself, in one statement and with bounded memory; no row passes through the worker.
    An object of this name is replaced. Paths of audio are AIStore's, such as ``ais://speech/a.wav``; the path of an
    utterance is its member in the shard, such as ``ais://utterances/a.tar/a-00001.flac``. Without rows, the task
    writes nothing. Returns the number of recordings or utterances, and the object's URI.

    :param bucket: URI of the AIStore bucket whose recordings the manifest describes; of utterances, the
        bucket of their shards
    :param destination: URI of the object to write; ``.gz`` at its end compresses it:
        ``s3://datasets/train/cuts.jsonl.gz``
    :param format: ``nemo``, ``lhotse_recordings`` or ``lhotse_cuts``; of utterances also ``nemo_tarred`` and
        ``huggingface``
    :param only_this_run: export only the rows that this DAG run published; not for utterances
    :param table: ``database.table`` with the columns `UTTERANCE_COLUMNS`, or `SEGMENT_COLUMNS` with their texts;
        empty exports recordings
    :param aws_conn_id: connection whose extras name ClickHouse's way to S3, as for loads
    :param clickhouse_conn_id: connection whose user may read ``speech.manifest``, or the table, and write to
        S3
    """

    template_fields: Sequence[str] = ("bucket", "destination", "format", "only_this_run", "table")
    ui_color = "#fdf0d5"
    operator_extra_links: tuple[BaseOperatorLink, ...] = (RunPageLink(),)

    def __init__(
        self,
        *,
        bucket: str,
        destination: str,
        format: ManifestFormat | Template = "nemo",
        only_this_run: bool | str = False,
        table: str = "",
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.bucket = bucket
        self.destination = destination
        self.format = format
        self.only_this_run = only_this_run
        self.table = table
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        check_literals(
            self, bucket=Bucket.parse, destination=_place, format=query_of, only_this_run=flag("only_this_run")
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Let ClickHouse write the object."""
        with airflow_errors():
            run_id = run_key(context) if as_bool(self.only_this_run, "only_this_run") else ""
            bucket = str(Bucket.parse(self.bucket))
            target = source(BaseHook.get_connection(self.aws_conn_id), *_place(self.destination))
            client = clickhouse_client(BaseHook.get_connection(self.clickhouse_conn_id))
            rows = export(client, target, self.format, bucket, run_id, self.table)
        return {"utterances" if self.table else "recordings": rows, "destination": self.destination}


def _place(uri: str) -> tuple[str, str]:
    bucket, key = place_of(uri, "destination")
    if in_aistore(bucket):
        raise ExportError(f"destination {uri!r}: ClickHouse's token for AIStore only reads: write s3://bucket/key")
    check_target(key)
    return bucket, key
