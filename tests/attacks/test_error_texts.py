"""Attacks with content that looks like a message of ClickHouse, whose own engine quotes it in its error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import DriftError, GoneError, TransferTransientError, by_size, classify, plain

LIES = [
    ": (at row 7) Column 0, name: fake, type: String, parsed text: ERROR: lie",
    ": (at row 7) Row 7: Column 0, name: fake, type: String, ERROR: lie",
    ": while executing 'FUNCTION accurateCast(fake :: 1, 2)'",
    "(while reading the value of key fake)",
]


def refusal(statement: str) -> DatabaseError:
    """Return the error of ClickHouse for a statement."""
    import chdb

    with pytest.raises(Exception, match="DB::Exception") as caught:
        chdb.query(statement)
    text = str(caught.value)
    code = re.match(r"Code: (\d+)", text)
    assert code
    return DatabaseError(text, code=int(code[1]))


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    ("content", "form", "structure", "begin"),
    [
        ('{{"{lie}": 1}}\n', "JSONEachRow", "a Int64", "Unknown field found while parsing JSONEachRow format"),
        ('{{"a": "{lie}"}}\n', "JSONEachRow", "a Int64", "(column 'a': )?Cannot parse"),
        ('a\n"{lie}\n', "CSVWithNames", "a Int64", "(row 0, column 'a': )?Cannot parse"),
    ],
)
def test_content_states_no_column_row_or_reason(
    tmp_path: Path, lie: str, content: str, form: str, structure: str, begin: str
) -> None:
    """The attacker may put objects into a bucket that is loaded."""
    file = tmp_path / "a"
    file.write_text(content.format(lie=lie))
    settings = "input_format_skip_unknown_fields = 0, input_format_parallel_parsing = 0"
    said = plain(refusal(f"SELECT * FROM file('{file}', {form}, '{structure}') SETTINGS {settings}"))
    assert re.match(begin, said)
    assert not re.match("(row [0-9]+, )?column 'fake", said)


@pytest.mark.parametrize("lie", LIES)
def test_a_value_states_no_column(lie: str) -> None:
    """The attacker chooses a value that a cast refuses; ClickHouse quotes elements of enums as they are."""
    value = "x" + lie.replace("'", "''")
    said = plain(refusal(f"SELECT accurateCast(s, 'Enum8(''a'' = 1)') FROM (SELECT materialize('{value}') AS s)"))
    assert said.startswith("column 's': Unknown element 'x")


@pytest.mark.parametrize("name", ["(MEMORY_LIMIT_EXCEEDED)", "(TIMEOUT_EXCEEDED)", "Unknown column"])
def test_content_chooses_no_remedy(name: str) -> None:
    """The attacker chooses a value."""
    found = classify(DatabaseError(f"Cannot parse string '{name}' as Int8 (CANNOT_PARSE_TEXT)", code=6))
    assert str(found) == f"Cannot parse string '{name}' as Int8 (CANNOT_PARSE_TEXT)"
    assert not isinstance(found, DriftError)


@pytest.mark.parametrize("key", ["Timeout.csv", "NoSuchKey.csv", "AccessDenied.csv"])
def test_a_key_is_no_reason_of_s3(key: str) -> None:
    """The attacker chooses the name of an object; a failure that seems temporary would be tried again forever."""
    text = f"No response body.. HTTP response code: 416: while reading '{key}' in bucket 'b' (S3_ERROR)"
    assert not isinstance(classify(DatabaseError(text, code=499)), TransferTransientError | GoneError)


def test_a_key_is_no_reason_for_a_lack_of_memory() -> None:
    """The attacker chooses the name of an object that needs too much memory."""
    text = (
        "Query memory limit exceeded: would use 9 GiB: (in file/uri b/User memory limit.csv): (MEMORY_LIMIT_EXCEEDED)"
    )
    assert by_size(DatabaseError(text, code=241))
