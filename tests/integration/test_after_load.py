"""Source objects that are deleted, moved or tagged after their load, but never before their rows are safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from botocore.awsrequest import AWSResponse

from storeside.copying.s3_access import Access
from storeside.stack import demo
from storeside.stack.servers import s3
from storeside.stack.servers.clickhouse_users import LEDGER
from storeside.stack.settings import Stack
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.objects import object_changes
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.options import ReadOptions
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from storeside.transfer.state import lock
from tests.mailboxes import Mailbox
from tests.support import unique
from tests.transfers import Loading, jsonl, parquet, request_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

DELETE = AfterLoad("delete")
TAG = AfterLoad("tag", tags={"loaded": "true"})
DENIED = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


class KilledError(BaseException):
    """The process is gone."""


class Bucket(Loading):
    """One test's bucket, table, and bucket of moved objects."""

    def __init__(self, stack: Stack, clickhouse: Any, s3_client: Any) -> None:
        super().__init__(stack, clickhouse, s3_client)
        self.archive = unique("archive")
        s3_client.create_bucket(Bucket=self.archive)

    @property
    def move(self) -> AfterLoad:
        return AfterLoad("move", f"s3://{self.archive}/loaded")

    def names(self, bucket: str = "") -> list[str]:
        found = self.s3.list_objects_v2(Bucket=bucket or self.bucket).get("Contents", [])
        return [entry["Key"] for entry in found]

    def body(self, bucket: str, key: str) -> bytes:
        return bytes(self.s3.get_object(Bucket=bucket, Key=key)["Body"].read())

    def tags(self, key: str) -> dict[str, str]:
        found = self.s3.get_object_tagging(Bucket=self.bucket, Key=key)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in found}

    def own_client(self) -> S3Client:
        """Return a client to which a test adds handlers."""
        return s3.of_stack("s3", self.stack)

    def states(self) -> dict[str, str]:
        rows = self.query(
            "SELECT key, toString(state) FROM storeside.source_objects FINAL WHERE bucket = {b:String}"
            " ORDER BY recorded_at",
            b=self.bucket,
        )
        return dict(rows)  # type: ignore[arg-type]


@pytest.fixture
def bucket(stack: Stack, clickhouse: Any, s3_client: Any) -> Bucket:
    return Bucket(stack, clickhouse, s3_client)


def rows_of(*numbers: int) -> bytes:
    return jsonl([{"n": n} for n in numbers])


def answer(request: Any, status: int, body: str = "") -> AWSResponse:
    """Return S3's answer to a request, in place of the server's."""

    class Body:
        def stream(self, **_: Any) -> Iterator[bytes]:
            yield body.encode()

    return AWSResponse(request.url, status, {}, Body())


def denying(client: S3Client, operation: str, key: str = "") -> None:
    """Let a client's requests for an operation be answered with 403, or only those for a key."""
    client.meta.events.register(
        f"before-send.s3.{operation}",
        lambda request, **_: answer(request, 403, DENIED) if request.url.endswith(key) else None,
    )


@pytest.mark.guarantee("after-load")
@pytest.mark.parametrize("loader", ["pull", "push"])
def test_loaded_objects_are_deleted_and_no_others(bucket: Bucket, loader: str) -> None:
    bucket.put({f"in/{n} a+b.jsonl": rows_of(n) for n in range(3)})
    bucket.put({"in/broken.jsonl": b"{", "other/x.jsonl": rows_of(9)})
    report = bucket.load("in/", after_load=DELETE, loader=loader)
    assert (report.loaded, report.failed, report.handled, report.left) == (3, 1, 3, 0)
    assert bucket.rows() == [(0,), (1,), (2,)]
    assert bucket.names() == ["in/broken.jsonl", "other/x.jsonl"]
    assert set(bucket.states().values()) == {"done"}
    again = bucket.load("in/", after_load=DELETE, loader=loader)
    assert (again.loaded, again.handled) == (0, 0)


def test_only_loads_that_ask_for_it_change_their_source(bucket: Bucket) -> None:
    bucket.put({"a.jsonl": rows_of(1)})
    assert bucket.load().handled == 0
    assert bucket.load(after_load=DELETE).handled == 0  # a run without the option loaded it
    bucket.put({"b.jsonl": rows_of(2)})
    assert bucket.load(after_load=TAG).handled == 1
    assert bucket.load(after_load=DELETE).handled == 0  # it was loaded to be tagged
    assert bucket.names() == ["a.jsonl", "b.jsonl"]


