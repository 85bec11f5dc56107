"""``storeside validations``: the results of suites in Great Expectations' format, and its Data Docs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from storeside.amounts import counted
from storeside.transfer.cli import Help, clickhouse, ending, exit_code, ledger
from storeside.transfer.state.validations import last


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the newest results of a table, or write their Data Docs; return 1 if there is none."""
    parser = argparse.ArgumentParser(
        prog="storeside validations", usage="%(prog)s [OPTION ...] TABLE", formatter_class=Help, allow_abbrev=False,
        description="Prints the newest results of the suites that loads into a table were checked against, one JSON"
        " per line, in Great Expectations' format.",
        epilog=ending(
            "storeside validations analytics.trips --docs trips-docs",
            "1 if the table has no result, 2 if ClickHouse does not answer or the folder is not empty",
        ),
    )  # fmt: skip
    parser.add_argument("table", metavar="TABLE", help="table, as database.table")
    parser.add_argument("--last", type=int, default=20, metavar="N", help="number of results; default: %(default)s")
    parser.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="write Great Expectations' Data Docs into this new folder instead"
    )
    given = parser.parse_args(arguments)
    if given.last < 1:
        parser.error(f"--last {given.last}: write a number from 1")

    def show() -> int:
        results = last(ledger() or clickhouse(), given.table, given.last)
        if not results:
            print(f"{given.table} has no result of a suite in the last 90 days")
            return 1
        if given.docs is None:
            for result in results:
                print(json.dumps(result))
            return 0
        from storeside.quality.data_docs import build

        print(f"{counted(len(results), 'result')}: {build(results, given.docs)}")
        return 0

    return exit_code(show)
