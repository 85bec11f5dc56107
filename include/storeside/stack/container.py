"""Runs AIStore and the pod runner in one container until the container is stopped.

``python -m storeside.stack.container`` starts a proxy and its targets as the embedded stack does, but serves other
containers: clients reach the nodes under the host name AIS_HOST, on the ports from 51080. AIS_TARGETS is the number
of targets of a new cluster. S3_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION configure the
backend for ``s3://`` buckets; without an endpoint it is AWS.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from storeside.stack import aistore, aistore_build
from storeside.stack.podrunner import component as podrunner
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.settings import CHECKOUT, Stack, StackError, default_folder
from storeside.stack.supervisor import Supervisor

PORT = 51080
_CACHE = CHECKOUT / "cache"
_LOOK_SECONDS = 5.0


def main() -> int:
    """Run until SIGTERM or SIGINT; return 1 if the cluster cannot be started or the supervisor died."""
    if not os.environ.get("AIS_HOST"):
        _tell("error: AIS_HOST is not set: set it to the host name of this container for its clients")
        return 1
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        stack = _stack(default_folder(), int(os.environ.get("AIS_TARGETS", "2")))
        supervisor = Supervisor(stack)
        nodes = aistore.components(
            stack,
            aistore_build.build(_CACHE, _tell),
            host=os.environ["AIS_HOST"],
            backend={name: os.environ.get(name, "") for name in aistore.BACKEND},
        )
        supervisor.start([podrunner.components(stack, IMAGES), nodes], _tell)
    except StackError as e:
        _tell(f"error: {e}")
        return 1
    _tell(f"AIStore is ready at http://{os.environ['AIS_HOST']}:{PORT}")
    while not ended.wait(_LOOK_SECONDS):
        if not supervisor.running():
            _tell("error: the supervisor died")
            return 1
    supervisor.stop()
    return 0


def _stack(folder: Path, targets: int) -> Stack:
    """Return the recorded cluster, or a new one without AuthN, which Compose does not run.

    The public ports of a new cluster are fixed; all other ports are arbitrary.
    """
    stack = Stack.load(folder)
    if stack is None:
        stack = Stack.create(folder, targets, secure=False)
        public = {"ais_proxy": PORT, **{f"ais_target{n}_public": PORT + 1 + n for n in range(targets)}}
        stack = replace(stack, ports=stack.ports | public)
        stack.save()
    return stack


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
