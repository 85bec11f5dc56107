"""A user who reads the logs, reasons and rejected rows of a load with a mask looks for values of a damaged object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storeside.transfer.request.column_options import Columns
from tests.statements import Engine, Statements

CARD = "4111222233334444"
DOCUMENTS = {
    "a number that is no float": f'{{"card": {CARD}e400, "n": 01}}',
    "the same in an array of objects": f'[{{"card": {CARD}e400}}, {{"n": 01}}]',
    "a number of two documents": f'{{"card": {CARD}e400}}{{"n": 1}}',
    "a sign": f'{{"card": +{CARD}, "n": 1}}',
    "a leading zero": f'{{"card": 0{CARD}, "n": 1}}',
    "an unknown escape": f'{{"card": "\\a{CARD}", "n": 1}}',
    "no end": f'{{"n": 1, "card": "{CARD}',
    "a name": f'{{"n": "x", "card": {{"{CARD}": 1}}}}',
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    found = Engine()
    yield found
    found.close()


@pytest.mark.parametrize("loader", ["pull", "push"])
@pytest.mark.parametrize("on_bad_rows", ["fail", "keep"])
def test_no_reason_shows_a_masked_value(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], loader: str, on_bad_rows: str
) -> None:
    """The attacker may read the log and the ledger, and gets damaged objects into the bucket."""
    reading = Statements(engine, tmp_path)
    reading.create("n Nullable(Int64), card Nullable(String)")
    reading.put({f"{number}.jsonl": text.encode() for number, text in enumerate(DOCUMENTS.values())})
    mask = Columns(mask={"card": "redact"})
    report = reading.load(format="jsonl", chosen=mask, loader=loader, on_bad_rows=on_bad_rows)
    assert report.failed + report.rejected >= len(DOCUMENTS)
    rejected = reading.query(f"SELECT * FROM {reading.table}_rejected") if on_bad_rows == "keep" else []
    for text in (str(reading.reasons()), str(rejected), *capsys.readouterr()):
        assert CARD not in text
    reading.drop()
