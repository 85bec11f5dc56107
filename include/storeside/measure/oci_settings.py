"""Recommends the multipart settings of AIStore's own backend for OCI from the tuner's measurements.

AIStore 5.0 reads these variables when a target starts (api/env/oci.go), with the bounds and the defaults of
ais/backend/oci.go. A PUT of an object that is larger than the threshold is sent in segments, several at a time. So is
a GET, whose first request reads as many bytes as the threshold. Each upload holds its segments in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storeside.measure.tuner import Direction, Measurement

KIB: Final = 1 << 10
# Bounds of a segment and a threshold in bytes, and of the segments at a time.
SIZES: Final = (4 * KIB, 5 << 30)
THREADS: Final = (1, 64)
# Segment size, threshold and threads by direction, with AIStore's defaults: 256 MiB, 512 MiB and 16.
VARIABLES: Final[dict[Direction, tuple[str, str, str]]] = {
    "put": (
        "OCI_MAX_UPLOAD_SEGMENT_SIZE",
        "OCI_MULTI_PART_UPLOAD_THRESHOLD",
        "OCI_MULTI_PART_UPLOAD_MAX_THREADS",
    ),
    "get": (
        "OCI_MAX_DOWNLOAD_SEGMENT_SIZE",
        "OCI_MULTI_PART_DOWNLOAD_THRESHOLD",
        "OCI_MULTI_PART_DOWNLOAD_MAX_THREADS",
    ),
}


def is_oci(endpoint: str) -> bool:
    """Return whether an endpoint of the tuner (`Store.endpoint`) is OCI's native API."""
    return endpoint.startswith("oci ")


def targets_environment(found: Sequence[Measurement]) -> dict[str, str]:
    """Return the variables for AIStore's targets that suit these measurements of one OCI endpoint.

    For each direction, the threshold is below the smallest size that was faster in parts, and not below any larger
    size that was not; segment size and threads are those of the largest size. A direction whose objects are fastest
    in one piece keeps AIStore's defaults and has no variables.
    """
    settings: dict[str, str] = {}
    for direction, (segment, threshold, threads) in VARIABLES.items():
        measured = sorted((m for m in found if m.direction == direction), key=lambda m: m.object_size)
        if not measured or not measured[-1].multipart:
            continue
        best = measured[-1].settings
        whole = [m.object_size for m in measured if not m.multipart]
        settings |= {
            segment: _size(_within(best.part_size, SIZES)),
            threshold: _size(_within(whole[-1] if whole else measured[0].object_size // 2, SIZES)),
            threads: str(_within(best.concurrency, THREADS)),
        }
    return settings


def _within(value: int, bounds: tuple[int, int]) -> int:
    return min(max(value, bounds[0]), bounds[1])


def _size(count: int) -> str:
    """Return a number of bytes as AIStore reads it, in KiB if it is a whole number of them."""
    return f"{count // KIB}KiB" if count % KIB == 0 else str(count)
