"""``storeside transform ais://calls ais://calls-16k``: a transform of a bucket without Airflow.

Environment variables configure the connection to AIStore (AIS_ENDPOINT, AIS_AUTHN_TOKEN) and to ClickHouse, which has
the ledger (CLICKHOUSE_HOST and the others of ``storeside load``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.following import cancel, describe
from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.amounts import counted
from storeside.ledger.objects import Ledger
from storeside.transfer.cli import (
    Help,
    add_on_nothing,
    aistore,
    clickhouse,
    end_without,
    ending,
    exit_code,
    ledger,
    run_of,
)
from storeside.transfer.printing import Lines, report_text, say_objects
from storeside.transform.bucket_job import BucketJob
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Phase
from storeside.transformers.audio.formats import AudioFormat

if TYPE_CHECKING:
    from storeside.transform.state import State, Summary

_EXAMPLE = "storeside transform s3://calls/2026/ ais://calls-16k --param sample_rate=16000 --param channel=left"
_CODES = """1 if objects failed, now or before; 2 if the transform cannot finish; 130 after Ctrl-C;
99 with --on-nothing skip and no object"""
_AUDIO = "audio_transcode"
# Seconds between two requests for the state of AIStore's job.
_POLL_SECONDS = 1.0
_STALL_SECONDS = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Transform a bucket; return 1 when objects failed, 2 when it cannot finish, and 130 when the user ended it.

    Objects that an earlier run could not transform count as failed, unless their failure was accepted.
    """
    parser = argparse.ArgumentParser(
        prog="storeside transform", usage="%(prog)s [OPTION ...] SOURCE DESTINATION", formatter_class=Help,
        description="Transforms the objects of a bucket inside AIStore, each new or changed one once.",
        epilog=ending(_EXAMPLE, _CODES),
    )  # fmt: skip
    parser.add_argument("source", metavar="SOURCE", help="ais://bucket/prefix, or another bucket that AIStore knows")
    parser.add_argument("destination", metavar="DESTINATION", help="bucket URI; a missing ais:// bucket is created")
    _add_etl(parser.add_argument_group("the transform"))
    group = parser.add_argument_group("objects and results")
    group.add_argument(
        "--rename", metavar="FROM=TO", type=_pair, action="append", default=[],
        help="extensions of objects and of their results, such as txt=json; repeatable. Audio needs none",
    )  # fmt: skip
    group.add_argument("--prepend", default="", metavar="PREFIX", help="prefix of the results' names")
    group.add_argument(
        "--members", default="", metavar="PATTERNS", help="transform the members of tar shards, such as *.flac"
    )
    group.add_argument("--quarantine", metavar="BUCKET", type=_bucket, help="gets copies of objects that failed")
    group.add_argument("--retry-failed", action="store_true", help="retry objects that failed for good before")
    group = parser.add_argument_group("the run")
    group.add_argument(
        "--plan-only", action="store_true", help="change nothing: print how many objects would be transformed"
    )
    group.add_argument("--run-id", default="", metavar="ID", help="the run's name in the ledger; default: a new one")
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    add_on_nothing(parser)
    given = parser.parse_args(arguments)
    return exit_code(lambda: _transform(given))


def _add_etl(group: argparse._ArgumentGroup) -> None:
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--transformer", default=_AUDIO, metavar="NAME",
        help="of Storeside's image, or package.module:function of --image; default: %(default)s",
    )  # fmt: skip
    which.add_argument(
        "--spec", default="", metavar="FILE", help="AIStore's own file of an ETL, as ais etl init has it"
    )
    which.add_argument("--etl", default="", metavar="NAME", help="an ETL that runs already")
    group.add_argument("--image", default=TRANSFORMER_IMAGE, help="default: %(default)s")
    group.add_argument(
        "--param", metavar="NAME=VALUE", type=_pair, action="append", default=[],
        help=f"an option of {_AUDIO}, such as sample_rate=8000, or a variable of another transformer; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--communication", choices=("ws", "hpush", "hpull"), default="ws",
        help="how AIStore sends objects to the transformer; default: %(default)s",
    )  # fmt: skip


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    return name, value


