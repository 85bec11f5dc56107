"""Arguments, clients of the environment and exit codes that commands for loads, events and rebuilds share."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from storeside.aistore.cluster import Cluster
from storeside.copying.s3_access import Access
from storeside.errors import StoresideError
from storeside.sql.answers import whole_answers
from storeside.sql.inserts import lean_inserts
from storeside.transfer.base.errors import TransferInputError, plain
from storeside.transfer.printing import log_format
from storeside.transfer.request.after_load import ACTIONS, AfterLoad
from storeside.transfer.request.named_options import named_options, parsed, with_options
from storeside.transfer.request.object_format import Csv, MessageSchema
from storeside.transfer.request.options import Expectations, ReadOptions, TableOptions
from storeside.transfer.request.request import CHOICES, Request
from storeside.transfer.request.source import Source, in_aistore, in_catalogue, place_of
from storeside.transfer.tables.servers import Servers, address

# A group of arguments in the help.
Group: TypeAlias = argparse._ArgumentGroup  # argparse has no public name for it

S3_SOURCE = "s3://bucket/prefix, or with a pattern: s3://bucket/2026/{01..06}/**.csv.gz"


def exit_code(work: Callable[[], int]) -> int:
    """Run a command and return its exit code: 2, with the reason on stderr, if it cannot finish."""
    from clickhouse_connect.driver.exceptions import DatabaseError

    quiet_logging()
    try:
        return work()
    except StoresideError as e:
        print(f"error: {e}", file=sys.stderr)
    except DatabaseError as e:
        print(f"error: ClickHouse: {plain(e)}: run the command again, loaded objects stay loaded", file=sys.stderr)
    return 2


def run_of(given: argparse.Namespace) -> str:
    """Return the value of --run-id, or a new unique name."""
    return given.run_id or f"cli/{uuid.uuid4().hex}"


def add_on_nothing(parser: argparse.ArgumentParser) -> None:
    """Add the argument whose value `end_without` gets."""
    parser.add_argument(
        "--on-nothing", choices=("succeed", "skip", "fail"), default="succeed",
        help="if there is no object, or no message: exit with 0, with 99, which lets Airflow's BashOperator skip its"
        " task, or with 1; default: %(default)s",
    )  # fmt: skip


def end_without(what: str, on_nothing: str) -> int:
    """Say that a command found nothing, for the reason `what`, and return its exit code."""
    print(f"{'error: ' if on_nothing == 'fail' else ''}{what}", file=sys.stderr)
    return {"succeed": 0, "skip": 99, "fail": 1}[on_nothing]


# Choices with an argument. All other options are set by name, with --set.
_WHAT = {
    "format": "format of the objects, found out from them by auto",
    "on_drift": "columns that the table lacks: fail the object; add them; widen also widens types; rest keeps their"
    " values in the column _rest",
    "on_bad_rows": "a row that cannot be read: fail its object; skip and count the row; keep also stores it in"
    " <table>_rejected",
    "on_overwrite": "rows of an object's earlier versions: append keeps them, replace replaces them",
}


class Help(argparse.RawDescriptionHelpFormatter):
    """Shows options with a column of one width, which fits the longest names, and keeps lines of the epilog."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


class Parser(argparse.ArgumentParser):
    """Says of an unknown argument such as ``--skip-rows`` that the option is ``csv.skip_rows``, set by --set."""

    def error(self, message: str) -> NoReturn:
        """Print the message with the options that unknown arguments probably mean, and exit with 2."""
        known = {name.rpartition(".")[2]: name for name in named_options()}
        unknown = re.findall(r" --([a-z-]+)", message) if message.startswith("unrecognized arguments:") else ()
        meant = [f"--set {known[name]}=VALUE" for one in unknown if (name := one.replace("-", "_")) in known]
        super().error(f"{message}: write {' '.join(meant)}" if meant else message)


def ending(example: str, codes: str) -> str:
    """Return the end of a command's help: a complete command, and the meaning of the exit codes beside 0."""
    return f"example:\n  {example}\n\nexit codes: {codes}"


def transfer_arguments(
    command: str, description: str, source: str = S3_SOURCE, *, example: str = "", codes: str = ""
) -> argparse.ArgumentParser:
    """Return a parser with the arguments that loads from listings and from events share.

    :param command: the command as one types it, such as ``storeside load``
    :param description: a text whose first line describes the command
    :param source: what the source may be
    :param example: see `ending`
    :param codes: see `ending`
    """
    parser = Parser(
        prog=command, usage="%(prog)s [OPTION ...] SOURCE TABLE", formatter_class=Help, allow_abbrev=False,
        description=description.partition("\n")[0],
        epilog=ending(example, codes),
    )  # fmt: skip
    parser.add_argument("source", metavar="SOURCE", help=source)
    parser.add_argument("table", metavar="TABLE", help="database.table; created if it does not exist")
    _add_reading(parser.add_argument_group("how objects are read"))
    _add_table(parser.add_argument_group("the table"))
    _add_access(parser.add_argument_group("access to the objects"))
    _add_checks(parser.add_argument_group("checks, and what happens afterwards"))
    run = parser.add_argument_group("the run")
    run.add_argument(
        "--modified-after", default="", metavar="INSTANT",
        help="load only objects that were last modified then or later: 2026-01-01T00:00:00Z",
    )  # fmt: skip
    run.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="any other option by its name, such as columns.drop=email or limits.rows=1000; may be repeated."
        " docs/transfer/arguments.md lists them",
    )  # fmt: skip
    run.add_argument("--json", action="store_true", help="print the report as JSON")
    run.add_argument("--run-id", default="", metavar="ID", help="name of the run; a run of the same name continues")
    return parser


