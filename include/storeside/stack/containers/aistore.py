"""Runs AIStore and its AuthN in one container until the container is stopped.

``python -m storeside.stack.containers.aistore`` starts a proxy and its targets as the embedded stack does, but serves
other containers, with a certificate from `storeside.stack.containers.certificates`. Transformers run in another
container (`storeside.stack.containers.transformers`), which mounts the volume of this one read-only, as another user
of the same group. AuthN listens on port 51079, the proxy on 51080.

All these variables are required, except AIS_TARGETS and the last four:

AIS_HOST               host name of this container for clients
AIS_DATA_HOST          host name of this container in the network of the transformers only
TRANSFORMERS_HOST      host name of the container of the transformers
AISTORE_PASSWORD       password of AuthN's user `airflow`
AIS_TARGETS            number of targets of a new cluster, from 1 to 16 (2)
S3_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION
                       the backend for ``s3://`` buckets; without an endpoint it is AWS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from storeside.stack import authn
from storeside.stack.building import nodes
from storeside.stack.containers import files
from storeside.stack.podrunner import component as podrunner
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.servers import aistore
from storeside.stack.settings import CHECKOUT, Stack, StackError, default_folder
from storeside.stack.supervision.supervisor import UNANSWERED, Supervisor

# All ports are among those that docker-compose.yaml reserves.
PORT = 51080
AUTHN_PORT = PORT - 1
SUPERVISOR_PORT = PORT - 2
PODS_PORT = PORT + 99
# Targets have ports from PORT + 1; in the network of the transformers, proxy and targets have ports from this one.
DATA_PORT = PORT + 50
# Between themselves, proxy and targets have ports from this one.
CONTROL_PORT = PORT + 100
REQUIRED = ("AIS_HOST", "AIS_DATA_HOST", "TRANSFORMERS_HOST", "AISTORE_PASSWORD")
_TARGETS, _MOST_TARGETS = 2, 16
_CACHE = CHECKOUT / "cache"
_LOOK_SECONDS = 5.0
_PODS_SECONDS = 120.0
_RENEW_SECONDS = 24 * 3600.0


def main() -> int:
    """Run until SIGTERM or SIGINT; return 1 if the cluster cannot start or run on, so that Docker restarts it."""
    if missing := [name for name in REQUIRED if not os.environ.get(name)]:
        _tell(f"error: {', '.join(missing)} not set: see docker-compose.yaml, service aistore")
        return 1
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        stack = _stack(default_folder(), os.environ.get("AIS_TARGETS", ""))
        fault = _run(stack, ended)
    except StackError as e:
        fault = str(e)
    if fault:
        _tell(f"error: {fault}")
    return 1 if fault else 0


def _run(stack: Stack, ended: threading.Event) -> str:
    """Start the cluster, keep it until `ended` is set, and stop it; return the fault if it cannot run on, or ""."""
    supervisor = Supervisor(stack, files.PASSED)  # transformers must reach their files at any time
    try:
        _start(stack, supervisor)
        _tell(f"AIStore is ready at https://{os.environ['AIS_HOST']}:{PORT}")
        renewal = time.monotonic() + _RENEW_SECONDS
        while not ended.wait(_LOOK_SECONDS):
            if fault := _fault(stack):
                return fault
            if time.monotonic() > renewal:
                renewal = time.monotonic() + _RENEW_SECONDS
                _renew(stack)
        return ""
    finally:
        supervisor.stop()


def _fault(stack: Stack) -> str:
    """Return why only a restart of the container helps, or "".

    The supervisor gives up on a process that ends at each of several starts. The container's health check cannot see
    this: the proxy stays healthy without its targets and AuthN.
    """
    supervisor = Supervisor(stack, files.PASSED)  # knows no probes, so the status does not wait for them
    try:
        found = supervisor.status()
    except UNANSWERED:
        found = []
    if not found:
        return "the supervisor died"
    lost = [one.name for one in found if one.state == "fatal"]
    logs = ", ".join(str(supervisor.log(name)) for name in lost)
    return f"{', '.join(lost)} ended at every start; see {logs}" if lost else ""


def _start(stack: Stack, supervisor: Supervisor) -> None:
    """Start AuthN, wait for the pod runner in the other container, and start AIStore's nodes."""
    hosts = aistore.Hosts(*(os.environ[name] for name in REQUIRED[:3]))
    binary = nodes.build(_CACHE, _tell)
    servers = authn.components(stack, binary, host="")
    supervisor.start([servers], _tell)
    _set_password(stack)
    files.write_tokens(stack)
    podrunner.write(stack, IMAGES, hosts.pods, **files.of_pods(stack))
    files.share(stack)
    _wait_for_pods(stack, hosts.pods)
    backend = {name: os.environ.get(name, "") for name in aistore.BACKEND}
    supervisor.start([servers, aistore.components(stack, binary, hosts, backend)], _tell)


