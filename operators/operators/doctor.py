"""The operator that checks connections and permissions from a worker or from the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from storeside.operators.arguments import check_literals, check_s3_bucket, flag
from storeside.operators.bases.deferring import DeferringOperator
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.shared import as_bool

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.doctor.findings import Finding


Where = Literal["worker", "triggerer"]


def _check_place(where: str) -> None:
    if where not in get_args(Where):
        raise OperatorInputError(f"where {where!r}: write worker or triggerer")


class CheckConnectionsOperator(DeferringOperator):
    """Tests every connection in the same way as the pipelines use it; a failed check fails the task with its remedy.

    The task logs in, creates and drops tables in ClickHouse, puts, reads and deletes an object in S3 and in AIStore,
    lets ClickHouse read both objects, and waits for the S3 event of its object. It removes everything that it
    created. Returns the numbers of checks made and skipped.

    :param bucket: S3 bucket to test, without ``s3://``
    :param sqs_queue: the queue that receives the bucket's events; empty skips the queue
    :param write: False writes no object and creates no table
    :param where: ``worker`` or ``triggerer``, which is where deferred tasks wait
    :param hsds_conn_id: connection to HSDS; if it does not exist, HSDS is skipped. None as any connection id skips
        that system
    :param aistore_conn_id: connection to AIStore
    :param clickhouse_conn_id: connection to ClickHouse
    :param aws_conn_id: connection to S3 and SQS
    """

    template_fields: Sequence[str] = ("bucket", "sqs_queue", "write")
    ui_color = "#e4f0d8"

    def __init__(
        self,
        *,
        bucket: str,
        sqs_queue: str = "",
        write: bool | str = True,
        where: Where = "worker",
        aistore_conn_id: str | None = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str | None = "clickhouse_default",
        aws_conn_id: str | None = "aws_default",
        hsds_conn_id: str | None = "hsds_default",
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.bucket = bucket
        self.sqs_queue = sqs_queue
        self.write = write
        self.where = where
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        self.aws_conn_id = aws_conn_id
        self.hsds_conn_id = hsds_conn_id
        check_literals(self, bucket=check_s3_bucket, write=flag("write"), where=_check_place)

    def execute(self, context: Context) -> dict[str, Any]:
        """Check from the worker, or defer to the triggerer."""
        from storeside.doctor.connections import roles_of
        from storeside.operators.hooks.doctor import look

        connections = {system: conn_id for system, conn_id in self._ids().items() if self._is_there(conn_id)}
        if house := connections.get("clickhouse"):
            named = roles_of(BaseHook.get_connection(house).extra_dejson)
            connections |= {role: conn_id for role, conn_id in named.items() if self._is_there(conn_id)}
        with airflow_errors():
            write = as_bool(self.write, "write")
        if self.where == "triggerer":
            from storeside.operators.triggers.doctor import CheckConnectionsTrigger

            trigger = CheckConnectionsTrigger(connections, self.bucket, self.sqs_queue, write)
            self.defer(trigger=trigger, method_name="finish")
        found = {system: BaseHook.get_connection(conn_id) for system, conn_id in connections.items()}
        with airflow_errors():
            findings = look(found, self.bucket, self.sqs_queue, write=write)
        return self._report(findings)

    def finish(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Report the triggerer's findings."""
        if "error" in event:
            raise AirflowFailException(event["error"])
        from storeside.doctor.findings import Finding

        return self._report([Finding(**finding) for finding in event["findings"]])

    def _ids(self) -> dict[str, str]:
        given = {
            "clickhouse": self.clickhouse_conn_id,
            "aws": self.aws_conn_id,
            "aistore": self.aistore_conn_id,
            "hsds": self.hsds_conn_id,
        }
        return {system: conn_id for system, conn_id in given.items() if conn_id}

    def _is_there(self, conn_id: str) -> bool:
        try:
            BaseHook.get_connection(conn_id)
        except AirflowNotFoundException as e:
            if conn_id == self.hsds_conn_id:
                self.log.info("connection %s does not exist: HSDS is not checked", conn_id)
                return False
            raise AirflowFailException(
                f"connection {conn_id} does not exist: create it as docs/configuration.md describes"
            ) from e
        return True

    def _report(self, findings: list[Finding]) -> dict[str, Any]:
        from storeside.operators.hooks.doctor import lines

        self.log.info("checks from the %s:\n%s", self.where, lines(findings))
        failed = [f"{f.system} {f.check}: {f.found} -> {f.remedy}" for f in findings if f.state == "failed"]
        if failed:
            raise AirflowFailException(f"{len(failed)} of {len(findings)} checks failed: {'; '.join(failed)}")
        return {"checks": len(findings), "skipped": sum(f.state == "skipped" for f in findings)}
