from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors

from include.storage.errors import ObjectError, TransientError, UsageError
from include.storage.multipart import MIB, Profile, Settings
from include.storage.prefetch import Missing
from operators import storage
from operators.hooks import storage as hooks
from operators.shared import airflow_errors, only_when
from operators.storage import (
    AISPrefetchBucketOperator,
    StorageBenchmarkOperator,
    StorageCopyBucketOperator,
    StorageTuneOperator,
)
from operators.triggers.aistore import AISJobTrigger
from tests.oci_double import config, new_key

OPERATORS = (
    AISPrefetchBucketOperator,
    StorageBenchmarkOperator,
    StorageCopyBucketOperator,
    StorageTuneOperator,
)


def connection(kind: str, **given: Any) -> Connection:
    extra = json.dumps(given.pop("extra", {}))
    return Connection(conn_id="x", conn_type=kind, extra=extra, **given)


@pytest.mark.parametrize("operator", OPERATORS)
def test_template_fields_are_arguments(operator: Any) -> None:
    arguments = inspect.signature(operator.__init__).parameters
    assert set(operator.template_fields) <= set(arguments)


# --- stores from connections


def test_an_s3_store_has_the_connections_server_style_and_keys() -> None:
    aws = connection(
        "aws", login="key", password="secret",
        extra={"region_name": "eu-west-3", "endpoint_url": "http://storage:9000",
               "config_kwargs": {"s3": {"addressing_style": "path"}}},
    )  # fmt: skip
    store: Any = hooks.store("s3://data", aws)
    assert store.endpoint == "s3 http://storage:9000"
    assert store.name == "s3://storage:9000/data"
    settings = store.client.meta.config
    assert settings.s3["addressing_style"] == "path"
    assert settings.max_pool_connections == hooks.CONNECTIONS
    assert settings.request_checksum_calculation == "when_required"
    assert store.client.meta.region_name == "eu-west-3"
    amazon: Any = hooks.store("s3://data", connection("aws", login="key", password="secret"))
    assert amazon.name == "s3://data"


def test_an_oci_store_has_the_connections_user_and_region() -> None:
    given = config(new_key()[1])
    extra = {
        "tenancy": given["tenancy"], "fingerprint": given["fingerprint"], "region": "eu-frankfurt-1",
        "namespace": "ns", "private_key": given["key_content"],
    }  # fmt: skip
    store: Any = hooks.store("oci://data", connection("generic", login=given["user"], extra=extra))
    assert store.name == "oci://ns/data"
    assert store.endpoint == "oci https://objectstorage.eu-frankfurt-1.oraclecloud.com"
    with pytest.raises(UsageError, match="OCI connection: fingerprint missing"):
        hooks.store("oci://data", connection("generic", login="u", extra={**extra, "fingerprint": ""}))
    with pytest.raises(ValueError, match="namespace in its extra 'namespace'"):
        hooks.store("oci://data", connection("generic", login="u"))


def test_an_ais_store_is_the_clusters_s3_api() -> None:
    store: Any = hooks.store("ais://data", connection("http", host="proxy", port=51080))
    assert (store.name, store.endpoint) == ("ais://data", "ais http://proxy:51080/s3")
    assert store.limits.least_part == 1


@pytest.mark.parametrize("uri", ["gs://data", "az://data", "ais://@other/data"])
def test_what_a_worker_does_not_reach_is_aistores(uri: str) -> None:
    with pytest.raises(ValueError, match="AIStore itself copies the others"):
        hooks.connection_of(uri, "x")


