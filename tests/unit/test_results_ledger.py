"""The ledger of several results of one object: which lists count, which objects are planned, which results go."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from storeside.ledger import owners, results
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Pending
from storeside.transformers.contract.results import Announced
from tests.unit.test_sql import SCOPE, Client, Engine, engine, list_, loaded_engine

__all__ = ["engine", "loaded_engine"]

# Results with their versions, which a list announces and the destination has.
Results = Mapping[str, str]


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    return Ledger(Client(engine))  # type: ignore[arg-type]


def announce(ledger: Ledger, name: str, announced: Results, version: str = "list") -> None:
    found = [Announced(f"{name}/{result}", 10, known) for result, known in announced.items()]
    results.record(ledger, SCOPE, [(Pending(f"{name}.wav", f"{name}.jsonl", 1, version), found)])


def have(engine: Engine, side: str, name: str, stored: Results, version: str | None = "list") -> None:
    """List what the destination has of an object: its results, and its list in a version."""
    for result, known in stored.items():
        list_(engine, side, "", f"{name}/{result}", version=known)
    if version is not None:
        list_(engine, side, "", f"{name}.jsonl", version=version)


def remember(engine: Engine, name: str, stored: Results, **other: str) -> None:
    """Record an object and its results as done."""
    fields = {**SCOPE.parameters, "version": "1", "list": "list", **other}
    for result, known in (("", ""), *stored.items()):
        row = {
            "object": f"{name}.wav/{result}" if result else f"{name}.wav",
            "of": f"{name}.wav" if result else "",
            "stored": f"{name}/{result}" if result else f"{name}.jsonl",
            "known": known or fields["list"],
        }
        engine.run(
            "INSERT INTO storeside.objects (source, destination, prepend, object, result_of, version, effect,"
            " destination_object, status, bytes_out, result_version, run_id)"
            " VALUES ({source:String}, {destination:String}, {prepend:String}, {object:String}, {of:String},"
            " {version:String}, {effect:String}, {stored:String}, 'done', 10, {known:String}, 'earlier')",
            {**fields, **row},
        )


def rows(engine: Engine) -> list[list[str]]:
    return engine.run(
        "SELECT destination_object, result_of, status FROM storeside.objects FINAL WHERE result_of != '' ORDER BY ALL"
    )


def planned(ledger: Ledger, engine: Engine) -> dict[str, str]:
    """Plan, and return the sides of the objects with reasons."""
    ledger.plan(SCOPE, retry_failed=False, keeps_result=True, several=True, record=False)
    found = engine.run("SELECT object, side, reason FROM storeside.listings WHERE side IN ('pending', 'refused')")
    return {name: reason or side for name, side, reason in found}


@pytest.mark.guarantee("several-results")
@pytest.mark.parametrize(
    ("announced", "stored", "is_done"),
    [
        ({"l": "1/x", "r": "1/y"}, {"l": "1/x", "r": "1/y"}, True),
        ({"l": "1/x", "r": "1/y"}, {"l": "1/x"}, False),
        ({"l": "1/x", "r": "1/y"}, {"l": "1/x", "r": "2/y"}, False),
        ({"l": "1/x", "r": ""}, {"l": "1/x", "r": "1/y"}, False),  # killed before the last list
        ({}, {"l": "1/x"}, False),
    ],
)
def test_an_object_is_done_when_all_results_of_its_list_are_there(
    ledger: Ledger, engine: Engine, announced: Results, stored: Results, is_done: bool
) -> None:
    list_(engine, "pending", "a.wav", "a.jsonl")
    have(engine, "after", "a", stored)
    assert [p.object for p in results.unread(ledger, SCOPE, "after", "", 9)] == ["a.wav"]
    announce(ledger, "a", announced)
    assert results.unread(ledger, SCOPE, "after", "", 9) == []
    results.check(ledger, SCOPE)
    assert [p.object for p in ledger.missing(SCOPE, "", 9)] == ([] if is_done else ["a.wav"])


@pytest.mark.guarantee("several-results")
def test_results_that_an_object_no_longer_has_are_removed_if_it_owns_them(ledger: Ledger, engine: Engine) -> None:
    for name in ("made", "gone", "torn", "kept", "bare"):
        remember(engine, name, {"old": "1/o", "same": "1/s", "theirs": "1/t"})
        list_(engine, "pending", f"{name}.wav", f"{name}.jsonl", version="2")
        have(engine, "before", name, {"old": "1/o", "same": "1/s", "theirs": "5/t5", "foreign": "1/f"})
        have(engine, "after", name, {"old": "1/o", "same": "2/s", "theirs": "5/t5", "foreign": "1/f"}, None)
    list_(engine, "after", "", "kept.jsonl", version="list")
    list_(engine, "after", "", "gone.jsonl", version="list")
    list_(engine, "after", "", "bare.jsonl", size=0, version="0")  # an error over WebSocket
    # a killed server left `new` and a list of it
    announce(ledger, "made", {"new": "", "same": ""}, "first")
    list_(engine, "after", "", "made/new", version="1/n")
    announce(ledger, "made", {"same": "2/s"}, "second")
    list_(engine, "after", "", "made.jsonl", version="second")
    announce(ledger, "torn", {"same": "2/s", "absent": ""}, "second")
    list_(engine, "after", "", "torn.jsonl", version="second")
    ledger.record_outcomes(SCOPE, [("gone.wav", "short", "left_out", ""), ("kept.wav", "bad", "final", "")])
    results.check(ledger, SCOPE)
    results.find_obsolete(ledger, SCOPE)
    # the list of an object that is left out is removed with other results
    removed = [
        "bare/old",
        "bare/same",
        "gone/old",
        "gone/same",
        "made/new",
        "made/old",
        "torn.jsonl",
        "torn/old",
        "torn/same",
    ]
    assert results.obsolete(ledger, SCOPE, "", 99) == removed
    assert results.obsolete(ledger, SCOPE, "made/new", 2) == removed[5:7]
    results.settle(ledger, SCOPE)
    assert rows(engine) == sorted(
        [
            *(
                [f"{of}/{name}", f"{of}.wav", "left_out"]
                for of in ("bare", "gone", "torn")
                for name in ("old", "same", "theirs")
            ),
            *([f"kept/{name}", "kept.wav", "done"] for name in ("old", "same", "theirs")),
            *([f"made/{name}", "made.wav", "left_out"] for name in ("old", "theirs")),
            ["made/same", "made.wav", "done"],
        ]
    )


def test_a_list_that_the_ledger_knows_is_not_read(ledger: Ledger, engine: Engine) -> None:
    for name in ("known", "new", "empty", "huge"):
        list_(engine, "pending", f"{name}.wav", f"{name}.jsonl")
    remember(engine, "known", {"l": "1/x"})
    for name, size in (("known", 10), ("new", 10), ("empty", 0), ("huge", 1 << 40)):
        list_(engine, "before", "", f"{name}.jsonl", size=size, version="list")
    assert results.unread(ledger, SCOPE, "before", "", 9) == [Pending("new.wav", "new.jsonl", 10, "list")]


@pytest.mark.guarantee("several-results")
@pytest.mark.parametrize(
    ("listed", "pending"),
    [
        ({"l": "1/x", "r": "1/y"}, {}),
        ({"l": "1/x"}, {"a.wav": "pending"}),
        ({"l": "1/x", "r": "2/z"}, {"a.wav": "pending"}),
        ({"l": "1/x", "r": "2/y"}, {}),  # the same content
    ],
)
def test_an_object_is_made_again_when_one_of_its_results_is_lost(
    ledger: Ledger, engine: Engine, listed: Results, pending: dict[str, str]
) -> None:
    remember(engine, "a", {"l": "1/x", "r": "1/y"})
    list_(engine, "source", "a.wav", "a.jsonl", version="1")
    have(engine, "before", "a", listed)
    assert planned(ledger, engine) == pending


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        ({}, False),  # the object itself
        ({"source": "ais://other"}, True),
        ({"prepend": "x"}, True),
        ({"destination": "ais://other"}, False),
    ],
)
def test_an_object_is_refused_if_another_one_has_results_in_its_folder(
    ledger: Ledger, engine: Engine, other: dict[str, str], is_refused: bool
) -> None:
    remember(engine, "d/a", {"l": "1/x"}, **other)
    list_(engine, "source", "d/a.wav", "d/a.jsonl", version="2")
    list_(engine, "source", "d/a/b.wav", "d/a/b.jsonl", version="1")
    list_(engine, "before", "", "d/a/l", version="1/x")
    found = planned(ledger, engine)
    assert found.pop("d/a/b.wav") == "pending"
    owner = "ais://other/d/a.wav" if "source" in other else "d/a.wav"
    reason = f"its results would be stored in the folder d/a/, in which d/a/l is, a result of {owner}: they could"
    assert [text.startswith(reason) for text in found.values()] == [is_refused]


@pytest.mark.parametrize("is_there", [True, False])
def test_another_transform_does_not_overwrite_a_result(ledger: Ledger, engine: Engine, is_there: bool) -> None:
    remember(engine, "a", {"l": "1/x"})
    for name in ("a/l", *(["a.wav"] if is_there else [])):
        list_(engine, "source", name, name)
    owners.record(ledger, SCOPE, lambda _: (), "")
    ledger.plan(SCOPE, retry_failed=False, keeps_result=True, record=False)
    (found,) = engine.run("SELECT side, reason FROM storeside.listings WHERE side != 'source' AND object = 'a/l'")
    assert found[0] == ("refused" if is_there else "pending")
    assert found[1].startswith("its result would be named a/l, which is the result of a.wav: " if is_there else "")


def test_the_results_of_an_object_count_for_its_bytes(ledger: Ledger, engine: Engine) -> None:
    remember(engine, "a", {"l": "1/x", "r": "1/y"})
    list_(engine, "source", "a.wav", "a.jsonl")
    engine.run(
        "ALTER TABLE storeside.objects UPDATE run_id = {run_id:String} WHERE 1 SETTINGS mutations_sync = 1",
        SCOPE.parameters,
    )
    totals = ledger.totals(SCOPE)
    assert (totals.done, totals.bytes_out) == (1, 30)
