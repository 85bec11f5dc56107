"""``storeside unproven``: lists results of cloud buckets that may be of older versions.

With ``--again``, the next tasks make them again. The environment variables that configure ClickHouse are those of
``storeside load``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.ledger.unproven import make_again, unproven
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.cli import Help, clickhouse, ending, exit_code, ledger


def main(arguments: Sequence[str] | None = None) -> int:
    """List unproven results, or mark them; return 1 if there are some that are not marked, and 2 for an error."""
    parser = argparse.ArgumentParser(
        prog="storeside unproven",
        formatter_class=Help,
        description="Lists results of transforms and copies of cloud buckets that were recorded before Storeside"
        " compared the versions of the objects that AIStore read, so they may be of older versions.",
        epilog=ending(
            "storeside unproven s3://recordings ais://speech --again",
            "1 if there are some that are not marked, 2 for an error",
        ),
    )
    parser.add_argument("source", nargs="?", default="", help="bucket of the objects, or bucket/prefix; default: all")
    parser.add_argument("destination", nargs="?", default="", help="bucket of the results; default: all")
    parser.add_argument(
        "--again", action="store_true",
        help="let the next task of these two buckets make the results again; needs source and destination",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    return exit_code(lambda: _unproven(given))


def _unproven(given: argparse.Namespace) -> int:
    if given.again and not given.destination:
        raise TransferInputError(
            "--again: state the source and the destination, such as s3://recordings ais://speech"
        )
    source, prefix = Bucket.split(given.source) if given.source else ("", "")
    destination = Bucket.parse(given.destination) if given.destination else ""
    tables = Ledger(ledger() or clickhouse())
    tables.create()
    if given.again:
        count = make_again(tables.client, str(source), str(destination), prefix)
        print(f"{count} results are made again by the next task from {source}/{prefix} to {destination}")
        return 0
    found = unproven(tables.client, str(source), str(destination), prefix)
    for pair in found:
        print(
            f"{pair.source} -> {pair.destination}: {pair.objects} results, recorded {pair.first} to {pair.last} UTC"
        )
    if found:
        print("they may be of older versions of their objects: use --again for each pair whose results you need")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
