"""A user who chooses names (in a form, in code, of objects) tries to reach another bucket, or AIStore's other files.

Each attack is one class of names at one place that takes names. No request may reach AIStore: a server in its place
keeps the paths of its requests. `test_name_canaries.py` repeats the most important ones against AIStore itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aistore.sdk import Client

from storeside.aistore.buckets import Bucket, delete_objects, objects_url
from storeside.aistore.many import read_many
from storeside.aistore.spec import EtlSpec
from storeside.aistore.stored_objects import StoredObject
from storeside.copying.prefetch import Prefetch
from storeside.copying.s3 import AIStoreStore
from storeside.errors import BadInput
from storeside.ledger.scope import Pending
from storeside.measure.through import Through
from storeside.operators import (
    AISCopyBucketOperator,
    AISCutSegmentsOperator,
    AISCutUtterancesOperator,
    AISGetObjectOperator,
    AISMakeShardsOperator,
    AISSplitShardsOperator,
    AISTranscodeAudioOperator,
    AISTransformBucketOperator,
    AISTransformObjectOperator,
    AISTransformObjectsOperator,
)
from storeside.operators.entries import faults
from storeside.speech.manifest import facts_url
from storeside.transfer.objects import aistore_objects
from storeside.transform import copies, reasons, single, submit
from storeside.transform.in_place import _SameNames
from storeside.transform.listings import Listings
from storeside.transform.naming import Naming
from storeside.transform.shard_plan import Packing, pack
from storeside.transform.state import Options
from storeside.transformers.contract import tar_archive
from storeside.transformers.contract.job import Job
from storeside.transformers.contract.members import EXTENSIONS as VARIABLE
from storeside.transformers.contract.members import PATTERNS, Members
from storeside.transformers.contract.tar_archive import Member, TarError
from storeside.transformers.settings import Settings
from storeside.transformers.shards import gathering
from storeside.transformers.transformer import ObjectError
from storeside.transformers.workers import worker
from storeside.transformers.workers.http_client import DeliveryError, HttpClient
from storeside.transformers.workers.sidecar import Sidecars
from tests.attacks.forms import task_of
from tests.attacks.names import EXTENSIONS, NAMES, PREFIXES, by_class, listening

BUCKETS = {"source": "ais://in", "destination": "ais://out"}
HERE, THERE = Bucket("ais", "in"), Bucket("ais", "out")
SPEC = EtlSpec("attack", "image", ("serve",), communication="hpush")
# Names whose fault the tar format keeps: readers of an archive look for it, too.
OUTSIDE = {name: NAMES[name] for name in ("to the parent", "past a folder", "ends at the parent", "absolute")}


class Asked:
    """AIStore's place: a client of it, and the paths of requests."""

    def __init__(self, url: str, paths: list[str]) -> None:
        self.url = url
        self.paths = paths
        self.client = Client(url)


@pytest.fixture(scope="module")
def server() -> Iterator[Asked]:
    with listening() as (url, paths):
        yield Asked(url, paths)


@pytest.fixture
def asked(server: Asked) -> Iterator[Asked]:
    """No attack of a test may lead to a request."""
    server.paths.clear()
    yield server
    assert server.paths == []


def test_control_the_server_sees_requests(server: Asked) -> None:
    HERE.object(server.client, "a.wav").get_reader().read_all()
    assert server.paths[-1].startswith("GET /v1/objects/in/a.wav")


# --- the SDK


ONE: dict[str, Callable[[Asked, str], object]] = {
    "handle": lambda a, name: HERE.object(a.client, name).get_reader().read_all(),
    "group": lambda a, name: HERE.objects(a.client, ["good", name]).delete(),
    "delete": lambda a, name: delete_objects(a.client, HERE, [name]),
    "read": lambda a, name: list(read_many(a.client, HERE, [(name, 1)])),
    "load": lambda a, name: aistore_objects.open_object(a.client, "ais://in", name, 1, ""),
    "check of a load": lambda a, name: aistore_objects.changed(a.client, "ais://in", {name: "1/x"}, "", 0),
    "check of a copy": lambda a, name: copies._custom(a.client, HERE, name),
    "reason of a copy": lambda a, name: list(
        reasons.reasons_of_copies(a.client, HERE, [Pending(name, name, 1, "v")])
    ),
    "measured write": lambda a, name: Through(a.client, Bucket("s3", "in"), a.url).put(name, 1),
    "measured deletion": lambda a, name: Through(a.client, Bucket("s3", "in"), a.url).delete(name),
    "get": lambda a, name: single.get_object(a.client, HERE, name, Path("/nowhere/x")),
    "transform": lambda a, name: single.transform_object(a.client, HERE, name, THERE, "good", SPEC),
    "result": lambda a, name: single.transform_object(a.client, HERE, "good", THERE, name, SPEC),
    "job of a transform": lambda a, name: submit.objects(
        a.client, HERE, ["good", name], THERE, SPEC, ["etl"], Naming(), Options()
    ),
    "job of a copy": lambda a, name: submit.objects(
        a.client, HERE, ["good", name], THERE, None, [], Naming(), Options()
    ),
    "quarantine": lambda a, name: submit.quarantine(a.client, HERE, ["good", name], THERE),
}  # fmt: skip


