"""Attacks with texts that make a regular expression slow: all expressions of the product, from its source."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from storeside.operators import entries, restrictions
from storeside.operators.bases.charts import chart_url_pattern
from storeside.sql.quoting import literal
from storeside.stack.podrunner import pods
from storeside.transfer.base import errors
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.text_columns import _token, columns_of_csv
from storeside.transfer.formats.text_types import FORMS
from storeside.transfer.request import source
from storeside.transfer.request.object_format import Csv, Format
from storeside.transfer.staging import private, proof
from storeside.transfer.staging.json_moments import Moments
from storeside.transfer.staging.json_numbers import _FAR
from tests.attacks import forms, patterns
from tests.attacks.test_form_lists import ALLOWED

# Expressions that are made at run time, by file and code, with examples.
AT_RUN_TIME: dict[tuple[str, str], list[re.Pattern[Any]]] = {
    ("include/storeside/stack/podrunner/pods.py", "_listening(container_port)"): [re.compile(pods._listening(8000))],
    (
        "include/storeside/stack/supervision/supervisor.py",
        "f'(?:exited: {re.escape(name)} |spawnerr: )\\\\(?(.*?)(?:; (?:not )?expected)?\\\\)?$'",
    ): [re.compile(r"(?:exited: s3 |spawnerr: )\(?(.*?)(?:; (?:not )?expected)?\)?$")],
    (
        "include/storeside/transfer/staging/json_numbers.py",
        "'|'.join(sorted({_FAR[kind] for kind in self._floats.values()})).encode()",
    ): [re.compile("|".join(_FAR.values()).encode())],
    ("include/storeside/transfer/staging/json_moments.py", "f'{before}{_UNCLEAR_BYTES}'.encode()"): [
        pattern
        for columns in ([Column("t", "DateTime"), Column("é", "DateTime")], [Column("t", "Array(DateTime)")])
        for pattern in Moments(columns, "UTC")._unclear
    ],
    ("include/storeside/transfer/staging/proof.py", "'|'.join(faults).encode()"): [
        pattern
        for kind in ("Int64", "Float64")
        for delimiter in (",", "\t")
        if (pattern := proof.pattern(Format("csv", Csv(delimiter=delimiter)), [Column("n", kind)]))
    ],
    ("include/storeside/transfer/formats/text_types.py", "text"): [pattern for _, pattern, _ in FORMS],
    ("include/storeside/transfer/formats/text_columns.py", "_token(csv)"): [
        re.compile(_token(Csv()), re.DOTALL),
        re.compile(_token(Csv(escape="\\")), re.DOTALL),
    ],
    (
        "include/storeside/transfer/objects/csv_quotes.py",
        "b'(?:^|%b)%b' % (re.escape(dialect.delimiter.encode()), re.escape(quote))",
    ): [re.compile(rb'(?:^|,)"')],
    ("include/storeside/transfer/objects/csv_quotes.py", "b'%b.' % re.escape(dialect.escape.encode())"): [
        re.compile(rb"\\.", re.DOTALL)
    ],
    ("include/storeside/transfer/tables/table.py", "f'(?<!\\\\w){re.escape(column)}(?!\\\\w)'"): [
        re.compile(r"(?<!\w)city(?!\w)")
    ],
    ("operators/bases/charts.py", "chart_url_pattern(ending)"): [re.compile(chart_url_pattern("svg"))],
    ("operators/entries.py", "schema[PATTERN]"): [
        re.compile(schema[entries.PATTERN])
        for dag in ALLOWED
        for _, schema in restrictions._schemas([forms._module_of(dag).dag.params])
        if entries.PATTERN in schema
    ],
    ("operators/restrictions.py", "_listing(pattern, characters)"): [
        re.compile(restrictions._listing(names, characters))
        for names in ("a*", "*a*b*c*d", "team-*/*-*@*")
        for characters in (restrictions._STAR, *restrictions._STARS.values())
    ],
}
# Controls: the measurement finds these.
EXPENSIVE = [
    (r"(a+)+$", "search"),
    (r"\s+$", "search"),
    (r"\s*(\d+)?\s*:\s*(\d+)?\s*", "fullmatch"),
    (r"\(in file/uri .+?\)", "search"),
    (r'"(?:[^"\\]|\\.)*"', "finditer"),
    (r"[^/]*-[^/]*-[^/]*\.csv", "fullmatch"),
    (
        r"^(?P<what>.*?): \(at row (?P<row>\d+)\).*Column \d+, name: (?P<name>.*?), type: [^\"]*parsed text: "
        r"(?:.*?ERROR: (?P<why>.*)|.*(?P<code> \(.*))$",
        "search",
    ),
]


@pytest.mark.parametrize(("text", "way"), EXPENSIVE)
def test_the_measurement_finds_expensive_expressions(text: str, way: str) -> None:
    """A control: against these expressions, the attack of the next test succeeds."""
    assert patterns.superlinear(re.compile(text), frozenset({way}))


def test_no_text_makes_an_expression_slow(record_property: Callable[[str, object], None]) -> None:
    """The attacker chooses the text: names and content of objects, messages, fields of forms, requests."""
    found = patterns.collect(AT_RUN_TIME)
    slow = {
        f"{expression.file}: {expression.code}": reason
        for expression in found
        for pattern in expression.patterns
        if (reason := patterns.superlinear(pattern, expression.ways))
    }
    record_property("figure", f"attack.superlinear_patterns {len(slow)} of {len(found)}")
    assert not slow
    assert len(found) > 100


HOSTILE = [
    ": (at row 3)", "Column 7, name: x, type: String, parsed text: ", 'Column 7, name: x, type: Int8, parsed text: "',
    ", ERROR: ", ": (in file/uri b/k", ": while executing 'FUNCTION accurateCast(x :: ", "': read stage: ",
    ": While executing CSV", "(while reading the value of key x)", "(version 26", "(for url x", " .:", "?u=", "`\\",
    "In scope SELECT ", "while reading 'x' in bucket",
]  # fmt: skip


@pytest.mark.parametrize("repeated", HOSTILE)
@pytest.mark.parametrize("end", ["", "'", ")", ": (INCORRECT_DATA) (version 26.9)"])
def test_no_content_makes_an_error_of_clickhouse_slow(repeated: str, end: str) -> None:
    """The attacker chooses content that the error quotes: field names, values, keys."""
    from clickhouse_connect.driver.exceptions import DatabaseError

    def call(size: int) -> Any:
        error = DatabaseError(f"Unknown x: {repeated * (size // len(repeated))}{end}", code=117)
        return lambda: (errors.classify(error), errors.named_file(error), private._without_values(error))

    assert not patterns.grows_too_fast(call)
    assert patterns.seconds_of(call(patterns.LARGE)) < 1


@pytest.mark.parametrize("repeated", ['"', '""', '",', ' "', '"a', ',"x', "1,", "0", "[", "{", "jan ", "1.", "-"])
def test_no_row_makes_the_inference_of_columns_slow(repeated: str) -> None:
    """The attacker chooses a row of CSV."""
    form = Format("csv", Csv(names=("a", "b")))

    def call(size: int) -> Any:
        row = (repeated * (size // len(repeated))).encode() + b"\n"
        return lambda: columns_of_csv([b"1,2\n", row], form, skips_bad=True)

    assert not patterns.grows_too_fast(call)


@pytest.mark.parametrize("keys", ["a**a**a**a**a**b", "*a*a*a*a*a*a*b", "{a,aa}{a,aa}{a,aa}**{a,aa}**b", "**"])
def test_no_key_makes_a_pattern_of_keys_slow(keys: str) -> None:
    """The attacker chooses the names of objects, or may trigger a DAG and chooses the pattern."""
    regex = source.pattern(keys)
    assert not patterns.grows_too_fast(lambda size: lambda: source.matches(regex, "a" * size))


@pytest.mark.parametrize("keys", ["*" * 33, "a" * 5000])
def test_patterns_of_keys_have_limits(keys: str) -> None:
    """The attacker may trigger a DAG and chooses the pattern."""
    with pytest.raises(errors.TransferInputError, match="at most 4096 characters and 32"):
        source.pattern(keys)


def test_worker_and_clickhouse_select_the_same_keys() -> None:
    """The attacker chooses names that the worker and ClickHouse could treat differently, so that one loads them."""
    import chdb

    chosen = random.Random(1)  # noqa: S311
    parts = [
        "a",
        "b/",
        "é",
        "日",
        "\n",
        ".",
        "/",
        "\\",
        "(",
        "^",
        "$",
        "%",
        "'",
        " ",
        "[a]",
        "\x00",
        "\u2028",
        "K",
    ]
    globs = [*parts, "*", "**", "?", "{a,b/}", "{0..12}", "{é,a}"]
    cases = [
        (
            "".join(chosen.choices(globs, k=chosen.randint(0, 5))),
            "".join(chosen.choices(parts, k=chosen.randint(0, 5))),
        )
        for _ in range(600)
    ]
    cases += [(keys.replace("*", "a").replace("?", "b"), keys) for keys, _ in cases[:50]]
    cases = [(source.pattern(keys), key) for keys, key in cases]
    rows = ", ".join(f"({literal(regex)}, {literal(key)})" for regex, key in cases)
    answer = str(chdb.query(f"SELECT match(c2, c1) FROM values('c1 String, c2 String', {rows})"))
    assert [line == "1" for line in answer.split()] == [source.matches(regex, key) for regex, key in cases]
    assert 50 < answer.count("1") < 600
