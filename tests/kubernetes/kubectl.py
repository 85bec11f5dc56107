"""``kubectl`` with a kubeconfig and a namespace."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_SECONDS = 30


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
        """Forward a port of this machine's loopback address to a pod, and yield its number."""
        process = subprocess.Popen(
            [*self._start, "port-forward", f"pod/{pod}", f":{port}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if not found:
                raise KubectlError(f"kubectl port-forward pod/{pod}: {line!r}")
            yield int(found[1])
        finally:
            process.terminate()
            process.wait(START_SECONDS)
            process.stdout.close()
