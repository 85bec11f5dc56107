"""HSDS and h5py as in the article's table, and exports compared with h5pyd's single request: ``make bench-hsds``.

The dataset has 12000 x 2200 64-bit integers in the article's table and, for the export, ten times the 256 MB that a
worker may use. Exports write Parquet with arrays to an S3 server that serves a folder (versitygw). The benchmark
restarts the nodes before each export, so that their peak memory is that of this export.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storeside.hsds.client import Client, Server
from storeside.hsds.export import Export, Exporter
from storeside.hsds.plan import plan
from storeside.stack import cli
from storeside.stack.servers import hsds
from storeside.stack.settings import CHECKOUT, Stack, default_folder
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import versitygw
from tests.benchmarks.measure import bench, machine, spread

ROWS, COLUMNS = 12_000, 2_200
CHUNKS = (240, COLUMNS)
HOME = "/home/storeside"
NODES = ("hsds-sn", *(f"hsds-dn{n}" for n in range(hsds.DATA_NODES)))
WORKER_MB, SERVER_MB = 256, 400
# HSDS and h5py, write and read in MB/s, without and with gzip, as published.
ARTICLE = {
    "article, m5.2xlarge": (100.9, 97.6, 1416.8, 1308.1, 104.3, 81.5, 50.2, 305.7),
    "article, macpro": (40.1, 40.0, 848.1, 821.8, 35.6, 42.7, 76.3, 245.8),
    "article, devone": (240.5, 191.6, 2021.9, 2071.1, 233.8, 187.3, 84.5, 424.1),
}


def main() -> int:
    """Measure and print; returns 1 when a bound or the speed is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--gigabytes", type=float, default=2.6, help="of the dataset to export; default: %(default)s")
    parser.add_argument("--only", choices=("article", "export"), help="one of the two parts")
    parser.add_argument("--worker", choices=tuple(WORKERS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(WORKERS[given.worker](**json.load(sys.stdin))))
        return 0
    logging.getLogger("h5pyd").setLevel(logging.ERROR)
    print(machine(), flush=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-hsds-", dir="/tmp"))
    (folder / "cache").symlink_to(default_folder() / "cache", target_is_directory=True)
    stack = cli.up(folder, only=("hsds",))
    try:
        if given.only != "export":
            article(stack, folder, given.rounds)
        return export(stack, folder, given.rounds, given.gigabytes) if given.only != "article" else 0
    finally:
        Supervisor(stack).stop()
        shutil.rmtree(folder)


# --- the article's table


def article(stack: Stack, folder: Path, rounds: int) -> None:
    """Write and read the article's dataset in one request each, with HSDS and with the HDF5 library."""
    import h5py
    import h5pyd

    login = hsds.login(stack)
    values = np.random.default_rng(0).integers(0, 1000, (ROWS, COLUMNS), dtype=np.int64)
    connection = {"endpoint": login.endpoint, "username": login.username, "password": login.password}
    opened: Mapping[str, Callable[[str, str], Any]] = {
        "HSDS": lambda name, mode: h5pyd.File(f"{HOME}/{name}.h5", mode, **connection),
        "h5py": lambda name, mode: h5py.File(folder / f"{name}.h5", mode),
    }
    figures: dict[tuple[str, str, str], list[float]] = {}
    for n in range(rounds):
        for zipped in ("", "gzip"):
            for kind, opening in opened.items():
                name = f"article{n}{zipped}"
                started = time.monotonic()
                with opening(name, "w") as file:
                    options = {"compression": zipped, "compression_opts": 1} if zipped else {}
                    file.create_dataset("values", values.shape, "i8", chunks=CHUNKS, **options)[...] = values
                    file.flush()
                figures.setdefault((kind, zipped, "write"), []).append(rate(values.nbytes, started))
                started = time.monotonic()
                with opening(name, "r") as file:
                    found = file["values"][...]
                figures.setdefault((kind, zipped, "read"), []).append(rate(values.nbytes, started))
                assert (found == values).all()
                del found
    ours = [
        statistics.median(figures[kind, zipped, verb])
        for zipped in ("", "gzip") for kind in opened for verb in ("write", "read")
    ]  # fmt: skip
    print(f"\n{ROWS} x {COLUMNS} int64 ({values.nbytes / 1e6:.0f} MB) in one request each, MB/s, {rounds} rounds")
    print(f"{'':22} {'without compression':^31} {'gzip':^31}")
    print(
        f"{'':22} "
        + " ".join(f"{kind + ' ' + verb:>12}" for _ in "ab" for kind in opened for verb in ("write", "read"))
    )
    for label, row in {"here, 2 data nodes": ours, **ARTICLE}.items():
        print(f"{label:22} " + " ".join(f"{value:12.1f}" for value in row))
    bench("hsds.article_write", ours[0], "MB/s")
    bench("hsds.article_read", ours[1], "MB/s")


# --- the export


def export(stack: Stack, folder: Path, rounds: int, gigabytes: float) -> int:
    """Export a large dataset, and for comparison read it with h5pyd, which uses a single request."""
    login = hsds.login(stack)
    server = vars(login)
    client = Client(Server(**server))
    rows = int(gigabytes * 1e9 / (COLUMNS * 8)) // CHUNKS[0] * CHUNKS[0]
    domain = f"{HOME}/large.h5"
    total = fill(client, domain, rows)
    size = rows * COLUMNS * 8
    print(f"\n{rows} x {COLUMNS} int64 ({size / 1e6:.0f} MB), {size / 1e6 / WORKER_MB:.1f} times a worker's bound")
    reads, exports, ratios, workers, servers = [], [], [], [], []
    (folder / "objects").mkdir()
    binary = versitygw.build(default_folder() / "cache" / "bench")
    with versitygw.serve(binary, folder / "objects") as gateway:
        for n in range(rounds):
            restart(stack)
            read = worker("read", {"server": server, "domain": domain})
            assert read["checksum"] == total
            restart(stack)
            (folder / "objects" / f"round{n}").mkdir(parents=True)
            with Memory(pids(stack).values()) as memory:
                done = worker(
                    "export",
                    {
                        "server": server,
                        "export": vars(Export(domain, "/values", f"round{n}", "values", layout="array")),
                        "s3": [gateway.endpoint, gateway.keys.access, gateway.keys.secret],
                    },
                )
            peaks = {name: peak_mb(pid) for name, pid in pids(stack).items()}
            assert checksum(folder / "objects" / f"round{n}") == total
            shutil.rmtree(folder / "objects" / f"round{n}")
            reads.append(size / 1e6 / read["seconds"])
            exports.append(size / 1e6 / done["seconds"])
            ratios.append(read["seconds"] / done["seconds"])
            workers.append(done["peak_mb"])
            servers.append(memory.peak_mb)
            print(
                f"round {n + 1}: h5pyd reads {reads[-1]:.0f} MB/s with {read['peak_mb']:.0f} MB; export"
                f" {exports[-1]:.0f} MB/s with {workers[-1]:.0f} MB, nodes {servers[-1]:.0f} MB, resident "
                + ", ".join(f"{name} {mb:.0f} MB" for name, mb in peaks.items()),
                flush=True,
            )
    print(f"h5pyd, one request {spread(reads)} MB/s")
    print(f"export to Parquet  {spread(exports)} MB/s")
    ratio = statistics.median(ratios)
    bench("hsds.export_of_single_read", ratio, "x")
    bench("hsds.server_peak_mb", max(servers), "MB")
    bench("hsds.worker_peak_mb", max(workers), "MB")
    return int(ratio < 1 or max(servers) > SERVER_MB or max(workers) > WORKER_MB)


def fill(client: Client, domain: str, rows: int) -> int:
    """Write the dataset; returns the sum of its elements."""
    layout = {"class": "H5D_CHUNKED", "dims": CHUNKS}
    body = {"type": "H5T_STD_I64LE", "shape": [rows, COLUMNS], "creationProperties": {"layout": layout}}
    client.create(domain, "/values", body)
    dataset, random, total = client.dataset(domain, "/values"), np.random.default_rng(1), 0
    for slab in plan((range(rows), range(COLUMNS)), CHUNKS, 8, 9 << 20, whole_rows=True):
        values = random.integers(0, 1 << 30, slab.shape, dtype=np.int64)
        total += int(values.sum())
        client.write(dataset, slab, values.reshape(-1).view(np.uint8).data)
    client.flush(domain)
    return total


def checksum(folder: Path) -> int:
    """Return the sum of the exported elements."""
    import pyarrow.parquet as pq

    total = 0
    for path in folder.rglob("*.parquet"):
        values = pq.read_table(path)["value"].combine_chunks().flatten()
        total += int(np.asarray(values).sum())
    return total


def restart(stack: Stack) -> None:
    """Restart all nodes."""
    supervisor = Supervisor(stack)
    for name in reversed(NODES):
        supervisor.restart(name)
    cli.up(stack.state.parent, only=("hsds",))


def pids(stack: Stack) -> dict[str, int]:
    """Return the process of each node."""
    return {entry.name: entry.pid for entry in Supervisor(stack).status() if entry.name in NODES and entry.pid}


def worker(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run a function in a new process; return its seconds and its peak memory in MB."""
    command = [sys.executable, "-m", "tests.benchmarks.hsds", "--worker", kind]
    done = subprocess.run(
        command, input=json.dumps(given), stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def read_at_once(server: dict[str, str], domain: str) -> dict[str, Any]:
    """Read a dataset with h5pyd and one request."""
    import h5pyd

    logging.getLogger("h5pyd").setLevel(logging.ERROR)
    login = {name: server[name] for name in ("endpoint", "username", "password")}
    started = time.monotonic()
    with h5pyd.File(domain, "r", timeout=900, **login) as file:
        values = file["values"][...]
    seconds = time.monotonic() - started
    return {"seconds": seconds, "peak_mb": peak_mb("self"), "checksum": int(values.sum())}


def export_it(server: dict[str, str], export: dict[str, Any], s3: list[str]) -> dict[str, Any]:
    """Export a dataset."""
    from storeside.stack.servers.s3 import client

    hsds_client, wanted = Client(Server(**server)), Export(**export)
    assert hsds_client.dataset(wanted.domain, wanted.path).dtype  # loads what h5pyd's import has loaded above
    endpoint, key, secret = s3
    report = Exporter(hsds_client, client("s3", endpoint, key, secret), wanted, "bench").run()
    return {"seconds": report.seconds, "peak_mb": peak_mb("self")}


class Memory:
    """Watches what processes take together: shared libraries are counted once (PSS)."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.peak_mb = 0.0
        self._paths = [Path(f"/proc/{pid}/smaps_rollup") for pid in pids]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            lines = [line for path in self._paths for line in path.read_text().splitlines()]
            taken = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            self.peak_mb = max(self.peak_mb, taken * 1024 / 1e6)


def peak_mb(pid: int | str) -> float:
    """Return the most memory that a process has had, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def rate(size: int, started: float) -> float:
    return size / 1e6 / (time.monotonic() - started)


WORKERS: Mapping[str, Callable[..., dict[str, Any]]] = {"read": read_at_once, "export": export_it}

if __name__ == "__main__":
    sys.exit(main())
