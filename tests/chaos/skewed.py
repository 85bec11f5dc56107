"""The embedded S3 and SQS with a clock that the driver can step: python -m tests.chaos.skewed FILE

FILE contains the seconds by which the server's clock is ahead. SQS's visibility timeouts use this clock; other times,
such as those of files, do not.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

_real, _steady = time.time, time.monotonic
_LOOK_SECONDS = 0.2


def step(path: Path) -> None:
    """Let `time.time` of this process be ahead by the seconds in the file."""
    looked, ahead = -1.0, 0.0

    def stepped() -> float:
        nonlocal looked, ahead
        if _steady() - looked > _LOOK_SECONDS:
            looked = _steady()
            try:
                ahead = float(path.read_text())
            except (OSError, ValueError):
                ahead = 0.0
        return _real() + ahead

    time.time = stepped


if __name__ == "__main__":
    step(Path(sys.argv[1]))
    from storeside.stack.servers.s3_server import main

    main()
