"""Transforms with several results of each object on a real cluster: an object has all of them, or none."""

from __future__ import annotations

import json
import os
import re
import runpy
import threading
import wave
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import requests
from airflow.dag_processing.dagbag import DagBag
from PIL import Image

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket, objects_url
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger
from storeside.stack.settings import CHECKOUT, SOURCES, Stack
from storeside.transform.bucket_job import BucketJob
from storeside.transform.in_place import InPlaceJob
from storeside.transform.inspection import Inspection
from storeside.transform.naming import Naming
from storeside.transform.single import transform_object
from storeside.transform.state import Options, Phase, Summary
from tests.support import (
    IMAGE,
    etl_servers,
    failures,
    files_of_page,
    put,
    read,
    sizes,
    small_spec,
    task_context,
    unique,
    until,
)

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

Drive = Callable[[BucketJob], Summary]


@dataclass
class Pair:
    """A test's buckets, and the jobs between them."""

    client: Any
    ledger: Ledger
    stack: Stack
    source: Bucket
    destination: Bucket
    prepend: str = ""

    def spec(self, transform: str = "words", url: str = "", **options: Any) -> EtlSpec:
        where = url or objects_url(self.stack.url("ais_proxy"), self.destination, self.prepend)
        return small_spec(transform, **options).storing_results(where)

    def job(self, spec: EtlSpec, run: str = "", **options: Any) -> BucketJob:
        return BucketJob(
            self.client, self.ledger, self.source, self.destination,
            run_id=run or unique("run"), spec=spec, naming=Naming({"txt": "jsonl"}, self.prepend),
            options=Options(**options),
        )  # fmt: skip

    def put(self, **objects: bytes) -> None:
        put(self.client, self.source, {f"{name.replace('_', '/')}.txt": content for name, content in objects.items()})

    def stored(self) -> dict[str, int]:
        return sizes(self.client, self.destination)

    def recorded(self, status: str = "done") -> dict[str, str]:
        """Return the owner of each result that the ledger records with a status."""
        query = (
            "SELECT destination_object, result_of FROM storeside.objects FINAL WHERE result_of != ''"
            " AND destination = {destination:String} AND status = {status:String}"
        )
        parameters = {"destination": str(self.destination), "status": status}
        return dict(self.ledger.client.query(query, parameters=parameters).result_rows)

    def failures(self, run: str) -> dict[str, str]:
        return failures(self.ledger.client, run, self.destination)


@pytest.fixture
def pair(aistore: Any, clickhouse: Any, stack: Stack) -> Pair:
    source = Bucket("ais", unique("several"))
    source.handle(aistore).create()
    destination = Bucket("ais", unique("out"))
    destination.handle(aistore).create()
    return Pair(aistore, Ledger(clickhouse), stack, source, destination)


@contextmanager
def gate(stack: Stack, passes: Callable[[str], bool]) -> Iterator[str]:
    """Yield the URL of a server that hands each PUT request to AIStore, if `passes` is true of its path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not passes(unquote(self.path)):
                self.close_connection = True
                return
            headers = {"Authorization": self.headers["Authorization"]}
            answer = requests.put(stack.url("ais_proxy") + self.path, body, headers=headers, timeout=60)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower().startswith("ais-"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("communication", ["ws", "hpush", "hpull"])
def test_each_result_is_stored_listed_and_owned(pair: Pair, drive: Drive, communication: str) -> None:
    pair.prepend = "p/"
    many = {f"d_{n}": b"a=x%d b=yy" % n for n in range(6)}
    pair.put(**many, bad=b"a=x fail", gone=b"a=x leave", none=b" ")
    put(pair.client, pair.source, {"other.md": b"a=x"})
    run = unique("run")
    spec = pair.spec(communication=communication)
    summary = drive(pair.job(spec, run, keep_etl=True))
    assert (summary.done, summary.failed, summary.left_out_reasons) == (6, 3, {"it says leave": 1})
    assert pair.failures(run).keys() == {"bad.txt", "none.txt", "other.md"}
    assert "extensions={'md': 'jsonl'}" in pair.failures(run)["other.md"]
    results = {f"p/d/{n}/{name}": f"d/{n}.txt" for n in range(6) for name in "ab"}
    assert pair.recorded() == results
    stored = pair.stored()
    lists = {f"p/d/{n}.jsonl" for n in range(6)}
    assert stored.keys() == {*results, *lists}
    assert summary.bytes_out == sum(stored.values())
    assert read(pair.client, pair.destination, "p/d/3/a") == b"x3"
    told = [json.loads(text) for text in read(pair.client, pair.destination, "p/d/3.jsonl").splitlines()]
    assert [{**line, "version": ""} for line in told] == [
        {"object": "d/3.txt", "stored": "d/3/a", "bytes": 2, "version": "", "letters": 2},
        {"object": "d/3.txt", "stored": "d/3/b", "bytes": 2, "version": "", "letters": 2},
    ]
    assert drive(pair.job(spec)).skipped == 6


@pytest.mark.guarantee("several-results")
@pytest.mark.parametrize("communication", ["ws", "hpush"])
def test_a_result_that_its_object_no_longer_has_is_removed(pair: Pair, drive: Drive, communication: str) -> None:
    """Over ws, AIStore replaces the list of an object that failed by an empty object if it is on the same target."""
    pair.put(x=b"a=1 b=2", y=b"a=1 b=2", z=b"a=1 b=2")
    assert drive(pair.job(pair.spec(communication=communication), keep_etl=True)).done == 3
    put(pair.client, pair.destination, {"x/foreign": b"of another program", "y/b": b"overwritten by another program"})
    pair.put(x=b"a=3 c=4", y=b"leave", z=b"fail")
    summary = drive(pair.job(pair.spec(communication=communication), keep_etl=True))
    assert (summary.done, summary.failed, summary.left_out) == (1, 1, 1)
    stored = pair.stored().keys()
    of_failed = {"z/a": "z.txt", "z/b": "z.txt"}
    is_kept = communication == "hpush" or "z.jsonl" in stored
    assert pair.recorded() == {"x/a": "x.txt", "x/c": "x.txt", **(of_failed if is_kept else {})}
    lost = {} if is_kept else of_failed
    assert pair.recorded("left_out") == {"x/b": "x.txt", "y/a": "y.txt", "y/b": "y.txt", **lost}
    kept = {"z.jsonl", *of_failed} if is_kept else set[str]()
    assert stored == {"x.jsonl", "x/a", "x/c", "x/foreign", "y/b", *kept}

    without = pair.spec(communication=communication, environment={"WITHOUT": "a"})
    pair.put(z=b"a=1 b=2")
    summary = drive(pair.job(without))
    assert (summary.done, summary.left_out) == (2, 1), "the specification has changed"
    assert pair.recorded() == {"x/c": "x.txt", "z/b": "z.txt"}
    assert pair.stored().keys() == {"x.jsonl", "x/c", "x/foreign", "y/b", "z.jsonl", "z/b"}


@pytest.mark.parametrize("damage", ["deleted", "overwritten"])
def test_a_lost_result_is_made_again(pair: Pair, drive: Drive, damage: str) -> None:
    pair.put(x=b"a=1 b=2", y=b"a=1 b=2")
    spec = pair.spec()
    assert drive(pair.job(spec, keep_etl=True)).done == 2
    if damage == "deleted":
        pair.destination.object(pair.client, "x/b").delete()
    else:
        put(pair.client, pair.destination, {"x/b": b"3"})
    summary = drive(pair.job(spec, keep_etl=True))
    assert (summary.done, summary.skipped) == (1, 1)
    assert read(pair.client, pair.destination, "x/b") == b"2"
    assert drive(pair.job(spec)).skipped == 2


@pytest.mark.guarantee("several-results")
def test_the_results_of_a_server_that_is_killed_between_them_are_made_again(pair: Pair, drive: Drive) -> None:
    """The first try makes a, and is killed before b; the next run has another transformer, which makes only c."""
    pair.put(x=b"a=1 b=2 c=3", y=b"a=1 b=2 c=3", **{f"n{n}": b"a=1 b=2 c=3" for n in range(4)})
    killed: list[str] = []
    name = ""

    def passes(path: str) -> bool:
        if not urlsplit(path).path.endswith("/x/b") or killed:
            return True
        killed.append(path)
        for server in etl_servers(pair.stack, name):
            server.kill()
        return False

    with gate(pair.stack, passes) as url:
        spec = pair.spec(url=objects_url(url, pair.destination, ""), environment={"WITHOUT": "c"})
        name = spec.name
        job = pair.job(spec)
        state = job.submit(job.begin())
        until(lambda: killed, 60, "kill")
        follower = job.follower(state, stall_seconds=20)
        until(lambda: follower.poll().finished, 60, "end of AIStore's job")
        assert {"x.jsonl", "x/a"} <= pair.stored().keys()
        assert "x/b" not in pair.stored()
        # its task is killed, too
    until(lambda: not jobs.running_transforms(pair.client), 30, "end of the transforms")
    summary = drive(pair.job(pair.spec(environment={"WITHOUT": "b"})))
    assert (summary.done, summary.failed) == (6, 0)
    assert pair.stored().keys() == {
        f"{of}{name}" for of in ("x", "y", "n0", "n1", "n2", "n3") for name in (".jsonl", "/a", "/c")
    }
    assert len(pair.recorded()) == 12


@pytest.mark.guarantee("several-results")
@pytest.mark.parametrize("communication", ["ws", "hpush"])
def test_an_object_whose_results_cannot_all_be_stored_has_none(pair: Pair, drive: Drive, communication: str) -> None:
    """The connection ends at one result, in each try; the other results are stored before it."""
    pair.put(x=b"a=1 b=2", y=b"a=1 b=2")
    assert drive(pair.job(pair.spec(communication=communication), keep_etl=True)).done == 2
    refused: list[str] = []

    def passes(path: str) -> bool:
        if urlsplit(path).path.endswith("/x/c"):
            refused.append(path)
            return False
        return True

    pair.put(x=b"a=3 c=4", y=b"a=1")
    with gate(pair.stack, passes) as url:
        tuning = {"NUM_WORKERS": "1", "AIS_DIRECT_PUT_RETRIES": "0"}
        spec = pair.spec(url=objects_url(url, pair.destination, ""), communication=communication, tuning=tuning)
        run = unique("run")
        summary = drive(pair.job(spec, run))
    assert (summary.done, summary.failed) == (1, 1)
    assert len(refused) == 3, "a job tries again twice"
    assert "PUT to 127.0.0.1" in pair.failures(run)["x.txt"]
    assert pair.stored().keys() == {"y.jsonl", "y/a"}
    assert pair.recorded() == {"y/a": "y.txt"}
    assert drive(pair.job(pair.spec(), retry_failed=True)).done == 1
    assert pair.stored().keys() == {"x.jsonl", "x/a", "x/c", "y.jsonl", "y/a"}


def test_a_try_that_is_killed_after_its_job_goes_on(pair: Pair, drive: Drive) -> None:
    pair.put(x=b"a=1 b=2", y=b"a=1 b=2")
    spec = pair.spec()
    job = pair.job(spec, "run", keep_etl=True)
    state = job.submit(job.begin())
    follower = job.follower(state, stall_seconds=20)
    until(lambda: follower.poll().finished, 60, "end of AIStore's job")
    pair.destination.object(pair.client, "y/b").delete()
    again = pair.job(spec, "run")
    assert again.begin().phase == Phase.OBJECTS
    assert drive(again).done == 2
    assert pair.recorded() == {f"{of}/{name}": f"{of}.txt" for of in "xy" for name in "ab"}
    assert read(pair.client, pair.destination, "y/b") == b"2"


def test_objects_whose_results_would_have_the_same_names_are_refused(pair: Pair, drive: Drive) -> None:
    pair.put(x=b"a=1", d_y=b"a=1")
    put(pair.client, pair.source, {"x.md": b"a=2"})
    run = unique("run")
    spec = pair.spec()
    naming = Naming({"txt": "jsonl", "md": "jsonl"})
    job = BucketJob(
        pair.client, pair.ledger, pair.source, pair.destination, run_id=run, spec=spec, naming=naming,
        options=Options(keep_etl=True),
    )  # fmt: skip
    assert drive(job).done == 2
    assert "its result would be named x.jsonl, like that of x.md" in pair.failures(run)["x.txt"]

    other = Pair(pair.client, pair.ledger, pair.stack, Bucket("ais", unique("other")), pair.destination)
    other.put(x=b"a=3", e=b"a=1")
    run = unique("run")
    assert drive(other.job(other.spec(), run)).done == 1
    assert f"which is the result of {pair.source}/x.md" in other.failures(run)["x.txt"]

    # an ordinary transform into a folder of results
    third = Pair(pair.client, pair.ledger, pair.stack, Bucket("ais", unique("third")), Bucket("ais", unique("out")))
    put(third.client, third.source, {"v/a": b"plain", "v.txt": b"a=1 b=2"})
    plain = BucketJob(
        third.client, third.ledger, third.source, third.destination, run_id="plain", spec=small_spec("upper"),
        options=Options(names=["v/a"]),
    )  # fmt: skip
    assert drive(plain).done == 1
    run = unique("run")
    assert drive(third.job(third.spec(), run, names=["v.txt"])).failed == 1
    reason = "its results would be stored in the folder v/, in which v/a is, a result of v/a: they could overwrite"
    assert third.failures(run)["v.txt"].startswith(reason)
    assert read(third.client, third.destination, "v/a") == b"PLAIN"


@pytest.mark.parametrize("kind", ["in place", "single", "inspection", "members", "existing", "remote", "sync"])
def test_what_excludes_several_results(pair: Pair, kind: str) -> None:
    spec = pair.spec()
    remote = Bucket("s3", "x")
    work: dict[str, Callable[[], object]] = {
        "in place": lambda: InPlaceJob(pair.client, pair.ledger, pair.source, run_id="run", spec=spec),
        "single": lambda: transform_object(pair.client, pair.source, "a.txt", pair.destination, "a.txt", spec),
        "inspection": lambda: Inspection(pair.client, pair.source, spec).submit(),
        "members": lambda: small_spec("words").of_members("*.txt").storing_results("http://x/"),
        "existing": lambda: (small_spec("upper") >> EtlSpec.existing("an-etl")).storing_results("http://x/"),
        "remote": lambda: BucketJob(pair.client, pair.ledger, pair.source, remote, run_id="run", spec=spec),
        "sync": lambda: BucketJob(
            pair.client, pair.ledger, remote, pair.destination, run_id="run", spec=spec, options=Options(sync=True)
        ),
    }
    with pytest.raises(AIStoreInputError, match="several"):
        work[kind]()


def test_the_last_etl_of_a_chain_may_yield_several_results(pair: Pair, drive: Drive) -> None:
    pair.put(x=b"a=1 b=q", y=b"a=1")
    url = objects_url(pair.stack.url("ais_proxy"), pair.destination, "")
    spec = (small_spec("upper") >> small_spec("words")).storing_results(url)
    assert spec.has_several_results
    assert drive(pair.job(spec)).done == 2
    assert pair.recorded().keys() == {"x/A", "x/B", "y/A"}
    assert read(pair.client, pair.destination, "x/B") == b"Q"


@pytest.mark.guarantee("docs-true")
@pytest.mark.usefixtures("connections")
def test_the_calls_of_the_documentation_are_split(aistore: Any, clickhouse: Any, tmp_path: Path) -> None:
    """The code is the page's own; only buckets and image have other names, and the image has the page's module."""
    calls, channels = unique("calls"), unique("channels")
    ours = {"ais://calls": f"ais://{calls}", "ais://channels": f"ais://{channels}"}
    documented("calls", ours, tmp_path)
    recorded = runpy.run_path(str(tmp_path / "tests" / "test_calls.py"))["recorded"]
    lengths = {"long": 2, "longer": 3, "short": 0.5}
    put(aistore, Bucket("ais", calls), {f"2026/{name}.wav": recorded(seconds) for name, seconds in lengths.items()})
    task = DagBag(tmp_path / "dags").dags["calls"].get_task("split")
    task.deferrable = False
    found = task.execute(task_context("split", SimpleNamespace(dag_id="calls", run_id=unique("run"))))
    assert (found["done"], found["failed"], found["left_out_reasons"]) == (2, 0, {"shorter than 1 s": 1})
    lists = [f"2026/{name}.jsonl" for name in ("long", "longer")]
    results = [f"2026/{name}/{side}.wav" for name in ("long", "longer") for side in ("left", "right")]
    destination = Bucket("ais", channels)
    assert sizes(aistore, destination).keys() == {*lists, *results}
    for name, seconds in (("long", 2), ("longer", 3)):
        for side, sample in (("left", 1), ("right", 2)):
            with wave.open(BytesIO(read(aistore, destination, f"2026/{name}/{side}.wav"))) as file:
                assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (1, 16_000, 16_000 * seconds)
                assert file.readframes(file.getnframes())[8_000:8_002] == sample.to_bytes(2, "little")
        assert json.loads(read(aistore, destination, f"2026/{name}.jsonl").splitlines()[1])["side"] == "right"
    page = (CHECKOUT / "docs" / "transforms" / "several-results.md").read_text()
    (query,) = re.findall(r"^```sql\n(SELECT result_of, destination_object.*?)^```", page, re.MULTILINE | re.DOTALL)
    rows = clickhouse.query(replaced(query, ours).rstrip(";\n")).result_rows
    assert sorted((owner, name) for owner, name, _ in rows) == [
        (f"2026/{name}.wav", f"2026/{name}/{side}.wav") for name in ("long", "longer") for side in ("left", "right")
    ]


@pytest.mark.guarantee("docs-true")
@pytest.mark.usefixtures("connections")
def test_the_pictures_of_the_documentation_are_scaled(aistore: Any, tmp_path: Path) -> None:
    pictures, thumbnails = unique("pictures"), unique("thumbnails")
    documented("scaled", {"ais://pictures": f"ais://{pictures}", "ais://thumbnails": f"ais://{thumbnails}"}, tmp_path)
    drawn = runpy.run_path(str(tmp_path / "tests" / "test_scaled.py"))["drawn"]
    put(
        aistore,
        Bucket("ais", pictures),
        {"a/wide.png": drawn(640, 4), "tall.png": drawn(10, 30), "bad.png": b"GIF89a"},
    )
    task = DagBag(tmp_path / "dags").dags["scaled"].get_task("scale")
    task.deferrable = False
    found = task.execute(task_context("scale", SimpleNamespace(dag_id="scaled", run_id=unique("run"))))
    assert (found["done"], found["failed"]) == (2, 1)
    assert "it is not a PNG that can be read" in str(found["examples"])
    to = Bucket("ais", thumbnails)
    sizes_found = {name: Image.open(BytesIO(read(aistore, to, name))).size for name in sizes(aistore, to)}
    assert sizes_found == {"a/wide.png": (64, 1), "tall.png": (64, 192)}


def documented(example: str, ours: Mapping[str, str], folder: Path) -> None:
    """Write the files of an example in docs/transforms, with `ours` names."""
    modules = os.pathsep.join((str(folder), str(SOURCES)))
    changes = {
        **ours,
        f'"registry.example.com/{example}:1"': f'"{IMAGE}"',
        f'"my_package.{example}:split")': f'"my_package.{example}:split"), {{"PYTHONPATH": "{modules}"}}',
        "environment={": f'environment={{"PYTHONPATH": "{modules}", ',
    }
    for name, text in files_of_page(rf"\S+/(?:test_)?{example}\.py").items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(replaced(text, changes))


def replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text
