"""``storeside COMMAND``, or ``python -m storeside COMMAND``: Storeside's work and checks without Airflow."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from storeside import __version__


@dataclass(frozen=True)
class Command:
    """A command: the module whose `main` runs it with `first` before the given arguments, and a line for the help."""

    module: str
    what: str
    first: tuple[str, ...] = ()


COMMANDS = {
    "Load tables": {
        "load": Command("transfer.__main__", "load the objects of a bucket into a table"),
        "preview": Command("transfer.__main__", "show what a load would do, and load nothing", ("--preview",)),
        "events": Command("events.__main__", "load the objects that S3 events in a queue name"),
        "setup-queue": Command("events.setup", "make the queue that receives a bucket's events"),
    },
    "Transform buckets": {
        "transform": Command("commands.transform", "transform the objects of a bucket inside AIStore"),
    },
    "Stream arrays": {
        "hsds-export": Command("commands.hsds", "export an HSDS dataset to Parquet on S3", ("export",)),
        "hsds-import": Command("commands.hsds", "import an HDF5 file or Parquet into an HSDS dataset", ("import",)),
    },
    "Check": {
        "doctor": Command("doctor.__main__", "check connections and rights, with a remedy for each fault"),
        "validations": Command("commands.quality", "show results of suites, or write Great Expectations' Data Docs"),
        "lost-codes": Command("transfer.lost_codes", "list columns of numbers that have lost zeros of their text"),
        "unproven": Command("transfer.unproven", "list results that may be of older versions of their objects"),
    },
    "Repair": {
        "rebuild": Command("transfer.rebuild", "restore a lost ledger of loads from the table and its source"),
    },
}
_ALL = {name: command for commands in COMMANDS.values() for name, command in commands.items()}


def usage() -> str:
    """Return the help: all commands in groups."""
    width = max(map(len, _ALL)) + 2
    groups = (
        "\n".join([f"{group}:", *(f"  {name:<{width}}{command.what}" for name, command in commands.items())])
        for group, commands in COMMANDS.items()
    )
    return "\n\n".join([
        "usage: storeside COMMAND [OPTION ...]",
        *groups,
        "storeside COMMAND --help shows the options, an example and the exit codes of a command;"
        " storeside --version shows the version.",
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; 2 for a command that does not exist."""
    name, *given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"storeside {__version__}")
        return 0
    if name not in _ALL:
        close = difflib.get_close_matches(name, _ALL, 1)
        print(f"error: {name!r} is no command: {f'did you mean {close[0]}? ' if close else ''}storeside --help lists"
              " them", file=sys.stderr)  # fmt: skip
        return 2
    command = _ALL[name]
    run = importlib.import_module(f"storeside.{command.module}")
    return int(run.main([*command.first, *given]))


if __name__ == "__main__":
    sys.exit(main())
