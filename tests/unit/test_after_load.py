"""The option for source objects after their load: refused values, and its text in forms, commands and JSON."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from storeside.transfer import cli
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.publish.loaded_objects import SourceActions
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source

TAGS = {"loaded": "true"}


@pytest.mark.parametrize(
    ("keys", "options", "reason"),
    [
        ("", {"action": "remove"}, "choose one of none, delete, move, tag"),
        ("", {"action": "move"}, "move_to: set it"),
        ("", {"action": "delete", "move_to": "s3://archive/"}, "move_to: set it"),
        ("", {"action": "move", "move_to": "archive/"}, "move_to 'archive/': write s3://bucket/prefix"),
        ("", {"action": "move", "move_to": "ais://archive/"}, "write the URI of an S3 bucket"),
        ("", {"action": "tag"}, "tags: set them"),
        ("", {"action": "none", "tags": TAGS}, "tags: set them"),
        ("", {"action": "tag", "tags": "a={{b}}"}, "write name=value, without braces"),
        ("", {"action": "tag", "tags": {"aws:x": "y"}}, "tag 'aws:x'"),
        ("", {"action": "tag", "tags": {"": "y"}}, "tag ''"),
        ("", {"action": "tag", "tags": {str(n): "" for n in range(11)}}, "11 tags"),
        ("", {"action": "move", "move_to": "s3://trips/done/"}, "would be loaded again"),
        ("in/", {"action": "move", "move_to": "s3://trips/in/done"}, "would be loaded again"),
    ],
)
def test_wrong_options_are_refused(keys: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(TransferInputError, match=reason):
        Request(Source("trips", keys), "data.trips", after_load=AfterLoad(**options))


def test_objects_of_aistore_are_never_changed() -> None:
    with pytest.raises(TransferInputError, match=r"not those of ais://trips"):
        Request(Source("ais://trips"), "data.trips", after_load=AfterLoad("delete"))


def test_a_key_that_a_pattern_would_select_again_is_recognized() -> None:
    source, action = Source("trips", "**.csv"), AfterLoad("move", "s3://trips/done")
    action.check_source(source)
    assert action.place == ("trips", "done/")
    assert action.selects(source, "a.csv")
    assert not AfterLoad("move", "s3://other/done").selects(source, "a.csv")


def test_a_form_states_tags_as_text_and_requests_survive_json() -> None:
    action = AfterLoad("tag", tags="loaded = true, by=me")  # type: ignore[arg-type]
    assert action.tags == {"loaded": "true", "by": "me"}
    request = Request(Source("trips"), "data.trips", after_load=action)
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    old = {name: value for name, value in request.to_dict().items() if name != "after_load"}
    assert Request.from_dict(old).after_load == AfterLoad()


def test_the_command_has_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "given_source", lambda uri, collection: Source("trips"))

    def parsed(*arguments: str) -> AfterLoad:
        given = cli.transfer_arguments("storeside.transfer", "").parse_args(["s3://trips", "data.t", *arguments])
        return cli.request(given).after_load

    assert parsed() == AfterLoad()
    assert parsed("--after-load", "tag", "--tag", "a=b", "--tag", "c=d") == AfterLoad(
        "tag", tags={"a": "b", "c": "d"}
    )
    moved = parsed("--after-load", "move", "--move-to", "s3://archive/x", "--after-load-rejected")
    assert moved == AfterLoad("move", "s3://archive/x", rejected=True)
    with pytest.raises(TransferInputError, match="--tag 'a': write NAME=VALUE"):
        parsed("--after-load", "tag", "--tag", "a")


class Ledger:
    """A ledger with objects that are due, and a client of S3 whose server answers the first requests only."""

    def __init__(self, due: int, answers: int) -> None:
        self.pages = [[(f"{n:04}", "etag", "", "", "", 0) for n in range(due)], []]
        self.answers, self.asked = answers, 0
        self.client: Any = SimpleNamespace(
            query=lambda *_, **__: SimpleNamespace(result_rows=self.pages.pop(0)), insert=lambda *_, **__: None
        )
        self.source, self.destination, self.run_id = Source("trips"), "data.t", "run"
        self.parameters: dict[str, Any] = {}
        self.exceptions = SimpleNamespace(ClientError=ClientError)

    def head_object(self, **_: Any) -> Any:
        self.asked += 1
        if self.asked > self.answers:
            raise EndpointConnectionError(endpoint_url="http://s3")
        return {"ETag": '"etag"', "ContentLength": 1}

    def delete_object(self, **_: Any) -> None:
        pass


def test_a_server_that_has_gone_ends_the_changes_of_the_source_for_now() -> None:
    def actions(ledger: Any) -> SourceActions:
        return SourceActions(ledger, ledger, AfterLoad("delete"), threading.Event(), lambda: None)

    gone = Ledger(1000, answers=200)
    with pytest.raises(TransferTransientError, match=r"http://s3.*the last 100 objects of s3://trips"):
        actions(gone).run()
    assert gone.asked < 400
    few = Ledger(99, answers=0)
    assert actions(few).run().left == 99
