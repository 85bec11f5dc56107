"""The commands of ``python -m storeside.stack``: start the embedded stack, show its state, stop it."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from storeside.stack import authn, choices, ports
from storeside.stack import tls as certificates
from storeside.stack.airflow import airflow, celery
from storeside.stack.clients import clients_environment
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.servers import clickhouse, hsds, s3
from storeside.stack.servers.clickhouse_server import NOT_CONFINED
from storeside.stack.settings import EXECUTORS, Stack, StackError, default_folder
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.processes import marked
from storeside.stack.supervision.proxies import direct
from storeside.stack.supervision.supervisor import Supervisor
from storeside.stack.tables import print_components, print_table
from storeside.transformers.isolation import landlock

STAGES = (("authn", "s3", "clickhouse", "podrunner", "celery"), ("aistore", *hsds.PARTS), ("airflow",))
# The parts that start by default.
PARTS = tuple(part for stage in STAGES for part in stage if part not in hsds.PARTS)
ALL_PARTS = (*PARTS, *hsds.PARTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    options = _parser().parse_args(arguments)
    os.environ.update(direct(os.environ))
    try:
        return int(options.run(options))
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def stages(stack: Stack, only: Collection[str] = PARTS, start: bool = True) -> list[list[Component]]:
    """Return the components of the chosen parts, grouped by stage, in start order.

    With `start`, their binaries are built and their files written. Without it, nothing changes that running
    processes use: the components have the probes of the processes only.
    """
    return [
        [component for part in stage if part in only for component in _components(stack, part, start)]
        for stage in STAGES
    ]


def up(
    folder: Path,
    targets: int | None = None,
    only: Collection[str] = PARTS,
    secure: bool | None = None,
    executor: str | None = None,
    tls: bool | None = None,
) -> Stack:
    """Start the stack below `folder`, or its missing parts, and return it.

    `targets`, `secure`, `executor` and `tls` apply to a new stack; None means 2, True, "local" and False, or the
    values of an existing stack.

    Raises:
        StackError: see `choices.settle`; or a part cannot be built or started.
    """
    stack = choices.settle(folder, targets, secure, executor, tls)
    if "aistore" in only:
        stack = choices.with_backends(stack)
    stack = ports.renew(stack, only, _tell)
    certificates.prepare(stack)
    if stack.secure and "aistore" in only:
        Supervisor(stack).start([_components(stack, "authn")], _tell)  # other components read tokens from files
        authn.prepare(stack)
    if "airflow" in only:
        if stack.executor == "celery":
            only = {*only, "celery"}
            Supervisor(stack).start([_components(stack, "celery")], _tell)  # the database is migrated before the rest
        _airflow(stack).prepare(stack, _tell)
    Supervisor(stack).start(stages(stack, only), _tell)
    if "celery" in only:
        celery.finish(stack)
    for part in hsds.PARTS:
        if part in only:
            hsds.prepare(stack, part)
    return stack


def _up(options: argparse.Namespace) -> int:
    secure, tls = (False if options.open else None), (options.tls or None)
    stack = up(options.folder, options.targets, options.only, secure, options.executor, tls)
    code = _print_status(stack)
    access = "'python -m storeside.stack env' has a token" if stack.secure else "open to every user of this machine"
    print_table(
        [
            ("Airflow", stack.url("airflow"), "user admin"),
            ("ClickHouse", stack.url("clickhouse_http"), "user storeside; SQL: make sql, or /play in a browser"),
            ("S3 and SQS", stack.url("s3"), f"bucket {s3.BUCKET}, queue {s3.QUEUE}"),
            ("AIStore", stack.url("ais_proxy"), f"{stack.targets} targets; {access}"),
            *((part.upper(), hsds.login(stack, part=part).endpoint, "user storeside") for part in _running(options)),
        ]
    )
    _tell_slow_audio()
    # Terminal output is recorded and shared: passwords stay in files.
    print(f"passwords: {airflow.passwords_file(stack)}, {stack.state / 'stack.json'}; logs: {stack.state / 'logs'}")
    return code


def _tell_slow_audio() -> None:
    from storeside.stack.building import audio

    if why := audio.slow_because():
        _tell(f"note: {why}")


def _running(options: argparse.Namespace) -> list[str]:
    return [part for part in hsds.PARTS if part in options.only]


def _build(options: argparse.Namespace) -> int:
    from storeside.stack.building import nodes

    cache = options.folder / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    nodes.build(cache, _tell)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from storeside.stack import demo, speech_corpus

    if options.input:
        speech_corpus.own_audio(options.input)  # reports a wrong folder before anything starts
    _tell_slow_audio()
    stack = Stack.load(options.folder)
    keep = bool(stack and Supervisor(stack).running())
    try:
        stack = up(options.folder)
        print_table(demo.run(stack, options.input, options.count))
    finally:
        if not keep and (stack := Stack.load(options.folder)):
            _tell("stopping the stack; 'make up' starts it and keeps it running")
            Supervisor(stack).stop()
    return 0


def _demo_hsds(options: argparse.Namespace) -> int:
    from storeside.stack import hsds_demo

    stack = Stack.load(options.folder)
    keep = bool(stack and Supervisor(stack).running())
    try:
        stack = up(options.folder, only=("s3", "clickhouse", "hsds"))
        print_table(hsds_demo.run(stack))
    finally:
        if not keep and (stack := Stack.load(options.folder)):
            Supervisor(stack).stop()
    return 0


def _down(options: argparse.Namespace) -> int:
    stack = Stack.load(options.folder)
    if stack:
        Supervisor(stack).stop()
    print("the stack is down")
    return 0


def _status(options: argparse.Namespace) -> int:
    return _print_status(_load(options.folder), as_json=options.json)


def _sql(options: argparse.Namespace) -> int:
    from storeside.stack import sql

    return sql.run(_load(options.folder), options.statement, as_json=options.json)


def _upload(options: argparse.Namespace) -> int:
    from storeside.stack.upload import upload

    print(upload(s3.of_stack("s3", _load(options.folder)), options.source.expanduser(), options.to))
    return 0


def _restart(options: argparse.Namespace) -> int:
    stack = _load(options.folder)
    supervisor = Supervisor(stack)
    name = options.component
    of_part = stages(stack, [_part(name)], start=False) if name in supervisor.names() else []
    supervisor.restart(name, (component for stage in of_part for component in stage))
    print(f"{name} was restarted and is healthy")
    return 0


def _logs(options: argparse.Namespace) -> int:
    folder = _load(options.folder).state / "logs"
    name = options.component
    paths = [folder / f"{name}.log"] if name else sorted(folder.glob("*.log"))
    if not paths or not all(path.exists() for path in paths):
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log"))) or "none yet"
        raise StackError(f"there is no log of {name or 'any component'}; existing logs: {known}")
    lines = ["-n", "100" if name else "10", *(["-F"] if options.follow else [])]
    return subprocess.run(["tail", *lines, *map(str, paths)], check=False).returncode


def _env(options: argparse.Namespace) -> int:
    stack = _load(options.folder)
    clients = clients_environment(stack, _tell)
    for name, value in {**_airflow(stack).environment(stack), **clients, **direct(os.environ)}.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def _components(stack: Stack, part: str, start: bool = True) -> list[Component]:
    if part in hsds.PARTS:
        return hsds.components(stack, part, _tell, start)
    if part == "podrunner":
        from storeside.stack.podrunner import component as podrunner

        return podrunner.components(stack, IMAGES, start)
    if part in ("authn", "aistore"):
        return _of_aistore(stack, part, start)
    if part == "clickhouse":
        return clickhouse.components(stack, start)
    simple: Mapping[str, Callable[[Stack], list[Component]]] = {
        "s3": s3.components,
        "celery": celery.servers,
        "airflow": _airflow(stack).components,
    }
    return simple[part](stack)


def _airflow(stack: Stack) -> ModuleType:
    """Return the module of Airflow's processes: `environment`, `prepare` and `components`."""
    return celery if stack.executor == "celery" else airflow


