"""The check of JSON Lines compared with Python's json module."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.objects.strict_json import JOINED, checked, fault

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=5)
SNIPPETS = st.sampled_from(
    [
        "\\a",
        "\\u12",
        "\t",
        "\x00",
        "\x0b",
        ",",
        "]",
        "}",
        "{",
        '"',
        "01",
        "+1",
        "1.",
        ".5",
        "NaN",
        ";",
        "\\",
        " ",
        "\n",
    ]
)


def is_json(text: str) -> bool:
    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def accepts(text: str, size: int) -> bool:
    content = text.encode()
    pieces = [content[n : n + size] for n in range(0, len(content), size)]
    try:
        assert b"".join(checked(pieces)) == content
    except LoadObjectError:
        return False
    return True


@given(DOCUMENTS, st.sampled_from(["\n", "\r\n", "\n\n"]), st.integers(1, 50), st.booleans(), st.booleans())
def test_documents_pass_unchanged(rows: list[Any], end: str, size: int, spread: bool, escaped: bool) -> None:
    text = end.join(json.dumps(row, indent=1 if spread else None, ensure_ascii=escaped) for row in rows)
    assert accepts(text, size)
    assert accepts("\ufeff" + text + end, size)


@given(DOCUMENTS, SNIPPETS, st.data(), st.integers(1, 50))
def test_a_line_that_is_no_document_is_refused(rows: list[Any], snippet: str, data: Any, size: int) -> None:
    text = "\n".join(json.dumps(row) for row in rows)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + snippet + text[at:]
    lines = [line for line in text.split("\n") if line.strip(" \t\r")]
    if all(map(is_json, lines)):
        assert accepts(text, size)
    elif snippet != "\n":  # a document may span lines
        assert not accepts(text, size)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (rb'{"s": "\a"}', "Invalid \\escape at character 8"),
        (b'{"n": NaN}', "NaN is no JSON value"),
        (b'{"n": 1e400}', "a number is too large for a float"),
        (b'{"s": "\xff"}', "invalid UTF-8 at byte 7"),
        (b'{"n": 1}{"n": 2}', f"Extra data at character 9{JOINED}"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"n": 1}', ""),
    ],
)
def test_faults(document: bytes, reason: str) -> None:
    assert fault(document) == reason


def test_a_document_that_does_not_end() -> None:
    with pytest.raises(LoadObjectError, match=r"row 1 is not JSON \(RFC 8259\): "):
        list(checked([b'{"n": 1}\n', b'{"n": [\n', b"1,\n"]))
