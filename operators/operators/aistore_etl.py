"""Operators that start, stop and delete ETLs, inspect a bucket, and transform or get single objects."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Required, Unpack

from airflow.sdk.exceptions import AirflowFailException

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError
from storeside.aistore.spec import EtlSpec
from storeside.operators.arguments import LiteralArgumentError, check_literals, check_object, require_spec
from storeside.operators.bases.charts import object_at
from storeside.operators.bases.following import FollowingArguments, FollowingOperator
from storeside.operators.bases.selecting import SelectingOperator
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.links import RunPageLink
from storeside.operators.outcome import check_policy
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import ledger, plain, run_columns, run_key
from storeside.operators.triggers.aistore import AISJobTrigger
from storeside.transform.inspection import Inspection
from storeside.transform.single import get_object, transform_object

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template


class AISInitEtlOperator(FormOperator):
    """Starts an ETL, or a chain of ETLs, beside every target; a setup task for transforms with `keep_etl`.

    The task reuses a running ETL with the same specification. It replaces a running ETL with the same name and
    another specification, unless transforms run. The run of the task keeps the ETLs: they are stopped two days after
    their last use by a task. Returns the names of the ETLs.

    :param etl: an image with its parameters, AIStore's own file (`EtlSpec.from_yaml`), or a class
        (`EtlSpec.of_class`). For transforms with `latest` or `sync`, start the `EtlSpec.without_files` of their ETL.
        For an existing ETL (`EtlSpec.existing`) the task only checks that it runs
    :param aistore_conn_id: connection to AIStore
    """

    ui_color = "#d7e9f7"

    def __init__(
        self, *, etl: EtlSpec, aistore_conn_id: str = AIStoreHook.default_conn_name, **kwargs: Unpack[TaskArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.etl = etl
        self.aistore_conn_id = aistore_conn_id
        require_spec(self, etl)

    def execute(self, context: Context) -> list[str]:
        """Start each ETL that is not running and return the names."""
        with airflow_errors():
            hook = AIStoreHook(self.aistore_conn_id)
            return etls.ensure(hook.get_conn(), self.etl, hook.pods, keeper=run_key(context))


class _NamedEtlOperator(FormOperator):
    """Common arguments of the operators for one ETL by its name.

    :param aistore_conn_id: connection to AIStore
    """

    template_fields: Sequence[str] = ("etl_name",)
    ui_color = "#d7e9f7"

    def __init__(
        self, *, etl_name: str, aistore_conn_id: str = AIStoreHook.default_conn_name, **kwargs: Unpack[TaskArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.etl_name = etl_name
        self.aistore_conn_id = aistore_conn_id
        check_literals(self, etl_name=EtlSpec.existing)


class AISStartEtlOperator(_NamedEtlOperator):
    """Starts a stopped ETL by name, as AIStore keeps it, also one that Storeside did not initialize.

    An ETL that runs already is left alone. Returns whether the task started it.

    :param etl_name: the ETL's name
    """

    def execute(self, context: Context) -> bool:
        """Start the ETL and wait until it runs beside every target."""
        with airflow_errors():
            hook = AIStoreHook(self.aistore_conn_id)
            started = etls.start(hook.get_conn(), self.etl_name, hook.pods)
        self.log.info("ETL %s %s", self.etl_name, "is started" if started else "runs already")
        return started


class AISStopEtlOperator(_NamedEtlOperator):
    """Stops an ETL by name and keeps its specification in AIStore; `AISStartEtlOperator` starts it again.

    While any transform runs in the cluster, the task fails and Airflow retries it: stopping one ETL aborts all
    transforms (AIStore 5.0).

    :param etl_name: the ETL's name
    """

    def execute(self, context: Context) -> None:
        """Stop the ETL."""
        with airflow_errors():
            etls.stop(AIStoreHook(self.aistore_conn_id).get_conn(), self.etl_name)


class AISDeleteEtlOperator(FormOperator):
    """Stops and deletes ETLs; a teardown task.

    While any transform runs in the cluster, the task deletes nothing, because stopping an ETL would abort that
    transform: the task that ends last deletes the ETLs. It deletes no existing ETLs (`EtlSpec.existing`). Returns
    whether the ETLs were deleted.

    :param etl: the ETL or chain that `AISInitEtlOperator` started; None means all idle ETLs of Storeside
    :param aistore_conn_id: connection to AIStore
    """

    ui_color = "#d7e9f7"

    def __init__(
        self,
        *,
        etl: EtlSpec | None = None,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.etl = etl
        self.aistore_conn_id = aistore_conn_id
        if etl is not None and not etl.all_names:
            raise LiteralArgumentError(
                f"task {self.task_id!r}: etl: {etl.name} is an existing ETL, which tasks do not delete: leave out the"
                " task, or use AISStopEtlOperator"
            )

    def execute(self, context: Context) -> bool:
        """Delete idle ETLs."""
        with airflow_errors():
            client = AIStoreHook(self.aistore_conn_id).get_conn()
            names = etls.ours(client) if self.etl is None else self.etl.all_names
            gone = etls.release(client, names)
        self.log.info("%s: %s", "deleted" if gone else "left", ", ".join(names) or "none")
        return gone


class AISInspectBucketOperator(FollowingOperator, SelectingOperator):
    """Transforms every object of a bucket inside AIStore and discards the results, to find objects that fail.

    Returns the numbers of objects read and failed, with examples; the task's log lists all failures.

    :param source: bucket URI
    :param etl: the ETL or chain of ETLs; always called over ``hpush``. An existing ETL keeps its
        own channel, which must not be ``ws``
    :param prefix: inspect only objects whose names start with this
    :param on_failed_objects: ``fail`` the task when objects failed, or ``report`` them and succeed
    :param workers: concurrent workers per target; 0 lets AIStore choose
    :param stall_seconds: seconds without progress after which the job is aborted
    :param aistore_conn_id: connection to AIStore
    :param clickhouse_conn_id: connection to ClickHouse
    """

    template_fields: Sequence[str] = ("source", "prefix", "on_failed_objects", "on_nothing")
    ui_color = "#d7e9f7"
    operator_extra_links = (RunPageLink(),)

    def __init__(
        self,
        *,
        source: str,
        etl: EtlSpec,
        prefix: str = "",
        on_failed_objects: OnFailed | Template = "report",
        workers: int = 0,
        stall_seconds: float = 300,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Unpack[FollowingArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.etl = etl
        self.prefix = prefix
        self.on_failed_objects = on_failed_objects
        self.workers = workers
        self.stall_seconds = stall_seconds
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        require_spec(self, etl)
        check_literals(self, source=Bucket.parse, on_failed_objects=check_policy)

    def inspection(self) -> Inspection:
        """Build the engine's inspection from the rendered arguments."""
        hook = AIStoreHook(self.aistore_conn_id)
        source = Bucket.parse(self.source)
        return Inspection(hook.get_conn(), source, self.etl, self.prefix, self.workers, hook.pods)

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the job and wait until it ends."""
        with airflow_errors():
            check_policy(self.on_failed_objects)
            job_id = self.inspection().submit()
        trigger = AISJobTrigger(
            self.aistore_conn_id,
            job_id,
            started=time.time(),
            stall_seconds=self.stall_seconds,
            etl_names=self.etl.over("hpush").own_names,
        )
        return dict(self.wait_for(trigger, "report", context))

    def report(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Read the failures from AIStore, record them in ``storeside.runs``, log and return them.

        Raises AIStoreTransientError, as AirflowException, if the job ended with an error or the failures cannot be
        read, and AirflowFailException if they are too many to be listed.
        """
        self.log.info("job %s: %s", event["job_id"], event["progress"])
        with airflow_errors():
            inspection = self.inspection()
            if event["error"]:
                inspection.release()
                raise AIStoreTransientError(f"inspection {event['job_id']} did not end: {event['error']}")
            failed = list(inspection.failures(event["job_id"]).items())
            result = {"objects": event["objects"], "failed": len(failed), "examples": failed[:20]}
            book = ledger(self.clickhouse_conn_id)
            book.create()
            book.record_run(
                {
                    **run_columns(context),
                    "kind": "inspect",
                    "source": self.source,
                    "state": "partial" if failed else "done",
                    "listed": event["objects"],
                    "done": max(event["objects"] - len(failed), 0),
                    "failed": len(failed),
                    "job_seconds": event["seconds"],
                    "detail": json.dumps(result),
                }
            )
        for name, reason in failed:
            self.log.warning("failed: %r: %s", name, reason, object=name)
        if failed and self.on_failed_objects == "fail":
            raise AirflowFailException(
                f"{len(failed)} objects cannot be transformed, such as {failed[0][0]!r}: {failed[0][1]}"
            )
        if not event["objects"] and not failed:
            self.end_without(f"no object of {self.source} matches the prefix {self.prefix!r}")
        return dict(plain(result))