def _bucket(text: str) -> Bucket:
    try:
        return Bucket.parse(text)
    except AIStoreInputError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _transform(given: argparse.Namespace) -> int:
    source, prefix = Bucket.split(given.source)
    destination = Bucket.parse(given.destination.rstrip("/"))
    spec, extensions = _etl(given)
    if given.members:
        spec = spec.of_members(given.members, extensions)
        extensions = {name: to for name, to in extensions.items() if name == "tar"}
    naming = Naming(extensions, given.prepend)
    options = Options(prefix=prefix, retry_failed=given.retry_failed, quarantine=given.quarantine)
    job = BucketJob(
        aistore(), Ledger(ledger() or clickhouse()), source, destination,
        run_id=run_of(given), spec=spec, naming=naming, options=options,
    )  # fmt: skip
    if given.plan_only:
        for name, count in job.preview().items():
            print(f"{name.replace('_', ' ')}  {count:,}")
        return 0
    try:
        with Lines() as show:
            state = follow(job, show)
    except KeyboardInterrupt:
        print("stopped; results that exist stay: run the command again to continue", file=sys.stderr)
        return 130
    summary = job.finish(state)
    if given.json:
        print(report_text(summary, as_json=True))
    else:
        _say(summary)
    if not summary.listed:
        return end_without(f"no object of {given.source} matches", given.on_nothing)
    return 1 if summary.failed or summary.known_bad else 0


def _etl(given: argparse.Namespace) -> tuple[EtlSpec, dict[str, str]]:
    """Return the ETL, and the extensions of results by those of objects. Raises AIStoreInputError."""
    extensions, parameters = dict(given.rename), dict(given.param)
    if given.etl or given.spec:
        if parameters:
            what = f"the running ETL {given.etl}" if given.etl else given.spec
            raise AIStoreInputError(f"--param has no effect: {what} states its own parameters; leave --param out")
        spec = EtlSpec.existing(given.etl) if given.etl else EtlSpec.from_yaml(given.spec)
        return spec, extensions
    if given.transformer == _AUDIO:
        known = AudioFormat.__dataclass_fields__
        if unknown := next((name for name in parameters if name not in known), None):
            raise AIStoreInputError(f"--param {unknown}: {_AUDIO} has no such option: use one of {', '.join(known)}")
        try:
            audio = AudioFormat.from_values(parameters)
        except ValueError as e:  # transformers import no other package: their errors have no kind
            raise AIStoreInputError(f"--param: {e}") from e
        extensions, parameters = {**audio.extensions, **extensions}, audio.environment()
    label = given.transformer.rpartition(":")[2]
    return EtlSpec(
        label, given.image, transformer_command(given.transformer), environment=parameters,
        communication=given.communication,
    ), extensions  # fmt: skip


def follow(job: BucketJob, show: Callable[[str], None]) -> State:
    """Run a job to its end, and return its last state. An interruption aborts AIStore's job, and stops its ETLs.

    `show` gets lines of progress.
    """
    state = job.begin()
    while state.phase != Phase.DONE:
        time.sleep(max(state.not_before - time.time(), 0))
        state = job.submit(state)
        if not state.job_id:
            state = job.advance(state)
            continue
        began = time.time()
        total = state.pending if state.phase in (Phase.BUCKET, Phase.OBJECTS) else 0
        follower = job.follower(state, _STALL_SECONDS)
        try:
            while not (progress := follower.poll()).finished:
                show(describe(progress, total, time.time() - began))
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            if not state.waits:
                cancel(job.client, state.job_id, state.etl_names)
            raise
        if progress.error:
            print(f"job {state.job_id}: {progress.error}; missing objects are tried again", file=sys.stderr)
        state = job.advance(state, progress.seconds)
    return state


def _say(summary: Summary) -> None:
    """Print a summary, and the first objects that are missing, with reasons."""
    print(summary.line())
    for reason, count in summary.left_out_reasons.items():
        print(f"left out: {counted(count, 'object')}: {reason}", file=sys.stderr)
    say_objects("failed", summary.failed, summary.examples)
    say_objects("failed before", summary.known_bad, summary.known_failures)
    if summary.known_bad:
        print(
            "objects that failed before are not tried again: correct the cause and use --retry-failed, or accept them"
            " with storeside load SOURCE DESTINATION --accept-failed WHO",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
