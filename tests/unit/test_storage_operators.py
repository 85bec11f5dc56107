from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors

from storeside.copying.errors import CopyCancelled, CopyInputError, CopyObjectError, CopyTransientError
from storeside.copying.multipart import MIB, Profile, Settings
from storeside.copying.prefetch import Missing
from storeside.measure import tuner
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks import storage as hooks
from storeside.operators.operators import prefetch, storage_measurements
from storeside.operators.operators.prefetch import AISPrefetchBucketOperator
from storeside.operators.operators.storage import StorageCopyBucketOperator
from storeside.operators.operators.storage_measurements import StorageBenchmarkOperator, StorageTuneOperator
from storeside.operators.shared import only_when
from storeside.operators.triggers.aistore import AISJobTrigger
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
    arguments = {name for kind in operator.__mro__ for name in inspect.signature(kind.__init__).parameters}
    assert set(operator.template_fields) <= arguments


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (StorageTuneOperator, "seconds"), (StorageTuneOperator, "megabytes"), (StorageBenchmarkOperator, "rounds"),
        (StorageBenchmarkOperator, "megabytes"),
    ],
)  # fmt: skip
def test_a_number_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str) -> None:
    monkeypatch.setattr(storage_measurements, "backend", lambda text: SimpleNamespace())
    monkeypatch.setattr(storage_measurements, "clickhouse", lambda conn_id: SimpleNamespace())
    monkeypatch.setattr(tuner, "migrate", lambda client: [])
    with pytest.raises(AirflowFailException, match=f"^{name} 'some' is not a "):
        kind(task_id="measure", backends=["s3://b"], **{name: "some"}).execute(CONTEXT)


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
    with pytest.raises(CopyInputError, match="OCI connection: fingerprint missing"):
        hooks.store("oci://data", connection("generic", login="u", extra={**extra, "fingerprint": ""}))
    with pytest.raises(ValueError, match="namespace in its extra 'namespace'"):
        hooks.store("oci://data", connection("generic", login="u"))


def test_an_ais_store_is_the_clusters_s3_api() -> None:
    store: Any = hooks.store("ais://data", connection("http", host="proxy", port=51080))
    assert (store.name, store.endpoint) == ("ais://data", "ais http://proxy:51080/s3")
    assert store.limits.least_part == 1


@pytest.mark.parametrize("uri", ["gs://data", "az://data", "ais://@other/data"])
def test_what_a_worker_does_not_reach_is_aistores(uri: str) -> None:
    with pytest.raises(ValueError, match="use AISCopyBucketOperator for other buckets"):
        hooks.connection_of(uri, "x")


class Tables:
    """ClickHouse without a server: it has one sweep, or none."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows

    def query(self, statement: str, parameters: dict[str, Any]) -> Any:
        assert parameters == {"endpoint": "s3 http://storage:9000", "direction": "put"}
        return SimpleNamespace(result_rows=self.rows)


def test_settings_are_given_or_the_connections_or_tuned_or_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "migrate", lambda client: [])
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
    with pytest.raises(CopyInputError, match="ignores endpoint_url"):
        hooks.profile(tuned, store, plain, {"preferred_transfer_client": "crt"})


# --- errors, and skipped routes


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CopyInputError("why"), AirflowFailException),
        (CopyObjectError("why"), AirflowFailException),
        (CopyTransientError("why"), AirflowException),
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
    """The answers of the engine's prefetch, one after the other."""

    def __init__(self, *answers: Missing) -> None:
        self.answers = list(answers)
        self.submitted: list[dict[str, Any]] = []

    def check(self) -> None:
        pass

    def missing(self, *, reasons: bool = False) -> Missing:
        return self.answers.pop(0)

    def is_empty(self) -> bool:
        return self.nothing

    nothing = False

    def submit(self, **options: Any) -> str:
        self.submitted.append(options)
        return "job-1"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = []
    client = SimpleNamespace(url="http://clickhouse:8123")
    tables = SimpleNamespace(create=lambda: None, record_run=recorded.append, client=client)
    monkeypatch.setattr(prefetch, "ledger", lambda conn_id: tables)
    return recorded


