"""``kubectl`` with a kubeconfig and a namespace."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

AGAIN_SECONDS = 0.5


class KubectlError(RuntimeError):
    """``kubectl`` failed; the message has its command and its error."""


@dataclass(frozen=True)
class Kubectl:
    """Runs ``kubectl``; `command` is the program with its first arguments. No namespace: manifests name theirs."""

    command: Sequence[str]
    kubeconfig: Path
    namespace: str

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = 120, check: bool = True) -> str:
        """Run a command and return its output; with `check`, raises KubectlError if it fails."""
        done = subprocess.run(
            [*self._start, *arguments], input=stdin, capture_output=True, text=True, timeout=seconds, check=False
        )
        if check and done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
        return done.stdout if not done.returncode else done.stdout + done.stderr

    def json(self, *arguments: str) -> Any:
        """Return what a command prints with ``-o json``."""
        return json.loads(self(*arguments, "-o", "json"))

    @property
    def _start(self) -> list[str]:
        namespace = [f"--namespace={self.namespace}"] if self.namespace else []
        return [*self.command, f"--kubeconfig={self.kubeconfig}", *namespace]

    @contextmanager
    def forward(self, pod: str, port: int) -> Iterator[int]:
        """Forward a port of this machine's loopback address to a pod, and yield its number.

        ``kubectl`` ends when it loses its connection, as on a busy node; it is then started again on the same port.
        """
        process = self._forwarding(pod, f":{port}")
        line = _output(process).readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        if not found:
            process.kill()
            raise KubectlError(f"kubectl port-forward pod/{pod}: {line!r}")
        ended = Event()

        def keep() -> None:
            nonlocal process
            while True:
                # It prints a line per connection, and forwards nothing while the pipe is full.
                for _ in _output(process):
                    pass
                process.wait()
                _output(process).close()
                if ended.wait(AGAIN_SECONDS):
                    return
                process = self._forwarding(pod, f"{found[1]}:{port}")

        keeping = Thread(target=keep)
        keeping.start()
        try:
            yield int(found[1])
        finally:
            ended.set()
            while keeping.is_alive():  # it may have started another process meanwhile
                process.terminate()
                keeping.join(AGAIN_SECONDS)

    def _forwarding(self, pod: str, ports: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._start, "port-forward", f"pod/{pod}", ports],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip


def _output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout
