"""Loads from AIStore into ClickHouse, with the tokens of a secure cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.ledger.objects import Ledger
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.operators.clickhouse import S3ToClickHouseOperator
from storeside.operators.triggers.clickhouse import S3ToClickHouseTrigger
from storeside.stack import authn, demo
from storeside.stack.clients import clients_environment
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER
from storeside.stack.settings import CHECKOUT, Stack
from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.objects.content import Content
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Prepared, Transfer
from storeside.transfer.staging import loader
from storeside.transfer.state import lock
from storeside.transform.bucket_job import BucketJob
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Summary
from tests.integration.test_transfer_crashes import dies
from tests.shards import tar
from tests.support import IMAGE, INIT_SECONDS, put, set_properties, unique, versions
from tests.transfers import FromAIStore, environment, jsonl, parquet, request_of

TEXTS = {path.name: path.read_bytes() for path in sorted((CHECKOUT / "tests" / "data" / "texts").glob("*.txt"))}


@pytest.fixture
def loading(stack: Stack, clickhouse: Any, aistore: Any, request: pytest.FixtureRequest) -> FromAIStore:
    """ClickHouse reads the objects, or the worker does with the parameter ``push``."""
    made = FromAIStore(stack, clickhouse, aistore)
    made.endpoint = "" if getattr(request, "param", "pull") == "push" else made.endpoint
    return made


both = pytest.mark.parametrize("loading", ["pull", "push"], indirect=True)


FORMATS: dict[str, bytes] = {
    "csv": b"n,word\n1,one\n2,two\n",
    "jsonl": jsonl([{"n": 1, "word": "one"}, {"n": 2, "word": "two"}]),
    "parquet": parquet({"n": [1, 2], "word": ["one", "two"]}),
}


@both
@pytest.mark.parametrize("form", FORMATS)
def test_each_version_is_loaded_once(loading: FromAIStore, form: str) -> None:
    loading.put({f"in/a.{form}": FORMATS[form], f"other/b.{form}": FORMATS[form]})
    assert loading.transfer("in/").prepare().push is not bool(loading.endpoint)
    report = loading.load("in/", system_columns=("_object", "_version"))
    assert (report.listed, report.loaded, report.failed, report.rows) == (1, 1, 0, 2)
    version = versions(loading.aistore, loading.place)[f"in/a.{form}"]
    rows = [(1, "one", f"in/a.{form}", version), (2, "two", f"in/a.{form}", version)]
    assert loading.rows("n, word, _object, _version") == rows
    again = loading.load("in/*")
    assert (again.listed, again.skipped, again.loaded) == (1, 1, 0)
    assert loading.rows("n, word, _object, _version") == rows


def test_a_replaced_object_is_loaded_again(loading: FromAIStore) -> None:
    loading.put({"a.csv": b"n\n1\n", "b.csv": b"n\n2\n"})
    assert loading.load().loaded == 2
    loading.put({"a.csv": b"n\n3\n"})  # of the same size
    assert loading.load(on_overwrite="replace").loaded == 1
    assert loading.rows("n") == [(2,), (3,)]
    loading.put({"b.csv": b"n\n2\n"})  # the same content is a new version
    assert loading.load().loaded == 1
    assert loading.rows("n") == [(2,), (2,), (3,)]


@both
@pytest.mark.parametrize("form", FORMATS)
def test_an_object_that_changes_after_the_listing_is_not_loaded(loading: FromAIStore, form: str) -> None:
    loading.put({f"{name}.{form}": FORMATS[form] for name in "abc"})

    def change(_: Prepared) -> None:
        loading.put({f"a.{form}": FORMATS[form]})
        loading.place.handle(loading.aistore).object(f"b.{form}").delete()

    report = loading.load(between=change)
    assert (report.loaded, report.failed) == (1, 2)
    assert loading.reasons() == {
        f"a.{form}": "it was overwritten after it was listed; the next run loads the new version",
        f"b.{form}": "it was deleted after it was listed",
    }
    assert loading.load().loaded == 1
    assert loading.rows("n") == [(1,), (1,), (2,), (2,)]
    loading.put({f"b.{form}": FORMATS[form]})  # with the version that was deleted
    assert loading.load().loaded == 1
    assert loading.rows("n") == [(1,), (1,), (1,), (2,), (2,), (2,)]


def test_an_object_that_changes_between_two_requests_is_not_loaded(loading: FromAIStore) -> None:
    loading.put({"a.parquet": parquet({"n": [1, 2]})})
    version = versions(loading.aistore, loading.place)["a.parquet"]
    content = Content(loading.aistore, loading.bucket, "a.parquet", 500, version)
    assert content.range(0, 4) == b"PAR1"
    loading.put({"a.parquet": parquet({"n": [3, 4]})})
    for read in (lambda: content.range(4, 4), lambda: next(content.stream())):
        with pytest.raises(LoadObjectError, match="overwritten after it was listed"):
            read()
    loading.put({"a.parquet": b"PAR1"})
    with pytest.raises(LoadObjectError, match="overwritten after it was listed"):
        content.range(400, 4)


@both
def test_bad_objects_fail_alone(loading: FromAIStore) -> None:
    loading.put({"bad.csv": b"n,m\nx,1\n", "empty.csv": b"", "good.csv": b"n,m\n1,2\n", "late.csv": b"n,m\n3,4,5\n"})
    loading.create("n UInt8, m UInt8")
    report = loading.load(format="csv")
    assert (report.loaded, report.failed, report.rows) == (2, 2, 1)
    assert set(loading.reasons()) == {"bad.csv", "late.csv"}
    assert "row 0" in loading.reasons()["bad.csv"]
    again = loading.load(format="csv")
    assert (again.skipped, again.known_bad) == (2, 2)
    kept = loading.load(format="csv", on_bad_rows="keep", retry_failed=True, max_bad_rows=9)
    assert (kept.loaded, kept.rejected) == (2, 2)


def test_names_that_are_no_patterns(loading: FromAIStore) -> None:
    names = ["a b", "a#b", "a?b", "a+b", "a%20b", "ü", "a{b}c", "a*b", "'", "a&b=c", ";", "a:b", "d/e"]
    names += ["a,b", "x|y", "{1..3}", "a..b", "a%2Fb", "100%", "[z]", '"', "a\\b", "日本", "a@b", "$"]
    quoted = [name.replace('"', '""').encode() for name in names]
    loading.put({f"{name}.csv": b'n,name\n%d,"%s"\n' % (n, quoted[n]) for n, name in enumerate(names)})
    report = loading.load()
    assert (report.loaded, report.failed) == (len(names), 0), report.failures
    assert sorted(name for (name,) in loading.rows("name")) == sorted(names)


def test_compressed_objects_and_ranges_with_checksums_of_their_own(loading: FromAIStore) -> None:
    import gzip

    set_properties(loading.stack, loading.place.name, checksum={"enable_read_range": True})
    loading.put({"a.csv.gz": gzip.compress(b"n\n1\n"), "b.csv": b"n\n2\n"})
    assert loading.load().loaded == 2
    parquets = FromAIStore(loading.stack, loading.clickhouse, loading.aistore)
    set_properties(loading.stack, parquets.place.name, checksum={"enable_read_range": True})
    parquets.put({"a.parquet": parquet({"n": list(range(1000))})})
    assert parquets.load().rows == 1000


def test_objects_without_a_checksum(loading: FromAIStore) -> None:
    set_properties(loading.stack, loading.place.name, checksum={"type": "none"})
    loading.put({"a.csv": b"n\n1\n"})
    assert versions(loading.aistore, loading.place) == {"a.csv": "1/4"}
    assert loading.load().loaded == 1
    loading.put({"a.csv": b"n\n2\n"})
    assert loading.load().loaded == 1
    assert loading.load().skipped == 1
    set_properties(loading.stack, loading.place.name, versioning={"enabled": False})
    loading.put({"c.csv": b"n\n3\n"})
    with pytest.raises(TransferInputError, match=f"{loading.bucket}/c.csv has neither a version nor a checksum"):
        loading.load("c")


def test_what_does_not_exist_or_is_denied_says_so(loading: FromAIStore) -> None:
    missing = FromAIStore(loading.stack, loading.clickhouse, loading.aistore)
    missing.place.handle(loading.aistore).delete()
    with pytest.raises(TransferInputError, match=f"there is no bucket {missing.bucket} in this cluster"):
        missing.transfer().prepare()
    known = authn.cluster(loading.stack)
    nobody = Cluster(known.endpoint, ca_cert=known.ca_cert).client()
    with pytest.raises(TransferInputError, match="give the AIStore connection a user, or a token, that may list"):
        loading.transfer(client=nobody).prepare()


def test_results_of_an_etl_become_rows(
    loading: FromAIStore, drive: Callable[[BucketJob], Summary], no_etl_is_left: None
) -> None:
    """WebSocket results that a target writes to its own disks have no checksum."""
    source = Bucket("ais", unique("texts"))
    put(loading.aistore, source, TEXTS)
    spec = EtlSpec("test-text-facts", IMAGE, transformer_command("text_facts"), init_timeout=INIT_SECONDS)

    def transform(run: str) -> Summary:
        return drive(
            BucketJob(
                loading.aistore, Ledger(loading.clickhouse), source, loading.place, run_id=run, spec=spec,
                naming=Naming({"txt": "json"}), options=Options(),
            )
        )  # fmt: skip

    assert transform(unique("run")).done == len(TEXTS)
    report = loading.load("*.json", format="jsonl", system_columns=("_object",))
    assert (report.loaded, report.failed, report.rows) == (len(TEXTS), 0, len(TEXTS))
    facts = dict(loading.rows("_object, words"))
    assert facts["sense-and-sensibility-01.json"] == 1554
    assert loading.load("*.json", format="jsonl").skipped == len(TEXTS)
    put(loading.aistore, source, {"sense-and-sensibility-01.txt": b"Short now."})
    assert transform(unique("run")).done == 1
    again = loading.load("*.json", format="jsonl", on_overwrite="replace", system_columns=("_object",))
    assert (again.loaded, again.skipped) == (1, len(TEXTS) - 1)
    assert dict(loading.rows("_object, words"))["sense-and-sensibility-01.json"] == 2
    assert loading.load("*.json", format="jsonl").loaded == 0


def test_facts_of_members_are_loaded_once(
    loading: FromAIStore, drive: Callable[[BucketJob], Summary], no_etl_is_left: None
) -> None:
    """An ETL makes one object of JSON Lines of each shard, one line per member."""
    source = Bucket("ais", unique("shards"))
    first, *others = TEXTS.items()
    shards = {"1.tar": tar([first, ("about.json", b"{}")]), "2.tar": tar([*others, ("x.txt", b"")])}
    put(loading.aistore, source, shards)
    spec = EtlSpec("test-text-facts", IMAGE, transformer_command("text_facts"), init_timeout=INIT_SECONDS)
    summary = drive(
        BucketJob(
            loading.aistore, Ledger(loading.clickhouse), source, loading.place, run_id=unique("run"),
            spec=spec.of_members("*.txt", {"tar": "jsonl"}), naming=Naming({"tar": "jsonl"}), options=Options(),
        )
    )  # fmt: skip
    assert (summary.done, summary.failed) == (2, 1)
    report = loading.load("*.jsonl", system_columns=("_object",))
    assert (report.loaded, report.rows) == (2, len(TEXTS))
    facts = {name: (words, made_of) for name, words, made_of in loading.rows("object, words, _object")}
    assert facts[f"1.tar/{first[0]}"] == (1554, "1.jsonl")
    assert facts.keys() == {f"1.tar/{first[0]}", *(f"2.tar/{name}" for name, _ in others)}
    assert loading.load("*.jsonl").skipped == 2


@both
def test_a_crash_after_any_statement(loading: FromAIStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading of one object and the publication of others are interrupted; another run and a retry finish."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.put({f"{n}.csv": b"n\n" + b"%d\n" % n * 1000 for n in range(3)})
    loading.create("n UInt32")
    request = request_of(loading.source(), loading.table, batch_objects=2)
    crashes = 0
    for survived in range(4, 300, 4):
        loading.clickhouse.command(f"TRUNCATE TABLE {loading.table}")
        if crashes:
            loading.clickhouse.command(f"DELETE FROM storeside.loads WHERE bucket = '{loading.bucket}'")
        if not dies(loading, request, loading.aistore, survived):
            break
        crashes += 1
        counts = loading.query(f"SELECT n, count() FROM {loading.table} GROUP BY 1 ORDER BY 1")
        assert counts == [(n, 1000) for n in range(3)], f"killed after {survived} statements"
    assert crashes > 4


SIGNATURE = re.compile(r"[?&]u=[\w-]{40}")


class Meddling:
    """A client of ClickHouse that calls `meddle` after the first statement that reads AIStore."""

    def __init__(self, client: Any, meddle: Callable[[], None]) -> None:
        self._client, self._meddle = client, meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def command(self, statement: str, *args: Any, **kwargs: Any) -> Any:
        done = self._client.command(statement, *args, **kwargs)
        if " FROM url(" in statement:
            meddle, self._meddle = self._meddle, lambda: None
            meddle()
        return done


@pytest.mark.parametrize("count", [3, 25])
def test_an_object_that_changes_while_clickhouse_reads_is_not_loaded(loading: FromAIStore, count: int) -> None:
    """The rows do not show which version they are of, so the versions are compared after the statement."""
    loading.put({f"{n:02}.csv": b"n\n%d\n" % n for n in range(count)})

    def meddle() -> None:
        loading.put({"00.csv": b"n\n9\n"})
        loading.place.handle(loading.aistore).object("01.csv").delete()

    transfer = loading.transfer()
    transfer.client = Meddling(transfer.client, meddle)
    report = transfer.run(transfer.prepare())
    assert (report.loaded, report.failed) == (count - 2, 2)
    assert loading.reasons() == {
        "00.csv": "it was overwritten after it was listed; the next run loads the new version",
        "01.csv": "it was deleted after it was listed",
    }
    assert loading.load().loaded == 1
    assert sorted(loading.rows("n")) == sorted([(9,), *((n,) for n in range(2, count))])


def test_many_small_parquet_objects(loading: FromAIStore) -> None:
    """ClickHouse reads their footers and rows; one listing compares their versions."""
    loading.put({f"{n}.parquet": parquet({"n": [n, None]}) for n in range(25)})
    report = loading.load(system_columns=("_object", "_version"))
    assert (report.loaded, report.rows) == (25, 50)
    found = {key: version for key, version in loading.rows("DISTINCT _object, _version")}
    assert found == versions(loading.aistore, loading.place)


def test_the_worker_sends_large_parquet_objects(loading: FromAIStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """ClickHouse would keep each in memory as a whole."""
    monkeypatch.setattr(loader, "WHOLE_PARQUET", 100)
    loading.put({"a.parquet": parquet({"n": list(range(1000))})})
    assert loading.load().rows == 1000
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    place = f"%url(%/{loading.place.name}/%"
    assert loading.query("SELECT count() FROM system.query_log WHERE query LIKE 'INSERT' || {p:String}", p=place) == [
        (0,)
    ]


@pytest.mark.guarantee("load-secrets")
def test_statements_and_reasons_have_no_secret_of_aistore(
    loading: FromAIStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Statements have no token. ClickHouse's errors have the address of a redirect, which AIStore signs."""
    loading.put({"a.csv": b"n\n1\n", "b.csv": b"n\n2\n"})

    def delete(_: Prepared) -> None:
        loading.place.handle(loading.aistore).object("b.csv").delete()

    report = loading.load(between=delete)
    assert (report.loaded, report.failed) == (1, 1)
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    logged = "SELECT query, exception FROM system.query_log WHERE query LIKE '%/v1/objects/%'"
    statements, errors = map(str, zip(*loading.query(logged), strict=True))
    assert f"/v1/objects/{loading.place.name}/" in statements
    assert "HTTP status code: 404" in errors
    if loading.stack.secure:
        for secret in (authn.token(loading.stack, "clickhouse"), authn.current_token(loading.stack)):
            assert secret not in statements + errors
        assert SIGNATURE.search(errors)
    ours = (
        str(loading.query("SELECT * FROM storeside.loads WHERE bucket = {b:String}", b=loading.bucket)) + caplog.text
    )
    assert "b.csv" in ours
    assert not SIGNATURE.search(statements + ours)


