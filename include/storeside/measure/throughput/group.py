"""Several loaders at once: their start, their end, and one outcome of all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol, Self

from storeside.aistore.cluster import Cluster
from storeside.measure.errors import MeasureTransientError
from storeside.measure.throughput.load import Loader, Outcome, environment, find


class Group(Protocol):
    """Loaders that start together and have one outcome. Leaving the block ends what still runs.

    Entering the block prepares the start, which may take minutes, and raises MeasureError if it fails.
    """

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def begin(self) -> None:
        """Start all loaders, now or in a few seconds."""

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`; return whether all loaders have ended."""

    def kill(self) -> None:
        """End all loaders; their totals are lost. A signal handler may call this."""

    def outcome(self) -> Outcome:
        """Return the merged totals of loaders that have all ended. Raises MeasureTransientError if one failed."""


class Loaders(Protocol):
    """Where loaders run."""

    def clear(self) -> None:
        """End loaders that an earlier try of the same measurement has left."""

    def group(self, arguments: Sequence[str], number: int, seconds: int) -> Group:
        """Return `number` loaders with the same arguments, which run for up to `seconds`."""


class LocalLoaders:
    """Loaders on this machine. `loader` is a path, or a name on the PATH.

    Raises:
        MeasureInputError: the loader does not exist.
    """

    def __init__(self, cluster: Cluster, loader: str) -> None:
        self._cluster = cluster
        self._program = find(loader)

    def clear(self) -> None:
        """Do nothing: the loaders of an earlier try ended with its process."""

    def group(self, arguments: Sequence[str], number: int, seconds: int) -> LoaderGroup:
        """Return processes of the loader."""
        return LoaderGroup([[self._program, *arguments]] * number, environment(self._cluster))


class LoaderGroup:
    """Loaders that start together. The first that fails ends the others, and its reason is that of the group.

    `commands` has the program and the arguments of each loader. Like a `Loader`, the processes end with the process
    that started them.
    """

    def __init__(self, commands: Sequence[Sequence[str]], variables: dict[str, str]) -> None:
        self._commands = commands
        self._variables = variables
        self._failure: MeasureTransientError | None = None
        self._outcomes: dict[int, Outcome] = {}
        self._loaders: list[Loader] = []
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.close()

    def begin(self) -> None:
        """Start all loaders now."""
        for program, *arguments in self._commands:
            self._loaders.append(self._closing.enter_context(Loader(program, arguments, self._variables)))

    @property
    def pids(self) -> list[int]:
        """The process ids of the loaders."""
        return [loader.pid for loader in self._loaders]

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`; return whether all loaders have ended. Ends them if one has failed."""
        deadline = time.monotonic() + seconds
        for loader in self._loaders:
            loader.wait(deadline - time.monotonic())
        ended = [self._has_ended(number, loader) for number, loader in enumerate(self._loaders, 1)]
        if self._failure is not None:
            for loader in self._loaders:
                loader.end()
            return True
        return all(ended)

    def kill(self) -> None:
        """Kill all loaders at once; their totals are lost."""
        for loader in self._loaders:
            loader.kill()

    def outcome(self) -> Outcome:
        """Return the merged totals of loaders that have all ended.

        Raises:
            MeasureTransientError: a loader, or some of its requests, failed, or they did not run at the same time.
        """
        if self._failure is not None:
            raise self._failure
        return merged([self._outcomes[number] for number in sorted(self._outcomes)])

    def _has_ended(self, number: int, loader: Loader) -> bool:
        if not loader.wait(0):
            return False
        if number not in self._outcomes and self._failure is None:
            try:
                self._outcomes[number] = loader.outcome()
            except MeasureTransientError as e:
                several = len(self._loaders) > 1
                self._failure = (
                    MeasureTransientError(f"loader {number} of {len(self._loaders)}: {e}") if several else e
                )
        return True


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Return one outcome of loaders that ran at the same time.

    Requests, errors and bytes are sums, from the first start to the last end. The latency is the mean over all
    requests; `aisloader` writes no percentiles. `together` is the time in which all loaders ran.

    Raises:
        MeasureTransientError: one loader ended before another one started.
    """
    began = min(one.began for one in outcomes)
    together = (max(one.together[0] for one in outcomes), min(one.together[1] for one in outcomes))
    if together[0] >= together[1]:
        raise MeasureTransientError(
            f"the {len(outcomes)} loaders did not run at the same time: the last one started"
            f" {together[0] - began:.1f} s after the first one. Use fewer loaders or more seconds"
        )
    requests = sum(one.requests for one in outcomes)
    waited = sum(one.requests * one.latency_seconds for one in outcomes)
    busy = [one for one in outcomes if one.requests]
    return Outcome(
        began=began,
        seconds=max(one.began + one.seconds for one in outcomes) - began,
        requests=requests,
        errors=sum(one.errors for one in outcomes),
        bytes=sum(one.bytes for one in outcomes),
        latency_seconds=waited / requests if requests else 0.0,
        latency_min_seconds=min((one.latency_min_seconds for one in busy), default=0.0),
        latency_max_seconds=max((one.latency_max_seconds for one in busy), default=0.0),
        together=together,
    )