CONTEXT: Any = {
    "dag_run": SimpleNamespace(dag_id="ingest", run_id="r"),
    "ti": SimpleNamespace(dag_id="ingest", task_id="prefetch", map_index=-1),
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
    event = {"job_id": "job-1", "progress": "3 of 4", "error": ""}
    with pytest.raises(AirflowFailException, match="1 object of s3://remote not fetched, such as 'a': gone"):
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


@pytest.mark.parametrize("latest", [False, True])
def test_prefetch_without_an_object_ends_as_on_nothing_says(
    monkeypatch: pytest.MonkeyPatch, runs: list[Any], latest: bool
) -> None:
    operator, fetching = prefetching(monkeypatch, Missing(0, 0), latest=latest, on_nothing="fail")
    fetching.nothing = True
    with pytest.raises(AirflowFailException, match="no object of s3://remote matches the prefix ''"):
        operator.execute(CONTEXT)
    assert fetching.submitted == []


LATE = Missing(1, 10, (("late", "no reason"),), passing=1)
REFUSED = Missing(2, 20, (("a", "denied"), ("b", "denied")))
MANY = Missing(500, 10, (("a", "denied"),) * 20)


def event(error: str = "") -> dict[str, Any]:
    return {"job_id": "job-1", "progress": "some", "error": error}


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_prefetch_submits_again_what_may_come_yet(
    monkeypatch: pytest.MonkeyPatch, runs: list[Any], policy: str
) -> None:
    left = [Missing(9, 90), Missing(5, 50, LATE.examples, 1), LATE, Missing(0, 0)]
    operator, fetching = prefetching(monkeypatch, *left, on_failed_objects=policy)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    for error, total in (("no progress for 300 s: aborted", 5), ("", 1)):
        given = deferred.value.kwargs
        with pytest.raises(TaskDeferred) as deferred:
            operator.resume(CONTEXT, event(error), **given)
        assert deferred.value.trigger.total == total  # type: ignore[attr-defined]
    done = operator.resume(CONTEXT, event(), **deferred.value.kwargs)
    assert (done["done"], done["failed"], done["bytes_in"]) == (9, 0, 90)
    assert len(fetching.submitted) == 3
    assert len(runs) == 1


@pytest.mark.parametrize("policy", ["fail", "report"])
@pytest.mark.parametrize(
    ("error", "left", "given"),
    [
        ("", LATE, {"before": 1, "rounds": 1}),  # without success
        ("", LATE, {"before": 5, "rounds": 3}),  # often enough
        ("aborted", MANY, {"before": 500, "rounds": 1}),
        ("aborted", LATE, {}),  # deferred by an earlier version
    ],
)
def test_prefetch_leaves_what_may_come_yet_to_a_retry(
    monkeypatch: pytest.MonkeyPatch, runs: list[Any], policy: str, error: str, left: Missing, given: dict[str, int]
) -> None:
    operator, fetching = prefetching(monkeypatch, left, on_failed_objects=policy)
    with pytest.raises(AirflowException, match=f"{left.objects} objects? still missing, such as") as raised:
        operator.resume(CONTEXT, event(error), objects=9, size=90, started=0.0, **given)
    assert type(raised.value) is AirflowException
    assert error in str(raised.value)
    assert fetching.submitted == runs == []


@pytest.mark.parametrize(("error", "left"), [("aborted", REFUSED), ("", MANY)])
def test_prefetch_does_not_try_again_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, runs: list[Any], error: str, left: Missing
) -> None:
    operator, fetching = prefetching(monkeypatch, left)
    with pytest.raises(AirflowFailException, match="such as 'a': denied"):
        operator.resume(CONTEXT, event(error), objects=600, size=0, started=0.0, before=600, rounds=1)
    assert fetching.submitted == []


def test_prefetch_that_was_aborted_may_not_have_compared_everything(
    monkeypatch: pytest.MonkeyPatch, runs: list[Any]
) -> None:
    operator, _ = prefetching(monkeypatch, Missing(0, 0), latest=True)
    with pytest.raises(AirflowException, match=r"that have changed .* may not be fetched \(the job ended with: ab"):
        operator.resume(CONTEXT, event("aborted"), objects=0, size=0, started=0.0, before=0, rounds=1)


# --- measurements that are killed


@pytest.mark.parametrize(
    ("operator", "engine"), [(StorageTuneOperator, "tuner.Tuner"), (StorageBenchmarkOperator, "backends.Benchmark")]
)
def test_a_killed_measurement_is_stopped(monkeypatch: pytest.MonkeyPatch, operator: Any, engine: str) -> None:
    given: dict[str, Any] = {}

    class Engine:
        def __init__(self, stores: Any, **options: Any) -> None:
            given.update(options)

        def sweep(self, direction: str) -> None:
            task.on_kill()
            raise CopyCancelled("the copy was stopped")

        def run(self) -> None:
            self.sweep("")

    monkeypatch.setattr(f"storeside.measure.{engine}", Engine)
    monkeypatch.setattr(storage_measurements, "backend", lambda text: SimpleNamespace())
    monkeypatch.setattr(storage_measurements, "clickhouse", lambda conn_id: SimpleNamespace())
    monkeypatch.setattr(tuner, "migrate", lambda client: [])
    task = operator(task_id="measure", backends=["s3://b"])
    task.on_kill()  # before it begins: there is nothing to stop
    with pytest.raises(AirflowException, match="stopped"):
        task.execute(CONTEXT)
    assert given["stop"].is_set()
    assert given["scope"] == "ingest/r/prefetch/-1"
