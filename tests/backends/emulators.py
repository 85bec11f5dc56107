"""Servers with the APIs of GCS, Azure and OCI: fake-gcs-server, Azurite, and Storeside's test double of OCI.

Each is a process on the loopback address. AIStore has settings for the first two. OCI's SDK for Go makes its endpoint
of the region's name and has no such setting, so AIStore reaches the double through a proxy (``HTTPS_PROXY``): it
requests the region's real host, and the proxy connects it to the double.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from storeside.stack.building.backends import VARIABLE
from storeside.stack.building.go import Go, built_once
from storeside.stack.settings import CHECKOUT, HOST, StackError, default_folder, free_ports
from storeside.stack.supervision.probes import listens
from tests import oci_double
from tests.benchmarks import versitygw
from tests.verify import CANNOT_RUN

GCS_MODULE = "github.com/fsouza/fake-gcs-server"
GCS_VERSION = "v1.56.1"
AZURITE_VERSION = "3.37.0"
# The exact packages of Azurite with their checksums; npm calls this file package-lock.json.
AZURITE_LOCK = Path(__file__).parent / "azurite.lock"
ACCOUNT = "storeside"
OCI_HOST = "objectstorage.eu-frankfurt-1.oraclecloud.com"
START_SECONDS = 60


NPM_MISSING = "Azurite needs npm and Node.js 20 or newer: apt-get install npm"


@dataclass(frozen=True)
class Emulators:
    """Running servers: their ports, the keys of their only users, and the variables that lead AIStore to them."""

    gcs: int
    azure: int
    oci: int
    azure_key: str = field(repr=False)
    oci_key: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)


def build_gcs(cache: Path) -> Path:
    """Return fake-gcs-server's binary below `cache`; build it if it is absent (some minutes)."""
    binary = cache / f"fake-gcs-server-{GCS_VERSION}" / "fake-gcs-server"
    return built_once(binary, f"fake-gcs-server {GCS_VERSION}", _tell, _build_gcs)


def _build_gcs(go: Go, work: Path) -> Path:
    made = work / "made"
    source = Path(go.download(GCS_MODULE, GCS_VERSION, work)["Dir"])
    arguments = ("-trimpath", "-ldflags=-w -s", f"-o={made / 'fake-gcs-server'}", ".")
    go.run(f"compiling fake-gcs-server {GCS_VERSION}", "build", *arguments, directory=source)
    return made


