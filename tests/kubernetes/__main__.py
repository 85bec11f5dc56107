"""``make k8s-test``: starts a cluster unless a user gives one, and runs the tests on it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from storeside.stack.settings import CHECKOUT, SOURCES, StackError, default_folder
from tests.kubernetes import session
from tests.kubernetes.images import TRANSFORMER
from tests.kubernetes.own import Unavailable, own_cluster
from tests.verify import CANNOT_RUN

# The images of a cluster of ours have this prefix. Its node asks no registry but its own.
OWN_IMAGES = "registry.test"
TESTS = ("tests/kubernetes", "tests/integration/test_etl.py")
# An ETL must be ready within it, with the pull of its image.
INIT_SECONDS = 90


class Steps:
    """Prints how long each step has taken."""

    def __init__(self) -> None:
        self.began = self.last = time.time()

    def __call__(self, name: str) -> None:
        now = time.time()
        print(f"BENCH k8s.{name}_seconds {now - self.last:.0f} s", flush=True)
        self.last = now


def main(arguments: list[str]) -> int:
    """Run the tests; what is not an option of ours is given to pytest. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="make k8s-test", description=__doc__)
    for name in ("kubeconfig", "namespace", "images"):
        parser.add_argument(f"--{name}")
    given, rest = parser.parse_known_args(arguments)
    steps = Steps()
    with ExitStack() as end:
        try:
            chosen, enter = _users(given) if any(vars(given).values()) else _own(end, steps)
        except Unavailable as e:
            print(f"k8s-test: cannot run: {e}")
            return CANNOT_RUN
        except StackError as e:
            print(f"k8s-test: {e}")
            return 1
        environment = {
            **os.environ,
            **chosen,
            session.STARTED: str(steps.began),
            "STORESIDE_TEST_IMAGE": f"{chosen[session.IMAGES]}/{TRANSFORMER}",
            "STORESIDE_TEST_INIT_SECONDS": str(INIT_SECONDS),
            "PYTHONPATH": f"{SOURCES}:{CHECKOUT}",
        }
        tests = () if any(argument.startswith("tests/") for argument in rest) else TESTS
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--cluster=kubernetes", *tests, *rest]
        return subprocess.run([*enter, *pytest], cwd=CHECKOUT, env=environment, check=False).returncode


def _users(given: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """Return the variables for the tests on a user's cluster. Raises StackError if one of its options is absent."""
    absent = [name.upper() for name, value in vars(given).items() if not value]
    if absent:
        raise StackError(f"a cluster of yours also needs {' and '.join(absent)}: see docs/kubernetes.md")
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise StackError("a cluster of yours needs kubectl: see https://kubernetes.io/docs/tasks/tools")
    return {
        session.KUBECONFIG: str(Path(given.kubeconfig).resolve()),
        session.NAMESPACE: given.namespace,
        session.IMAGES: given.images,
        session.KUBECTL: json.dumps([kubectl]),
    }, []


def _own(end: ExitStack, steps: Steps) -> tuple[dict[str, str], list[str]]:
    """Start a node; return the variables for the tests, and the command that runs them in its network."""
    cache = (default_folder() / "cache" / "kubernetes").resolve()
    cluster = end.enter_context(own_cluster(cache, print, steps))
    return {
        session.KUBECONFIG: str(cluster.kubeconfig),
        session.NAMESPACE: "ais",
        session.IMAGES: OWN_IMAGES,
        session.OWN: str(cluster.folder),
        session.MACHINE: str(os.getpid()),  # a process in the network of the machine
        session.KUBECTL: json.dumps([str(cluster.binaries / "kube"), "kubectl"]),
    }, cluster.enter


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
