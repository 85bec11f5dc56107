"""Suites of users: a Python function, a YAML or JSON file in the format of Great Expectations, or its content.

Files are read without Great Expectations, which needs 170 MB of memory. ClickHouse evaluates most expectations; the
others are evaluated by Great Expectations in the worker, which reads the rows that they are about.
"""

from __future__ import annotations

import importlib
import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storeside.quality.errors import QualityError
from storeside.quality.verdict import Check

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_FILES = (".json", ".yaml", ".yml")
# Bytes of a file. A suite of a thousand expectations has about 200 kB.
_LARGEST_FILE = 4 << 20
_MOST = 1000
_LONGEST = 500
_SUITE_FIELDS = {"name", "expectations", "id", "meta", "notes", "suite_parameters"}
_FIELDS = {"type", "kwargs", "severity", "description", "id", "meta", "notes", "rendered_content"}
# Arguments of Great Expectations that do not change which rows are expected.
_IGNORED = {"result_format", "catch_exceptions", "batch_id"}
_BOUNDS = {"min_value", "max_value", "strict_min", "strict_max"}
_PAIR = {"column_A", "column_B"}
UNEXPECTED_ROWS = "unexpected_rows_expectation"
# The query of this expectation; only its condition reaches ClickHouse.
_QUERY = re.compile(r"SELECT\s+\*\s+FROM\s+\{batch\}\s+WHERE\s+(?P<condition>\S.*)", re.IGNORECASE | re.DOTALL)
# The arguments of each expectation: required ones, and others.
_ARGUMENTS: Mapping[str, tuple[set[str], set[str]]] = {
    "expect_column_values_to_not_be_null": ({"column"}, set()),
    "expect_column_values_to_be_null": ({"column"}, set()),
    "expect_column_values_to_be_between": ({"column"}, _BOUNDS),
    "expect_column_values_to_be_in_set": ({"column", "value_set"}, set()),
    "expect_column_values_to_not_be_in_set": ({"column", "value_set"}, set()),
    "expect_column_values_to_match_regex": ({"column", "regex"}, set()),
    "expect_column_values_to_not_match_regex": ({"column", "regex"}, set()),
    "expect_column_value_lengths_to_equal": ({"column", "value"}, set()),
    "expect_column_value_lengths_to_be_between": ({"column"}, _BOUNDS),
    "expect_column_pair_values_to_be_equal": (_PAIR, {"ignore_row_if"}),
    "expect_column_pair_values_a_to_be_greater_than_b": (_PAIR, {"or_equal", "ignore_row_if"}),
    "expect_column_values_to_be_unique": ({"column"}, set()),
    "expect_table_row_count_to_equal": ({"value"}, set()),
    "expect_table_row_count_to_be_between": (set(), _BOUNDS),
    UNEXPECTED_ROWS: ({"unexpected_rows_query"}, set()),
}
# Expectations that need all rows of a load at once; no single row breaks them.
OF_ALL_ROWS = frozenset(
    {
        "expect_column_values_to_be_unique",
        "expect_table_row_count_to_equal",
        "expect_table_row_count_to_be_between",
    }
)
# Expectations that Great Expectations evaluates: of each row, of the table's columns, and of all rows at once.
BY_GX_OF_ROWS = frozenset(
    {
        "expect_column_pair_values_to_be_in_set",
        "expect_column_values_to_be_dateutil_parseable",
        "expect_column_values_to_be_json_parseable",
        "expect_column_values_to_match_json_schema",
        "expect_column_values_to_match_regex_list",
        "expect_column_values_to_match_strftime_format",
        "expect_column_values_to_not_match_regex_list",
        "expect_multicolumn_sum_to_equal",
        "expect_multicolumn_values_to_be_equal",
        "expect_select_column_values_to_be_unique_within_record",
    }
)
BY_GX_OF_COLUMNS = frozenset(
    {
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
    }
)
BY_GX_OF_ALL_ROWS = frozenset(
    {
        "expect_column_distinct_values_to_be_in_set",
        "expect_column_distinct_values_to_contain_set",
        "expect_column_distinct_values_to_equal_set",
        "expect_column_kl_divergence_to_be_less_than",
        "expect_column_max_to_be_between",
        "expect_column_mean_to_be_between",
        "expect_column_median_to_be_between",
        "expect_column_min_to_be_between",
        "expect_column_most_common_value_to_be_in_set",
        "expect_column_proportion_of_non_null_values_to_be_between",
        "expect_column_proportion_of_unique_values_to_be_between",
        "expect_column_quantile_values_to_be_between",
        "expect_column_stdev_to_be_between",
        "expect_column_sum_to_be_between",
        "expect_column_unique_value_count_to_be_between",
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_not_be_outliers",
        "expect_compound_columns_to_be_unique",
    }
)
_BY_GX = BY_GX_OF_ROWS | BY_GX_OF_COLUMNS | BY_GX_OF_ALL_ROWS
# Why the others are refused.
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("expect_column_values_to_be_increasing", "expect_column_values_to_be_decreasing"),
        "the rows of a table have no order",
    ),
    **dict.fromkeys(
        (
            "expect_column_type_to_be", "expect_column_values_to_be_of_type",
            "expect_column_values_to_be_in_type_list",
        ),
        "the table's definition states the types of its columns, and the load holds them",
    ),
    **dict.fromkeys(
        ("expect_query_results_to_match_comparison", "expect_table_row_count_to_equal_other_table"),
        "it needs a second source of data",
    ),
    **{
        f"expect_column_values_to_{negated}match_like_pattern{several}": "write a regular expression instead"
        for negated in ("", "not_")
        for several in ("", "_list")
    },
}  # fmt: skip
# Arguments that name columns.
_ONE_COLUMN, _COLUMNS = ("column", "column_A", "column_B"), "column_list"
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(
        ("column", "column_A", "column_B", "regex", "ignore_row_if", "severity", "unexpected_rows_query"), str
    ),
    **dict.fromkeys(("strict_min", "strict_max", "or_equal"), bool),
    "value_set": list,
    "value": int,
    "mostly": (int, float),
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "severity": ("critical", "warning", "info"),
    "ignore_row_if": ("both_values_are_missing", "either_value_is_missing", "neither"),
}


