"""Operators that transform or get single objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Required, Unpack

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec
from storeside.operators.arguments import check_literals, check_object, require_spec
from storeside.operators.bases.charts import object_at
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import run_key
from storeside.transform.single import get_object, transform_object

if TYPE_CHECKING:
    from airflow.sdk import Context


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
