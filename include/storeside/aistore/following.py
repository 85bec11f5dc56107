"""The line about the progress of a job, and the end of a job that a user requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storeside import amounts
from storeside.aistore.etl import release
from storeside.aistore.jobs import Progress, abort

if TYPE_CHECKING:
    from aistore.sdk import Client

_ABORT_SECONDS = 10


def cancel(client: Client, job_id: str, etl_names: Sequence[str]) -> None:
    """Abort a job, and stop its ETLs unless other jobs use them."""
    abort(client, job_id)
    for _ in range(_ABORT_SECONDS):  # an aborted job does not end immediately
        if not etl_names or release(client, etl_names):
            return
        time.sleep(1)


def describe(progress: Progress, total: int, seconds: float) -> str:
    """Return one log line: objects done and total, rate, remaining time."""
    seconds = progress.seconds or seconds
    rate = progress.objects / seconds if seconds > 0 else 0.0
    of = f"{progress.objects:,} of " if total else ""
    text = f"{of}{amounts.counted(total or progress.objects, 'object')}, {amounts.size(progress.bytes)}"
    text += amounts.rate(progress.objects, seconds, "objects")
    if progress.finished:
        return f"{text}, finished after {seconds:.1f} s{f' with error: {progress.error}' if progress.error else ''}"
    if rate and total > progress.objects:
        text += f", {(total - progress.objects) / rate:.0f} s to go"
    return text
