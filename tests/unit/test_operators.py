from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from aistore.sdk.errors import AISError
from botocore.stub import Stubber

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.copying.errors import CopyObjectError
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.hooks import transfer
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.operators.aistore import (
    AISCopyBucketOperator,
    AISTransformBucketOperator,
    AISTransformObjectsOperator,
)
from storeside.operators.operators.aistore_etl import AISDeleteEtlOperator, AISStartEtlOperator, AISStopEtlOperator
from storeside.operators.operators.aistore_inspect import AISInspectBucketOperator
from storeside.operators.operators.aistore_object import AISGetObjectOperator, AISTransformObjectOperator
from storeside.operators.operators.shards import AISMakeShardsOperator, AISSplitShardsOperator
from storeside.operators.operators.speech import AISProbeAudioOperator, AISTranscodeAudioOperator
from storeside.operators.operators.speech_manifest import ClickHouseLoadManifestOperator
from storeside.operators.shared import as_bool, as_number, run_columns, run_key
from storeside.operators.triggers.aistore import AISJobTrigger
from storeside.speech.manifest import facts_prefix
from storeside.stack.settings import CHECKOUT
from storeside.transform.bucket_job import BucketJob
from storeside.transform.in_place import InPlaceJob
from storeside.transform.naming import Naming
from storeside.transform.shard_plan import Packing
from storeside.transform.state import Options, State
from storeside.transformers.audio.formats import CODECS, AudioFormat
from storeside.transformers.contract.members import Members

if TYPE_CHECKING:
    from storeside.transform.state import Job

CONTEXT: Any = {
    "dag_run": SimpleNamespace(dag_id="speech", run_id="manual__1"),
    "ti": SimpleNamespace(dag_id="speech", task_id="probe", map_index=-1),
}
AUDIO = ("container", "codec", "sample_rate", "channels")
DEFAULTS = {"prefix": None, "on_failure": "report", "retry_failed": False, "communication": "ws"}


def rendered(kind: type[Any], params: dict[str, Any], *audio: str, **arguments: Any) -> Any:
    """Make the operator with the DAG's templates, and render them as a task does."""
    with DAG("speech"):
        operator = kind(
            task_id="transcode",
            source="ais://recordings",
            destination="ais://speech",
            prefix="{{ params.prefix or '' }}",
            on_failed_objects="{{ params.on_failure }}",
            retry_failed="{{ params.retry_failed }}",
            **{name: f"{{{{ params.{name} }}}}" for name in audio},
            **arguments,
        )
    operator.render_template_fields({"params": {**DEFAULTS, **params}})
    return operator


def late(operator: Any, **arguments: Any) -> Any:
    """Return the operator with these arguments as if templates had become them."""
    for name, value in arguments.items():
        setattr(operator, name, value)
    return operator


# --- errors


def raised(error: BaseException) -> BaseException:
    try:
        with airflow_errors():
            raise error
    except BaseException as e:
        return e
    raise AssertionError("the error is gone")


def test_transient_errors_are_retried() -> None:
    error = raised(AIStoreTransientError("the cluster rebalances: try later"))
    assert type(error) is AirflowException
    assert str(error) == "the cluster rebalances: try later"


@pytest.mark.parametrize("cause", [AIStoreInputError("no"), OperatorInputError("no"), CopyObjectError("no")])
def test_what_cannot_get_better_fails_at_once(cause: Exception) -> None:
    error = raised(cause)
    assert isinstance(error, AirflowFailException)
    assert str(error) == "no"
    assert error.__cause__ is cause


def test_missing_bucket_names_the_remedy() -> None:
    from aistore.sdk.errors import ErrBckNotFound, ErrRemoteBckNotFound

    for kind in (ErrBckNotFound, ErrRemoteBckNotFound):
        error = raised(kind(404, 'bucket "ais://absent" does not exist', "http://proxy/v1", None))
        assert isinstance(error, AirflowFailException)
        assert re.search(r"ais://absent.*: create it or correct its name", str(error))