@pytest.mark.parametrize("way", ONE)
@pytest.mark.parametrize("name", **by_class(NAMES))
def test_an_object_of_another_bucket(asked: Asked, way: str, name: str) -> None:
    with pytest.raises(BadInput, match=r"the name|component"):
        ONE[way](asked, name)


def test_a_missing_object_of_another_bucket_is_not_requested_for_its_reason(asked: Asked) -> None:
    prefetch = Prefetch(asked.client, Bucket("s3", "in"))
    for name in NAMES.values():
        reason, passes = prefetch._reason(name)
        assert reason
        assert not passes


@pytest.mark.parametrize("prefix", **by_class(PREFIXES))
def test_an_address_below_which_a_transformer_writes_into_another_bucket(prefix: str) -> None:
    with pytest.raises(BadInput, match="prefix"):
        objects_url("http://proxy", THERE, prefix)
    if prefix != PREFIXES["home"]:  # facts have a folder, in which it is a folder like any other
        with pytest.raises(BadInput, match="prefix"):
            facts_url("http://proxy", THERE, "run", HERE, prefix)


# --- names of results


@pytest.mark.parametrize("extension", **by_class(EXTENSIONS))
def test_a_result_with_an_extension_that_leads_elsewhere(extension: str) -> None:
    for extensions in ({"wav": extension}, {extension: "wav"}):
        with pytest.raises(BadInput, match="extension"):
            Naming(extensions)


@pytest.mark.parametrize("prefix", **by_class(PREFIXES))
def test_a_result_with_a_prefix_that_leads_elsewhere(prefix: str) -> None:
    with pytest.raises(BadInput, match="prepend"):
        Naming(prepend=prefix)


@pytest.mark.parametrize("listings", [Listings, _SameNames])
@pytest.mark.parametrize("name", **by_class({k: v for k, v in NAMES.items() if v}))
def test_a_listed_object_whose_name_leads_elsewhere(listings: Any, name: str) -> None:
    """The source is a bucket of S3, in which uploaders choose any name."""
    found = StoredObject(name, 5, "v")
    (row,) = listings(None, None, None, HERE, THERE, Naming(), Options(names=[name]), lambda: [found]).rows()
    assert (row[0], row[1]) == (name, "")
    assert row[4]


def test_a_listed_object_whose_result_leads_elsewhere() -> None:
    name = "n" * 250 + ".wav"
    found = StoredObject(name, 5, "v")
    naming = Naming({"wav": "a-long-extension"})
    (row,) = Listings(None, None, SimpleNamespace(effect=""), HERE, THERE, naming, Options(), lambda: [found]).rows()
    assert row[1] == ""
    assert "its result would be named" in row[4]


@pytest.mark.parametrize("name", **by_class(NAMES))
def test_a_copy_through_the_worker(name: str) -> None:
    assert AIStoreStore.refused(None, name)


@pytest.mark.parametrize("name", **by_class({k: v for k, v in NAMES.items() if v}))
def test_a_member_of_a_made_shard(name: str) -> None:
    with pytest.raises(BadInput, match="cannot be members"):
        list(pack([StoredObject(name, 1, "v")], Packing(objects="*,.*"), Counter()))  # names markers, too


SHARDS = {k: v.replace("canary", "canary-{}") + ".tar" for k, v in NAMES.items() if "canary" in v and k != "folder"}


@pytest.mark.parametrize("name", **by_class(SHARDS))
def test_a_made_shard(name: str) -> None:
    with pytest.raises(BadInput, match="name"):
        AISMakeShardsOperator(task_id="t", **BUCKETS, name=name)


# --- forms


@pytest.mark.parametrize("extension", **by_class(EXTENSIONS))
def test_a_form_with_an_extension_that_leads_elsewhere(extension: str) -> None:
    """The request goes to the API; the task renders the field without the form."""
    task = task_of("transform_bucket", "transform", **BUCKETS, extensions={"txt": extension})
    with pytest.raises(BadInput, match="extension"):
        task.naming({})
    with pytest.raises(BadInput, match="extension"):
        task.job({})
    members = task_of("transform_bucket", "transform", **BUCKETS, extensions={"txt": extension}, members="*.txt")
    with pytest.raises(BadInput, match="extension"):
        members.spec({})


@pytest.mark.parametrize("extension", **by_class(EXTENSIONS))
def test_the_check_of_the_form_itself(extension: str) -> None:
    schema = task_of("transform_bucket", "transform", **BUCKETS).dag.params.get_param("extensions").schema
    for wrong in ({"txt": extension}, {extension: "json"}):
        assert list(faults("extensions", "", schema, wrong))
    assert not list(faults("extensions", "", schema, {"txt": "json.gz", "md": ".json"}))


