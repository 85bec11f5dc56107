"""``storeside hsds-export`` and ``storeside hsds-import``: HSDS datasets to Parquet, and files to HSDS datasets.

Environment variables configure the connection to HSDS, as for h5pyd (HS_ENDPOINT, HS_USERNAME, HS_PASSWORD,
HS_BUCKET), and to S3 (boto3's variables, such as AWS_ENDPOINT_URL_S3).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from storeside.hsds.client import Client, Server
from storeside.hsds.errors import HsdsCancelled, HsdsInputError
from storeside.transfer.cli import Help, aws, ending, exit_code, run_of
from storeside.transfer.printing import report_text

if TYPE_CHECKING:
    from types import FrameType

    from storeside.hsds.export import Exporter
    from storeside.hsds.imports import Importer

_CODES = "2 if it cannot finish, 130 after Ctrl-C; with the same --run-id, the next run continues"
_EXPORT = "storeside hsds-export /home/ada/weather.h5 /2026/temperature s3://weather/temperature"
_IMPORT = "storeside hsds-import weather.h5 /home/ada/weather.h5 /2026/temperature --gzip 4"


def main(arguments: Sequence[str]) -> int:
    """Run ``export`` or ``import``, the first argument, with the others."""
    return {"export": export, "import": import_}[arguments[0]](arguments[1:])


def export(arguments: Sequence[str]) -> int:
    """Export a dataset; return 2 when it cannot finish, and 130 when the user ended it."""
    parser = _parser(
        "storeside hsds-export", "DOMAIN DATASET DESTINATION",
        "Exports an HSDS dataset to Parquet on S3, one object per slab, in bounded memory.", _EXPORT,
    )  # fmt: skip
    parser.add_argument("domain", metavar="DOMAIN", help="HSDS domain, such as /home/ada/weather.h5")
    parser.add_argument("dataset", metavar="DATASET", help="path of the dataset in the domain")
    parser.add_argument("destination", metavar="DESTINATION", help="s3://bucket/prefix, of this export alone")
    parser.add_argument("--selection", default="", help="hyperslab such as '0:1000, :'; default: everything")
    parser.add_argument(
        "--layout", default="long", metavar="LAYOUT",
        help="long: a row per element; wide: a row per first index, a column per second; array: arrays in rows;"
        " default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--compression", default="zstd", metavar="NAME", help="zstd, lz4, snappy, gzip or none; default: %(default)s"
    )
    given = _parsed(parser, arguments)

    def work(client: Client) -> Exporter:
        from storeside.hsds.export import Export, Exporter

        scheme, _, path = given.destination.partition("://")
        bucket, _, prefix = path.partition("/")
        if scheme != "s3":
            raise HsdsInputError(f"destination {given.destination!r}: write s3://bucket/prefix")
        wanted = Export(
            given.domain, given.dataset, bucket, prefix, selection=given.selection, layout=given.layout,
            compression=given.compression, workers=given.workers,
        )  # fmt: skip
        return Exporter(client, aws("s3"), wanted, run_of(given))

    return exit_code(lambda: _run(work, as_json=given.json))


def import_(arguments: Sequence[str]) -> int:
    """Import a file; return 2 when it cannot finish, and 130 when the user ended it."""
    parser = _parser(
        "storeside hsds-import", "SOURCE DOMAIN DATASET",
        "Imports an HDF5 file or Parquet into an HSDS dataset, which is created if it does not exist.", _IMPORT,
    )  # fmt: skip
    parser.add_argument(
        "source", metavar="SOURCE", help="HDF5 file, Parquet file, folder of Parquet files, or s3://bucket/prefix"
    )
    parser.add_argument("domain", metavar="DOMAIN", help="HSDS domain; created if it does not exist")
    parser.add_argument("dataset", metavar="DATASET", help="path of the dataset in the domain")
    parser.add_argument(
        "--source-dataset", default="", metavar="PATH", help="dataset in the HDF5 file; default: DATASET"
    )
    parser.add_argument(
        "--layout", default="table", metavar="LAYOUT",
        help="Parquet becomes: table: compound elements; wide: rows of columns of one type; array: a column's lists;"
        " default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--gzip", type=int, default=0, metavar="LEVEL", help="compression in HSDS; default: none")
    given = _parsed(parser, arguments)

    def work(client: Client) -> Importer:
        from storeside.hsds.imports import Import, Importer

        wanted = Import(
            given.source, given.domain, given.dataset, source_path=given.source_dataset, layout=given.layout,
            gzip=given.gzip, workers=given.workers,
        )  # fmt: skip
        return Importer(client, aws("s3") if given.source.startswith("s3://") else None, wanted, run_of(given))

    return exit_code(lambda: _run(work, as_json=given.json))


def _parser(command: str, places: str, description: str, example: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=command, usage=f"%(prog)s [OPTION ...] {places}", formatter_class=Help, description=description,
        epilog=ending(example, _CODES),
    )  # fmt: skip


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    parser.add_argument("--workers", type=int, default=2, help="slabs in flight; default: %(default)s")
    parser.add_argument(
        "--run-id", default="", metavar="ID", help="a run of the same name keeps the slabs that are done"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args(arguments)


def _run(work: Callable[[Client], Exporter | Importer], *, as_json: bool) -> int:
    """Run to the end, or until Ctrl-C after the slabs in flight; print the report."""
    if not (endpoint := os.environ.get("HS_ENDPOINT", "")):
        raise HsdsInputError("HS_ENDPOINT is not set: set it to the URL of an HSDS service node")
    user, password = os.environ.get("HS_USERNAME", ""), os.environ.get("HS_PASSWORD", "")
    running = work(Client(Server(endpoint, user, password, os.environ.get("HS_BUCKET", ""))))

    def stop(_number: int, _frame: FrameType | None) -> None:
        running.stop.set()

    before: Any = signal.signal(signal.SIGINT, stop)
    try:
        report = running.run()
    except HsdsCancelled:
        print("stopped; with the same --run-id, the command continues", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, before)
    print(report_text(report, as_json=as_json))
    return 0
