"""The maximum throughput of a node, with which the throughput operator compares what it measured."""

from __future__ import annotations

from storeside.measure.errors import MeasureInputError


def node_bound(nic_gbit: float, disk_gb_per_second: float) -> float | None:
    """Return the limit of one node in bytes per second: its NIC or all its disks. 0 means unknown; None: no limit.

    Raises:
        MeasureInputError: a figure is negative.
    """
    if nic_gbit < 0 or disk_gb_per_second < 0:
        raise MeasureInputError(f"limits {nic_gbit} Gbit/s and {disk_gb_per_second} GB/s: use 0 for an unknown limit")
    known = [value for value in (nic_gbit * 1e9 / 8, disk_gb_per_second * 1e9) if value]
    return min(known, default=None)
