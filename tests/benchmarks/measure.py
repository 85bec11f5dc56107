"""Helpers of all benchmarks: required tools, CPU seconds of processes, medians, and the BENCH lines."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import psutil

# Debian's packages of each tool that a benchmark compares with or builds from.
PACKAGES = {
    "ffmpeg": ("ffmpeg",),
    "cc": ("gcc", "libc6-dev"),
    "pkg-config": ("pkg-config",),
    "libavformat": ("libavformat-dev", "libavcodec-dev", "libswresample-dev", "libavutil-dev"),
}


def _is_there(tool: str) -> bool:
    if tool.startswith("lib"):
        return subprocess.run(["pkg-config", "--exists", tool], check=False).returncode == 0
    return shutil.which(tool) is not None


def require(tools: Sequence[str]) -> None:
    """Install missing tools from Debian's packages as root; otherwise exit with the packages to install."""
    missing = [tool for tool in tools if not _is_there(tool)]
    if not missing:
        return
    packages = [package for tool in missing for package in PACKAGES[tool]]
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if os.geteuid() or not shutil.which("apt-get"):
        sys.exit(f"error: {', '.join(missing)} are needed: {' '.join(install)}")
    print(f"installing {' '.join(packages)}", file=sys.stderr)
    for command in (["apt-get", "update"], install):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"error: {' '.join(command)}: {done.stderr.strip()[-500:]}")


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds of processes and all their descendants so far, those that have ended included."""
    total = 0.0
    for process in processes:
        for one in (process, *process.children(recursive=True)):
            try:
                total += sum(one.cpu_times()[:4])  # user, system, and both of children that were waited for
            except psutil.NoSuchProcess:
                continue
    return total


@dataclass
class Figures:
    """Measurements of one way of doing something: objects per second, and CPU milliseconds per object by part."""

    rates: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def add(self, rate: float, cpu: dict[str, float]) -> None:
        """Add one round."""
        self.rates.append(rate)
        for part, milliseconds in cpu.items():
            self.cpu.setdefault(part, []).append(milliseconds)

    @property
    def rate(self) -> float:
        """Median objects per second."""
        return statistics.median(self.rates)

    def part(self, name: str) -> float:
        """Median CPU milliseconds per object of one part."""
        return statistics.median(self.cpu.get(name, [0.0]))

    @property
    def totals(self) -> list[float]:
        """CPU milliseconds per object of all parts together, by round."""
        return [sum(parts) for parts in zip(*self.cpu.values(), strict=True)]

    @property
    def total(self) -> float:
        """Median CPU milliseconds per object of all parts together."""
        return statistics.median(self.totals)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return a median with the least and the greatest value: ``2.0 (1.9 to 2.4)``."""
    low, mid, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return mid if len(values) == 1 else f"{mid} ({low} to {high})"


def machine() -> str:
    """Return the machine in a line."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    memory, kernel = psutil.virtual_memory().total / 1e9, platform.release().partition("-")[0]
    return f"{os.cpu_count()} cores, {model}, {memory:.0f} GB, Linux {kernel}"


def bench(name: str, value: float, unit: str) -> None:
    """Print one figure the way that scripts read it."""
    print(f"BENCH {name} {value:.2f} {unit}", flush=True)
