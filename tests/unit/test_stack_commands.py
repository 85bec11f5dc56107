"""The commands of the embedded stack that ask running processes, and what a stack keeps from its start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from storeside.stack import choices, cli, demo
from storeside.stack.building import backends, nodes
from storeside.stack.servers import hsds, s3
from storeside.stack.settings import Stack, StackError
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.supervisor import Status

RUNNING = ("authn", "clickhouse", "clickhouse-https", "podrunner", "ais-proxy", "ais-target-0", "hsds-dn0", "s3")


class Running:
    """A supervisor that runs these components and records the probes that it gets."""

    probes: set[str]

    def __init__(self, stack: Stack) -> None: ...

    def names(self) -> list[str]:
        return list(RUNNING)

    def running(self) -> bool:
        return True

    def status(self, components: Iterable[Component]) -> list[Status]:
        Running.probes = {component.name for component in components}
        return [Status(name, "running", True, 1, 1.0) for name in RUNNING]

    def restart(self, name: str, components: Iterable[Component]) -> None:
        Running.probes = {component.name for component in components}


def refuse(*given: Any) -> None:
    raise AssertionError(f"nothing is built or installed: {given}")


def files(folder: Path) -> dict[Path, str]:
    """Return the files below a folder, with their content."""
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_status_and_restart_build_and_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack.create(tmp_path, 1, tls=True)
    stack.save()
    (stack.state / "aistore").mkdir()
    (stack.state / "aistore" / "join").write_text("the secret of a running cluster")
    before = files(tmp_path)
    monkeypatch.setattr(cli, "Supervisor", Running)
    monkeypatch.setattr(nodes, "built_once", refuse)
    monkeypatch.setattr(hsds, "install", refuse)
    command = ["--folder", str(tmp_path)]
    assert cli.main([*command, "status"]) == 0
    assert set(RUNNING) <= Running.probes
    for name in RUNNING:
        assert cli.main([*command, "restart", name]) == 0
        assert name in Running.probes
    assert files(tmp_path) == before


def test_a_stack_keeps_its_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    stack = choices.with_backends(Stack.create(tmp_path, 1))
    assert stack.backends == ""
    monkeypatch.setenv(backends.VARIABLE, "gcp,azure")
    assert choices.with_backends(stack).backends == "azure gcp"
    recorded = Stack.load(tmp_path)
    assert recorded is not None
    monkeypatch.delenv(backends.VARIABLE)
    with pytest.raises(StackError, match="has the backends azure gcp: set STORESIDE_AISTORE_BACKENDS=azure,gcp and"):
        choices.with_backends(recorded)
    monkeypatch.setenv(backends.VARIABLE, "aws")
    assert choices.with_backends(recorded) == stack == Stack.load(tmp_path)


def test_a_moved_stack_is_refused(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    stack = choices.settle(home, 1, None, None)
    shutil.copytree(home, copy)
    with pytest.raises(StackError, match=f"the stack in {copy} was created in {home}, .* or delete {copy}/state"):
        choices.settle(copy, None, None, None)
    assert choices.settle(home, None, None, None) == stack


def test_a_stack_of_an_older_version_records_its_folder(tmp_path: Path) -> None:
    stack = choices.settle(tmp_path, 1, None, None)
    record = json.loads((stack.state / "stack.json").read_text())
    del record["folder"], record["backends"]
    (stack.state / "stack.json").write_text(json.dumps(record))
    assert choices.settle(tmp_path, None, None, None) == stack == Stack.load(tmp_path)


def test_records_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = choices.settle(tmp_path, 1, None, None).state / "stack.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "colour": "red"}))
    with pytest.raises(StackError, match=f"newer version of Storeside wrote {record}, with colour: check that"):
        Stack.load(tmp_path)

    def denied(*given: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(StackError, match=f"{record} cannot be read: the stack belongs to another user"):
        Stack.load(tmp_path)


def test_a_disk_on_which_aistore_would_not_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = {"free": 20e9}
    monkeypatch.setattr("shutil.disk_usage", lambda folder: (int(1e12), int(9e11), int(disk["free"])))
    with pytest.raises(StackError, match=r"98 % of the disk of .* are in use, .* free at least 10.0 GB first"):
        choices.settle(tmp_path, 1, None, None)
    disk["free"] = 31e9
    assert choices.settle(tmp_path, 1, None, None) == Stack.load(tmp_path)
    disk["free"] = 1.5e9
    with pytest.raises(StackError, match=r"only 1.5 GB are free"):
        choices.settle(tmp_path, 1, None, None)


def test_the_demo_leaves_no_second_copy_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack.create(tmp_path, 1)
    uploaded: dict[str, int] = {}

    class Client:
        def upload_file(self, file: str, bucket: str, key: str) -> None:
            uploaded[key] = Path(file).stat().st_size

    monkeypatch.setattr(s3, "of_stack", lambda service, stack: Client())
    (stack.state / "demo" / "demo" / "an-earlier-one").mkdir(parents=True)
    upload = demo._upload(stack, "demo/1/", None, 1)
    assert (upload.objects, upload.bytes) == (len(uploaded), sum(uploaded.values()))
    assert upload.objects == 1 + upload.broken
    assert not (stack.state / "demo").exists()


@pytest.mark.parametrize("command", ["up", "demo"])
def test_slow_audio_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    stack = Stack.create(tmp_path, 1)
    stack.save()
    monkeypatch.setattr(cli, "Supervisor", Running)
    monkeypatch.setattr(cli, "up", lambda *given: stack)
    monkeypatch.setattr(demo, "run", lambda *given: [("machine", demo.machine())])
    monkeypatch.setenv("CC", "no-such-compiler")
    assert cli.main(["--folder", str(tmp_path), command]) == 0
    note = "there is no no-such-compiler: apt-get install gcc libc6-dev pkg-config libavformat-dev"
    assert (
        f"audio is transcoded 5 to 9 times slower than with the native audio library, which cannot be built: {note}"
        in (said := capsys.readouterr()).err
    )
    assert "; then run this command again" in said.err
    assert "password" not in said.err


def test_the_demonstration_names_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    assert demo.machine() == "2 cores; the native audio library"
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    monkeypatch.setenv("CC", "no-such-compiler")
    assert demo.machine() == "1 core; PyAV, without the native audio library"
