"""The published comparison through AIStore's own backends: clusters with different settings behind a slow link.

The three clusters have one target each. They differ in the settings of their backend for OCI: AIStore's defaults (a
PUT of 64 MB is one piece), few segments and many, as in the article. S3 has these part sizes as a property of
the bucket. All take turns. OCI's double is reached by a proxy, because AIStore has no setting for its endpoint.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from storeside.aistore.buckets import Bucket
from storeside.measure.backends import PUT_BYTES, Result
from storeside.measure.through import Through, benchmark
from storeside.stack import authn
from storeside.stack.building import nodes as aistore_build
from storeside.stack.building.backends import VARIABLE
from storeside.stack.servers import aistore
from storeside.stack.settings import HOST, Stack, free_ports
from storeside.stack.supervision.processes import listener
from tests.backends.emulators import oci_files
from tests.benchmarks import versitygw
from tests.support import until

# Labels of the clusters and their settings: the article's "MPU-few" and "MPU-many", also for GETs.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "defaults": {},
    "10 MB segments": {
        "OCI_MAX_UPLOAD_SEGMENT_SIZE": "10MB", "OCI_MULTI_PART_UPLOAD_THRESHOLD": "20MB",
        "OCI_MAX_DOWNLOAD_SEGMENT_SIZE": "10MB", "OCI_MULTI_PART_DOWNLOAD_THRESHOLD": "10MB",
    },
    "1 MB segments": {
        "OCI_MAX_UPLOAD_SEGMENT_SIZE": "1MB", "OCI_MULTI_PART_UPLOAD_THRESHOLD": "2MB",
        "OCI_MAX_DOWNLOAD_SEGMENT_SIZE": "1MB", "OCI_MULTI_PART_DOWNLOAD_THRESHOLD": "2MB",
    },
}  # fmt: skip


def compare(binary: Path, folder: Path, cache: Path, rtt: float, rate: float, rounds: int) -> list[Result]:
    """Measure S3 and OCI through AIStore; `binary` is versitygw's, `rtt` in ms, `rate` in MB/s per connection."""
    with ExitStack() as stack:
        servers = stack.enter_context(_servers(binary, folder, rtt, rate))
        subjects: list[Through] = []
        for number, (label, settings) in enumerate(SETTINGS.items()):
            client, endpoint = stack.enter_context(
                _cluster(folder / f"cluster{number}", cache, {**servers, **settings})
            )
            if not number:
                subjects.append(Through(client, Bucket("s3", "bench"), endpoint, change_parts=True))
            subjects.append(Through(client, Bucket("oci", "bench"), endpoint, label))
        return benchmark(subjects, rounds=rounds, put_bytes=PUT_BYTES)


def gains(results: Sequence[Result]) -> dict[str, float]:
    """Return how much faster PUTs of 64 MB are in the best parts than in one piece, and GETs from OCI."""
    found = {(r.backend, r.operation): r.median for r in results}
    s3 = {operation: seconds for (backend, operation), seconds in found.items() if backend.startswith("s3")}
    oci = {
        operation: [
            seconds for (backend, name), seconds in found.items() if backend.startswith("oci") and name == operation
        ]
        for operation in ("put as set", "get large")
    }
    return {
        "storage.aistore_s3_put_gain": s3["put single"] / min(s3["put few parts"], s3["put many parts"]),
        "storage.aistore_oci_put_gain": oci["put as set"][0] / min(oci["put as set"]),
        "storage.aistore_oci_get_gain": oci["get large"][0] / min(oci["get large"]),
    }


@contextmanager
def _servers(binary: Path, folder: Path, rtt: float, rate: float) -> Iterator[dict[str, str]]:
    """Run S3 and OCI's double behind links; yield the variables that lead AIStore's targets to them."""
    from tests.benchmarks.storage import python

    (folder / "aistore" / "bench").mkdir(parents=True)
    files = oci_files(folder)
    oci, tls, oci_link, proxy, s3_link = free_ports(5)
    link = (f"{rtt}", f"{rate}")
    with versitygw.serve(binary, folder / "aistore") as gateway:
        processes: list[subprocess.Popen[bytes]] = [
            python(
                "tests.oci_double", f"{oci}", str(files["public"]), "bench", OCI_DOUBLE_TLS=f"{tls}:{files['tls']}"
            ),
            python("tests.link", f"{oci_link}", f"{tls}", *link),
            python("tests.backends.connect_proxy", f"{proxy}", f"{oci_link}"),
            python("tests.link", f"{s3_link}", gateway.endpoint.rpartition(":")[2], *link),
        ]
        try:
            ports = (oci, tls, oci_link, proxy, s3_link)
            until(lambda: all(listener(port) for port in ports), 60, "servers of the benchmark")
            yield {
                "S3_ENDPOINT": f"http://{HOST}:{s3_link}",
                "AWS_REGION": versitygw.REGION,
                "AWS_ACCESS_KEY_ID": gateway.keys.access,
                "AWS_SECRET_ACCESS_KEY": gateway.keys.secret,
                "OCI_CLI_CONFIG_FILE": str(files["config"]),
                "OCI_DEFAULT_CERTS_PATH": str(files["authority"]),
                "HTTPS_PROXY": f"http://{HOST}:{proxy}",
            }
        finally:
            for process in processes:
                process.terminate()
                process.wait(10)


@contextmanager
def _cluster(folder: Path, cache: Path, variables: Mapping[str, str]) -> Iterator[tuple[object, str]]:
    """Run a proxy and one target with the backend for OCI; yield a client and the URL."""
    folder.mkdir()
    made = Stack.create(folder, 1, secure=False)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {VARIABLE: "oci", **variables}.items():
            patched.setenv(name, value)
        backend = {name: variables[name] for name in aistore.BACKEND}
        nodes = aistore.components(made, aistore_build.build(cache, print), backend=backend)
    running: list[subprocess.Popen[bytes]] = []
    try:
        for node in nodes:
            node.directory.mkdir(parents=True, exist_ok=True)
            environment = {k: v for k, v in node.environment.items() if not k.startswith(("KUBERNETES", "MY_"))}
            with open(folder / f"{node.name}.log", "wb") as log:
                running.append(
                    subprocess.Popen(
                        node.command, env={"HOME": str(folder), "PATH": "/bin:/usr/bin", **environment},
                        cwd=node.directory, stdout=log, stderr=log,
                    )
                )  # fmt: skip
        until(lambda: all(node.healthy() for node in nodes), 60, "cluster of the benchmark")
        yield authn.cluster(made).client(), f"aistore {made.url('ais_proxy')}"
    finally:
        for process in running:
            process.terminate()
            process.wait(20)
