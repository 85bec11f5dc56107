"""Operators that start, stop and delete ETLs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from storeside.aistore import etl as etls
from storeside.aistore.spec import EtlSpec
from storeside.operators.arguments import LiteralArgumentError, check_literals, require_spec
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import run_key

if TYPE_CHECKING:
    from airflow.sdk import Context


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