@dataclass(frozen=True)
class Expectation:
    """One expectation: its type and arguments in Great Expectations, and how many of the rows must meet it."""

    type: str
    kwargs: Mapping[str, Any]
    severity: str = "critical"
    description: str = ""
    mostly: float = 1.0
    by_gx: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the expectation is about."""
        named = [str(self.kwargs[name]) for name in _ONE_COLUMN if name in self.kwargs]
        return (*named, *map(str, self.kwargs.get(_COLUMNS, ())))

    @property
    def is_of_columns(self) -> bool:
        """Whether it is about the table's columns, and not about rows."""
        return self.type in BY_GX_OF_COLUMNS

    @property
    def needs_all_rows(self) -> bool:
        """Whether it needs all rows of a load at once: no single row breaks it."""
        return self.type in OF_ALL_ROWS or self.type in BY_GX_OF_ALL_ROWS

    @property
    def configuration(self) -> dict[str, Any]:
        """The expectation in Great Expectations' own format."""
        kwargs = {**self.kwargs, **({"mostly": self.mostly} if self.mostly < 1 else {})}
        found = {"type": self.type, "kwargs": kwargs, "meta": {}, "severity": self.severity}
        return {**found, **({"description": self.description} if self.description else {})}

    @property
    def condition(self) -> str:
        """The condition, in SQL, of the rows that an expectation of the type `UNEXPECTED_ROWS` forbids."""
        found = _query(self.kwargs["unexpected_rows_query"])
        return found["condition"].replace("{{", "{").replace("}}", "}") if found else ""

    @property
    def check(self) -> Check:
        """The expectation in a verdict; its description states the arguments if the suite has no description."""
        text = self.description
        if not text:
            given = {k: v for k, v in self.kwargs.items() if not k.startswith("column")}
            text = self.type.removeprefix("expect_").replace("_", " ")
            text += f" ({', '.join(f'{k}: {v}' for k, v in given.items())})" if given else ""
        return Check(self.type, self.columns, self.severity, text[:_LONGEST])


@dataclass(frozen=True)
class GivenSuite:
    """A suite that a load can check."""

    name: str
    expectations: tuple[Expectation, ...]


def check_suite(text: str) -> None:
    """Raise QualityError unless a text has the form of a suite's name; the suite itself is not loaded."""
    if not _FUNCTION.fullmatch(text) and not text.endswith(_FILES):
        raise QualityError(
            f"suite {text!r}: write a function as package.module:function, or the path of a file that ends in"
            f" {', '.join(_FILES)}"
        )


def load_suite(given: str | Mapping[str, Any]) -> GivenSuite:
    """Return a suite, which ``package.module:function`` returns or which a YAML or JSON file contains.

    A mapping in the format of the files is the suite itself.

    The function takes no arguments, and returns an ExpectationSuite or a dictionary in the format of the files. Its
    module is imported, which executes the module's code: never pass a text from a form that no list restricts. Raises
    QualityError if the suite cannot be loaded.
    """
    if not isinstance(given, str):
        return _suite(given)
    check_suite(given)
    try:
        return _suite(_read(Path(given)) if given.endswith(_FILES) else _call(given))
    except QualityError as e:
        raise QualityError(f"suite {given}: {e}") from e


def _call(text: str) -> Any:
    module, _, name = text.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
        return made if isinstance(made, dict) else made.to_json_dict()
    except Exception as e:  # any error of the user's code
        reason = f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise QualityError(f"{reason}: the function must exist and return an ExpectationSuite") from e


def _read(path: Path) -> Any:
    import yaml

    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise QualityError(f"it is larger than {_LARGEST_FILE >> 20} MiB: divide it")
        return json.loads(content) if path.suffix == ".json" else yaml.safe_load(content)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as e:
        raise QualityError(f"it cannot be read: {' '.join(str(e).split())}") from e