@pytest.mark.parametrize(("status", "final"), [(401, True), (403, True), (400, False), (503, False), (507, False)])
def test_what_aistore_says_is_read_out_of_its_json(status: int, final: bool) -> None:
    error = raised(AISError(status, json.dumps({"message": "PUT access\ndenied", "node": "t1"}), "http://p/v1", None))
    assert isinstance(error, AirflowFailException) == final
    assert isinstance(error, AirflowException)
    assert str(error) == "AIStore: PUT access denied"


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestTimeTooSkewed", "Forbidden"])
def test_keys_that_are_renewed_and_clocks_that_are_wrong_are_waited_for(code: str) -> None:
    text = f't[target]: failed to HEAD remote bucket s3://in, err: aws-error[{code}: The … (region="us-east-1")]'
    error = raised(AISError(403, json.dumps({"message": text}), "http://p/v1", None))
    assert type(error) is AirflowException


@pytest.mark.parametrize(
    "error",
    [
        TaskDeferred(trigger=AISJobTrigger("aistore_default", "etl-1", 0), method_name="resume"),
        AirflowException("as it is"),
        AirflowFailException("as it is"),
        ConnectionError("refused"),
        KeyboardInterrupt(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_everything_else_passes(error: BaseException) -> None:
    assert raised(error) is error


def test_no_error_stays_none() -> None:
    with airflow_errors():
        pass


# --- shared


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, True), (False, False), ("True", True), ("False", False), ("true", True), (" FALSE\n", False)],
)
def test_as_bool(value: bool | str, expected: bool) -> None:
    assert as_bool(value, "latest") is expected


