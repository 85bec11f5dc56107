"""The maximum throughput of a cluster: the lowest of the limits of its networks, disks, processors and clients.

The throughput operator reports how close a cluster is to these limits, and docs/throughput.md explains a published
measurement with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from storeside.measure.errors import MeasureInputError


@dataclass(frozen=True)
class Model:
    """The resources of a cluster; an unknown value is None or 0 and does not limit the result.

    `nic_gbit` is in Gbit/s per node, `disk_bytes` in bytes per second and disk. `disks` and `cores` are per node.
    `cpu_seconds_per_gb` is the CPU time of AIStore's process for serving 10^9 bytes. `clients` is the number of the
    machines that read, with `client_nic_gbit` each.
    """

    nodes: int
    nic_gbit: float | None = None
    disks: int = 0
    disk_bytes: float | None = None
    cores: int = 0
    cpu_seconds_per_gb: float | None = None
    clients: int = 0
    client_nic_gbit: float | None = None

    def limits(self) -> dict[str, float]:
        """Return the known limits of the cluster in bytes per second, the lowest first."""
        found = {}
        if self.nic_gbit:
            found["network"] = self.nodes * self.nic_gbit * 1e9 / 8
        if self.disks and self.disk_bytes:
            found["disks"] = self.nodes * self.disks * self.disk_bytes
        if self.cores and self.cpu_seconds_per_gb:
            found["processors"] = self.nodes * self.cores * 1e9 / self.cpu_seconds_per_gb
        if self.clients and self.client_nic_gbit:
            found["clients"] = self.clients * self.client_nic_gbit * 1e9 / 8
        return dict(sorted(found.items(), key=lambda item: item[1]))


def disk_limit(mean: float, disk_use: float) -> float:
    """Extrapolate the limit of the disks from `disk_use` percent of use at `mean` bytes per second."""
    return mean * 100 / disk_use


def node_bound(nic_gbit: float, disk_gb_per_second: float) -> float | None:
    """Return the limit of one node in bytes per second: its NIC or all its disks. 0 means unknown; None: no limit.

    Raises:
        MeasureInputError: a figure is negative.
    """
    if nic_gbit < 0 or disk_gb_per_second < 0:
        raise MeasureInputError(f"limits {nic_gbit} Gbit/s and {disk_gb_per_second} GB/s: use 0 for an unknown limit")
    known = [value for value in (nic_gbit * 1e9 / 8, disk_gb_per_second * 1e9) if value]
    return min(known, default=None)