def _add_reading(group: Group) -> None:
    for name, what in _WHAT.items():
        choices = CHOICES[name]
        group.add_argument(
            _option(name), choices=choices, default=getattr(Request, name), metavar=name.rpartition("_")[2].upper(),
            help=f"{what} ({', '.join(choices)}); default: %(default)s",
        )  # fmt: skip
    group.add_argument("--delimiter", default=",", metavar="TEXT", help="delimiter of CSV; default: %(default)s")
    group.add_argument("--schema", default="", metavar="FILE", help="file with the .proto schema of Protobuf objects")
    group.add_argument(
        "--message", default="", metavar="NAME", help="name of the message in the schema that is a row"
    )


def _add_table(group: Group) -> None:
    group.add_argument(
        "--order-by", default="tuple()", metavar="EXPR", help="ORDER BY of a new table; default: %(default)s"
    )
    group.add_argument(
        "--column", action="append", default=[], metavar="NAME=TYPE",
        help="type to use instead of the inferred one; may be repeated",
    )  # fmt: skip


def _add_access(group: Group) -> None:
    group.add_argument(
        "--collection", default="", metavar="NAME", help="ClickHouse's named collection for the endpoint"
    )
    group.add_argument(
        "--role-arn", default="", metavar="ARN", help="role that ClickHouse assumes to read the bucket"
    )
    group.add_argument("--public", action="store_true", help="read without credentials")
    group.add_argument("--requester-pays", action="store_true", help="pay for requests to another account's bucket")
    group.add_argument("--sse-kms-key-id", default="", metavar="ID", help="KMS key that encrypts moved objects")


def _add_checks(group: Group) -> None:
    group.add_argument(
        "--suite", default="", metavar="SUITE",
        help="Great Expectations suite: package.module:function, or a YAML or JSON file",
    )  # fmt: skip
    group.add_argument(
        "--on-failed-expectations", choices=Expectations.CHOICES["on_failed"], default=Expectations.on_failed,
        metavar="WHAT", help="fail: publish nothing (by events: fail the objects); quarantine: put the rows into"
        " <table>_quarantine; default: %(default)s",
    )  # fmt: skip
    group.add_argument(
        "--after-load", choices=ACTIONS, default="none", metavar="ACTION",
        help=f"what happens to objects when their rows are on disk: {', '.join(ACTIONS)}; default: %(default)s",
    )  # fmt: skip
    group.add_argument(
        "--move-to", default="", metavar="URI", help="bucket and prefix of moved objects: s3://archive/trips/"
    )
    group.add_argument("--tag", action="append", default=[], metavar="NAME=VALUE", help="tag; may be repeated")
    group.add_argument(
        "--after-load-rejected", action="store_true", help="also delete, move or tag objects with rejected rows"
    )


def quiet_logging() -> None:
    """Show the engine's log, and only errors of client libraries."""
    logging.basicConfig(level=logging.INFO, format=log_format())
    for client in ("clickhouse_connect", "botocore", "urllib3"):
        logging.getLogger(client).setLevel(logging.ERROR)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def request(given: argparse.Namespace) -> Request:
    """Return the request of parsed arguments. Raises TransferInputError for invalid arguments."""
    stated = Request(
        replace(
            given_source(given.source, given.collection),
            modified_after=given.modified_after,
            role_arn=given.role_arn,
            public=given.public,
            requester_pays=given.requester_pays,
        ),
        given.table,
        **{name: getattr(given, name) for name in _WHAT},
        read=ReadOptions(csv=Csv(given.delimiter), schema=MessageSchema(_text_of(given.schema), given.message)),
        table_options=TableOptions(_named("column", given.column), order_by=given.order_by),
        expectations=Expectations(given.suite, given.on_failed_expectations),
        after_load=AfterLoad(given.after_load, given.move_to, _named("tag", given.tag), given.after_load_rejected),
    )
    return with_options(stated, parsed(given.set))


def _text_of(file: str) -> str:
    """Return the text of a schema's file; empty without one. Raises TransferInputError."""
    try:
        return Path(file).read_text() if file else ""
    except (OSError, ValueError) as e:
        raise TransferInputError(f"--schema {file!r} cannot be read: {e}") from e