class ObjectArguments(TaskArguments, total=False):
    """Arguments of the operators for one object."""

    source: Required[str]
    """bucket URI"""
    name: Required[str]
    """the object's name"""
    arguments: str | Mapping[str, object]
    """ETL arguments for this object"""
    keep_etl: bool
    """leave the ETL running for later tasks; it is stopped two days after its last use, or earlier by
    `AISDeleteEtlOperator`
    """
    aistore_conn_id: str
    """connection to AIStore"""


class _ObjectOperator(FormOperator):
    """Common arguments of the operators for one object."""

    ui_color = "#d7e9f7"

    def __init__(
        self,
        *,
        source: str,
        name: str,
        etl: EtlSpec | None = None,
        arguments: str | Mapping[str, object] = "",
        keep_etl: bool = False,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.name = name
        self.etl = etl
        self.arguments = arguments
        self.keep_etl = keep_etl
        self.aistore_conn_id = aistore_conn_id
        check_literals(self, name=check_object)

    def keeper(self, context: Context) -> str:
        """Return the name of the run if it keeps the ETL; otherwise an empty text."""
        return run_key(context) if self.keep_etl else ""


class AISTransformObjectOperator(_ObjectOperator):
    """Transforms one object into another inside AIStore, without a job. Returns the result's name and size in bytes.

    :param source: bucket URI
    :param name: the object's name
    :param destination: bucket URI; a missing ``ais://`` bucket is created
    :param result: the result's name; empty keeps the object's name
    :param etl: the ETL or chain of ETLs; always called over ``hpush``. An existing ETL keeps its
        own channel, which must not be ``ws``
    :param arguments: ETL arguments for this object; bucket transforms cannot have any
    :param latest: AIStore checks a remote source for a newer version of the object
    :param keep_etl: leave the ETL running for later tasks; it is stopped two days after its last use, or earlier by
        `AISDeleteEtlOperator`
    """

    template_fields: Sequence[str] = ("source", "name", "destination", "result", "arguments")
    etl: EtlSpec

    def __init__(
        self,
        *,
        destination: str,
        etl: EtlSpec,
        result: str = "",
        latest: bool = False,
        **kwargs: Unpack[ObjectArguments],
    ) -> None:
        super().__init__(etl=etl, **kwargs)
        require_spec(self, etl)
        self.destination = destination
        self.result = result
        self.latest = latest
        check_literals(self, result=check_object)

    def execute(self, context: Context) -> dict[str, Any]:
        """Transform the object; a missing or empty result is a failure."""
        with airflow_errors():
            hook = AIStoreHook(self.aistore_conn_id)
            size = transform_object(
                hook.get_conn(), Bucket.parse(self.source), self.name, Bucket.parse(self.destination),
                self.result or self.name, self.etl, arguments=self.arguments, latest=self.latest,
                keeper=self.keeper(context), pods=hook.pods,
            )  # fmt: skip
        return {"name": self.result or self.name, "size": size}


class AISGetObjectOperator(_ObjectOperator):
    """Downloads one object through an ETL (inline) to object storage or to a file on the worker: for samples.

    With several workers, another task may run on another worker, where a file of this task does not exist: use a URL.

    :param source: bucket URI
    :param name: the object's name
    :param path: URL in object storage, such as ``s3://aws_default@samples/first.wav``, or a file to write on the
        worker. A URL also needs the object's size in the worker's folder for temporary files. The result appears when
        it is complete
    :param etl: the ETL or chain of ETLs, always called over ``hpush``; None downloads the object unchanged. An
        existing ETL keeps its own channel, which must not be ``ws``
    :param arguments: ETL arguments for this request
    :param keep_etl: leave the ETL running for later tasks; it is stopped two days after its last use, or earlier by
        `AISDeleteEtlOperator`
    """

    template_fields: Sequence[str] = ("source", "name", "path", "arguments")

    def __init__(self, *, path: str, etl: EtlSpec | None = None, **kwargs: Unpack[ObjectArguments]) -> None:
        super().__init__(etl=etl, **kwargs)
        self.path = path
        if self.etl is not None:
            require_spec(self, self.etl)

    def execute(self, context: Context) -> int:
        """Write the result and return its size in bytes."""
        with airflow_errors():
            if "://" not in self.path:
                return self._get(Path(self.path), context)
            to = object_at(self.path)
            with TemporaryDirectory(prefix="storeside-object-") as folder:
                file = Path(folder, "object")
                size = self._get(file, context)
                to.fs.put_file(str(file), to.path)
            return size

    def _get(self, file: Path, context: Context) -> int:
        hook = AIStoreHook(self.aistore_conn_id)
        return get_object(
            hook.get_conn(), Bucket.parse(self.source), self.name, file, self.etl,
            arguments=self.arguments, keeper=self.keeper(context), pods=hook.pods,
        )  # fmt: skip
