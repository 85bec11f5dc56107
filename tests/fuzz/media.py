"""Fuzzing of what decodes recordings: ``make fuzz``, ``python -m tests.fuzz.media --inputs 100000``.

Inputs go through the worker processes that serve a cluster, to all four engines. Asserted are: an outcome for each
and none that is a crash; no file and no socket but the object; bounded time and memory; and the results of good
recordings that are transformed in between, which must be what they always are. Input n of a seed is always the same,
but for the canaries' names; ``--first n --inputs 1`` tries it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from storeside.transformers.audio.transcoding import probe
from storeside.transformers.contract.failures import Failure
from storeside.transformers.contract.job import Job
from storeside.transformers.settings import Settings
from storeside.transformers.workers import worker_process
from storeside.transformers.workers.pool import Content, Outcome, Pool
from tests.benchmarks.measure import bench, machine
from tests.fuzz import recordings
from tests.fuzz.canaries import Canaries
from tests.fuzz.engines import MEMORY_LIMIT

# How often each engine gets an input, and every which of them has a good recording behind it.
ENGINES = {"native": 55, "pyav": 20, "probe": 20, "ffmpeg": 5}
GOOD_EVERY = 20
BOTH_EVERY = 8  # inputs are tried both by path and by content, else in turns
SECONDS_LIMIT = 30
LARGEST_CHECKED = 1 << 20
_DIGITS = re.compile(r"\b\d+\b")
TRANSFORM = "tests.fuzz.engines:Engines"


@dataclass
class Found:
    """The results of all inputs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0
    peak: int = 0


