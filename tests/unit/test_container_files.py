"""The files of AIStore's container that other containers may read: by their modes, as another user of the group."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from storeside.stack import authn
from storeside.stack.containers import files
from storeside.stack.podrunner import component as podrunner
from storeside.stack.podrunner.settings import Settings
from storeside.stack.servers import aistore
from storeside.stack.settings import Stack
from storeside.stack.supervision.supervisor import Supervisor


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    made = Stack.create(tmp_path, 2)
    made.save()
    for name in ("run", "logs"):
        (made.state / name).mkdir()
        (made.state / name / "secrets").write_text("of the supervisor")
    aistore.components(made, Path("/no/aisnode"), aistore.Hosts("aistore", "aistore-data", "transformers"))
    folder = authn.folder(made)
    folder.mkdir(mode=0o700)
    for user in ("clickhouse", "transformer"):
        authn.token_file(made, user).write_text(f"token-of-{user}")
    return made


def readable(folder: Path) -> Iterator[Path]:
    """Yield the files that another user of the group can read."""
    for entry in folder.iterdir():
        mode = entry.stat().st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IXGRP:
            yield from readable(entry)
        elif stat.S_ISREG(mode) and mode & stat.S_IRGRP:
            yield entry


def test_the_group_reads_objects_and_the_pod_runners_files_only(stack: Stack, tmp_path: Path) -> None:
    data = aistore.data_folder(stack)
    old = data / "mp1" / "1" / "@ais" / "bucket" / "%ob" / "object"  # of a version with one user
    old.parent.mkdir(parents=True)
    old.touch(mode=0o600)
    for folder in (data, *data.rglob("*")):
        if folder.is_dir():
            folder.chmod(0o700)
    data.chmod(0o755)
    files.write_tokens(stack, tmp_path / "tokens")
    podrunner.write(stack, {}, "transformers", **files.of_pods(stack))
    files.share(stack)
    found = {path.relative_to(stack.state) for path in readable(stack.state.parent) if stack.state in path.parents}
    places = {path.parts[0] if path.parts[0] == "podrunner" else path.parts[:2] for path in found}
    assert places == {"podrunner", ("aistore", "data")}
    assert old.relative_to(stack.state) in found
    content = b"".join((stack.state / path).read_bytes() for path in found).decode()
    assert [name for name, secret in stack.secrets.items() if secret in content] == []
    assert not stack.state.stat().st_mode & (stat.S_IRGRP | stat.S_IWGRP | stat.S_IRWXO)


def test_the_pod_runner_reads_the_owners_list(stack: Stack) -> None:
    podrunner.write(stack, {}, "transformers")
    podrunner.allowed(stack).touch(mode=0o600)
    files.share(stack)
    assert podrunner.allowed(stack).stat().st_mode & 0o777 == 0o640


def test_a_start_of_aistore_does_not_close_the_folder_to_running_transformers(stack: Stack) -> None:
    for supervisor, mode in ((Supervisor(stack, files.PASSED), 0o710), (Supervisor(stack), 0o700)):
        supervisor.start([])
        try:
            assert stack.state.stat().st_mode & 0o777 == mode
        finally:
            supervisor.stop()


def test_objects_are_opened_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    podrunner.write(stack, {}, "transformers")
    files.share(stack)
    monkeypatch.setattr(os, "walk", lambda top, **_: pytest.fail(f"{top}") if "data" in str(top) else iter(()))
    files.share(stack)


def test_the_pod_runner_gets_its_token_and_clickhouse_its_own(stack: Stack, tmp_path: Path) -> None:
    files.write_tokens(stack, tmp_path / "tokens")
    config = podrunner.write(stack, {}, "transformers", **files.of_pods(stack))
    assert Settings.load(config).pod_token.read_text() == "token-of-transformer"
    assert not Settings.load(config).gatherer_token.exists(), "all pods share these files"
    embedded = Settings.load(podrunner.write(stack, {}))
    assert embedded.gatherer_token.name == "gatherer.token"
    (file,) = (tmp_path / "tokens").iterdir()
    written = file.read_text()
    assert "<aistore_token>token-of-clickhouse</aistore_token>" in written
    assert "<aistore_authorization>Bearer token-of-clickhouse</aistore_authorization>" in written
    assert file.stat().st_mode & 0o777 == 0o644, "ClickHouse is another user"


def test_a_targets_new_files_are_readable_for_the_group_under_compose_only(stack: Stack) -> None:
    def commands(hosts: aistore.Hosts) -> list[str]:
        return [" ".join(node.command) for node in aistore.components(stack, Path("/no/aisnode"), hosts)[1:]]

    assert all("umask 027" in command for command in commands(aistore.Hosts("a", "b", "transformers")))
    assert not any("umask" in command for command in commands(aistore.Hosts()))
