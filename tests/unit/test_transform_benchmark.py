"""The parts of the measurement of transforms: variants, plan, table, operator and form."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec
from storeside.measure.errors import MeasureInputError
from storeside.measure.transforms.plan import Plan
from storeside.measure.transforms.results import Report, Result
from storeside.measure.transforms.variants import Variant, variants
from storeside.operators import AISMeasureTransformsOperator, transformer_command
from storeside.operators.arguments import LiteralArgumentError
from storeside.stack.settings import CHECKOUT
from storeside.transformers.audio.formats import AudioFormat
from tests.support import task_context

SPEC = EtlSpec("bench", "image", transformer_command("audio_transcode"))
WS = Variant("storeside", "ws", True, True)
PUSH = Variant("flask", "hpush", False, True)


# ---- variants


def test_the_published_matrix_has_each_variant_that_exists_once() -> None:
    found = variants()
    assert len(found) == len(set(found)) == 4 * 2 * 4 + 2 * 2
    assert {v for v in found if v.communication == "ws"} == {
        Variant(server, "ws", access, True) for server in ("storeside", "fastapi") for access in (True, False)
    }


def test_chosen_variants() -> None:
    assert variants(["flask", "storeside"], ["hpush", "ws"], [False], [True]) == [
        Variant("storeside", "hpush", False, True), Variant("storeside", "ws", False, True), PUSH,
    ], "Storeside's server first, because only it knows broken recordings"  # fmt: skip
    assert variants(["flask", "flask"], ["hpush"], [False], [True]) == [PUSH]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ((["flask"], ["ws"]), "no such variant exists, because only storeside and fastapi speak ws"),
        ((["fastapi"], ["ws"], [True], [False]), "ws needs direct put: add hpush or hpull"),
        (([], ["ws"]), r"servers \[\]: choose one or more of storeside, fastapi, flask"),
        ((["tornado"], ["ws"]), r"servers \['tornado'\]: choose one or more of"),
        ((["flask"], ["hpush", "io"]), r"communications \['hpush', 'io'\]: choose one or more of ws, hpush, hpull"),
    ],
)
def test_variants_that_do_not_exist(chosen: Any, message: str) -> None:
    with pytest.raises(MeasureInputError, match=message):
        variants(*chosen)


def test_a_variant_is_an_etl_of_its_own() -> None:
    etl = PUSH.of(SPEC, "bench-0123456789")
    assert " ".join(etl.command) == (
        "python -m storeside.transformers.sdk_servers --transform audio_transcode --host 0.0.0.0 --port 8000"
        " --server flask"
    )
    assert (etl.communication, etl.file_access, etl.direct_put) == ("hpush", False, True)
    assert WS.of(SPEC, "bench").command == SPEC.command
    names = {variant.of(SPEC, "bench-0123456789").name for variant in variants()}
    assert len(names) == 36
    assert all(name.startswith("bench-0123456789-") and len(name) <= 32 for name in names)
    assert str(PUSH) == "flask hpush direct put"
    assert str(WS) == "storeside ws file access direct put"


# ---- figures


def report(*results: Result, **failed: str) -> Report:
    return Report("ais://in", "pcm_s16le", 2, 0, 10, 5_000_000, results, failed)


def test_the_table_has_the_fastest_first_and_compares_with_the_client() -> None:
    found = report(
        Result(None, (8.0, 10.0, 40.0)), Result(PUSH, (4.0,)), Result(WS, (2.0, 2.5, 3.0)), http="too slow"
    )
    assert found.table().splitlines()[2:] == [
        f"| {WS} | 2.50 (2.00 to 3.00) | 4.00 (3.33 to 5.00) | 2.00 (1.67 to 2.50) | 4.00 |",
        "| flask hpush direct put | 4.00 (4.00 to 4.00) | 2.50 (2.50 to 2.50) | 1.25 (1.25 to 1.25) | 2.50 |",
        "| client | 10.00 (8.00 to 40.00) | 1.00 (0.25 to 1.25) | 0.50 (0.12 to 0.62) | 1.00 |",
        "| http | failed: too slow | | | |",
    ]
    told = found.to_dict()
    json.dumps(told)  # as XCom does
    assert [(v["variant"], v["median"], v["times_client"]) for v in told["variants"]] == [
        (str(WS), 2.5, 4.0), (str(PUSH), 4.0, 2.5), ("client", 10.0, 1.0),
    ]  # fmt: skip


def test_without_a_client_there_is_no_ratio() -> None:
    assert report(Result(WS, (2.0,))).table().endswith("| 2.50 (2.50 to 2.50) |  |")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objects": 0}, "objects 0: use 1 to 10000"),
        ({"rounds": 101}, "rounds 101: use 1 to 100"),
        ({"parallel": -1}, "client_workers -1: use 0 to 256"),
    ],
)
def test_plans_out_of_range(change: dict[str, int], message: str) -> None:
    given = {"objects": 1, "rounds": 1, "parallel": 0, **change}
    with pytest.raises(MeasureInputError, match=message):
        Plan(Bucket("ais", "in"), "", spec=SPEC, audio=AudioFormat(), variants=[WS], **given)


# ---- operator and form


def test_the_plan_of_an_operator() -> None:
    etl = EtlSpec("any", "registry/image:1", resources={"limits": {"cpu": "2"}}, init_timeout=300)
    operator = AISMeasureTransformsOperator(
        task_id="m", source="s3://in", objects="20", servers="flask http", communications="hpush", file_access="off",
        direct_put="on", rounds="2", processes="4", client_workers="0", codec="opus", sample_rate="24000", channels=1,
        etl=etl,
    )  # fmt: skip
    plan = operator.plan()
    assert plan.variants == [PUSH, Variant("http", "hpush", False, True)]
    assert (plan.objects, plan.rounds, plan.parallel) == (20, 2, 0)
    assert (plan.spec.image, plan.spec.resources, plan.spec.init_timeout) == (etl.image, etl.resources, 300)
    assert plan.spec.tuning == {"NUM_WORKERS": "4"}
    assert plan.spec.command == transformer_command("audio_transcode")
    assert plan.audio == AudioFormat("ogg", "opus", 24_000, 1, keep_extension=True)
    assert plan.spec.environment == plan.audio.environment()
    assert plan.naming.destination("a.flac") == "a.flac.ogg"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "in"}, "write it as one of ais://name"),
        ({"objects": "all"}, "objects 'all' is not a whole number"),
        ({"processes": -1}, "processes -1: use 0 for one per CPU"),
        ({"codec": "mp4"}, "cannot contain codec 'mp4'"),
        ({"codec": "opus"}, "opus does not support 44100 Hz"),
        ({"servers": "flask", "communications": "ws"}, "no such variant exists"),
        ({"client_workers": 300}, "client_workers 300: use 0 to 256"),
    ],
)
def test_bad_input_fails_at_once(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps({"conn_type": "aistore", "host": "127.0.0.1"}))
    operator = AISMeasureTransformsOperator(task_id="m", **{"source": "ais://in", **given})
    with pytest.raises(AirflowFailException, match=message):
        operator.execute(task_context())


def test_a_literal_switch_is_checked_while_the_dag_is_parsed() -> None:
    with pytest.raises(LiteralArgumentError, match="task 'm': direct_put: 'yes': use one of both, on, off"):
        AISMeasureTransformsOperator(task_id="m", source="ais://in", direct_put="yes")
    operator = AISMeasureTransformsOperator(task_id="m", source="ais://in")
    operator.direct_put = "yes"  # as a template renders it
    with pytest.raises(ValueError, match="use one of both, on, off"):
        operator.plan()


def dag() -> Any:
    return DagBag(CHECKOUT / "dags" / "transform_benchmark.py").dags["transform_benchmark"]


def test_the_form_becomes_a_plan() -> None:
    found = dag()
    task = copy.copy(found.get_task("measure"))
    task.render_template_fields(
        {"params": {**found.params.dump(), "source": "s3://in", "prefix": None, "servers": ["flask"]}}
    )
    plan = task.plan()
    assert (plan.source, plan.prefix, plan.objects, plan.rounds, plan.parallel) == (Bucket("s3", "in"), "", 300, 3, 8)
    assert len(plan.variants) == 8
    assert (plan.audio.sample_rate, plan.audio.channels, plan.spec.init_timeout) == (44_100, 2, 300)
    remove = found.get_task("remove")
    assert remove.is_teardown
    assert remove.measured == "measure"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("servers", []),
        ("servers", ["tornado"]),
        ("communications", ["io"]),
        ("objects", 0),
        ("objects", 10_001),
        ("client_workers", 257),
        ("rounds", 0),
        ("direct_put", "yes"),
        ("codec", "wma"),
        ("sample_rate", 1_000),
    ],
)
def test_the_form_refuses(field: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        dag().params.get_param(field).resolve(value)


def test_the_variable_sets_image_and_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"image": "registry.example.com/audio:2", "resources": {"limits": {"memory": "4Gi"}}}
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_TRANSFORM_BENCHMARK", json.dumps(given))
    etl = dag().get_task("measure").etl
    assert (etl.image, etl.resources) == (given["image"], given["resources"])