@pytest.mark.parametrize("value", ["", "1", "0", "yes", "None", "{{ params.retry_failed }}", None, 1])
def test_as_bool_refuses(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^latest {re.escape(repr(value))} is neither true nor false$"):
        as_bool(value, "latest")


@pytest.mark.parametrize(
    ("value", "kind", "expected"), [("7", int, 7), (7, int, 7), ("7", float, 7.0), (0.5, float, 0.5)]
)
def test_as_number(value: float | str, kind: Any, expected: float) -> None:
    found = as_number(value, "seconds", kind)
    assert (found, type(found)) == (expected, kind)


@pytest.mark.parametrize(
    ("value", "kind", "what"),
    [("fast", int, "whole number"), ("0.5", int, "whole number"), ("", float, "number"), (None, float, "number")],
)
def test_as_number_refuses(value: Any, kind: Any, what: str) -> None:
    with pytest.raises(ValueError, match=f"^seconds {value!r} is not a {what}$"):
        as_number(value, "seconds", kind)


def test_run_identity() -> None:
    assert run_key(CONTEXT) == "speech/manual__1"
    assert run_columns(CONTEXT) == {"run_id": "speech/manual__1", "dag_id": "speech", "task_id": "probe"}


def test_each_instance_of_a_mapped_task_has_a_row_of_its_own() -> None:
    def name(index: int | None) -> str:
        return run_columns({**CONTEXT, "ti": SimpleNamespace(dag_id="d", task_id="t", map_index=index)})["task_id"]

    assert [name(0), name(12), name(-1), name(None)] == ["t[0]", "t[12]", "t", "t"]


@pytest.mark.parametrize("transform", ["audio_transcode", "audio_probe"])
def test_transformer_command_is_one_that_the_server_takes(transform: str) -> None:
    from storeside.transformers import audio_transformers

    command = transformer_command(transform)
    assert command[:3] == ("python", "-m", "storeside.transformers.serve")
    assert callable(getattr(audio_transformers, transform))
    module_and_arguments = command[1:]
    done = subprocess.run(
        [sys.executable, *module_and_arguments, "--help"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert all(option in done.stdout for option in command if option.startswith("--"))
    assert dict(zip(command[3::2], command[4::2], strict=True)) == {
        "--transform": transform,
        "--host": "0.0.0.0",  # noqa: S104 - a pod's own network
        "--port": "8000",
    }


# --- rendered arguments


@pytest.mark.parametrize(("container", "codec"), [(c, k) for c, codecs in CODECS.items() for k in codecs])
def test_rendered_transcoding_is_the_written_one(container: str, codec: str) -> None:
    params = {"container": container, "codec": codec, "sample_rate": 48_000, "channels": 2}
    spec = rendered(AISTranscodeAudioOperator, params, *AUDIO, "communication").spec(CONTEXT)
    written = AISTranscodeAudioOperator(
        task_id="transcode", source="ais://recordings", destination="ais://speech", **params
    ).spec(CONTEXT)  # type: ignore[arg-type]
    assert spec == written
    assert spec.name == written.name
    assert spec.effect == written.effect
    assert AudioFormat.from_environment(dict(spec.environment)) == AudioFormat(container, codec, 48_000, 2)
    assert spec == EtlSpec(
        "transcode",
        TRANSFORMER_IMAGE,
        transformer_command("audio_transcode"),
        AudioFormat(container, codec, 48_000, 2).environment(),
        communication="ws",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codec": "opus"}, "container wav cannot contain codec 'opus'"),
        ({"sample_rate": 10}, "10 Hz is outside"),
        ({"channels": 9}, "9 channels"),
        ({"sample_rate": "fast"}, "sample_rate='fast' is not a number"),
        ({"communication": "tcp"}, "communication 'tcp' is not one of"),
    ],
)
def test_rendered_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    params = {"container": "wav", "codec": "pcm_s16le", "sample_rate": 16_000, "channels": 1, **change}
    operator = rendered(AISTranscodeAudioOperator, params, *AUDIO, "communication")
    with pytest.raises(ValueError, match=message):
        operator.spec(CONTEXT)


@pytest.mark.parametrize("container", CODECS)
def test_results_are_named_after_the_rendered_container(container: str) -> None:
    codec = next(iter(CODECS[container]))
    params = {"container": container, "codec": codec, "sample_rate": 48_000, "channels": 1}
    naming = rendered(AISTranscodeAudioOperator, params, *AUDIO).naming(CONTEXT)
    assert naming.destination("in/take.one.M4A") == f"in/take.one.{container}"
    assert naming.destination("in/notes.txt") == "in/notes.txt"


def test_extensions_are_kept_by_a_form() -> None:
    operator = rendered(AISTranscodeAudioOperator, {"keep_extension": True}, "keep_extension")
    assert operator.naming(CONTEXT).destination("a.flac") == "a.flac.wav"
    assert operator.spec(CONTEXT).environment["AUDIO_KEEP_EXTENSION"] == "True"
    operator = rendered(AISTranscodeAudioOperator, {"keep_extension": False}, "keep_extension")
    assert operator.spec(CONTEXT).environment == AudioFormat().environment(), "no object is transcoded again"


def test_what_a_transcode_is_given_besides_the_format_counts() -> None:
    operator = rendered(
        AISTranscodeAudioOperator,
        {},
        environment={"AUDIO_MAX_SECONDS": "86400", "AUDIO_CODEC": "no"},
        extensions={"sph": "wav"},
    )
    assert operator.spec(CONTEXT).environment == {**AudioFormat().environment(), "AUDIO_MAX_SECONDS": "86400"}
    assert [operator.naming(CONTEXT).destination(name) for name in ("a.sph", "a.flac")] == ["a.wav", "a.wav"]


def test_a_transform_of_ones_own_is_as_written() -> None:
    operator = rendered(
        AISTransformBucketOperator,
        {},
        image="mine:1",
        command=["run"],
        environment={"GAIN": "{{ params.on_failure }}"},
        extensions={"a": "b"},
        prepend="{{ params.on_failure }}/",
        communication="hpush",
        object_timeout=7,
        processes=3,
    )
    assert operator.spec(CONTEXT) == EtlSpec(
        "transcode", "mine:1", ("run",), {"GAIN": "report"}, {"NUM_WORKERS": "3"}, "hpush", object_timeout=7
    )
    assert operator.naming(CONTEXT).destination("x.a") == "report/x.b"


def test_a_form_decides_how_an_etl_runs() -> None:
    operator = rendered(
        AISTransformBucketOperator,
        {"keep_extension": True, "sample_rate": 90, "container": "mine", "codec": "run"},
        image="{{ params.container }}:1",
        command=["{{ params.codec }}", "--x"],
        communication="hpush",
        direct_put="{{ not params.keep_extension }}",
        file_access="{{ params.keep_extension }}",
        init_timeout="{{ params.sample_rate }}",
        extensions="{{ {'a': params.container} | tojson }}",
    )
    assert operator.spec(CONTEXT) == EtlSpec(
        "transcode", "mine:1", ("run", "--x"), communication="hpush", direct_put=False, init_timeout=90
    )
    assert operator.naming(CONTEXT).destination("x.a") == "x.mine"


def test_a_form_may_name_an_existing_etl() -> None:
    arguments: dict[str, Any] = {"etl": "{{ params.container }}", "image": "mine:1"}
    operator = rendered(AISTransformBucketOperator, {"container": "hello-world-etl"}, **arguments)
    assert operator.spec(CONTEXT) == EtlSpec.existing("hello-world-etl")
    operator = rendered(AISTransformBucketOperator, {"container": ""}, **arguments)
    assert operator.spec(CONTEXT) == EtlSpec("transcode", "mine:1")
    with pytest.raises(ValueError, match="too short"):
        rendered(AISTransformBucketOperator, {"container": "x"}, **arguments).spec(CONTEXT)


def test_another_task_may_name_an_existing_etl() -> None:
    @task
    def choose() -> str:
        return "hello-world-etl"

    with DAG("d", schedule=None):
        operator = AISTransformBucketOperator(
            task_id="transform", source="ais://a", destination="ais://b",
            etl=choose(),  # type: ignore[arg-type]
        )  # fmt: skip
    assert operator.upstream_task_ids == {"choose"}
    operator.existing_etl = "hello-world-etl"  # as Airflow renders it
    assert operator.spec(CONTEXT) == EtlSpec.existing("hello-world-etl")


def test_a_rendered_command_and_environment_are_read() -> None:
    environment = "{{ {'A': params.of} | tojson }}"
    arguments: dict[str, Any] = {"command": "python {{ params.of }}", "environment": environment}
    spec = rendered(AISTransformBucketOperator, {"of": "b"}, **arguments).spec(CONTEXT)
    assert spec is not None
    assert (spec.command, spec.environment) == (("python", "b"), {"A": "b"})
    wrong = rendered(AISTransformBucketOperator, {"of": "b"}, environment="{{ params.of }}")
    with pytest.raises(OperatorInputError, match="environment 'b' is not a JSON object"):
        wrong.spec(CONTEXT)


def test_copy_applies_nothing() -> None:
    operator = rendered(AISCopyBucketOperator, {"prefix": "in/"})
    assert operator.spec(CONTEXT) is None
    assert operator.naming(CONTEXT).destination("in/a.flac") == "in/a.flac"
    assert operator.prefix == "in/"


@pytest.mark.parametrize("name", ["a.wav", "dir/a.flac", "a.mp3", "a.ogg"])
def test_facts_are_named_after_the_whole_object_below_the_run(name: str) -> None:
    operator = AISProbeAudioOperator(task_id="probe", source="ais://speech", destination="ais://facts")
    prefix = facts_prefix("speech/manual__1", Bucket.parse("ais://speech"))
    assert re.fullmatch(r"[0-9a-f]{16}/", prefix)
    assert prefix != facts_prefix("speech/manual__2", Bucket.parse("ais://speech"))
    assert prefix != facts_prefix("speech/manual__1", Bucket.parse("ais://calls"))
    assert operator.naming(CONTEXT).destination(name) == f"{prefix}{name}.json"
    assert operator.spec(CONTEXT).command == transformer_command("audio_probe")


@pytest.mark.parametrize("extra", [{}, {"transformer_endpoint": "http://inside:51080"}])
def test_facts_are_asked_for_without_another_effect(monkeypatch: pytest.MonkeyPatch, extra: dict[str, str]) -> None:
    from airflow.sdk import Connection

    connection = Connection(conn_id="aistore_default", conn_type="http", host="proxy", extra=json.dumps(extra))
    monkeypatch.setattr(AIStoreHook, "get_connection", lambda *_: connection)
    monkeypatch.setattr("storeside.operators.bases.bucket_job.ledger", lambda _: None)

    def job(**arguments: Any) -> BucketJob:
        operator = rendered(AISTranscodeAudioOperator, {}, processes=2, prepend="x/", **arguments)
        operator.job(CONTEXT)
        return operator.job(CONTEXT)  # a task that continues builds it again

    plain, measured = job(), job(facts="ais://speech-{{ 'facts' }}")
    assert plain.spec
    assert measured.spec
    assert plain.spec.tuning == {"NUM_WORKERS": "2"}
    endpoint = extra.get("transformer_endpoint", "http://proxy:51080")
    prefix = facts_prefix("speech/manual__1", Bucket("ais", "speech"))
    where = f"{endpoint}/v1/objects/speech-facts/{prefix}x/?provider=ais"
    assert measured.spec.tuning == {"NUM_WORKERS": "2", "SIDECAR_URL": where}
    assert measured.spec.effect == plain.spec.effect
    assert measured.spec.name != plain.spec.name
    assert (plain.options.sidecars, measured.options.sidecars) == (None, Bucket("ais", "speech-facts"))


def test_an_in_place_transform_names_one_bucket_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps({"conn_type": "generic", "host": "127.0.0.1"}))
    monkeypatch.setattr("storeside.operators.operators.aistore.ledger", lambda _: None)
    monkeypatch.setattr("storeside.operators.bases.bucket_job.ledger", lambda _: None)

    def job(destination: str, in_place: bool | str) -> Job:
        operator = AISTranscodeAudioOperator(
            task_id="transcode", source="ais://a", destination=destination, in_place=in_place
        )
        return operator.job(CONTEXT)

    assert isinstance(job("ais://b", "False"), BucketJob)
    for destination in ("ais://a", "ais://a/", "ais://@#/a"):
        made = job(destination, "True")
        assert isinstance(made, InPlaceJob)
        assert (made.source, made.destination) == (Bucket("ais", "a"), Bucket("ais", "a"))
    with pytest.raises(ValueError, match="the destination ais://b differs from the source ais://a"):
        job("ais://b", True)
    with pytest.raises(ValueError, match="in_place 'maybe' is neither true nor false"):
        job("ais://a", "maybe")


@pytest.mark.parametrize("on_failed", ["", "ignore", "Fail", "None"])
def test_unknown_policy_is_refused(monkeypatch: pytest.MonkeyPatch, on_failed: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps({"conn_type": "generic", "host": "127.0.0.1"}))
    operator = rendered(AISCopyBucketOperator, {"on_failure": on_failed})
    with pytest.raises(AirflowFailException, match=r"on_failed_objects .*: use 'fail' or 'report'"):
        operator.execute(CONTEXT)


@pytest.mark.parametrize("uri", ["speech", "s3://a/b"])
def test_bad_bucket_fails_at_once(uri: str) -> None:
    operator = AISCopyBucketOperator(task_id="copy", source="ais://in", destination="ais://speech")
    with pytest.raises(AirflowFailException, match=re.escape(repr(uri))):
        late(operator, source=uri).execute(CONTEXT)


def test_s3_lists_an_s3_source_only() -> None:
    operator = AISCopyBucketOperator(task_id="copy", source="s3://in", destination="ais://speech")
    assert operator.listing(Bucket.parse("s3://in")) is not None
    assert operator.listing(Bucket.parse("gs://in")) is None
    without = AISCopyBucketOperator(task_id="copy", source="s3://in", destination="ais://speech", aws_conn_id=None)
    assert without.listing(Bucket.parse("s3://in")) is None


def test_a_refused_listing_names_the_bucket_and_two_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("s3", aws_access_key_id="k", aws_secret_access_key="s", region_name="eu-west-1")
    operator = AISCopyBucketOperator(task_id="copy", source="s3://in", destination="ais://speech")
    monkeypatch.setattr(transfer, "s3_client_of", lambda _: client)
    listing = operator.listing(Bucket.parse("s3://in"))
    assert listing is not None
    for code, status, error, text in (
        ("AccessDenied", 403, AirflowFailException, r"s3://in: .*permission s3:ListBucket, or set aws_conn_id=None"),
        ("SlowDown", 503, AirflowException, r"s3://in: .*SlowDown"),
    ):
        with Stubber(client) as stub:
            stub.add_client_error("list_objects_v2", code, http_status_code=status)
            with pytest.raises(error, match=text) as raised, airflow_errors():
                list(listing())
        assert type(raised.value) is error


def test_rendered_options_are_the_written_ones() -> None:
    operator = rendered(
        AISTransformObjectsOperator,
        {"prefix": ""},
        objects="{{ params.on_failure }}-{01..03}",
        latest="{{ params.retry_failed }}",
        quarantine="ais://{{ params.on_failure }}",
        workers=3,
        continue_on_error=False,
        keep_etl=True,
    )
    assert operator.options() == Options(
        names=["report-01", "report-02", "report-03"],
        quarantine=Bucket("ais", "report"),
        workers=3,
        continue_on_error=False,
        keep_etl=True,
    )
    operator.objects = ["a", "b"]
    assert operator.options().names == ["a", "b"]


def test_names_and_prefix_together_are_refused() -> None:
    operator = AISTransformObjectsOperator(
        task_id="t", source="ais://a", destination="ais://b", objects="x", prefix="x"
    )
    with pytest.raises(AirflowFailException, match="exclude a prefix and sync"), airflow_errors():
        operator.options()


def test_members_change_the_names_in_shards_and_not_those_of_shards() -> None:
    pair = {"task_id": "t", "source": "ais://a", "destination": "ais://b", "members": "*.flac", "prepend": "p/"}
    transcode = AISTranscodeAudioOperator(**pair)
    assert transcode.naming(CONTEXT) == Naming(prepend="p/")
    inside = Members.from_environment(transcode.spec(CONTEXT).environment)
    assert inside == Members(("*.flac",), AudioFormat().extensions)
    facts = AISTransformBucketOperator(**pair, extensions='{"tar": "jsonl"}')
    assert facts.naming(CONTEXT) == Naming({"tar": "jsonl"}, "p/")
    assert Members.from_environment(facts.spec(CONTEXT).environment) == Members(("*.flac",), results="jsonl")
    assert AISTransformBucketOperator(**{**pair, "members": ""}).spec(CONTEXT).environment == {}
    copy = AISCopyBucketOperator(task_id="t", source="ais://a", destination="ais://b", prepend="p/")
    assert copy.naming(CONTEXT) == Naming(prepend="p/")


def test_a_split_stores_members_in_the_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {
        "conn_type": "aistore",
        "host": "http://proxy:51080",
        "extra": {"transformer_endpoint": "http://in:1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps(connection))
    split = AISSplitShardsOperator(task_id="t", source="ais://a", destination="ais://#team/b", prepend="p/")
    spec = split.spec(CONTEXT)
    assert split.naming(CONTEXT) == Naming({"tar": "jsonl"}, "p/")
    assert Members.from_environment(spec.environment) == Members(("*",), results="objects")
    assert spec.tuning == {"SIDECAR_URL": "http://in:1/v1/objects/b/p/?provider=ais&namespace=%23team"}
    other = AISSplitShardsOperator(task_id="t", source="ais://a", destination="ais://c", members="*.flac")
    assert Members.from_environment(other.spec(CONTEXT).environment) == Members(("*.flac",), results="objects")


def test_shards_are_made_by_an_etl_that_reads_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {
        "conn_type": "aistore",
        "host": "http://proxy:51080",
        "extra": {"transformer_endpoint": "http://in:1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps(connection))
    monkeypatch.setattr("storeside.operators.operators.shards.ledger", lambda _: None)
    made = AISMakeShardsOperator(
        task_id="t", source="ais://#team/a", destination="ais://b", prefix="p/", objects="*.flac", name="s-{}.tar",
        shard_size="2000", samples_per_shard="3", workers=2,
    )  # fmt: skip
    job = made.job(CONTEXT)
    assert job.packing == Packing("p/", "*.flac", "s-{}.tar", 2000, 3)
    assert (job.source, job.destination) == (Bucket("ais", "a", "#team"), Bucket("ais", "b"))
    assert job.spec.tuning["SHARD_SOURCE_URL"] == "http://in:1/v1/objects/a/?provider=ais&namespace=%23team"
    assert (job.spec.communication, job.spec.request_timeout, job.options.workers) == ("hpush", "86400s", 2)
    other = AISMakeShardsOperator(task_id="t", source="ais://a", destination="ais://b", name="s-{}.tar")
    assert other.job(CONTEXT).scope.job != job.scope.job
    with pytest.raises(OperatorInputError, match="prepend: AISMakeShardsOperator has no such argument"):
        AISMakeShardsOperator(task_id="t", source="ais://a", destination="ais://b", prepend="p/")  # type: ignore[call-arg]


def test_shards_are_not_replaced_in_place() -> None:
    shards = AISTransformBucketOperator(
        task_id="t", source="ais://a", destination="ais://a", members="*.flac", in_place=True
    )
    with pytest.raises(OperatorInputError, match="shards cannot be replaced in place"):
        shards.job(CONTEXT)


def test_another_try_waits_in_the_triggerer() -> None:
    operator = AISTransformBucketOperator(task_id="t", source="ais://a", destination="ais://b")
    later = State("retry", 0, pending=1, retries=2, not_before=time.time() + 60)
    with pytest.raises(TaskDeferred) as deferred:
        operator._go_on(CONTEXT, SimpleNamespace(), later)  # type: ignore[arg-type]
    assert isinstance(deferred.value.trigger, DateTimeTrigger)
    assert deferred.value.method_name == "after_delay"
    assert State(**json.loads(json.dumps(deferred.value.kwargs["state"]))) == replace(later, etl_names=[])  # type: ignore[arg-type]


def test_another_try_waits_in_the_worker_of_a_task_that_is_not_deferrable(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("storeside.operators.bases.bucket_job.time.sleep", slept.append)
    operator = AISCopyBucketOperator(task_id="t", source="ais://a", destination="ais://b", deferrable=False)
    operator._delay(State("retry", 0, pending=1, retries=2, not_before=time.time() + 60))
    operator._delay(State("retry", 0, pending=1, retries=2, not_before=time.time() - 60))
    assert slept == [pytest.approx(60, abs=5), 0]


def test_a_running_job_says_whose_connection_leads_to_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.operators.bases.bucket_job.BRIEF_SECONDS", 0)
    recorded: list[dict[str, Any]] = []
    state = State("bucket", 0, pending=1, retries=2, job_id="etl-1")
    job: Any = SimpleNamespace(
        submit=lambda _: state, ledger=SimpleNamespace(record_run=recorded.append), source="ais://a",
        destination="ais://b", spec=None, client=None,
    )  # fmt: skip
    operator = AISCopyBucketOperator(
        task_id="t", source="ais://a", destination="ais://b", aistore_conn_id="aistore_other"
    )
    with pytest.raises(TaskDeferred):
        operator._go_on(CONTEXT, job, state)
    assert json.loads(recorded[0]["detail"])["aistore_conn_id"] == "aistore_other"


@pytest.mark.parametrize(
    "kind",
    [AISCopyBucketOperator, AISTransformBucketOperator, AISTranscodeAudioOperator, AISProbeAudioOperator],
)
def test_template_fields_are_attributes(kind: type[Any]) -> None:
    operator = kind(task_id="t", source="ais://a", destination="ais://b")
    assert len(set(kind.template_fields)) == len(kind.template_fields)
    assert all(hasattr(operator, name) for name in kind.template_fields)


def test_template_fields_of_single_object_operators_are_attributes() -> None:
    spec = EtlSpec("l", "i")
    made = [
        AISTransformObjectsOperator(task_id="t", source="ais://a", destination="ais://b", objects=[]),
        AISInspectBucketOperator(task_id="t", source="ais://a", etl=spec),
        AISTransformObjectOperator(task_id="t", source="ais://a", name="n", destination="ais://b", etl=spec),
        AISGetObjectOperator(task_id="t", source="ais://a", name="n", path="p", etl=spec),
        AISStartEtlOperator(task_id="t", etl_name="named-etl"),
        AISStopEtlOperator(task_id="t", etl_name="named-etl"),
    ]
    for operator in made:
        assert all(hasattr(operator, name) for name in operator.template_fields)


@pytest.mark.parametrize("running", [[], ["etl-bck[x]"]])
@pytest.mark.parametrize("etl", [EtlSpec("named", "i", etl_name="my-etl"), None])
def test_deleting_etls_says_whether_they_are_gone(
    monkeypatch: pytest.MonkeyPatch, etl: EtlSpec | None, running: list[str]
) -> None:
    discarded: list[str] = []
    records: list[str] = []

    def bucket(name: str) -> Any:
        return SimpleNamespace(
            create=lambda **_: records.append(name), delete=lambda **_: name in records and records.remove(name)
        )

    cluster = SimpleNamespace(
        list_etls=lambda: [SimpleNamespace(id="my-etl")],
        list_buckets=lambda: [SimpleNamespace(name=name) for name in records],
    )
    client = SimpleNamespace(cluster=lambda: cluster, bucket=bucket)
    monkeypatch.setattr(AIStoreHook, "get_conn", lambda _: client)
    monkeypatch.setattr("storeside.aistore.etl.ours", lambda _: ["my-etl"])
    monkeypatch.setattr("storeside.aistore.jobs.running_transforms", lambda _: running)
    monkeypatch.setattr("storeside.aistore.etl.locked", lambda *_, **__: nullcontext())
    monkeypatch.setattr("storeside.aistore.etl.discard", lambda _, name: discarded.append(name))
    assert AISDeleteEtlOperator(task_id="t", etl=etl).execute(CONTEXT) is not bool(running)
    assert discarded == ([] if running else ["my-etl"])
    assert records == (["storeside-etl-left-my-etl"] if running else [])


def manifest_load(**arguments: Any) -> ClickHouseLoadManifestOperator:
    return ClickHouseLoadManifestOperator(task_id="t", bucket="ais://a", facts="ais://b", effect="e", **arguments)


@pytest.mark.parametrize(
    "operator",
    [
        manifest_load(sample_rate="fast"),
        manifest_load(channels="mono"),
        manifest_load(min_seconds="some"),
        manifest_load(max_seconds="many"),
        manifest_load(min_snr_db="clean"),
        late(manifest_load(), on_invalid_rows="Fail"),
        late(
            AISInspectBucketOperator(task_id="t", source="ais://a", etl=EtlSpec("e", "image")), on_failed_objects="no"
        ),
    ],
)
def test_wrong_arguments_fail_before_anything_is_done(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClickHouseLoadManifestOperator, "collect", lambda *_: pytest.fail("facts are read"))
    with pytest.raises(AirflowFailException, match=r"use 'fail' or 'report'|^\w+ '\w+' is not a (whole )?number"):
        operator.execute(CONTEXT)


def test_template_fields_of_the_validation_are_attributes() -> None:
    operator = manifest_load()
    assert all(hasattr(operator, name) for name in operator.template_fields)


@pytest.mark.parametrize("name", ["source", "destination"])
def test_an_empty_field_of_a_form_is_named(name: str) -> None:
    operator = late(AISCopyBucketOperator(task_id="copy", source="ais://in", destination="ais://out"), **{name: ""})
    with pytest.raises(OperatorInputError, match=f"{name} is empty: set it to the URI"):
        operator.job(CONTEXT)