def _named(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the values of an option by column. Raises TransferInputError."""
    pairs = dict(text.partition("=")[::2] for text in texts)
    if wrong := [name for name in pairs if not (name and pairs[name])]:
        value = {"column": "TYPE", "tag": "VALUE"}[option]
        raise TransferInputError(f"--{option} {wrong[0]!r}: write NAME={value}")
    return pairs


def given_source(uri: str, collection: str = "") -> Source:
    """Return the source with this URI; `collection` is ClickHouse's named collection. Raises TransferError."""
    if in_catalogue(uri):
        from storeside.transfer.lakes.snapshots import catalog_of, folder_of

        client = aws("s3")
        bucket, keys = folder_of(client, catalog_of(uri), uri)
        return Source(bucket, keys, collection, client.meta.endpoint_url, catalogued=uri)
    bucket, keys = place_of(uri)
    endpoint = os.environ.get("AIS_ENDPOINT", "") if in_aistore(bucket) else aws("s3").meta.endpoint_url
    return Source(bucket, keys, collection, endpoint)


def reader_of(source: Source, kms_key: str = "") -> Any:
    """Return the client of the environment's AIStore or S3 for this source; `kms_key` encrypts its writes to S3."""
    if source.in_aistore:
        return aistore()
    return Access(source.public, source.requester_pays, kms_key).given_to(aws("s3"))


def catalog_for(source: Source) -> Any:
    """Return the catalogue of a source, as pyiceberg's configuration describes it; None for other sources."""
    if not source.catalogued:
        return None
    from storeside.transfer.lakes.snapshots import catalog_of

    return catalog_of(source.catalogued)


def ledger() -> Any:
    """Return a client for Storeside's own tables; None if CLICKHOUSE_LEDGER_USER is not set."""
    if not os.environ.get("CLICKHOUSE_LEDGER_USER"):
        return None
    return clickhouse("CLICKHOUSE_LEDGER_USER", "CLICKHOUSE_LEDGER_PASSWORD")


def servers() -> Servers:
    """Return the other servers of the environment's cluster. Raises TransferInputError for an invalid address."""
    names = _server_names()[1:]
    return Servers(names, lambda name: _client(*address(name), "CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"))


def _server_names() -> list[str]:
    return [name.strip() for name in os.environ.get("CLICKHOUSE_SERVERS", "").split(",") if name.strip()]


def clickhouse(user: str = "CLICKHOUSE_USER", password: str = "CLICKHOUSE_PASSWORD") -> Any:  # noqa: S107 - names of variables
    """Return a client of the environment's ClickHouse server; `user` and `password` are names of variables.

    Raises TransferInputError when the port is not a number or ClickHouse does not answer.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    host, port = os.environ.get("CLICKHOUSE_HOST", "localhost"), os.environ.get("CLICKHOUSE_PORT", "0")
    if not port.isdecimal():
        raise TransferInputError(
            f"CLICKHOUSE_PORT {port!r}: write a number, such as 8123, or 8443 with CLICKHOUSE_SECURE=1"
        )
    place = address(names[0]) if (names := _server_names()) else (host, int(port))
    try:
        return _client(*place, user, password)
    except ClickHouseError as e:
        settings = f"CLICKHOUSE_HOST, CLICKHOUSE_PORT, {user} and {password}"
        why = getattr(root_of(e), "strerror", None) or plain(e)
        raise TransferInputError(f"ClickHouse at {place[0]}, port {place[1]}: {why}: correct {settings}") from e


def _client(host: str, port: int, user: str, password: str) -> Any:
    import clickhouse_connect

    client = clickhouse_connect.get_client(
        host=host,
        port=port,
        username=os.environ.get(user, "default"),
        password=os.environ.get(password, ""),
        secure=os.environ.get("CLICKHOUSE_SECURE", "") in ("1", "true"),
        ca_cert=os.environ.get("CLICKHOUSE_CA") or None,
        autogenerate_session_id=False,  # threads share the client
    )
    return lean_inserts(whole_answers(client))


def root_of(error: BaseException) -> BaseException:
    """Return the root cause of an error, such as the operating system's error behind a client library's."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def aistore() -> Any:
    """Return a client of AIStore that the environment configures. Raises TransferInputError without AIS_ENDPOINT."""
    if not (endpoint := os.environ.get("AIS_ENDPOINT", "")):
        raise TransferInputError("AIS_ENDPOINT is not set: set it to the URL of an AIStore proxy")
    return Cluster(endpoint, os.environ.get("AIS_AUTHN_TOKEN", "")).client()


def aws(service: Any) -> Any:
    """Return a boto3 client that the environment configures. Raises TransferInputError for invalid settings."""
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.client(service)
    except (BotoCoreError, ValueError) as e:
        raise TransferInputError(f"{service}: {e} Correct AWS_DEFAULT_REGION, AWS_PROFILE or AWS_ENDPOINT_URL") from e
