"""Attacks through the text of a form that becomes part of a CREATE TABLE."""

from __future__ import annotations

import pytest

from storeside.transfer.base.errors import TransferInputError
from tests.attacks.forms import load, task_of
from tests.transfers import Loading

READS_A_FILE = "n, toUInt8(reverse(file('{folder}/launcher.json')))"


@pytest.mark.parametrize(
    "text",
    [
        READS_A_FILE, "hostName()", "n) AS SELECT * FROM system.users --", "n, toDate(file('/proc/self/environ'))",
        "n, (SELECT 1)", "cityHash64(n, file('x'))", "tuple(), sleep(3)",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("dag", "name", "field"),
    [
        ("s3_to_clickhouse", "load", "order_by"),
        ("s3_to_clickhouse", "load", "partition_by"),
        ("s3_events_to_clickhouse", "load_events", "order_by"),
        ("s3_events_to_clickhouse", "load_events", "partition_by"),
        ("hsds_export", "load", "order_by"),
    ],
)
def test_a_form_evaluates_no_function_of_its_own(
    loading: Loading, dag: str, name: str, field: str, text: str
) -> None:
    """The attacker may trigger a DAG that loads a table."""
    text = text.format(folder=loading.stack.state / "clickhouse")
    task = task_of(dag, name, **{field: text, "table": loading.table, "bucket": loading.bucket})
    loading.put({"a.csv": b"n\n1\n"})
    with pytest.raises(TransferInputError, match=field) as caught:
        load(task, loading)
    assert loading.stack.secrets["clickhouse"][::-1] not in str(caught.value)
    assert loading.query(f"EXISTS {loading.table}") == [(0,)]