def test_an_object_that_returns_with_the_loaded_content_is_deleted_and_not_loaded(bucket: Bucket) -> None:
    for _ in range(2):
        bucket.put({"a.jsonl": rows_of(1)})
        assert bucket.load(after_load=DELETE).handled == 1
        assert (bucket.names(), bucket.rows()) == ([], [(1,)])


@pytest.mark.guarantee("after-load")
def test_rows_are_on_disk_before_they_count_as_loaded_and_recorded_before_the_source_goes(bucket: Bucket) -> None:
    bucket.put({"a.jsonl": rows_of(1)})
    happened: list[str] = []
    client, ledger, reader = bucket.client(), demo.clickhouse_client(bucket.stack, LEDGER), bucket.own_client()

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def send(*args: Any, **kwargs: Any) -> Any:
            text = str(args[0])
            if text == "storeside.loads":
                happened.append(next(str(cell) for cell in args[1][0] if cell in ("publishing", "loaded")))
            elif "ATTACH PARTITION" in text or text.startswith("SYSTEM"):
                happened.append(text.partition(" ")[0])
            return call(*args, **kwargs)

        return send

    client.command, ledger.insert = noted(client.command), noted(ledger.insert)
    reader.meta.events.register("before-call.s3.DeleteObject", lambda **_: happened.append("delete"))
    request = request_of(Source(bucket.bucket, "", "storeside_s3"), bucket.table, after_load=DELETE)
    transfer = Transfer(request, client, reader, unique("run"), ledger=ledger)
    transfer.run(transfer.prepare())
    assert happened == ["publishing", "ALTER", "SYSTEM", "loaded", "delete"]


@pytest.mark.chaos
@pytest.mark.parametrize("anywhere", ["shards"], indirect=True)
def test_every_shard_writes_to_disk_before_the_source_goes(anywhere: Loading) -> None:
    anywhere.put({"a.csv": b"row\n1\n2\n3\n4\n"})
    anywhere.create("row UInt32")
    happened: list[str] = []

    def noting(client: Any) -> Any:
        command = client.command

        def send(text: str, *args: Any, **kwargs: Any) -> Any:
            if text.startswith("SYSTEM"):
                happened.append(client.url)
            return command(text, *args, **kwargs)

        client.command = send
        return client

    reader = s3.of_stack("s3", anywhere.stack)
    reader.meta.events.register("before-call.s3.DeleteObject", lambda **_: happened.append("delete"))
    request = request_of(Source(anywhere.bucket, "", "storeside_s3"), anywhere.table, after_load=DELETE)
    transfer = Transfer(request, noting(anywhere.client()), reader, unique("run"), servers=anywhere.servers(noting))
    report = transfer.run(transfer.prepare())
    assert (report.loaded, report.handled) == (1, 1)
    assert len(set(happened[:-1])) == 2
    assert happened[-1] == "delete"
    assert anywhere.rows() == [(1,), (2,), (3,), (4,)]


def test_a_user_who_may_not_write_to_disk_is_told_so(bucket: Bucket) -> None:
    bucket.put({"a.jsonl": rows_of(1)})
    request = request_of(Source(bucket.bucket, "", "storeside_s3"), bucket.table, after_load=DELETE)
    transfer = Transfer(request, demo.clickhouse_client(bucket.stack, LEDGER), bucket.s3, unique("run"))
    with pytest.raises(TransferInputError, match="GRANT SYSTEM SYNC FILE CACHE ON"):
        transfer.prepare()


@pytest.mark.guarantee("after-load")
@pytest.mark.parametrize("operation", ["HeadObject", "DeleteObject"])
def test_an_object_that_is_overwritten_after_its_load_stays(bucket: Bucket, operation: str) -> None:
    bucket.put({"a.jsonl": rows_of(1), "b.jsonl": rows_of(2)})
    reader = bucket.own_client()
    new = {"a.jsonl": rows_of(1, 1)}
    reader.meta.events.register(
        f"before-call.s3.{operation}",
        lambda params, **_: bucket.put(new) if "a.jsonl" in params["url_path"] else None,
    )
    report = bucket.load(after_load=DELETE, s3=reader)
    assert (report.handled, report.left) == (1, 0)
    assert bucket.names() == ["a.jsonl"]
    assert bucket.states() == {"a.jsonl": "changed", "b.jsonl": "done"}
    assert bucket.load(after_load=DELETE).handled == 1
    assert (bucket.names(), bucket.rows()) == ([], [(1,), (1,), (1,), (2,)])


