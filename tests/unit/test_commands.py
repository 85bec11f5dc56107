"""Commands with typing errors print one line with the error and the remedy, and never a traceback."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex

import pytest

from storeside import __main__ as storeside
from storeside.stack.settings import CHECKOUT, default_folder
from storeside.transfer.printing import Lines, log_format

PLACES = ["s3://bucket/prefix", "db.table"]
BUCKETS = ["ais://a", "ais://b"]
AWS = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}


@pytest.mark.parametrize(
    ("module", "arguments", "environment", "said"),
    [
        ("transfer.__main__", ["file", "db.table"], {}, "source 'file': write s3://bucket/prefix"),
        ("transfer.__main__", PLACES, {"CLICKHOUSE_PORT": "http"}, "CLICKHOUSE_PORT 'http': write a number"),
        ("transfer.__main__", PLACES, {"CLICKHOUSE_PORT": "1"}, "localhost, port 1: Connection refused: correct CL"),
        ("transfer.__main__", PLACES, {"AWS_ENDPOINT_URL": "s3"}, "s3: Invalid endpoint: s3 .*AWS_ENDPOINT_URL"),
        ("transfer.__main__", [*PLACES, "--delimiter", ""], {}, "csv delimiter '': needs one character"),
        ("transfer.__main__", [*PLACES, "--column", "n"], {}, "--column 'n': write NAME=TYPE"),
        ("commands.transform", ["ais://a", "b"], {}, "bucket 'b': write it as one of ais://name"),
        ("commands.transform", [*BUCKETS], {}, "AIS_ENDPOINT is not set: set it to the URL of an AIStore proxy"),
        ("commands.transform", [*BUCKETS, "--param", "rate=1"], {}, "has no such option: use one of con"),
        ("commands.transform", [*BUCKETS, "--param", "codec=flax"], {}, "container wav cannot contain codec"),
        ("commands.transform", [*BUCKETS, "--etl", "a-running-etl", "--param", "a=b"], {}, "own parameters; leave"),
        ("commands.transform", [*BUCKETS, "--spec", "/none"], {}, "/none"),
        ("commands.hsds", ["export", "/a.h5", "/t", "s3://b/p"], {}, "HS_ENDPOINT is not set: set it to the URL"),
        ("commands.hsds", ["export", "/a.h5", "/t", "b/p"], {"HS_ENDPOINT": "http://h"}, "'b/p': write s3://bucket/p"),
        ("commands.hsds", ["import", "a.h5", "/a.h5", "/t"], {"HS_ENDPOINT": "h"}, "HSDS endpoint 'h': use http://"),
        ("transfer.unproven", ["s3://a", "--again"], {}, "--again: state the source and the destination, such as"),
        ("transfer.lost_codes", ["file", "db.table"], {}, "source 'file': write s3://bucket/prefix"),
        ("events.__main__", [*PLACES, "--queue", "q"], {"AWS_DEFAULT_REGION": ""}, "sqs: .* AWS_DEFAULT_REGION"),
        ("stack.cli", ["--folder", "/proc/none", "up", "--only", "s3"], {}, "/proc/none: .* set STORESIDE_HOME"),
        ("stack.cli", ["demo", "--input", "/none"], {}, "/none is not a folder: choose a folder with audio files"),
        ("doctor.__main__", [], {"AIRFLOW_CONN_AWS_DEFAULT": "{"}, "AIRFLOW_CONN_AWS_DEFAULT: write it as Airflow's"),
    ],
)  # fmt: skip
def test_one_line_says_what_is_wrong(
    module: str, arguments: list[str], environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in {**AWS, **environment}.items():
        monkeypatch.setenv(name, value)
    assert importlib.import_module(f"storeside.{module}").main(arguments) in (1, 2)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert re.search(said, lines[0]), lines[0]


COMMANDS = {name: command for group in storeside.COMMANDS.values() for name, command in group.items()}


def test_the_help_lists_all_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert storeside.main([]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert listed == [*COMMANDS]


def test_a_command_that_does_not_exist_is_refused_with_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert storeside.main(["loads", *PLACES]) == 2
    assert capsys.readouterr().err == "error: 'loads' is no command: did you mean load? storeside --help lists them\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_that_it_accepts_and_its_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="0"):
        storeside.main([name, "--help"])
    text = capsys.readouterr().out
    ((used, example),) = re.findall(r"example:\n  storeside (\S+) ?(.*)", text)
    assert f"usage: storeside {used}" in text
    assert re.search(r"exit codes: \d", text)
    assert {used, name} <= {"load", "preview"} or used == name
    command = COMMANDS[name]
    module = importlib.import_module(f"storeside.{command.module}")
    parsed: list[object] = []
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *given: object) -> None:
        parsed.append(parse(parser, *given))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(KeyboardInterrupt):
        module.main([*command.first, *shlex.split(example)])
    assert parsed


def test_an_empty_home_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORESIDE_HOME", "")
    assert default_folder() == CHECKOUT / ".storeside"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_changes_one_line_of_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    monkeypatch.setattr("storeside.transfer.printing._LINE_SECONDS", 3600)
    monkeypatch.setenv("COLUMNS", "15")
    with Lines() as lines:
        lines("1 of 9 objects and more")
        monkeypatch.setattr("storeside.transfer.printing._LINE_SECONDS", 0)
        lines("2 of 9 objects")
        assert log_format() == ("\r\x1b[K%(message)s" if is_terminal else "%(message)s")
    shown = "\r\x1b[K1 of 9 objects\r\r\x1b[K2 of 9 objects\r\r\x1b[K" if is_terminal else "2 of 9 objects\n"
    assert capsys.readouterr().err == shown
