"""``python -m include.transfer s3://bucket/prefix database.table``: a transfer without Airflow.

ClickHouse and S3 are found by environment variables: CLICKHOUSE_HOST, CLICKHOUSE_PORT, CLICKHOUSE_USER,
CLICKHOUSE_PASSWORD, CLICKHOUSE_SECURE; and those of boto3, such as AWS_ENDPOINT_URL_S3.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from include.sql.answers import whole_answers
from include.transfer.engine import Transfer
from include.transfer.errors import TransferError, UsageError, plain
from include.transfer.formats import Csv
from include.transfer.request import CHOICES, Request
from include.transfer.source import Source
from include.transfer.table import SYSTEM_COLUMNS, Layout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one transfer; returns 1 when objects failed and 2 when it could not be carried out."""
    from clickhouse_connect.driver.exceptions import DatabaseError

    parser = transfer_arguments("include.transfer", __doc__ or "")
    parser.add_argument("--all-or-nothing", action="store_true", help="a reader sees all objects or none")
    parser.add_argument("--retry-failed", action="store_true", help="also objects that failed for good before")
    given = parser.parse_args(arguments)
    quiet_logging()
    try:
        wanted = replace(request(given), all_or_nothing=given.all_or_nothing, retry_failed=given.retry_failed)
        transfer = Transfer(wanted, clickhouse(), aws("s3"), given.run_id or f"cli/{uuid.uuid4().hex}")
        report = transfer.run(transfer.prepare())
    except TransferError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except DatabaseError as e:
        print(f"error: ClickHouse: {plain(e)}: start it again, what is loaded stays loaded", file=sys.stderr)
        return 2
    print(report)
    for key, reason in report.failures:
        print(f"failed: {key!r}: {reason}", file=sys.stderr)
    return 1 if report.failed else 0


def transfer_arguments(module: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of what all transfers need, whatever tells them of objects."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description.split("\n", maxsplit=1)[0])
    parser.add_argument("source", help="s3://bucket/prefix, or with a pattern: s3://bucket/2026/{01..06}/**.csv.gz")
    parser.add_argument("table", help="database.table; it is made where it is missing")
    for name, choices in CHOICES.items():
        field = next(f for f in dataclasses.fields(Request) if f.name == name)
        parser.add_argument(_option(name), choices=choices, default=field.default, help="default: %(default)s")
    parser.add_argument("--collection", default="", help="ClickHouse's named collection for the endpoint")
    parser.add_argument("--delimiter", default=",", help="of CSV; default: %(default)s")
    parser.add_argument("--names", default="", help="columns of CSV without a header, with commas between")
    parser.add_argument("--order-by", default="tuple()", help="of a new table; default: %(default)s")
    parser.add_argument("--partition-by", default="", help="of a new table")
    parser.add_argument(
        "--column", action="append", default=[], metavar="NAME=TYPE", help="a type that is not deduced"
    )
    parser.add_argument("--system-column", action="append", default=[], choices=list(SYSTEM_COLUMNS))
    for name, what in (
        ("sample_objects", "columns of a new table are deduced of so many objects"),
        ("sample_bytes", "and of so many bytes of each, where they are text"),
        ("batch_objects", "so many at most are published at once"),
    ):
        default = getattr(Request, name)
        parser.add_argument(_option(name), type=int, default=default, help=f"{what}; default: %(default)s")
    parser.add_argument(
        "--no-strict-json", dest="strict_json", action="store_false", help="leave JSON Lines to ClickHouse's parser"
    )
    parser.add_argument("--run-id", default="", help="names the run; the same name goes on where it was")
    return parser


def quiet_logging() -> None:
    """Show what the engine says, and of the client only errors."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for client in ("clickhouse_connect", "botocore", "urllib3"):
        logging.getLogger(client).setLevel(logging.ERROR)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def request(given: argparse.Namespace) -> Request:
    """Return the request of parsed arguments. Raises TransferError for arguments that make none."""
    scheme, _, path = given.source.partition("://")
    bucket, _, keys = path.partition("/")
    if scheme != "s3":
        raise TransferError(f"source {given.source!r}: write s3://bucket/prefix")
    columns = dict(column.partition("=")[::2] for column in given.column)
    if not all(columns.values()):
        raise UsageError(f"--column {next(name for name in columns if not columns[name])!r}: write NAME=TYPE")
    return Request(
        Source(bucket, keys, given.collection, aws("s3").meta.endpoint_url),
        given.table,
        csv=Csv(given.delimiter, names=tuple(filter(None, given.names.split(",")))),
        layout=Layout(order_by=given.order_by, partition_by=given.partition_by),
        columns=columns,
        system_columns=tuple(given.system_column),
        sample_objects=given.sample_objects,
        sample_bytes=given.sample_bytes,
        batch_objects=given.batch_objects,
        strict_json=given.strict_json,
        **{name: getattr(given, name) for name in CHOICES},
    )


def clickhouse() -> Any:
    """Return a client of the ClickHouse that the environment names. Raises TransferError when it does not answer."""
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import ClickHouseError

    host, port = os.environ.get("CLICKHOUSE_HOST", "localhost"), os.environ.get("CLICKHOUSE_PORT", "0")
    if not port.isdecimal():
        raise UsageError(f"CLICKHOUSE_PORT {port!r}: write a number, such as 8123, or 8443 with CLICKHOUSE_SECURE=1")
    try:
        return whole_answers(
            clickhouse_connect.get_client(
                host=host,
                port=int(port),
                username=os.environ.get("CLICKHOUSE_USER", "default"),
                password=os.environ.get("CLICKHOUSE_PASSWORD", ""),
                secure=os.environ.get("CLICKHOUSE_SECURE", "") in ("1", "true"),
                autogenerate_session_id=False,  # threads share the client
            )
        )
    except ClickHouseError as e:
        settings = "CLICKHOUSE_HOST, CLICKHOUSE_PORT, CLICKHOUSE_USER and CLICKHOUSE_PASSWORD"
        why = getattr(root_of(e), "strerror", None) or plain(e)
        raise TransferError(f"ClickHouse at {host}, port {port}: {why}: correct {settings}") from e


def root_of(error: BaseException) -> BaseException:
    """Return what an error came from in the end: below those of the clients that of the operating system."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def aws(service: Any) -> Any:
    """Return boto3's client of a service, as the environment says. Raises UsageError when that makes none."""
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.client(service)
    except (BotoCoreError, ValueError) as e:
        raise UsageError(f"{service}: {e} Correct AWS_DEFAULT_REGION, AWS_PROFILE or AWS_ENDPOINT_URL") from e


if __name__ == "__main__":
    sys.exit(main())