def _of_aistore(stack: Stack, part: str, start: bool) -> list[Component]:
    from storeside.stack.building import nodes
    from storeside.stack.servers import aistore

    if part == "authn" and not stack.secure:
        return []
    binary = nodes.build(stack.cache, _tell) if start else nodes.path(stack.cache)
    if part == "authn":
        return authn.components(stack, binary, write=start)
    return aistore.components(stack, binary, write=start)


def _part(name: str) -> str:
    """Return the part that a component belongs to."""
    if name in PARTS:
        return name
    if name in celery.SERVERS:
        return "celery"
    if name.startswith("clickhouse"):
        return "clickhouse"
    if name.startswith("hsds"):
        return name.rpartition("-")[0]
    return "aistore" if name.startswith("ais-") else "airflow"


def _load(folder: Path) -> Stack:
    stack = Stack.load(folder)
    if stack is None:
        raise StackError(f"there is no stack below {folder}: start one with 'python -m storeside.stack up'")
    return stack


def _print_status(stack: Stack, as_json: bool = False) -> int:
    supervisor = Supervisor(stack)
    parts = {_part(name) for name in supervisor.names()}
    found = supervisor.status(component for stage in stages(stack, parts, start=False) for component in stage)
    if not found:
        left = len(marked(stack.state))
        print(f"the supervisor died, {left} processes are left: run up or down" if left else "the stack is down")
        return 3
    print_components(found, as_json=as_json)
    if "clickhouse" in parts and not landlock.is_available():
        print(f"warning: clickhouse: {NOT_CONFINED}", file=sys.stderr)
    return 0 if all(entry.healthy for entry in found) else 1


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _folder(text: str) -> Path:
    return Path(text).resolve()  # the stack's processes have other working folders