# --- operators, with literal arguments and with those that a template has rendered

OPERATORS: dict[str, tuple[type, dict[str, Any]]] = {
    "transform": (AISTransformBucketOperator, {}),
    "objects": (AISTransformObjectsOperator, {"objects": "a.txt"}),
    "transcode": (AISTranscodeAudioOperator, {}),
    "segments": (AISCutSegmentsOperator, {"segments": "ais://corpus/segments.rttm"}),
    "utterances": (AISCutUtterancesOperator, {}),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("extension", **by_class(EXTENSIONS))
def test_an_operator_with_an_extension_that_leads_elsewhere(operator: str, extension: str) -> None:
    kind, given = OPERATORS[operator]
    with pytest.raises(BadInput, match="extension"):
        kind(task_id="t", **BUCKETS, **given, extensions={"txt": extension})
    task = kind(task_id="t", **BUCKETS, **given)
    task.extensions = json.dumps({"txt": extension})
    with pytest.raises(BadInput, match="extension"):
        task.job({})


PREPENDING = {
    "copy": AISCopyBucketOperator, "transform": AISTransformBucketOperator, "transcode": AISTranscodeAudioOperator,
    "split": AISSplitShardsOperator,
}  # fmt: skip


@pytest.mark.parametrize("operator", PREPENDING)
@pytest.mark.parametrize("prefix", **by_class(PREFIXES))
def test_an_operator_with_a_prefix_that_leads_elsewhere(operator: str, prefix: str) -> None:
    kind = PREPENDING[operator]
    with pytest.raises(BadInput, match="prepend"):
        kind(task_id="t", **BUCKETS, prepend=prefix)
    task = kind(task_id="t", **BUCKETS)
    task.prepend = prefix
    with pytest.raises(BadInput, match="prepend"):
        task.job({})


@pytest.mark.parametrize("name", **by_class({k: v for k, v in NAMES.items() if v}))
def test_an_operator_for_one_object_of_another_bucket(name: str) -> None:
    with pytest.raises(BadInput):
        AISTransformObjectOperator(task_id="t", **BUCKETS, etl=SPEC, name="a", result=name)
    with pytest.raises(BadInput):
        AISTransformObjectOperator(task_id="t", **BUCKETS, etl=SPEC, name=name)
    with pytest.raises(BadInput):
        AISGetObjectOperator(task_id="t", source="ais://in", name=name, path="s3://out/x")


# --- transformers


@pytest.mark.parametrize("extension", **by_class(EXTENSIONS))
def test_a_member_of_a_result_that_leads_out_of_the_shard(extension: str) -> None:
    with pytest.raises(BadInput, match="extension"):
        SPEC.of_members("*.txt", {"txt": extension})
    with pytest.raises(ValueError, match="extension"):
        Members.from_environment({PATTERNS: "*", VARIABLE: json.dumps({"txt": extension})})


@pytest.mark.parametrize("name", **by_class(OUTSIDE))
def test_a_written_member_that_leads_out_of_the_shard(name: str) -> None:
    with pytest.raises(TarError, match="leads out"):
        tar_archive.header(Member("good", 1, 0, 0o644, 0), name, 1)
    with pytest.raises(TarError, match="leads out"):
        list(gathering.archive([(name, b"x")]))


@pytest.mark.parametrize("name", **by_class(NAMES))
def test_a_member_or_its_facts_that_are_stored_in_another_bucket(asked: Asked, name: str) -> None:
    for folder in ("", "run/"):
        sidecars = Sidecars(f"{asked.url}/v1/objects/out/{folder}?provider=ais", HttpClient(Settings()), "token")
        with pytest.raises(DeliveryError) as refused:
            sidecars.put(name, b"canary")
        assert refused.value.final


@pytest.mark.parametrize("name", **by_class(NAMES))
def test_facts_that_a_local_run_writes_outside_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    with pytest.raises(DeliveryError):
        Sidecars(folder.as_uri() + "/", HttpClient(Settings())).put(name, b"canary")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", **by_class(NAMES))
def test_a_plan_of_a_shard_with_an_object_of_another_bucket(name: str) -> None:
    """The attacker may write into the work bucket of a task that makes shards."""
    with pytest.raises(DeliveryError, match="cannot be a member"):
        gathering.planned(json.dumps([["good", 1, "v"], [name, 1, "v"]]).encode())


@pytest.mark.parametrize("name", **by_class({k: v for k, v in NAMES.items() if v}))
def test_a_decoder_that_names_facts_after_another_object(name: str) -> None:
    with pytest.raises(ObjectError, match="not named after the object"):
        worker._sidecar_name(Job("b/a.wav"), name)
