"""The operators that measure the variants of a transform on a cluster, and remove what a killed measurement left."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.operators.arguments import check_literals
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.links import BenchmarksPageLink, RunPageLink
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import as_list, as_number, clickhouse, ledger, plain, run_columns, run_key, task_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.aistore.spec import Communication
    from storeside.measure.transforms.benchmark import Benchmark
    from storeside.measure.transforms.plan import Plan
    from storeside.measure.transforms.variants import Server
    from storeside.transfer.request.template import Template
    from storeside.transformers.audio.formats import CodecName

# The values of a switch, and the variants that each of them measures.
Switch = Literal["both", "on", "off"]
SWITCHES: Mapping[str, tuple[bool, ...]] = {"both": (True, False), "on": (True,), "off": (False,)}


def check_switch(value: str) -> None:
    """Raise OperatorInputError unless the value is one of `SWITCHES`."""
    if value not in SWITCHES:
        raise OperatorInputError(f"{value!r}: use one of {', '.join(SWITCHES)}")


class AISMeasureTransformsOperator(FormOperator):
    """Transcodes recordings with each variant of server, channel, file access and direct put, and by a client.

    The task copies the recordings to a new bucket; it only reads `source`. The variants take turns. Each round
    is a job from bucket to bucket, and counts only if every recording has a result. Broken recordings are left out
    before the first round counts; their reasons are in the report. A variant that fails is left out with its reason,
    and the task continues with the others. It fails if none of them works. It writes the rounds to
    ``storeside.transform_benchmark`` and the medians to its log, and removes its buckets and ETLs, also if it is
    killed; `AISRemoveMeasurementOperator` removes what a ``kill -9`` leaves behind. It is not started, and retried
    later, while other transforms run in the cluster. Returns the report as a dictionary.

    :param source: bucket URI
    :param prefix: use only objects whose names start with this
    :param objects: maximum number of recordings, 1 to 10,000; those with the first names
    :param servers: ``storeside``, Storeside's own, and ``fastapi``, ``flask`` and ``http``, those of AIStore's SDK
    :param communications: ``ws``, ``hpush`` and ``hpull``; only ``storeside`` and ``fastapi`` have ``ws``, and only
        with direct put
    :param file_access: ``on``, ``off`` or ``both``: whether the transformer reads objects from the target's disk
    :param direct_put: ``on``, ``off`` or ``both``: whether it sends results straight to the target that stores them
    :param rounds: measurements of each variant
    :param processes: worker processes of each server; 0 is one per CPU that its pod may use
    :param client_workers: recordings that the client, a process on the worker, downloads, transcodes and uploads at
        the same time, all of which are in its memory with their results. 0 leaves it out
    :param codec: codec of the results, such as ``pcm_s16le``; the container is the one of the codec
    :param sample_rate: Hz
    :param channels: 1 to 8, as the codec allows
    :param etl: image, resources and time-outs of the transformer; its other fields have no effect
    :param aistore_conn_id: connection to AIStore
    :param clickhouse_conn_id: connection to ClickHouse
    """

    template_fields: Sequence[str] = (
        "source", "prefix", "objects", "servers", "communications", "file_access", "direct_put", "rounds",
        "processes", "client_workers", "codec", "sample_rate", "channels",
    )  # fmt: skip
    ui_color = "#d7e9f7"
    operator_extra_links = (RunPageLink(), BenchmarksPageLink())

    def __init__(
        self,
        *,
        source: str,
        prefix: str = "",
        objects: int | str = 300,
        servers: Sequence[Server] | Template = ("storeside", "fastapi", "flask", "http"),
        communications: Sequence[Communication] | Template = ("ws", "hpush", "hpull"),
        file_access: Switch | Template = "both",
        direct_put: Switch | Template = "both",
        rounds: int | str = 3,
        processes: int | str = 0,
        client_workers: int | str = 8,
        codec: CodecName | Template = "pcm_s16le",
        sample_rate: int | str = 44_100,
        channels: int | str = 2,
        etl: EtlSpec | None = None,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.prefix = prefix
        self.objects = objects
        self.servers = servers
        self.communications = communications
        self.file_access = file_access
        self.direct_put = direct_put
        self.rounds = rounds
        self.processes = processes
        self.client_workers = client_workers
        self.codec = codec
        self.sample_rate = sample_rate
        self.channels = channels
        self.etl = etl or EtlSpec("bench", TRANSFORMER_IMAGE)
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        self._stop = threading.Event()
        check_literals(self, file_access=check_switch, direct_put=check_switch)

    def plan(self) -> Plan:
        """Return the plan of the measurement for the rendered arguments. Raises BadInput for invalid arguments."""
        from storeside.aistore.buckets import Bucket
        from storeside.measure.transforms.plan import Plan
        from storeside.measure.transforms.variants import variants
        from storeside.transformers.audio.formats import AudioFormat

        for name in ("file_access", "direct_put"):
            check_switch(getattr(self, name))
        wanted = {"codec": self.codec, "sample_rate": self.sample_rate, "channels": self.channels}
        try:
            audio = AudioFormat.from_values({**wanted, "keep_extension": True})  # results of different names
        except ValueError as e:  # transformers import no other package: their errors have no kind
            raise OperatorInputError(str(e)) from e
        processes = as_number(self.processes, "processes", int)
        if processes < 0:
            raise OperatorInputError(f"processes {processes}: use 0 for one per CPU, or a number of processes")
        spec = replace(
            self.etl,
            command=transformer_command("audio_transcode"),
            environment=audio.environment(),
            tuning={"NUM_WORKERS": str(processes)} if processes else {},
        )
        return Plan(
            source=Bucket.parse(self.source),
            prefix=self.prefix,
            objects=as_number(self.objects, "objects", int),
            spec=spec,
            audio=audio,
            variants=variants(
                as_list(self.servers), as_list(self.communications), SWITCHES[self.file_access],
                SWITCHES[self.direct_put],
            ),
            rounds=as_number(self.rounds, "rounds", int),
            parallel=as_number(self.client_workers, "client_workers", int),
        )  # fmt: skip

    def benchmark(self, context: Context) -> Benchmark:
        """Build the engine's benchmark. Raises BadInput for invalid arguments."""
        from storeside.measure.transforms.benchmark import Benchmark

        hook = AIStoreHook(self.aistore_conn_id)
        return Benchmark(hook.cluster, self.plan(), scope=task_key(context), pods=hook.pods, stop=self._stop)

    def execute(self, context: Context) -> dict[str, Any]:
        """Measure all variants, record the rounds, and log the medians."""
        with airflow_errors():
            report = self.benchmark(context).run()
            report.record(clickhouse(self.clickhouse_conn_id), run_key(context))
            ledger(self.clickhouse_conn_id).record_run(
                {
                    **run_columns(context),
                    "kind": "transform benchmark",
                    "source": self.source,
                    "destination": "",
                    "state": "partial" if report.failed else "done",
                    "listed": report.objects,
                    "done": len(report.results),
                    "failed": len(report.failed),
                    "seconds": sum(sum(result.seconds) for result in report.results),
                    "detail": json.dumps({"failed": report.failed}),
                }
            )
        self.log.info(
            "%d recordings of %s, %.1f MB, to %s; %d targets; medians of %s rounds, with minimum and maximum:\n%s",
            report.objects, report.source, report.size / 1e6, report.form, report.targets, self.rounds,
            report.table(),
        )  # fmt: skip
        return dict(plain(report.to_dict()))

    def on_kill(self) -> None:
        """Stop the measurement; `execute` then removes its buckets and ETLs."""
        self._stop.set()


class AISRemoveMeasurementOperator(FormOperator):
    """Removes the buckets and ETLs that a killed `AISMeasureTransformsOperator` left behind; a teardown task.

    While transforms run in the cluster, the task fails and is retried: stopping an ETL would abort them.

    :param measured: id of the task that measures, in the same run
    :param aistore_conn_id: connection to AIStore
    """

    ui_color = "#d7e9f7"

    def __init__(
        self, *, measured: str, aistore_conn_id: str = AIStoreHook.default_conn_name, **kwargs: Unpack[TaskArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.measured = measured
        self.aistore_conn_id = aistore_conn_id

    def execute(self, context: Context) -> None:
        """Remove the buckets and ETLs, until none appears any more."""
        from storeside.measure.transforms.scratch import Scratch

        with airflow_errors():
            client = AIStoreHook(self.aistore_conn_id).get_conn()
            Scratch(client, task_key(context, self.measured)).remove_after_end()
