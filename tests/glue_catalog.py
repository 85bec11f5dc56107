"""A server of Glue: ministack, in a process besides that of the stack, which has no Glue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storeside.stack.settings import HOST, free_ports
from storeside.stack.supervision.probes import answers
from tests.support import until


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve on a free port of the loopback address; yield the URL."""
    (port,) = free_ports(1)
    variables = {
        "GATEWAY_PORT": str(port), "BIND_HOST": HOST, "MINISTACK_HOST": HOST, "SERVICES": "glue",
        "STATE_DIR": str(folder / "state"), "S3_DATA_DIR": str(folder / "s3"), "LOG_LEVEL": "WARNING",
    }  # fmt: skip
    url = f"http://{HOST}:{port}"
    with (folder / "glue.log").open("wb") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("ministack"))],
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: answers(f"{url}/_ministack/health"), 60, "Glue answers")
        yield url
    finally:
        process.terminate()
        process.wait(30)