def test_the_loading_user_reads_nothing_else_by_url(loading: FromAIStore) -> None:
    client = demo.clickhouse_client(loading.stack, LOADER)
    proxy = loading.stack.url("ais_proxy")
    for url in (
        loading.stack.url("s3"),
        f"{proxy}/v1/daemon",
        f"{proxy}/v1/objects/../daemon",
        "http://[::1]:1/v1/objects/",
    ):
        with pytest.raises(DatabaseError, match="Not enough privileges"):
            client.query(f"SELECT * FROM url('{url}', 'RawBLOB', 'content String')")


def test_a_triggerer_continues_the_load(loading: FromAIStore, connections: None) -> None:
    """The operator prepares it with Airflow's connections, and the trigger has them in another process."""
    loading.put({"a.csv": b"n\n1\n", "b.csv": b"n\n2\n"})
    load = S3ToClickHouseOperator(task_id="load", source=f"{loading.bucket}/", table=loading.table, loader="pull")
    request = load.request(None, aistore=AIStoreHook())
    client, ledger = (demo.clickhouse_client(loading.stack, user) for user in (LOADER, LEDGER))
    prepared = Transfer(request, client, AIStoreHook().get_conn(), "dag/run", ledger=ledger).prepare()
    assert not prepared.push
    arguments = (request.to_dict(), dataclasses.asdict(prepared), "dag/run", 0.0, "none")
    trigger = S3ToClickHouseTrigger(*arguments, "clickhouse_default", "aistore_default")
    report = trigger.work(asyncio.run(trigger.engine()))
    assert (report.loaded, report.rows, report.failed) == (2, 2, 0)
    assert loading.rows() == [(1,), (2,)]


