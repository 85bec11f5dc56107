"""AIStore's error messages without their wrapping."""

from __future__ import annotations

import json

import pytest
from aistore.sdk.errors import AISError

from storeside.aistore.errors import plain, said

SERVER = json.dumps({"detail": 'Processing error: no "good"\nobject'})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("as it\n is", "as it is"),
        (json.dumps({"message": "PUT access\ndenied", "node": "t1"}), "PUT access denied"),
        (SERVER, 'no "good" object'),
        (f"ETL failed: 500: {SERVER}", 'no "good" object'),
        (json.dumps({"message": f"t[1]: {SERVER}"}), 'no "good" object'),
        ('{"detail": "not\\x JSON"}', '{"detail": "not\\x JSON"}'),
        ('{"other": 1}', '{"other": 1}'),
        ("[1]", "[1]"),
        ("x" * 2_000, "x" * 1_000),
    ],
)
def test_a_message_is_plain(message: str, expected: str) -> None:
    assert plain(message) == expected


def test_an_error_says_its_message() -> None:
    assert said(AISError(500, json.dumps({"message": "no"}), "http://p/v1", None)) == "no"
    assert said(ConnectionError("refused")) == "refused"
