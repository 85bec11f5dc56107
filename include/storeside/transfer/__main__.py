"""``storeside load s3://bucket/prefix database.table``: a load without Airflow.

Environment variables configure the connection to ClickHouse (CLICKHOUSE_HOST, CLICKHOUSE_PORT, CLICKHOUSE_USER,
CLICKHOUSE_PASSWORD, CLICKHOUSE_SECURE, CLICKHOUSE_CA), to S3 (boto3's variables, such as AWS_ENDPOINT_URL_S3) and to
AIStore, for a source such as ``ais://results`` (AIS_ENDPOINT, AIS_AUTHN_TOKEN and other variables of its SDK). If
CLICKHOUSE_LEDGER_USER and CLICKHOUSE_LEDGER_PASSWORD are set, that user writes Storeside's own tables. For loads into
Distributed tables, CLICKHOUSE_SERVERS lists the servers of the cluster as ``host:port,host:port``; the first one has
the ledger, and replaces CLICKHOUSE_HOST and CLICKHOUSE_PORT. pyiceberg's variables, such as
PYICEBERG_CATALOG__LAKEHOUSE__URI, describe the catalogue of a source such as ``iceberg://lakehouse/sales.orders``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from storeside.amounts import counted, others
from storeside.transfer.base.errors import TransferInputError, shown
from storeside.transfer.cli import (
    S3_SOURCE,
    add_on_nothing,
    catalog_for,
    clickhouse,
    end_without,
    exit_code,
    ledger,
    reader_of,
    request,
    run_of,
    servers,
    transfer_arguments,
)
from storeside.transfer.printing import Lines, report_text, say_objects
from storeside.transfer.request.source import unmatched

if TYPE_CHECKING:
    from storeside.transfer.request.request import Request
    from storeside.transfer.run.engine import Report

_EXAMPLE = """storeside load s3://trips/2026/ analytics.trips --order-by pickup_time
  storeside load 's3://exports/{table}/**.csv' 'raw.{table}'"""
_CODES = """1 if objects failed, now or before, or S3 refused to change them; 2 if the load cannot finish;
99 with --on-nothing skip and no object"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one transfer; return 1 when objects failed, or S3 refused to change them, and 2 when it cannot finish.

    Without an object, --on-nothing decides.

    Objects that an earlier run could not load count as failed, unless their failure was accepted.
    """
    parser = transfer_arguments(
        "storeside load",
        "Loads the objects of a bucket into a table of ClickHouse, or with {table} in SOURCE and TABLE into the"
        " tables that keys name, each exactly once.",
        f"{S3_SOURCE}; the same with ais://; or iceberg://CATALOGUE/namespace.table", example=_EXAMPLE, codes=_CODES,
    )  # fmt: skip
    parser.add_argument(
        "--preview", action="store_true",
        help="load nothing: print what would be loaded, the table's statements, and the first rows",
    )  # fmt: skip
    parser.add_argument("--retry-failed", action="store_true", help="retry objects that failed for good before")
    parser.add_argument(
        "--accept-failed", type=_who, metavar="WHO",
        help="load nothing: accept that the objects that failed for good are missing, in the name of WHO; with a"
        " bucket instead of the table, such as ais://results, of a transform into this bucket",
    )  # fmt: skip
    parser.add_argument(
        "--inventory",
        default="",
        metavar="URI",
        help="plan from the newest S3 Inventory below s3://bucket/folder/ instead of listing the bucket",
    )
    parser.add_argument(
        "--snapshot",
        default="",
        metavar="ID",
        help="snapshot's id, version or metadata file to load, with --format iceberg or delta",
    )
    add_on_nothing(parser)
    given = parser.parse_args(arguments)
    return exit_code(lambda: _transfer(given))


def _transfer(given: argparse.Namespace) -> int:
    if "://" in given.table:
        if not given.accept_failed:
            raise TransferInputError(
                f"{given.table!r} is a bucket, and this command loads objects into a table: write database.table."
                " Two buckets are those of a transform: use storeside transform; with --accept-failed WHO, this"
                " command accepts the failures of such a transform"
            )
        return _accepted(_accept_results(given), given.accept_failed)
    from storeside.transfer.run.engine import Transfer

    wanted = request(given)
    wanted = replace(
        wanted,
        source=replace(wanted.source, inventory=given.inventory, snapshot=given.snapshot),
        retry_failed=given.retry_failed or wanted.retry_failed,
    )
    if given.preview:
        return _preview(wanted, given)
    if wanted.names_tables:
        return _tables(wanted, given)
    transfer = Transfer(
        wanted,
        clickhouse(),
        reader_of(wanted.source, given.sse_kms_key_id),
        run_of(given),
        ledger=ledger(),
        servers=servers(),
        catalog=catalog_for(wanted.source),
    )
    if given.accept_failed:
        transfer.loads.create()
        return _accepted(transfer.loads.accept(given.accept_failed), given.accept_failed)
    prepared = transfer.prepare()
    with Lines() as show:
        report = transfer.run(prepared, show)
    print(report_text(report, as_json=given.json))
    if report.verdict and not given.json:
        print(f"expectations: {shown(report.verdict['summary'])}")
    if not given.json:
        say_what_is_missing(report)
    return status(report, given)


def status(report: Report, given: argparse.Namespace) -> int:
    """Return the exit code of a load, and print a line if no object matches."""
    # An earlier try of the run may have deleted or moved all objects that it loaded.
    if not (report.listed or report.loaded or report.handled):
        ignored = "".join(f"; {counted(n, 'marker')} {kind} ignored" for kind, n in report.ignored.items())
        return end_without(f"{unmatched(given.source)}{ignored}", given.on_nothing)
    return 1 if report.failed or report.known_bad or report.left else 0


def _tables(wanted: Request, given: argparse.Namespace) -> int:
    """Load the objects into the tables that their keys name, and print the totals of each changed table."""
    from storeside.transfer.many.report import TableOutcome
    from storeside.transfer.many.tables_transfer import TablesTransfer

    if given.accept_failed:
        raise TransferInputError(
            "--accept-failed: accept the failures of each table alone: write its name instead of {table} in SOURCE"
            " and in TABLE"
        )
    found: list[TableOutcome] = []
    transfer = TablesTransfer(
        wanted, clickhouse(), reader_of(wanted.source, given.sse_kms_key_id), run_of(given), ledger(), servers()
    )
    with Lines() as show:
        report = transfer.run(lambda outcome: None if outcome.is_unchanged else found.append(outcome), show)
    found.sort(key=lambda outcome: outcome.table)
    if given.json:
        print(json.dumps({**asdict(report), "by_table": [asdict(outcome) for outcome in found]}))
    else:
        for outcome in found:
            if outcome.report and outcome.report.loaded:
                print(f"{outcome.table}: {counted(outcome.report.loaded, 'object')}, {_rows_of(outcome.report)}")
        print(report_text(report, as_json=False))
        for outcome in found:
            if outcome.reason:
                print(f"{outcome.table or shown(outcome.name)}: {outcome.reason}", file=sys.stderr)
    if not report.listed:
        return end_without(unmatched(given.source), given.on_nothing)
    return 1 if report.failed_tables else 0


def _rows_of(report: Report) -> str:
    """Return the numbers of rows of a report as text."""
    return f"{counted(report.rows, 'row')}{others((report.rejected, 'rejected'), (report.filtered, 'filtered'))}"


def _preview(wanted: Request, given: argparse.Namespace) -> int:
    """Print what a load would do; return 1 if it would fail, or refuse an object that was read."""
    from storeside.transfer.run.preview import preview
    from storeside.transfer.run.preview_text import preview_text

    reader = reader_of(wanted.source, given.sse_kms_key_id)
    found = preview(wanted, clickhouse(), reader, ledger(), servers(), catalog=catalog_for(wanted.source))
    print(report_text(found, as_json=True) if given.json else preview_text(found))
    return 1 if found.problem or found.refused or found.known_bad else 0


def say_what_is_missing(report: Report) -> None:
    """Print the first objects that are missing or left in the source, with reasons, and how many more there are."""
    say_objects("failed", report.failed, report.failures)
    say_objects("left in the source", report.left, report.left_objects)
    say_objects("failed before", report.known_bad, report.known_failures)
    if report.known_bad:
        print(
            "objects that failed before are not loaded: correct the cause and use --retry-failed, or let later runs"
            " skip them with --accept-failed",
            file=sys.stderr,
        )


def _accept_results(given: argparse.Namespace) -> int:
    """Accept the failures of a transform between two buckets; return their number.

    Raises AIStoreInputError for a URI without a bucket.
    """
    from storeside.aistore.buckets import Bucket
    from storeside.ledger.objects import Ledger

    (source, prefix), (to, prepend) = Bucket.split(given.source), Bucket.split(given.table)
    tables = Ledger(ledger() or clickhouse())
    tables.create()
    return tables.accept_failed(str(source), str(to), given.accept_failed, prefix=prefix, prepend=prepend or None)


def _accepted(count: int, who: str) -> int:
    print(f"{counted(count, 'failed object')} accepted by {who}")
    return 0


def _who(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: state who accepts the failures")
    return text


if __name__ == "__main__":
    sys.exit(main())
