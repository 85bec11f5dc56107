"""Several results of one object: their names, the list of them, and the refusal of hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from storeside.testing import Outcome, Served, served
from storeside.transformers.contract import results
from storeside.transformers.contract.results import RESULTS_URL, Announced
from storeside.transformers.isolation.decoders import VARIABLES, environment
from storeside.transformers.transformer import ObjectError, Result
from storeside.transformers.workers.results import several

__all__ = ["served"]

WORDS = "tests.transformers:words"


def reply(*table: Any, contents: bytes) -> tuple[int, bytes]:
    told = json.dumps(table).encode()
    return len(told), told + contents


def test_results_have_a_folder_beside_their_list() -> None:
    made = several("calls/a.b.wav", *reply(["left", 2, {}], ["right", 1, {"n": 1}], contents=b"llr"))
    assert [(name, bytes(content)) for name, content in made.contents] == [
        ("calls/a.b/left", b"ll"),
        ("calls/a.b/right", b"r"),
    ]
    assert made.list == "calls/a.b.jsonl"
    told = made.lines(["1/x", "2/y"])
    assert [json.loads(text) for text in told.splitlines()] == [
        {"object": "calls/a.b.wav", "stored": "calls/a.b/left", "bytes": 2, "version": "1/x"},
        {"object": "calls/a.b.wav", "stored": "calls/a.b/right", "bytes": 1, "version": "2/y", "n": 1},
    ]
    assert list(results.announced_in(told, "calls/a.b.wav")) == [
        Announced("calls/a.b/left", 2, "1/x"),
        Announced("calls/a.b/right", 1, "2/y"),
    ]
    assert [found.version for found in results.announced_in(made.lines(), "calls/a.b.wav")] == ["", ""]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../escaped", "without a slash"),
        ("/absolute", "without a slash"),
        ("sub/part", "without a slash"),
        ("..", "'..' component"),
        ("", "empty component"),
        ("a\nb", "control characters"),
        ("x" * 300, "longer than 255 bytes"),
        ("b.jsonl", "the extension of lists"),
        ("twice", "another result of the object has this name"),
        (7, "write a text"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(name: Any, reason: str) -> None:
    with pytest.raises(ObjectError, match=reason):
        several("a.wav", *reply(["twice", 1, {}], [name, 1, {}], contents=b"12"))


@pytest.mark.parametrize(
    ("facts", "reason"), [([], "not one JSON object"), ({"stored": "x"}, "its own field 'stored'"), (1, "not one")]
)
def test_facts_are_fields_that_the_list_does_not_have(facts: Any, reason: str) -> None:
    with pytest.raises(ObjectError, match=reason):
        several("a.wav", *reply(["x", 1, facts], contents=b"1"))


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1), (0, 3), (-1, 4), (3, 0)])
def test_sizes_that_are_not_those_of_the_reply_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="results"):
        several("a.wav", *reply(["x", sizes[0], {}], ["y", sizes[1], {}], contents=b"123"))


def test_a_list_is_bounded() -> None:
    made = several("a.wav", *reply(["x", 1, {"text": "x" * results.LARGEST_LIST}], contents=b"1"))
    with pytest.raises(ObjectError, match=f"more than {results.LARGEST_LIST} bytes"):
        made.lines()


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1]",
        '{"object": "b.wav", "stored": "a/x", "bytes": 1, "version": "1/x"}',
        '{"object": "a.wav", "stored": "b/x", "bytes": 1, "version": "1/x"}',
        '{"object": "a.wav", "stored": "a/../b/x", "bytes": 1, "version": "1/x"}',
        '{"object": "a.wav", "stored": "a/b/x", "bytes": 1, "version": "1/x"}',
        '{"object": "a.wav", "stored": "a/x", "bytes": "many"}',
        '{"object": "a.wav", "stored": "a/x", "bytes": 1, "version": 1}',
        '{"object": "a.wav", "stored": 1, "bytes": 1}',
    ],
)
def test_a_foreign_list_announces_nothing(text: str) -> None:
    own = b'{"object": "a.wav", "stored": "a/y", "bytes": 2, "version": "1/y"}\n'
    assert list(results.announced_in(text.encode() + b"\n" + own, "a.wav")) == [Announced("a/y", 2, "1/y")]


@pytest.mark.parametrize(
    ("name", "destination", "reason"),
    [
        ("d/a.wav", "d/a.jsonl", None),
        ("d/a.wav", "p/d/a.jsonl", None),
        ("d/a.wav", "d/a.wav", "extensions={'wav': 'jsonl'}"),
        ("d/a", "d/a", "no extension"),
        ("d.d/a", "d.d/a", "no extension"),
        ("d/.wav", "d/.jsonl", "nothing before it"),
    ],
)
def test_an_object_needs_a_folder_and_a_list(name: str, destination: str, reason: str | None) -> None:
    assert (results.unfit_object(name, destination) or "None").count(reason or "None") == 1


def test_a_transformer_yields_results_over_every_channel(served: Callable[..., Served]) -> None:
    words = served(WORDS, {"WITHOUT": "c"}, several_results=True)
    assert words.transform(b"a=xx b=y c=z", "calls/1.txt") == Outcome(
        results=(Result("a", b"xx", {"letters": 2}), Result("b", b"y", {"letters": 1}))
    )
    assert words.transform(b"a=x leave", "1.txt") == Outcome(left_out="it says leave")
    assert words.transform(b"a=x fail", "1.txt") == Outcome(failed="it says fail", final=True)
    assert words.over("ws", b"a=x die", "1.txt").final is False
    assert "yielded no result" in words.transform(b" ", "1.txt").failed
    assert words.transform(b"a=x a=y", "1.txt").failed == "the result 'a': another result of the object has this name"
    assert words.transform(b"a=x b=", "1.txt").failed == "the result 'b' is empty"


def test_a_transformer_and_its_task_agree_on_several_results(served: Callable[..., Served]) -> None:
    assert "with several_results may" in served(WORDS).transform(b"a=x", "1.txt").failed
    one = served("tests.transformers:upper", several_results=True)
    assert "returned one result" in one.transform(b"x", "1.txt").failed


def test_decoders_do_not_learn_where_results_are_stored() -> None:
    given = {RESULTS_URL: "http://proxy/?signature=secret", "LANGUAGE": "en"}
    assert environment({**given, VARIABLES: ",".join(given)}) == {"LANGUAGE": "en"}
