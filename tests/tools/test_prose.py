"""The prose linter finds the faults of style that its rules describe, at their lines, and accepts plain sentences."""

from __future__ import annotations

import pytest

from storeside.stack.settings import CHECKOUT
from tests import prose

# From the issue that asked for plain English.
BEFORE_AND_AFTER = [
    ("of so many objects the columns are deduced", "number of objects sampled to infer the columns"),
    ("others have been at it for 60 s", "locked by another task for more than 60 s"),
    (
        "holds every row against the suite, in windows of bounded memory",
        "checks every row against the suite in batches, so memory stays bounded",
    ),
    (
        "AIStore calls a WebSocket transform a success that lost objects",
        "AIStore reports success although a WebSocket transform lost objects",
    ),
]
FAULTS = [
    "Of the recordings the broken ones are listed.",
    "It deletes what is found and records what it holds.",
    "whoever holds it releases it",
    "at most so many bytes",
    "The run is gone on with by the next try.",
    "It comes to 8 MB.",
    "The task waits for him.",
    "The way of the data",
    "The doctor does not look at it.",
    "The objects that are there are not copied.",
    "The bucket is asked for each object.",
    "AIStore is told to end the job.",
    "The reasons stand in the ledger.",
    "Each worker has a process of its own.",
]
MODULE = '''\
"""A module.

It goes on with the rest.
"""

VALUE = 1  # it comes to one


def describe(name: str) -> str:
    """Return `whoever` as code."""
    query = "SELECT what was not loaded FROM somewhere"
    # A comment of two lines, whose sentence
    # is asked for here.
    return f"{name}: the objects that are there already"
'''
PAGE = """\
# Of those that fail

A paragraph whose sentence continues, and the bucket is
asked for each object.

```sh
echo "of so many bytes"
```

| column | `what it holds` |
|---|---|
| Of many rows one is read | [whoever](x.md) reads it |
"""


def names(text: str) -> list[str]:
    return [finding.rule for finding in prose.check("text", f"{prose.BEGINNING} {text}")]


@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER)
def test_the_sentences_of_the_issue(before: str, after: str) -> None:
    assert names(before)
    assert names(after) == []


@pytest.mark.parametrize("sentence", FAULTS)
def test_recurring_faults_are_found(sentence: str) -> None:
    assert names(sentence)


@pytest.mark.parametrize("rule", prose.rules(), ids=lambda rule: rule.name)
def test_each_rule_finds_its_bad_sentences_and_no_rule_a_good_one(rule: prose.Rule) -> None:
    assert rule.bad
    assert rule.good
    for sentence in rule.bad:
        found = rule.check().check(f"\n{prose.BEGINNING} {sentence}\n")
        assert list(found), sentence
    assert [names(sentence) for sentence in rule.good] == [[] for _ in rule.good]


def test_findings_in_a_module_have_its_lines() -> None:
    found = prose.check("module.py", prose.python(MODULE))
    assert [(finding.line, finding.rule) for finding in found] == [
        (3, "go-on"),
        (6, "come-to"),
        (13, "asked-told-said"),
        (14, "exists"),
    ]
    assert str(found[0]).startswith("module.py:3: go-on: 'goes on': ")


def test_messages_of_tests_are_expectations_and_not_checked() -> None:
    found = prose.check("module.py", prose.python(MODULE, strings=False))
    assert [finding.line for finding in found] == [3, 6, 13]


def test_findings_in_markdown_have_its_lines_and_code_is_not_prose() -> None:
    found = prose.check("page.md", prose.markdown(PAGE))
    assert [(finding.line, finding.rule) for finding in found] == [
        (1, "begins-with-of"),
        (3, "asked-told-said"),
        (12, "begins-with-of"),
        (12, "person"),
    ]


def test_generated_pages_and_code_that_is_not_python_are_left_out() -> None:
    chosen = {str(path.relative_to(CHECKOUT)) for path in prose.files()}
    assert {"README.md", "docs/transfer/README.md", "operators/operators/aistore.py", "dags/ingest.py"} <= chosen
    assert not chosen & {"docs/reference.md", "docs/benchmarks.md"}
    assert {path.rpartition(".")[2] for path in chosen} == {"md", "py"}
