"""An engine, its images, and one project that all tests share; figures after the last test."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from storeside.stack.settings import default_folder
from tests.containers.base_images import provide
from tests.containers.engine import Engine, EngineError, engine
from tests.containers.project import BUILD_SECONDS, Project, project
from tests.verify import CANNOT_RUN

_FIGURES = pytest.StashKey[dict[str, tuple[float, str]]]()
_STARTED = time.monotonic()
Figures = dict[str, tuple[float, str]]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = {}


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Figures:
    """Figures to print in the end: value and unit by name."""
    return pytestconfig.stash[_FIGURES]


@pytest.fixture(scope="session")
def container_engine() -> Iterator[Engine]:
    """The engine of this machine, or one for these tests. Without either, the session ends with one clear line."""
    try:
        with engine(default_folder() / "cache" / "containers") as found:
            yield found
    except EngineError as e:
        pytest.exit(f"compose-test: cannot run: {e}", returncode=CANNOT_RUN)


@pytest.fixture(scope="session")
def stack(container_engine: Engine, tmp_path_factory: pytest.TempPathFactory, figures: Figures) -> Iterator[Project]:
    """The project with its images built; not started."""
    try:
        stand_ins = provide(container_engine)
    except EngineError as e:
        pytest.exit(f"compose-test: cannot run: {e}", returncode=CANNOT_RUN)
    for image in stand_ins:
        print(f"{image}: a stand-in, because no registry has answered")
    folder: Path = tmp_path_factory.mktemp("compose")
    with project(container_engine, f"storeside-test-{uuid.uuid4().hex[:8]}", folder) as found:
        started = time.monotonic()
        found.compose("--profile", "hsds", "build", seconds=BUILD_SECONDS)
        figures["compose.build_seconds"] = (time.monotonic() - started, "s")
        yield found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    passed, failed = (len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed"))
    failed += len(terminalreporter.stats.get("error", ()))
    for name, (value, unit) in config.stash[_FIGURES].items():
        terminalreporter.write_line(f"BENCH {name} {value:.0f} {unit}")
    terminalreporter.write_line(f"BENCH compose.seconds {time.monotonic() - _STARTED:.0f} s")
    terminalreporter.write_line(f"BENCH compose.passed {passed} tests")
    terminalreporter.write_line(f"BENCH compose.failed {failed} tests")