class Tables:
    """ClickHouse without a server: it knows one sweep, or none."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows

    def command(self, statement: str) -> None:
        pass

    def query(self, statement: str, parameters: dict[str, Any]) -> Any:
        assert parameters == {"endpoint": "s3 http://storage:9000", "direction": "put"}
        return SimpleNamespace(result_rows=self.rows)


def test_settings_are_given_or_the_connections_or_tuned_or_usual() -> None:
    extra = {"endpoint_url": "http://storage:9000", "region_name": "x"}
    plain = connection("aws", login="key", password="secret", extra=extra)
    fixed = connection("aws", login="key", password="secret", extra={**extra, "multipart": {"part_size": 6 * MIB}})
    store: Any = hooks.store("s3://data", plain)
    tuned = Tables([(8 * MIB, True, 5 * MIB, 4, 1.0, 3.0)])
    assert hooks.profile(tuned, store, fixed, {"concurrency": 3}) == Profile.of(Settings(concurrency=3))
    assert hooks.profile(tuned, store, fixed, None) == Profile.of(Settings(part_size=6 * MIB))
    found = hooks.profile(tuned, store, plain, None)
    assert found.for_size(9 * MIB) == Settings(5 * MIB, 5 * MIB, 4)
    assert found.for_size(MIB).parts(MIB, store.limits) == []
    assert hooks.profile(Tables([]), store, plain, None) == Profile()
    with pytest.raises(UsageError, match="ignores endpoint_url"):
        hooks.profile(tuned, store, plain, {"preferred_transfer_client": "crt"})


# --- errors, and ways that are skipped


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("why"), AirflowFailException),
        (ObjectError("why"), AirflowFailException),
        (TransientError("why"), AirflowException),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(AirflowException, match="why") as raised, airflow_errors():
        raise error
    assert type(raised.value) is kind


def test_a_task_of_another_way_is_skipped() -> None:
    check = only_when("way", "copy")
    check({"params": {"way": "copy"}})  # type: ignore[typeddict-item]
    with pytest.raises(AirflowSkipException, match="way is 'worker'"):
        check({"params": {"way": "worker"}})  # type: ignore[typeddict-item]


# --- prefetch


class Fetching:
    """What the engine's prefetch answers, one after the other."""

    def __init__(self, *answers: Missing) -> None:
        self.answers = list(answers)
        self.submitted: list[dict[str, Any]] = []

    def missing(self, *, reasons: bool = False) -> Missing:
        return self.answers.pop(0)

    def submit(self, **options: Any) -> str:
        self.submitted.append(options)
        return "job-1"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = []
    client = SimpleNamespace(url="http://clickhouse:8123")
    tables = SimpleNamespace(create=lambda: None, record_run=recorded.append, client=client)
    monkeypatch.setattr(storage, "ledger", lambda conn_id: tables)
    return recorded


CONTEXT: Any = {
    "dag_run": SimpleNamespace(dag_id="ingest", run_id="r"),
    "ti": SimpleNamespace(dag_id="ingest", task_id="prefetch"),
    "outlet_events": OutletEventAccessors(),
}


def prefetching(monkeypatch: pytest.MonkeyPatch, *answers: Missing, **arguments: Any) -> tuple[Any, Fetching]:
    operator = AISPrefetchBucketOperator(task_id="prefetch", bucket="s3://remote", **arguments)
    fetching = Fetching(*answers)
    monkeypatch.setattr(operator, "prefetch", lambda: fetching)
    return operator, fetching


def test_prefetch_defers_and_reports_what_is_missing(monkeypatch: pytest.MonkeyPatch, runs: list[Any]) -> None:
    left = Missing(1, 10, (("a", "gone"),))
    operator, fetching = prefetching(monkeypatch, Missing(4, 100), left, latest="False", workers=3)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    assert fetching.submitted == [{"latest": False, "workers": 3, "blob_threshold": 0}]
    trigger = deferred.value.trigger
    assert isinstance(trigger, AISJobTrigger)
    assert (trigger.job_id, trigger.total) == ("job-1", 4)
    event = {"job_id": "job-1", "progress": "3 of 4"}
    with pytest.raises(AirflowFailException, match="1 objects of s3://remote were not fetched, such as 'a': gone"):
        operator.resume(CONTEXT, event, **deferred.value.kwargs)
    assert {key: runs[0][key] for key in ("kind", "state", "listed", "done", "failed", "bytes_in")} == {
        "kind": "prefetch", "state": "partial", "listed": 4, "done": 3, "failed": 1, "bytes_in": 90,
    }  # fmt: skip
    operator.on_failed_objects = "report"
    fetching.answers = [left]
    assert operator.resume(CONTEXT, event, **deferred.value.kwargs)["failed"] == 1


def test_prefetch_of_nothing_submits_nothing(monkeypatch: pytest.MonkeyPatch, runs: list[Any]) -> None:
    operator, fetching = prefetching(monkeypatch, Missing(0, 0))
    assert operator.execute(CONTEXT)["done"] == 0
    assert fetching.submitted == []
    assert runs[0]["state"] == "done"