def _suite(found: Any) -> GivenSuite:
    if not isinstance(found, Mapping):
        raise QualityError("write a mapping with `name` and `expectations`")
    if "expectation_suite_name" in found:
        raise QualityError("it is in the format of Great Expectations 0.x: convert it to that of 1.x")
    if unknown := sorted(map(str, found.keys() - _SUITE_FIELDS)):
        raise QualityError(f"it has unknown fields {', '.join(unknown)}: remove them")
    name, given = found.get("name"), found.get("expectations")
    if not isinstance(name, str) or not name or not isinstance(given, list):
        raise QualityError("write its `name`, and `expectations` as a list")
    if not 0 < len(given) <= _MOST:
        raise QualityError(f"it has {len(given)} expectations: write 1 to {_MOST}")
    made = []
    for number, fields in enumerate(given, 1):
        try:
            made.append(_expectation(fields))
        except QualityError as e:
            raise QualityError(f"expectation {number}: {e}") from e
    return GivenSuite(name, tuple(made))


def _expectation(fields: Any) -> Expectation:
    if not isinstance(fields, dict) or not isinstance(fields.get("kwargs"), dict):
        raise QualityError("write a mapping with `type` and `kwargs`")
    kind = str(fields.get("type"))
    if kind in _REFUSED:
        raise QualityError(f"{kind} cannot be checked: {_REFUSED[kind]}")
    if kind not in _ARGUMENTS and kind not in _BY_GX:
        raise QualityError(f"{kind!r} is unknown: choose from {', '.join([*_ARGUMENTS, *sorted(_BY_GX)])}")
    if unknown := sorted(str(name) for name in fields.keys() - _FIELDS if fields[name] is not None):
        raise QualityError(f"{kind} has unknown fields {', '.join(unknown)}: remove them")
    kwargs = {k: v for k, v in fields["kwargs"].items() if v is not None and k not in _IGNORED}
    mostly = kwargs.pop("mostly", 1.0)
    severity = fields.get("severity") or "critical"
    by_gx = kind in _BY_GX or "row_condition" in kwargs
    try:
        if by_gx:
            _check_by_gx(kind, kwargs)
        else:
            _check_arguments(kind, kwargs)
        _check_values({**({} if by_gx else kwargs), "mostly": mostly, "severity": severity})
    except QualityError as e:
        raise QualityError(f"{kind}: {e}") from e
    return Expectation(kind, kwargs, severity, str(fields.get("description") or ""), float(mostly), by_gx)


def _query(text: str) -> re.Match[str] | None:
    return _QUERY.fullmatch(text.strip().rstrip(f";{string.whitespace}"))


def _check_by_gx(kind: str, given: Mapping[str, Any]) -> None:
    """Check what a load needs to know; Great Expectations checks the other arguments when it evaluates them."""
    if kind == UNEXPECTED_ROWS:
        raise QualityError("write the row_condition into the query")
    if "$PARAMETER" in json.dumps(given, default=str):
        raise QualityError("suite parameters are not supported: write their values")
    for name in _ONE_COLUMN:
        if not isinstance(given.get(name, ""), str):
            raise QualityError(f"{name} {given[name]!r} has the wrong type")
    several = given.get(_COLUMNS, [])
    if not isinstance(several, list) or not all(isinstance(name, str) for name in several):
        raise QualityError(f"{_COLUMNS} {several!r} has the wrong type")


def _check_arguments(kind: str, given: Mapping[str, Any]) -> None:
    required, others = _ARGUMENTS[kind]
    if unknown := sorted(map(str, given.keys() - required - others)):
        raise QualityError(f"ClickHouse cannot check it with {', '.join(unknown)}: leave that out")
    if missing := sorted(required - given.keys()):
        raise QualityError(f"it needs {', '.join(missing)}")
    if kind == UNEXPECTED_ROWS and not _query(str(given["unexpected_rows_query"])):
        raise QualityError("write unexpected_rows_query as SELECT * FROM {batch} WHERE …, without anything after it")
    if others >= _BOUNDS and not given.keys() & {"min_value", "max_value"}:
        raise QualityError("it needs min_value or max_value")
    if kind == "expect_table_row_count_to_be_between":
        for name in given.keys() & {"min_value", "max_value"}:
            if given[name] is not None and type(given[name]) is not int:
                raise QualityError(f"{name} {given[name]!r}: write a whole number of rows")


def _check_values(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        expected = _KINDS.get(name, object)
        if not isinstance(value, expected) or (isinstance(value, bool) and expected not in (bool, object)):
            raise QualityError(f"{name} {value!r} has the wrong type")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise QualityError(f"{name} {value!r}: choose from {', '.join(_CHOICES[name])}")
    if not 0 <= given["mostly"] <= 1:
        raise QualityError(f"mostly {given['mostly']}: write a number from 0 to 1")
    if given.get("value_set") == []:
        raise QualityError("value_set is empty: write a list of values")