def test_without_a_token_for_clickhouse_the_worker_sends(loading: FromAIStore) -> None:
    loading.put({"a.csv": b"n\n1\n"})
    request = request_of(Source(loading.bucket, endpoint=loading.endpoint), loading.table)
    client, ledger = (demo.clickhouse_client(loading.stack, user) for user in (LOADER, LEDGER))
    transfer = Transfer(request, client, loading.aistore, unique("run"), ledger=ledger)
    if not loading.stack.secure:
        assert not transfer.prepare().push
        return
    prepared = transfer.prepare()
    assert prepared.push
    assert transfer.run(prepared).rows == 1
    strict = Transfer(
        dataclasses.replace(request, loader="pull"), client, loading.aistore, unique("run"), ledger=ledger
    )
    with pytest.raises(TransferInputError, match=r"cannot read ais://.* 401"):
        strict.prepare()


def test_the_command_loads_from_aistore(loading: FromAIStore, tmp_path: Path) -> None:
    loading.put({"2026/a.csv": b"n\n1\n", "other.txt": b"?"})
    variables = {
        **environment(loading.stack),
        **clients_environment(loading.stack),
    }
    command = [sys.executable, "-m", "storeside.transfer", f"{loading.bucket}/2026/", loading.table, "--json"]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["loaded"] == 1
    assert loading.rows() == [(1,)]
    variables.pop("AIS_ENDPOINT")
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: AIS_ENDPOINT is not set: set it to the URL of an AIStore proxy\n",
    )
