"""Copies of objects in parts compared with one piece, over links with a cloud's latency: ``make bench-storage``.

versitygw is the S3 server, and a test double implements OCI's native API. Each is behind a link with a round trip
time and a maximum rate for each connection. The tuner chooses the settings; then copies in one piece and in parts
take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from storeside.copying.mover import Mover
from storeside.copying.multipart import Profile, Settings
from storeside.copying.oci import OCIStore, oci_client
from storeside.copying.s3 import S3Store, client_config
from storeside.copying.samples import Samples
from storeside.copying.store import Head, Store
from storeside.ledger.scope import Pending
from storeside.measure.backends import Benchmark, draw, table
from storeside.measure.tuner import Tuner, recommend, scratch
from storeside.stack.settings import CHECKOUT, HOST, default_folder, free_ports
from tests import oci_double
from tests.benchmarks import measure, storage_aistore, versitygw

LARGE = 64_000_000
SMALL = 100_000
WHOLE = Profile.of(Settings(threshold=1 << 62, concurrency=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt", type=float, default=50, help="round trip time in ms (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=20, help="MB/s of a connection (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--small", type=int, default=20, help="small objects each way (default: %(default)s)")
    parser.add_argument("--chart", default="", help="write the chart of the article's table to this PNG file")
    options = parser.parse_args()
    binary = versitygw.build(default_folder() / "cache" / "bench")
    with tempfile.TemporaryDirectory() as folder, both(binary, Path(folder), options.rtt, options.rate) as stores:
        print(f"{measure.machine()}; link of {options.rtt:g} ms and {options.rate:g} MB/s for each connection\n")
        figures = [compare(store, options.rounds, options.small) for store in stores]
        results = Benchmark(stores, rounds=options.rounds).run()
        print(f"\nThe article's table here, medians of {options.rounds} rounds:\n\n{table(results)}\n")
        if options.chart:
            draw(options.chart, results)
    with tempfile.TemporaryDirectory() as folder:
        cache = default_folder() / "cache"
        through = storage_aistore.compare(binary, Path(folder), cache, options.rtt, options.rate, options.rounds)
        print(f"\nThe same through AIStore's own backends:\n\n{table(through)}\n")
        for name, gain in storage_aistore.gains(through).items():
            measure.bench(name, gain, "x")
    put, get, small = figures[0]
    measure.bench("storage.multipart_put_gain", put, "x")
    measure.bench("storage.multipart_get_gain", get, "x")
    measure.bench("storage.small_object_cost", small, "x")


def compare(store: Store, rounds: int, small: int) -> tuple[float, float, float]:
    """Tune, then measure whole and in parts in turns; returns the gains of PUT and GET and the cost of small ones."""
    print(f"{store.endpoint.split()[0]}, tuned:")
    profiles = {}
    for direction in ("put", "get"):
        found = Tuner(store, seconds=40).sweep(direction)
        profiles[direction] = recommend(found)
        print("".join(f"  {one}\n" for one in found), end="")
    samples = Samples(store.limits)
    with scratch(store) as key:

        def put(profile: Profile) -> float:
            return timed(lambda: Mover(samples, store, profile).copy_one(Pending(str(LARGE), key, LARGE, "")))

        def get(profile: Profile) -> float:
            return timed(lambda: Mover(store, samples, profile).copy_one(Pending(key, key, LARGE, "")))

        seconds: dict[str, list[float]] = {"put whole": [], "put parts": [], "get whole": [], "get parts": []}
        for _ in range(rounds):
            seconds["put whole"].append(put(WHOLE))
            seconds["put parts"].append(put(profiles["put"]))
            seconds["get whole"].append(get(WHOLE))
            seconds["get parts"].append(get(profiles["get"]))
        body = samples.fetch(str(SMALL), SMALL)[1]
        seconds |= {"small directly": [], "small": []}
        for _ in range(small):
            # the client's own call, and ours with the tuned settings
            seconds["small directly"].append(timed(lambda: store.put(key, body, Head(SMALL, "", ""))))
            mover = Mover(samples, store, profiles["put"])
            seconds["small"].append(timed(lambda m=mover: m.copy_one(Pending(str(SMALL), key, SMALL, ""))))  # type: ignore[misc]
    median = {name: statistics.median(values) for name, values in seconds.items()}
    print("".join(f"  {name}: {measure.spread(values, 3)} s\n" for name, values in seconds.items()))
    return (
        median["put whole"] / median["put parts"],
        median["get whole"] / median["get parts"],
        median["small"] / median["small directly"],
    )


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def both(binary: Path, folder: Path, rtt: float, rate: float) -> Iterator[list[Store]]:
    """Yield a bucket of S3 and one of OCI, each behind a separate link; servers and links are processes."""
    import boto3

    (folder / "bench").mkdir()
    public, private = oci_double.new_key()
    pem = folder / "key.pem"
    pem.write_bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    s3_link, oci_port, oci_link = free_ports(3)
    with versitygw.serve(binary, folder) as gateway:
        links = [
            python("tests.oci_double", str(oci_port), str(pem), "bench"),
            python("tests.link", str(s3_link), gateway.endpoint.rpartition(":")[2], f"{rtt}", f"{rate}"),
            python("tests.link", str(oci_link), str(oci_port), f"{rtt}", f"{rate}"),
        ]
        try:
            client = boto3.client(
                "s3", endpoint_url=f"http://{HOST}:{s3_link}", region_name=versitygw.REGION,
                aws_access_key_id=gateway.keys.access, aws_secret_access_key=gateway.keys.secret,
                config=client_config(64, {"s3": {"addressing_style": "path"}}),
            )  # fmt: skip
            oci = oci_client(oci_double.config(private), 64, f"http://{HOST}:{oci_link}")
            stores: list[Store] = [S3Store(client, "bench"), OCIStore(oci, oci_double.NAMESPACE, "bench")]
            for store in stores:
                await_answer(store)
            yield stores
        finally:
            for process in links:
                process.terminate()
                process.wait(10)


def await_answer(store: Store) -> None:
    from storeside.copying.errors import CopyError

    deadline = time.monotonic() + 30
    while True:
        try:
            store.check()
        except CopyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def python(module: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=CHECKOUT, env=os.environ | variables, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
