"""A stack whose AIStore has the backends of GCS, Azure and OCI, in front of emulators."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storeside.stack import cli
from storeside.stack.settings import Stack, default_folder
from storeside.stack.supervision.supervisor import Supervisor
from tests.backends import emulators as servers
from tests.backends.emulators import Emulators
from tests.support import allow

FOLDER = default_folder() / "test-backends"
BUCKETS = ("recordings", "results")


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulators]:
    """The emulators, each with the buckets `BUCKETS`."""
    cache = default_folder() / "cache" / "bench"
    with servers.running(cache, tmp_path_factory.mktemp("emulators"), BUCKETS) as found:
        yield found


@pytest.fixture(scope="session")
def stack(emulators: Emulators) -> Iterator[Stack]:
    """ClickHouse, pod runner and AIStore; replaces the stack of the other tests."""
    if (old := Stack.load(FOLDER)) is not None:
        Supervisor(old).stop()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    cache = default_folder() / "cache"
    cache.mkdir(exist_ok=True)
    (FOLDER / "cache").symlink_to(cache, target_is_directory=True)
    allow(FOLDER)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in emulators.environment.items():
            patched.setenv(name, value)
        found = cli.up(Path(FOLDER), only=("clickhouse", "podrunner", "aistore"))
        try:
            yield found
        finally:
            Supervisor(found).stop()