def test_a_refused_deletion_is_listed_and_repeated_and_nothing_is_loaded_again(bucket: Bucket) -> None:
    bucket.put({"a.jsonl": rows_of(1)})
    reader = bucket.own_client()
    denying(reader, "DeleteObject")
    for loaded in (1, 0):
        report = bucket.load(after_load=DELETE, s3=reader)
        assert (report.loaded, report.handled, report.left) == (loaded, 0, 1)
        assert report.left_objects[0][0] == "a.jsonl"
        assert "allow s3:DeleteObject" in report.left_objects[0][1]
    assert bucket.states() == {"a.jsonl": "failed"}
    report = bucket.load(after_load=DELETE)
    assert (report.loaded, report.handled, report.left) == (0, 1, 0)
    assert (bucket.names(), bucket.rows(), bucket.states()) == ([], [(1,)], {"a.jsonl": "done"})


@pytest.mark.parametrize("again", ["same run", "next run"])
@pytest.mark.parametrize("gone", ["TRUNCATE TABLE", "DROP TABLE"])
def test_an_object_whose_rows_were_removed_before_its_deletion_stays(bucket: Bucket, gone: str, again: str) -> None:
    bucket.put({"a.jsonl": rows_of(1)})
    denied, run = bucket.own_client(), unique("run")
    denying(denied, "DeleteObject")
    assert bucket.load(after_load=DELETE, s3=denied, run_id=run).left == 1
    bucket.clickhouse.command(f"{gone} {bucket.table}")
    bucket.put({"b.jsonl": rows_of(2)})
    transfer = bucket.transfer(after_load=DELETE, run_id=run if again == "same run" else "")
    report = transfer.run(transfer.prepare())
    assert (report.handled, report.left) == (1, 1)
    assert report.left_objects[0][0] == "a.jsonl"
    assert "its rows are no longer in the table" in report.left_objects[0][1]
    assert bucket.names() == ["a.jsonl"]
    bucket.s3.delete_object(Bucket=bucket.bucket, Key="a.jsonl")
    transfer = bucket.transfer(after_load=DELETE)
    assert transfer.run(transfer.prepare()).left == 0
    assert bucket.states() == {"a.jsonl": "done", "b.jsonl": "done"}


@pytest.mark.parametrize("action", ["delete", "move"])
def test_a_cleared_task_does_not_touch_objects_that_were_put_back_to_be_loaded_again(
    bucket: Bucket, action: str
) -> None:
    chosen, run = DELETE if action == "delete" else bucket.move, unique("run")
    bucket.put({"a.jsonl": rows_of(1)})
    assert bucket.load(after_load=chosen, run_id=run).handled == 1
    bucket.truncate()
    bucket.put({"a.jsonl": rows_of(1)})
    transfer = bucket.transfer(after_load=chosen, run_id=run)
    report = transfer.run(transfer.prepare())
    assert (report.rows, report.handled, report.left) == (1, 0, 1)  # one row of the first try
    assert bucket.names() == ["a.jsonl"]
    assert "to load it again, delete its row from storeside.loads" in report.left_objects[0][1]
    bucket.clickhouse.command(f"DELETE FROM storeside.loads WHERE destination = '{bucket.table}' AND key = 'a.jsonl'")
    assert bucket.load(after_load=chosen, run_id=run).handled == 1
    assert (bucket.names(), bucket.rows()) == ([], [(1,)])