def _stack(folder: Path, targets: str) -> Stack:
    """Return the recorded cluster, or a new one, with TLS and AuthN; other containers know its ports.

    Raises:
        StackError: `targets` is neither empty nor the cluster's number; a new one may have 1 to 16.
    """
    stack = Stack.load(folder)
    if stack and targets not in ("", str(stack.targets)):
        raise StackError(
            f"AIS_TARGETS is {targets!r}, and this cluster has {stack.targets} targets, which cannot change: set "
            f"AIS_TARGETS={stack.targets} in .env, or remove it"
        )
    if not stack and targets and targets not in map(str, range(1, _MOST_TARGETS + 1)):
        raise StackError(f"AIS_TARGETS is {targets!r}: choose a number from 1 to {_MOST_TARGETS}")
    known = stack is not None and stack.tls and stack.secure
    stack = stack or Stack.create(folder, int(targets or _TARGETS), tls=True)
    names = ["ais_proxy", *(f"ais_target{number}" for number in range(stack.targets))]
    ports = {"supervisor": SUPERVISOR_PORT, "authn": AUTHN_PORT, "podrunner": PODS_PORT, "ais_proxy": PORT}
    ports |= {f"{name}_public": PORT + number for number, name in enumerate(names) if number}
    ports |= {f"{name}_data": DATA_PORT + number for number, name in enumerate(names)}
    if not known:  # nodes remember these ports of other nodes
        ports |= {f"{name}_control": CONTROL_PORT + number for number, name in enumerate(names)}
    if not (stack.tls and stack.secure):
        _tell("this cluster is from a version without TLS: its nodes start with new settings, and keep its data")
        aistore.forget_settings(stack)
        stack = replace(stack, tls=True, secure=True)
    stack = replace(stack, ports=stack.ports | ports, certificates=files.CERTIFICATES)
    stack.save()
    return stack


def _set_password(stack: Stack) -> None:
    """Create AuthN's users, Airflow's with the password in the environment, which may have changed."""
    password = os.environ["AISTORE_PASSWORD"]
    changed = replace(stack, secrets=stack.secrets | {f"authn_{authn.AIRFLOW}": password})
    authn.prepare(changed)
    if changed != stack:
        authn.change_password(changed, authn.AIRFLOW)
        changed.save()


def _wait_for_pods(stack: Stack, host: str) -> None:
    deadline = time.monotonic() + _PODS_SECONDS
    while not podrunner.answers(stack, host):
        if time.monotonic() > deadline:
            raise StackError(f"the pod runner at {host} does not answer: see 'docker compose logs {host}'")
        time.sleep(0.5)


def _renew(stack: Stack) -> None:
    """Renew tokens in the second half of their lifetime; after a failure, the next day."""
    try:
        authn.prepare(stack)
        files.write_tokens(stack)
    except StackError as e:
        _tell(f"warning: the tokens of AIStore were not renewed: {e}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