def install_azurite(cache: Path) -> Path:
    """Return Azurite's program for blobs below `cache`; install it with npm if it is absent.

    Raises StackError if npm is absent or fails.
    """
    folder = cache / f"azurite-{AZURITE_VERSION}"
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None:
        raise StackError(NPM_MISSING)
    _tell(f"installing Azurite {AZURITE_VERSION}, once (190 MB)")
    new = cache / f"{folder.name}.new-{os.getpid()}"
    new.mkdir(parents=True)
    try:
        (new / "package.json").write_text(
            json.dumps({"name": "storeside-azurite", "dependencies": {"azurite": AZURITE_VERSION}})
        )
        shutil.copyfile(AZURITE_LOCK, new / "package-lock.json")
        done = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=new, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise StackError(f"npm cannot install Azurite: {done.stderr.strip()[-500:]}")
        new.replace(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return program


@contextmanager
def running(
    cache: Path, folder: Path, buckets: Sequence[str], oci_rtt: float = 0, oci_rate: float = 0
) -> Iterator[Emulators]:
    """Run all servers with these buckets; files are below `folder`.

    The link to OCI's double has a round trip of `oci_rtt` ms and `oci_rate` MB/s per connection; 0 means no limit.
    """
    gcs_binary, azurite = build_gcs(cache), install_azurite(cache)
    gcs, azure, oci, oci_tls, oci_link, proxy = free_ports(6)
    azure_key = b64encode(secrets.token_bytes(48)).decode()
    files = oci_files(folder)
    private = files["private"].read_text()
    for bucket in buckets:
        (folder / "gcs" / bucket).mkdir(parents=True)
    (folder / "azure").mkdir()
    commands: list[tuple[list[str], dict[str, str]]] = [
        (
            [str(gcs_binary), "-scheme", "http", "-host", HOST, "-port", f"{gcs}", "-backend", "memory",
             "-data", str(folder / "gcs"), "-public-host", f"{HOST}:{gcs}", "-external-url", f"http://{HOST}:{gcs}",
             "-log-level", "error"],
            {},
        ),
        (
            ["node", str(azurite), "--blobHost", HOST, "--blobPort", f"{azure}", "--location", str(folder / "azure"),
             "--silent", "--skipApiVersionCheck", "--disableTelemetry"],
            {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{azure_key}"},
        ),
        (
            [*_module("tests.oci_double"), f"{oci}", str(files["public"]), *buckets],
            {"OCI_DOUBLE_TLS": f"{oci_tls}:{files['tls']}"},
        ),
        ([*_module("tests.link"), f"{oci_link}", f"{oci_tls}", f"{oci_rtt}", f"{oci_rate}"], {}),
        ([*_module("tests.backends.connect_proxy"), f"{proxy}", f"{oci_link}"], {}),
    ]  # fmt: skip
    processes = [_start(command, variables) for command, variables in commands]
    try:
        _await(processes, (gcs, azure, oci, oci_tls, oci_link, proxy))
        environment = {
            VARIABLE: "gcp azure oci",
            "STORAGE_EMULATOR_HOST": f"http://{HOST}:{gcs}",
            "AZURE_STORAGE_ACCOUNT": ACCOUNT,
            "AZURE_STORAGE_KEY": azure_key,
            "AIS_AZURE_URL": f"http://{HOST}:{azure}/{ACCOUNT}",
            "OCI_CLI_CONFIG_FILE": str(files["config"]),
            "OCI_DEFAULT_CERTS_PATH": str(files["authority"]),
            "HTTPS_PROXY": f"http://{HOST}:{proxy}",
        }
        found = Emulators(gcs, azure, oci, azure_key, private, environment)
        for bucket in buckets:
            azure_container(found, bucket)
        yield found
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(10)


def oci_files(folder: Path) -> dict[str, Path]:
    """Write new keys for OCI's double, its certificate, and the configuration file of OCI's tools."""
    public, private = oci_double.new_key()
    names = {
        "public": "public.pem",
        "private": "private.pem",
        "tls": "tls.pem",
        "authority": "ca.pem",
        "config": "config",
    }
    files = {name: folder / file for name, file in names.items()}
    files["public"].write_bytes(
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    files["private"].write_text(private)
    authority = trustme.CA()
    issued = authority.issue_cert(OCI_HOST, HOST)
    files["tls"].write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    files["authority"].write_bytes(authority.cert_pem.bytes())
    given = oci_double.config(private)
    lines = [f"{name}={given[name]}" for name in ("user", "fingerprint", "tenancy", "region")]
    files["config"].write_text("\n".join(["[DEFAULT]", *lines, f"key_file={files['private']}", ""]))
    return files


def azure_container(found: Emulators, name: str) -> None:
    """Create a container in Azurite. Raises HTTPError."""
    from tests.backends.azure import request

    request(found.azure, ACCOUNT, found.azure_key, "PUT", f"/{name}", {"restype": "container"}).raise_for_status()


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def _start(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=CHECKOUT, env=os.environ | dict(variables),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _await(processes: Sequence[subprocess.Popen[bytes]], ports: Sequence[int]) -> None:
    """Wait until all ports are open. Raises StackError when a process ends, or after `START_SECONDS`."""
    deadline = time.monotonic() + START_SECONDS
    while not all(listens(HOST, port) for port in ports):
        for process in processes:
            if process.poll() is not None:
                raise StackError(f"{process.args} ended with {process.returncode}")  # type: ignore[str-bytes-safe]
        if time.monotonic() > deadline:
            raise StackError("the emulators did not start in time")
        time.sleep(0.05)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Build and install what the tests need, because that may take longer than a test may; return the exit status."""
    cache = default_folder() / "cache" / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    if shutil.which("npm") is None:
        print(f"backends-test: cannot run: {NPM_MISSING}")
        return CANNOT_RUN
    build_gcs(cache)
    install_azurite(cache)
    versitygw.build(cache)
    return 0


if __name__ == "__main__":
    sys.exit(main())