def test_rows_that_a_table_itself_replaced_count_as_removed_in_later_tries_only(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.clickhouse.command(f"CREATE TABLE {bucket.table} (n UInt32) ENGINE = ReplacingMergeTree ORDER BY n")
    bucket.put({"a.jsonl": rows_of(1), "b.jsonl": rows_of(1)})
    denied, run = bucket.own_client(), unique("run")
    denying(denied, "DeleteObject")
    transfer = bucket.transfer(after_load=DELETE, run_id=run, s3=denied)
    record = transfer.loads.record

    def merged(loaded: Any, state: str) -> None:
        record(loaded, state)
        if state == "loaded":
            bucket.clickhouse.command(f"OPTIMIZE TABLE {bucket.table} FINAL")

    monkeypatch.setattr(transfer.loads, "record", merged)
    report = transfer.run(transfer.prepare())
    assert bucket.rows() == [(1,)]
    assert ["allow s3:DeleteObject" in reason for _, reason in report.left_objects] == [True, True]
    transfer = bucket.transfer(after_load=DELETE, run_id=run)
    report = transfer.run(transfer.prepare())
    assert (report.handled, report.left) == (1, 1)
    assert "its rows are no longer in the table" in report.left_objects[0][1]


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_samples_without_rows_do_not_show_that_objects_have_none(bucket: Bucket, loader: str) -> None:
    """No table exists, so a sample of each object is to show its columns; an object without rows counts as loaded."""
    beyond = 17 * ReadOptions.sample_bytes  # a sample without a row grows by a factor of up to 16
    long = b"n,s\n1," + b"x" * beyond + b"\n"
    blank = b"\n" * beyond + rows_of(4)
    empty = {f"{name}/{n}": b"n,s\n" for name in ("other", "denied", "long") for n in range(2)}
    bucket.put(empty | {"blank/x.jsonl": blank, "long/x.csv": long, "denied/x.csv": b"n,s\n2,y\n"})
    bucket.put({"other/x.parquet": parquet({"n": [3]})})
    reader = bucket.own_client()
    denying(reader, "GetObject", "denied/x.csv")
    for prefix in ("long", "blank"):
        with pytest.raises(TransferInputError):
            bucket.load(f"{prefix}/", after_load=DELETE, s3=reader, loader=loader)
    denied = bucket.transfer("denied/", after_load=DELETE, s3=reader, loader=loader)
    report = denied.run(denied.prepare())
    assert (report.loaded, report.failed, report.handled) == (2, 1, 2), (
        "there is no table for the objects without rows"
    )
    assert bucket.load("other/", after_load=DELETE, s3=reader, loader=loader).handled == 3
    assert bucket.rows() == [(3,)]
    assert {"long/x.csv", "denied/x.csv", "blank/x.jsonl"} <= set(bucket.names())
    bucket.clickhouse.command(f"ALTER TABLE {bucket.table} ADD COLUMN s Nullable(String)")
    for prefix in ("long", "denied", "blank"):
        bucket.load(f"{prefix}/", after_load=DELETE, loader=loader)
    assert (bucket.names(), bucket.rows("n")) == ([], [(1,), (2,), (3,), (4,)])


def test_objects_with_rejected_rows_stay_unless_the_user_said_so(bucket: Bucket) -> None:
    bucket.put({"a.jsonl": rows_of(1), "b.jsonl": rows_of(2) + b"{\n"})
    assert bucket.load(after_load=DELETE, on_bad_rows="skip").handled == 1
    assert bucket.names() == ["b.jsonl"]
    assert bucket.load(after_load=AfterLoad("delete", rejected=True), on_bad_rows="skip").handled == 1
    assert bucket.names() == []


def test_moves_keep_whole_keys_and_replace_nothing(bucket: Bucket) -> None:
    bucket.put({"x/a.jsonl": rows_of(1), "y/a.jsonl": rows_of(2)})
    bucket.s3.put_object(Bucket=bucket.bucket, Key="z.jsonl", Body=rows_of(3), Metadata={"by": "me"}, Tagging="k=v")
    assert bucket.load(after_load=bucket.move).handled == 3
    assert bucket.names() == []
    assert bucket.names(bucket.archive) == ["loaded/x/a.jsonl", "loaded/y/a.jsonl", "loaded/z.jsonl"]
    assert bucket.s3.head_object(Bucket=bucket.archive, Key="loaded/z.jsonl")["Metadata"] == {"by": "me"}
    tags = bucket.s3.get_object_tagging(Bucket=bucket.archive, Key="loaded/z.jsonl")["TagSet"]
    assert tags == [{"Key": "k", "Value": "v"}]
    bucket.put({"x/a.jsonl": rows_of(4)})
    version = bucket.s3.head_object(Bucket=bucket.bucket, Key="x/a.jsonl")["ETag"].strip('"')
    assert bucket.load(after_load=bucket.move).handled == 1
    assert bucket.body(bucket.archive, "loaded/x/a.jsonl") == rows_of(1)
    assert bucket.body(bucket.archive, f"loaded/x/a.jsonl.{version}") == rows_of(4)
    assert bucket.rows() == [(1,), (2,), (3,), (4,)]


def test_a_move_does_not_mistake_another_clients_new_object_for_its_copy(bucket: Bucket) -> None:
    """The other object has the same name and size. The embedded server ignores the condition of a copy."""
    bucket.put({"a.jsonl": rows_of(1)})
    version = bucket.s3.head_object(Bucket=bucket.bucket, Key="a.jsonl")["ETag"].strip('"')
    reader, place = bucket.own_client(), {"Bucket": bucket.archive, "Key": "loaded/a.jsonl"}

    def overtake(request: Any, **_: Any) -> AWSResponse | None:
        if "If-None-Match" not in request.headers or request.url.endswith(version):
            return None
        bucket.s3.put_object(**place, Body=rows_of(2))
        return answer(request, 412)

    reader.meta.events.register("before-send.s3.CopyObject", overtake)
    assert bucket.load(after_load=bucket.move, s3=reader).handled == 1
    assert bucket.body(bucket.archive, "loaded/a.jsonl") == rows_of(2)
    assert bucket.body(bucket.archive, f"loaded/a.jsonl.{version}") == rows_of(1)


def test_a_move_overwrites_no_object_that_has_its_second_name(bucket: Bucket) -> None:
    bucket.put({"a.jsonl": rows_of(1)})
    version = bucket.s3.head_object(Bucket=bucket.bucket, Key="a.jsonl")["ETag"].strip('"')
    names = ["loaded/a.jsonl", f"loaded/a.jsonl.{version}"]
    for n, name in enumerate(names, 2):
        bucket.s3.put_object(Bucket=bucket.archive, Key=name, Body=rows_of(n))
    report = bucket.load(after_load=bucket.move)
    assert (report.handled, report.left) == (0, 1)
    assert bucket.names() == ["a.jsonl"]
    assert [bucket.body(bucket.archive, name) for name in names] == [rows_of(2), rows_of(3)]


@pytest.mark.parametrize("status", [404, 409, 412])
@pytest.mark.parametrize("operation", ["CopyObject", "DeleteObject"])
def test_two_runs_that_move_an_object_at_once_leave_one_copy(bucket: Bucket, operation: str, status: int) -> None:
    """The other run copies the object just before a request, and before S3 answers 404 it also deletes it."""
    bucket.put({"a.jsonl": rows_of(1)})
    reader = bucket.own_client()

    def overtake(request: Any, **_: Any) -> AWSResponse:
        origin = {"Bucket": bucket.bucket, "Key": "a.jsonl"}
        bucket.s3.copy_object(Bucket=bucket.archive, Key="loaded/a.jsonl", CopySource=origin)  # type: ignore[arg-type]
        if status == 404 or operation == "DeleteObject":
            bucket.s3.delete_object(**origin)  # type: ignore[arg-type]
        return answer(request, status)

    reader.meta.events.register(f"before-send.s3.{operation}", overtake)
    report = bucket.load(after_load=bucket.move, s3=reader)
    assert (report.handled, report.left) == (1, 0)
    assert (bucket.names(), bucket.names(bucket.archive)) == ([], ["loaded/a.jsonl"])
    assert bucket.states() == {"a.jsonl": "done"}


@pytest.mark.parametrize("taken", [False, True])
def test_an_object_that_is_overwritten_while_it_is_copied_stays(bucket: Bucket, taken: bool) -> None:
    bucket.put({"a.jsonl": rows_of(1)})
    if taken:
        bucket.s3.put_object(Bucket=bucket.archive, Key="loaded/a.jsonl", Body=rows_of(2))
    reader = bucket.own_client()

    def overtake(request: Any, **_: Any) -> AWSResponse:
        bucket.put({"a.jsonl": rows_of(3)})
        return answer(request, 412)

    reader.meta.events.register("before-send.s3.CopyObject", overtake)
    report = bucket.load(after_load=bucket.move, s3=reader)
    assert (report.handled, report.left) == (0, 0)
    assert bucket.states() == {"a.jsonl": "changed"}
    assert (bucket.names(), bucket.names(bucket.archive)) == (["a.jsonl"], ["loaded/a.jsonl"] if taken else [])


def test_a_move_goes_on_with_its_copy_unless_that_was_replaced(bucket: Bucket) -> None:
    bucket.put({"a.jsonl": rows_of(1), "b.jsonl": rows_of(2)})
    version = bucket.s3.head_object(Bucket=bucket.bucket, Key="b.jsonl")["ETag"].strip('"')
    denied = bucket.own_client()
    denying(denied, "DeleteObject")
    assert bucket.load(after_load=bucket.move, s3=denied).left == 2
    bucket.s3.put_object(Bucket=bucket.archive, Key="loaded/b.jsonl", Body=b"{}")
    assert bucket.load(after_load=bucket.move).handled == 2
    assert bucket.names(bucket.archive) == ["loaded/a.jsonl", "loaded/b.jsonl", f"loaded/b.jsonl.{version}"]
    assert bucket.body(bucket.archive, f"loaded/b.jsonl.{version}") == rows_of(2)


def test_large_objects_are_moved_in_parts(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_changes, "LARGEST_COPY", 5 << 20)
    monkeypatch.setattr(object_changes, "PART", 5 << 20)
    content = b"".join(b'{"n": 1, "text": "' + b"x" * 1000 + b'"}\n' for _ in range(7000))
    bucket.s3.put_object(Bucket=bucket.bucket, Key="a.jsonl", Body=content, Metadata={"by": "me"}, Tagging="k=v%20w")
    refused = bucket.own_client()
    denying(refused, "DeleteObject")
    assert bucket.load(after_load=bucket.move, s3=refused).left == 1
    assert bucket.load(after_load=bucket.move).handled == 1  # it uses the copy that has another ETag
    assert (bucket.names(), bucket.names(bucket.archive)) == ([], ["loaded/a.jsonl"])
    assert bucket.body(bucket.archive, "loaded/a.jsonl") == content
    place = {"Bucket": bucket.archive, "Key": "loaded/a.jsonl"}
    assert bucket.s3.head_object(**place)["Metadata"] == {"by": "me"}  # type: ignore[arg-type]
    tags = bucket.s3.get_object_tagging(**place)["TagSet"]  # type: ignore[arg-type]
    assert tags == [{"Key": "k", "Value": "v w"}]


def test_moved_objects_are_encrypted_with_the_key_of_the_connection(bucket: Bucket) -> None:
    bucket.put({"a.jsonl": rows_of(1)})
    keyed = Access(kms_key="alias/loads").given_to(bucket.own_client())
    assert bucket.load(after_load=bucket.move, s3=keyed).handled == 1
    head = bucket.s3.head_object(Bucket=bucket.archive, Key="loaded/a.jsonl")
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/loads")


def test_tags_are_added_to_those_of_the_object(bucket: Bucket) -> None:
    bucket.s3.put_object(Bucket=bucket.bucket, Key="a.jsonl", Body=rows_of(1), Tagging="team=x&loaded=no")
    assert bucket.load(after_load=TAG).handled == 1
    assert bucket.tags("a.jsonl") == {"team": "x", "loaded": "true"}
    assert bucket.load(after_load=TAG).handled == 0


def test_a_versioned_bucket_keeps_a_deleted_object_behind_a_marker(bucket: Bucket) -> None:
    bucket.s3.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"})
    bucket.put({"a.jsonl": rows_of(1)})
    assert bucket.load(after_load=DELETE).handled == 1
    assert bucket.names() == []
    assert len(bucket.s3.list_object_versions(Bucket=bucket.bucket)["Versions"]) == 1


def settled(bucket: Bucket, action: AfterLoad, run: str) -> None:
    """Repeat a killed run, and check that the source is handled and the table has each row once."""
    transfer = bucket.transfer(run_id=run, after_load=action, loader="push")
    bucket.check(transfer.run(transfer.prepare()))
    assert bucket.rows() == [(0,), (1,)]
    if action.action == "tag":
        assert [bucket.tags(key) for key in bucket.names()] == [{"loaded": "true"}] * 2
        return
    assert bucket.names() == []
    if action.action == "move":
        assert bucket.names(bucket.archive) == ["loaded/a.jsonl", "loaded/x/a.jsonl"]


REQUESTS = {
    "delete": ("HeadObject", "DeleteObject"),
    "tag": ("GetObjectTagging", "PutObjectTagging"),
    "move": ("CopyObject", "DeleteObject"),
}


@pytest.mark.parametrize(
    ("action", "when", "operation"),
    [
        pytest.param(action, when, one, marks=[] if when == "after" else [pytest.mark.chaos])
        for action, names in REQUESTS.items()
        for one in names
        for when in ("before", "after")
    ],
)
def test_a_kill_at_each_request_to_s3(bucket: Bucket, action: str, when: str, operation: str) -> None:
    bucket.put({"a.jsonl": rows_of(0), "x/a.jsonl": rows_of(1)})
    chosen = {"delete": DELETE, "tag": TAG, "move": bucket.move}[action]
    reader, run = bucket.own_client(), unique("run")

    def killed(**_: Any) -> None:
        raise KilledError

    reader.meta.events.register(f"{when}-call.s3.{operation}", killed)
    transfer = bucket.transfer(run_id=run, after_load=chosen, s3=reader, loader="push")
    with pytest.raises(KilledError):
        transfer.run(transfer.prepare())
    settled(bucket, chosen, run)


@pytest.mark.parametrize(
    ("action", "again", "step"),
    [
        ("delete", "same run", 4),
        ("move", "next run", 4),
        *(
            pytest.param(action, again, 1, marks=[pytest.mark.chaos])
            for action in ("delete", "move")
            for again in ("same run", "next run")
        ),
    ],
)
def test_a_kill_after_each_statement_that_follows_the_publication(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, action: str, again: str, step: int
) -> None:
    """The statements: the flush, the record of the load, and those of `SourceActions`."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    survived, killed = 0, True
    while killed:
        bucket = Bucket(bucket.stack, bucket.clickhouse, bucket.s3)
        chosen = DELETE if action == "delete" else bucket.move
        bucket.put({"a.jsonl": rows_of(0), "x/a.jsonl": rows_of(1)})
        run, left, published = unique("run"), [survived], [False]
        client = bucket.client()

        def mortal(call: Callable[..., Any], left: list[int], published: list[bool]) -> Callable[..., Any]:
            def send(*args: Any, **kwargs: Any) -> Any:
                published[0] |= "ATTACH PARTITION" in str(args[0])
                left[0] -= published[0]
                if left[0] < 0:
                    raise KilledError
                return call(*args, **kwargs)

            return send

        for name in ("command", "query", "insert", "raw_insert"):
            setattr(client, name, mortal(getattr(client, name), left, published))
        request = request_of(
            Source(bucket.bucket, "", "storeside_s3"), bucket.table, after_load=chosen, loader="push"
        )
        transfer = Transfer(request, client, bucket.s3, run)
        killed = False
        try:
            transfer.run(transfer.prepare())
        except KilledError:
            killed = True
        settled(bucket, chosen, run if again == "same run" else unique("run"))
        survived += step
    assert survived > 9


def test_events_delete_what_they_loaded_and_repeat_what_failed(mailbox: Mailbox, stack: Stack) -> None:
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(3)})
    mailbox.arrive(3)
    reader = s3.of_stack("s3", stack)
    denying(reader, "DeleteObject")
    mailbox.s3, plain = reader, mailbox.s3
    found = mailbox.drain(after_load=DELETE)
    assert (found.loaded, found.deleted, found.dead, found.handled, found.left) == (3, 3, 0, 0, 3)
    mailbox.s3 = plain
    mailbox.send(mailbox.record("0.jsonl"))  # a duplicate
    found = mailbox.drain(after_load=DELETE)
    assert (found.handled, found.left, found.dead, found.rows) == (3, 0, 0, 0)
    assert mailbox.rows() == [(0,), (1,), (2,)]
    assert "Contents" not in plain.list_objects_v2(Bucket=mailbox.bucket)
    mailbox.put({"0.jsonl": rows_of(0)})  # the loaded version again
    mailbox.drain(after_load=DELETE)
    assert "Contents" not in plain.list_objects_v2(Bucket=mailbox.bucket)
    assert mailbox.rows() == [(0,), (1,), (2,)]
