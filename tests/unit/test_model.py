"""The model of publication: its comments cite existing functions, and TLC finds the expected violations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storeside import transfer
from tests.model import __main__ as command
from tests.model.cases import MUTANTS, PROTOCOL, Case
from tests.model.tlc import MODEL, TlcError, examine, java, read
from tests.verify import CANNOT_RUN

TEXT = MODEL.read_text()
CITED = {name for names in re.findall(r"\[([\w., ]+)\] \*\)", TEXT) for name in names.split(", ")}
FOLDER = Path(transfer.__file__).parent
# Functions that change the server's state and that the model leaves out, with the reason.
LEFT_OUT = {
    "Inserts._insert": "the same, for the loads of many tables",
    "Loads._insert": "part of Loads.record and Loads.record_failed",
    "queries.follow": "only flushes logs",
    "queries.abandon": "only statements that fill staging tables",
    "Destination._alter": "columns are not modelled",
    "Destination.stage": "part of Staging.stage",
    "Quarantine.create": "an empty table",
    "Quarantine.add": "rows of a quarantine become visible before those of the table, and under the same guards",
    "Quarantine.remove": "rows of a quarantine are removed together with those of the table",
    "Replacement._command": "an exchange takes the place of Destination.take, in one step under the same lock",
    "Replacement.take": "as Replacement._command; the rows to keep are those that the ledger has under the lock",
    "creation._execute": "columns are not modelled",
}


def functions(module: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of a module as ``module.function``, and the methods as ``Class.method``."""
    for node in ast.parse(next(FOLDER.rglob(f"{module}.py")).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield f"{module}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{part.name}", part) for part in node.body if isinstance(part, ast.FunctionDef))


def test_the_model_names_functions_that_exist() -> None:
    known = {name for path in FOLDER.rglob("*.py") for name, _ in functions(path.stem)}
    assert len(CITED) > 15
    assert known >= CITED


@pytest.mark.guarantee("load-model")
def test_each_function_that_changes_the_state_of_a_publication_is_modelled_or_left_out_for_a_reason() -> None:
    writing = {
        name
        for module in (
            "creation",
            "leftovers",
            "loads",
            "lock",
            "partition",
            "quarantine",
            "publishing",
            "queries",
            "staging_tables",
            "table",
        )
        for name, function in functions(module)
        if any(isinstance(n, ast.Attribute) and n.attr in ("command", "insert") for n in ast.walk(function))
    }
    assert writing - CITED == set(LEFT_OUT)


def test_each_guard_of_the_model_is_left_out_in_one_case() -> None:
    assert sorted(set(re.findall(r'Has\("(\w+)"\)', TEXT))) == sorted(case.removed for case in MUTANTS)
    assert not any(case.removed for case in PROTOCOL)


@pytest.mark.parametrize(
    ("printed", "violated"),
    [
        ("9 states generated, 4 distinct states found, 0 left", "TlcError"),
        ("Model checking completed. No error has been found.\n9 states generated, 4 distinct states found, 0", ""),
        ("Error: Invariant Once is violated.\nState 1\n9 states generated, 4 distinct states found, 1 left", "Once"),
        ("Error: Deadlock reached.\n9 states generated, 4 distinct states found, 1 left", "Deadlock"),
        ("Error: Temporal properties were violated.\n9 states generated, 4 distinct states found, 1", "Ends"),
    ],
)
def test_what_tlc_prints_is_read(printed: str, violated: str) -> None:
    if violated == "TlcError":
        with pytest.raises(TlcError):
            read(printed)
    else:
        found = read(printed)
        assert (found.states, found.violated) == (4, violated)


def test_without_java_one_line_states_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "java", lambda: None)
    assert command.main([]) == CANNOT_RUN
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.guarantee("load-model")
@pytest.mark.skipif(java() is None, reason="TLC needs Java")
def test_tlc_examines_a_small_case_and_finds_the_faults_of_two_others() -> None:
    assert examine(Case("small", "")).violated == ""
    fence, begin = (next(case for case in MUTANTS if case.removed == guard) for guard in ("fence", "begin"))
    assert examine(fence).violated
    assert examine(replace(begin, faults=0)).violated