class Fuzz:
    """A run of inputs through a pool of workers."""

    def __init__(self, folder: Path, seed: int, workers: int) -> None:
        made = recordings.seeds()
        self._corpus = list(made.values())
        self._bombs = list(recordings.bombs().items())
        self._seed, self._folder = seed, folder
        self._settings = Settings(
            workers=workers,
            object_timeout=SECONDS_LIMIT,
            memory_limit=MEMORY_LIMIT,
            file_access=True,
            roots=(str(folder),),
        )
        self._canaries = Canaries(folder / "canaries", made["wav-pcm_s16le-mono"])
        references = recordings.references(self._canaries.file, self._canaries.tcp, self._canaries.udp)
        self._references = references
        self._playlists = [text for reference in references for text in recordings.playlists(reference)]
        self._good: dict[str, list[tuple[bytes, bytes]]] = {engine: [] for engine in ENGINES}
        self.found = Found()

    def input(self, number: int) -> tuple[str, str, bytes]:
        """Return kind, engine and content of one input."""
        rng = random.Random(f"{self._seed}/{number}")  # noqa: S311
        engine = rng.choices(list(ENGINES), list(ENGINES.values()))[0]
        kind = rng.choices(("mutated", "playlist", "elsewhere", "bomb"), (85, 12, 3, 0.05))[0]
        if kind == "playlist":
            return kind, engine, recordings.disguised(rng, rng.choice(self._playlists), self._corpus)
        if kind == "elsewhere":
            return kind, engine, recordings.elsewhere(rng, self._corpus, rng.choice(self._references))
        if kind == "bomb":
            name, content = rng.choice(self._bombs)
            return f"bomb, {name}", engine, content
        return kind, engine, recordings.mutated(rng, self._corpus)

    async def run(self, first: int, inputs: int, until: float) -> int:
        """Try inputs until all are tried or time is over; returns the number of the next one."""
        pool = Pool(TRANSFORM, self._settings)
        running = asyncio.create_task(pool.run())
        await asyncio.wait({running, asyncio.create_task(pool.ready())}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        await self._learn(pool)
        numbers = iter(range(first, first + inputs))
        done = [first]

        async def work() -> None:
            for number in numbers:
                await self._try(pool, number)
                done[0] = max(done[0], number + 1)
                if time.monotonic() > until:
                    return

        await asyncio.gather(*(work() for _ in range(2 * self._settings.workers)))
        self._look(pool)
        self._canaries.close()
        running.cancel()
        return done[0]

    async def _learn(self, pool: Pool) -> None:
        """Transform all good recordings, before anything could disturb it.

        The ffmpeg command reads a pipe where it is older than 6.1, and takes fewer forms there.
        """
        for engine in ENGINES:
            for content in self._corpus:
                outcome = await (await pool.submit(Job("good", arguments=engine), content))
                if isinstance(outcome, Content):
                    self._good[engine].append((content, hashlib.sha256(outcome.data).digest()))
                elif engine != "ffmpeg":
                    raise RuntimeError(f"{engine} does not take a good recording: {outcome}")

    async def _try(self, pool: Pool, number: int) -> None:
        kind, engine, content = self.input(number)
        label = f"input {number} ({kind}, {engine}, {len(content)} bytes)"
        path = self._folder / f"input-{number % 64}"
        path.write_bytes(content)
        by_content = Job(f"take-{number}.m3u8", arguments=engine)
        by_path = replace(by_content, file=str(path))
        ways = [(by_path, b""), (by_content, content)]
        started = time.monotonic()
        # All at once, so that different recordings share a worker or follow a crash.
        neighbours = []
        if number % GOOD_EVERY == 0:
            good, digest = self._good[engine][number // GOOD_EVERY % len(self._good[engine])]
            neighbours.append((digest, await pool.submit(Job("good", arguments=engine), good)))
        both = number % BOTH_EVERY == 0
        asked = [await pool.submit(job, body) for job, body in (ways if both else ways[number % 2 :][:1])]
        outcomes = [await one for one in asked]
        self.found.slowest = max(self.found.slowest, time.monotonic() - started)
        self._judge(label, engine, outcomes[0])
        if len({_said(outcome) for outcome in outcomes}) > 1:
            self.found.wrong.append(f"{label}: by path and by content it is not the same: {outcomes}"[:500])
        for digest, neighbour in neighbours:
            made = await neighbour
            if not isinstance(made, Content) or hashlib.sha256(made.data).digest() != digest:
                self.found.wrong.append(f"{label}: its neighbour was lost or became another: {made}"[:500])
        if number % 500 == 0:
            self._look(pool)

    def _judge(self, label: str, engine: str, outcome: Outcome) -> None:
        found = self.found
        if isinstance(outcome, Failure):
            found.outcomes["refused" if outcome.final else "failed"] += 1
            found.reasons[_DIGITS.sub("0", outcome.reason.partition(":")[0])[:60]] += 1
            if not outcome.final:
                found.wrong.append(f"{label}: {outcome.reason}")
            return
        if not isinstance(outcome, Content):
            found.wrong.append(f"{label}: {outcome}")
            return
        found.outcomes["transformed"] += 1
        found.largest = max(found.largest, len(outcome.data))
        try:
            if engine == "probe":
                if json.loads(bytes(outcome.data))["samples"] < 1:
                    raise ValueError("no samples")
            elif len(outcome.data) < LARGEST_CHECKED:
                probe(bytes(outcome.data))
        except ValueError as e:
            found.wrong.append(f"{label}: the result is not audio: {e}")

    def _look(self, pool: Pool) -> None:
        """Check the canaries and the workers' memory."""
        self.found.wrong += [f"canary: {name}" for name in self._canaries.touched()]
        decoders: list[int] = []
        for worker in pool.processes:
            with contextlib.suppress(psutil.Error):
                decoders += [child.pid for child in psutil.Process(worker).children()]
        for pid in decoders:
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                status = Path(f"/proc/{pid}/status").read_text()
                self.found.peak = max(self.found.peak, int(status.partition("VmHWM:")[2].split()[0]) << 10)
                sockets = psutil.Process(pid).net_connections("inet")
                self.found.wrong += [f"decoder {pid} has a socket: {one}" for one in sockets]


def _said(outcome: Outcome) -> bytes | str:
    if isinstance(outcome, Failure):
        return outcome.reason
    return hashlib.sha256(outcome.data).digest() if isinstance(outcome, Content) else repr(outcome)


def controls(folder: Path) -> None:
    """Make sure that what is asserted would be seen. Raises RuntimeError where it would not."""
    import av

    canaries = Canaries(folder, recordings.seeds()["wav-pcm_s16le-mono"])
    playlist = folder.with_suffix(".ffconcat")
    playlist.write_text(f"ffconcat version 1.0\nfile '{canaries.file}'\n")
    with av.open(str(playlist), options={"safe": "0"}) as container:
        next(container.decode(audio=0))
    with contextlib.suppress(av.FFmpegError, OSError):
        av.open(f"http://127.0.0.1:{canaries.tcp}/x", timeout=0.2)
    seen = set(canaries.touched())
    canaries.close()
    if not {"file canary.wav", "TCP port"} <= seen:
        raise RuntimeError(f"libav read a file and a URL, and only {seen or 'nothing'} was seen of it")


def fuzz(inputs: int, seed: int = 1, first: int = 0, workers: int = 1, seconds: float = 1e9) -> tuple[Found, int]:
    """Try inputs; return the findings and the number of the next input."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        controls(Path(folder) / "control")
        worker_process.prepare(TRANSFORM)
        run = Fuzz(Path(folder) / "run", seed, workers)
        return run.found, asyncio.run(run.run(first, inputs, time.monotonic() + seconds))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try inputs and report; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="end earlier, and say where to go on")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    found, following = fuzz(given.inputs, given.seed, given.first, given.workers, given.seconds)
    print(machine())
    print(f"inputs {given.first} to {following - 1} of seed {given.seed} in {time.monotonic() - started:.0f} s")
    for reason, count in found.reasons.most_common():
        print(f"{count:8} {reason}")
    for line in found.wrong[:100]:
        print(f"WRONG {line}")
    bench("fuzz.inputs", following - given.first, "inputs")
    for outcome in ("transformed", "refused", "failed"):
        bench(f"fuzz.{outcome}", found.outcomes[outcome], "inputs")
    bench("fuzz.wrong", len(found.wrong), "findings")
    bench("fuzz.slowest", found.slowest, "s")
    bench("fuzz.largest_result", found.largest / 1e6, "MB")
    bench("fuzz.worker_peak", found.peak / 1e6, "MB")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