def _selection(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(ALL_PARTS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(ALL_PARTS)}")
    return names


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 16:
        raise argparse.ArgumentTypeError("choose a number from 1 to 16")
    return int(text)


def _objects(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError("choose a number from 1 to 100000")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m storeside.stack", description="The embedded stack of Storeside.")
    parser.add_argument(
        "--folder", type=_folder, default=default_folder(), help="folder of state and cache (default: %(default)s)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("up", help="start components that are not running and wait until they are healthy")
    command.add_argument(
        "--targets", type=_count, help=f"AIStore targets of a new stack (default: {choices.TARGETS})"
    )
    command.add_argument(
        "--only", type=_selection, default=PARTS, help=f"start only some of the parts {','.join(ALL_PARTS)}"
    )
    command.add_argument("--open", action="store_true", help="new stacks only: AIStore requires no tokens")
    command.add_argument(
        "--executor", choices=list(EXECUTORS), help="new stacks only: Airflow's executor (default: local)"
    )
    command.add_argument(
        "--tls", action="store_true", help="new stacks only: AIStore, ClickHouse, S3 and SQS use HTTPS"
    )
    command.set_defaults(run=_up)
    command = commands.add_parser("build", help="build AIStore now instead of at the first start")
    command.set_defaults(run=_build)
    command = commands.add_parser("demo", help="run the speech pipeline on recordings and print the results")
    command.add_argument("--input", type=Path, help="folder of your own audio (default: recordings from LibriVox)")
    command.add_argument("--count", type=_objects, default=300, help="recordings to make (default: %(default)s)")
    command.set_defaults(run=_demo)
    command = commands.add_parser("demo-hsds", help="copy an array through HSDS and Parquet on S3 into ClickHouse")
    command.set_defaults(run=_demo_hsds)
    command = commands.add_parser("down", help="stop everything")
    command.set_defaults(run=_down)
    command = commands.add_parser("status", help="show components; exit status 0 healthy, 1 not healthy, 3 down")
    command.set_defaults(run=_status)
    command.add_argument("--json", action="store_true", help="print one JSON object per component")
    command = commands.add_parser("sql", help="run SQL in the stack's ClickHouse: one statement, or a prompt")
    command.add_argument("statement", nargs="?", default="", help="default: standard input, or a prompt")
    command.add_argument("--json", action="store_true", help="print rows as JSON")
    command.set_defaults(run=_sql)
    command = commands.add_parser("upload", help="upload a file or a folder into the stack's S3")
    command.add_argument("source", type=Path, help="file or folder")
    command.add_argument("to", help="s3://bucket/prefix; a missing bucket is created")
    command.set_defaults(run=_upload)
    command = commands.add_parser("restart", help="stop one component, start it again and wait until it is healthy")
    command.add_argument("component", help="a component that 'status' lists")
    command.set_defaults(run=_restart)
    command = commands.add_parser("logs", help="show the last lines of logs")
    command.add_argument("component", nargs="?")
    command.add_argument("-f", "--follow", action="store_true", help="follow the logs")
    command.set_defaults(run=_logs)
    command = commands.add_parser("env", help="print variables that connect 'airflow' to this stack, with passwords")
    command.set_defaults(run=_env)
    return parser
