"""An operator that checks connections and permissions from where tasks and triggers run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from include.doctor.findings import Finding
from operators.deferring import DeferringOperator
from operators.hooks.aistore import AIStoreHook
from operators.hooks.doctor import lines, look
from operators.shared import as_bool, transfer_errors
from operators.triggers.doctor import CheckConnectionsTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckConnectionsOperator(DeferringOperator):
    """Tries every connection as the pipelines use it, and fails with what has to be mended.

    It logs in, makes and drops tables in ClickHouse, puts, reads and deletes an object in S3 and in AIStore, has
    ClickHouse read both, and waits for the S3 event of its own object. Nothing of it is left behind. Returns how many
    checks were made, and those that failed.

    :param bucket: bucket of S3 to try, without ``s3://``
    :param sqs_queue: the queue that its events go to; empty for none
    :param write: off: put no object anywhere
    :param where: ``worker``, or ``triggerer``, where deferred tasks wait
    :param hsds_conn_id: is not looked at where there is no such connection; None for any other leaves it out as well
    """

    template_fields: Sequence[str] = ("bucket", "sqs_queue", "write")
    ui_color = "#e4f0d8"

    def __init__(
        self,
        *,
        bucket: str,
        sqs_queue: str = "",
        write: bool | str = True,
        where: Literal["worker", "triggerer"] = "worker",
        aistore_conn_id: str | None = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str | None = "clickhouse_default",
        aws_conn_id: str | None = "aws_default",
        hsds_conn_id: str | None = "hsds_default",
        **kwargs: Any,
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

    def execute(self, context: Context) -> dict[str, Any]:
        """Look from the worker, or hand over to the triggerer."""
        connections = {system: conn_id for system, conn_id in self._ids().items() if self._is_there(conn_id)}
        with transfer_errors():
            write = as_bool(self.write, "write")
        if self.where == "triggerer":
            trigger = CheckConnectionsTrigger(connections, self.bucket, self.sqs_queue, write)
            self.defer(trigger=trigger, method_name="finish")
        found = {system: BaseHook.get_connection(conn_id) for system, conn_id in connections.items()}
        with transfer_errors():
            findings = look(found, self.bucket, self.sqs_queue, write=write)
        return self._report(findings)

    def finish(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take what the triggerer has found."""
        if "error" in event:
            raise AirflowFailException(event["error"])
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
                self.log.info("there is no connection %s: HSDS is not looked at", conn_id)
                return False
            raise AirflowFailException(f"there is no connection {conn_id}: see docs/configuration.md") from e
        return True

    def _report(self, findings: list[Finding]) -> dict[str, Any]:
        self.log.info("from the %s:\n%s", self.where, lines(findings))
        failed = [f"{f.system} {f.check}: {f.found} -> {f.remedy}" for f in findings if f.state == "failed"]
        if failed:
            raise AirflowFailException(f"{len(failed)} of {len(findings)} checks failed: {'; '.join(failed)}")
        return {"checks": len(findings), "skipped": sum(f.state == "skipped" for f in findings)}
