"""Tries a transformer on local files, with the same processes and limits as in AIStore.

``python -m storeside.transformers.local package.module:attribute FILE...`` passes every file by its path and by its
content, because AIStore may do either, and requires the same result.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storeside.transformers.contract.failures import Failure, LeftOut
from storeside.transformers.contract.job import Job
from storeside.transformers.isolation.decoders import VARIABLES
from storeside.transformers.workers import worker_process
from storeside.transformers.workers.pool import BrokenTransformError, Content, Flow, Outcome, Pool

from .settings import BODY_LIMIT, Settings


@dataclass(frozen=True)
class Trial:
    """The outcome for one file, and the seconds and peak memory that it took."""

    outcome: Outcome
    seconds: float
    peak_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Try every file; return 1 if a file failed."""
    options = _parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as dropped:
            folder = options.output or Path(dropped)
            _require_apart(options.files, folder, options.extension)
            settings = Settings.from_environment()
            os.environ.setdefault(VARIABLES, ",".join(os.environ))  # this is the user's own code and environment
            worker_process.prepare(options.transform)
            local = dataclasses.replace(
                settings,
                workers=1,
                file_access=True,
                sidecar_url=settings.sidecar_url or folder.resolve().as_uri() + "/",
                results_url=settings.results_url or folder.resolve().as_uri() + "/",
                roots=("/",),
            )
            return asyncio.run(_try(options, local))
    except (BrokenTransformError, ValueError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


async def _try(options: argparse.Namespace, settings: Settings) -> int:
    pool = Pool(options.transform, settings)
    running = asyncio.create_task(pool.run())
    ready = asyncio.create_task(pool.ready())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    failed = 0
    for file in options.files:
        failed += not await _try_file(pool, file, options)
    running.cancel()
    return 1 if failed else 0


async def _try_file(pool: Pool, file: Path, options: argparse.Namespace) -> bool:
    """Transform one file and print the outcome; return whether it succeeded."""
    arguments = options.arguments
    try:
        content = file.read_bytes()
    except OSError as e:
        print(f"{file}: {e.strerror}")
        return False
    by_path = await _measured(pool, Job(file.name, file=str(file.resolve()), arguments=arguments), b"")
    by_content = await _measured(pool, Job(file.name, arguments=arguments), content)
    for trial in (by_path, by_content):
        if isinstance(trial.outcome, Failure):
            print(trial.outcome.line() if options.json else f"{file}: {_why(trial.outcome)}")
            return False
    results = [_told(trial.outcome) for trial in (by_path, by_content)]
    if results[0] != results[1]:
        print(f"{file}: its path yields {_counted(results[0])}, its content {_counted(results[1])}, which differ")
        return False
    if isinstance(results[0], str):
        print(f"{file}: left out: {results[0]}")
        return True
    if options.json:
        sizes = {"bytes_in": len(content), "bytes_out": len(results[0])}
        print(json.dumps({"file": str(file), **sizes, "seconds": by_path.seconds, "peak_bytes": by_path.peak_bytes}))
    else:
        print(
            f"{file}: {len(content)} bytes in, {len(results[0])} bytes out, {by_path.seconds:.3f} s,"
            f" {by_path.peak_bytes / 1e6:.1f} MB of memory at most"
        )
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / _named(file, options.extension)).write_bytes(results[0])
    return True


def _why(failure: Failure) -> str:
    """Return the reason of a failure on one line, and whether a job tries the object again."""
    return f"failed{'' if failure.final else ', and a job would try again'}: {' '.join(failure.reason.split())}"


def _told(outcome: Outcome) -> bytes | str:
    """Return a result, or the reason why the object was left out."""
    if isinstance(outcome, LeftOut):
        return outcome.reason
    assert isinstance(outcome, Content)  # noqa: S101 - a job without a pipeline
    return bytes(outcome.data)


def _counted(told: bytes | str) -> str:
    return f"nothing ({told})" if isinstance(told, str) else f"{len(told)} bytes"


def _named(file: Path, extension: str) -> str:
    return f"{file.stem}.{extension.lstrip('.')}" if extension else file.name


async def _measured(pool: Pool, job: Job, content: bytes) -> Trial:
    (process,) = pool.processes or (0,)
    with suppress(OSError):
        Path(f"/proc/{process}/clear_refs").write_text("5")  # resets the peak memory (proc(5))
    started = time.monotonic()
    outcome = await (await pool.submit(job, content))
    if isinstance(outcome, Flow):
        found = await outcome.whole(BODY_LIMIT, f"a trial keeps at most {BODY_LIMIT >> 20} MiB of a result in memory")
        outcome = found if isinstance(found, Failure) else Content(found)
    return Trial(outcome, time.monotonic() - started, _peak_bytes(process))


def _peak_bytes(process: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.removesuffix(" kB")) << 10
    return 0


def _require_apart(files: Sequence[Path], folder: Path, extension: str) -> None:
    names = [_named(file, extension) for file in files]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"results have the names of the files, which must differ: {', '.join(sorted(twice))}")
    if folder.resolve() in {file.resolve().parent for file in files}:
        raise ValueError(f"results have the names of the files: {folder} contains originals, choose another folder")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transform", help="a built-in transform, or package.module:attribute")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="folder for results and sidecars")
    parser.add_argument("--extension", default="", metavar="NAME", help="extension of results, such as jsonl")
    parser.add_argument("--json", action="store_true", help="print each success as a line of JSON")
    parser.add_argument("--arguments", default="", metavar="TEXT", help="the ETL arguments of an inline request")
    return parser


if __name__ == "__main__":
    sys.exit(main())
