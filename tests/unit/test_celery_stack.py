from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from storeside.stack import choices, cli
from storeside.stack.airflow import airflow, celery
from storeside.stack.building import packages
from storeside.stack.servers import postgres, redis
from storeside.stack.settings import Stack, StackError


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setattr(packages, "install", lambda what, lock, folder: folder)
    return Stack.create(tmp_path, 2, executor="celery")


@pytest.mark.parametrize(
    ("absent", "remedy"),
    [("redis-server", "run apt-get install redis-server"), ("initdb", "run apt-get install postgresql")],
)
def test_a_missing_server_is_named_before_anything_is_created(
    absent: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None if name == absent else f"/usr/bin/{name}")
    folder = tmp_path / "stack"
    assert cli.main(["--folder", str(folder), "up", "--executor", "celery"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert remedy in line
    assert not (folder / "state").exists()


def test_root_needs_a_user_namespace_for_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("initdb", "postgres"):
        (tmp_path / name).touch()
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(postgres, "_NOT_ROOT", ("false",))
    with pytest.raises(StackError, match=r"does not run as root.*run make as another user"):
        postgres.folder_of_programs()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert postgres.folder_of_programs() == tmp_path


def test_the_newest_postgresql_of_debian_is_found_outside_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("9.6", "15", "17"):
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        (folder / "postgres").touch()
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert postgres.folder_of_programs() == tmp_path / "17" / "bin"


def test_a_stack_keeps_its_executor(tmp_path: Path) -> None:
    Stack.create(tmp_path, 2).save()
    with pytest.raises(StackError, match=r"has the executor local: run 'make down' and delete .*state to change"):
        choices.settle(tmp_path, None, None, "celery")
    assert choices.settle(tmp_path, None, None, None).executor == "local"


def test_a_record_without_an_executor_is_of_a_stack_with_localexecutor(tmp_path: Path) -> None:
    stack = Stack.create(tmp_path, 2)
    record = asdict(stack)
    for name in ("state", "cache", "executor"):
        del record[name]
    stack.state.mkdir()
    (stack.state / "stack.json").write_text(json.dumps(record))
    found = Stack.load(tmp_path)
    assert found is not None
    assert found.executor == "local"
    assert celery.servers(found) == []


def test_airflow_processes_share_no_folder_and_no_address(stack: Stack) -> None:
    environments = {name: celery.environment(stack, name) for name in celery.ADDRESSES}
    for variable in ("AIRFLOW_HOME", "TMPDIR", "AIRFLOW__LOGGING__BASE_LOG_FOLDER", "STORESIDE_ADDRESS"):
        assert len({found[variable] for found in environments.values()}) == len(environments), variable
    for name, found in environments.items():
        homes = {str(stack.state / "airflow" / other) for other in environments if other != name}
        assert not [value for value in found.values() for home in homes if f"{value}/".startswith(f"{home}/")]
    # Servers of logs refuse requests that another key signed.
    assert len({found["AIRFLOW__API__SECRET_KEY"] for found in environments.values()}) == 1
    kinds = [component.name.removesuffix("-2") for component in celery.components(stack)]
    assert [kinds.count(kind) for kind in ("worker", "triggerer", "scheduler", "api-server")] == [2, 2, 2, 1]


def test_secrets_are_in_no_command_line(stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(redis, "program", lambda: "redis-server")
    monkeypatch.setattr(postgres, "folder_of_programs", lambda: tmp_path)
    (stack.state / "postgres").mkdir(parents=True)
    components = [*celery.servers(stack), *celery.components(stack)]
    assert [component.name for component in components[:2]] == ["postgres", "redis"]
    for component in components:
        assert not [secret for secret in stack.secrets.values() if secret in " ".join(component.command)]
    configuration = stack.state / "redis" / "redis.conf"
    assert f"requirepass {stack.secrets['redis']}" in configuration.read_text()
    assert configuration.stat().st_mode & 0o077 == 0


def test_the_tables_of_an_earlier_airflow_are_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack.create(tmp_path, 1, executor="celery")
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(airflow, "prepare_files", lambda stack, tell: None)
    monkeypatch.setattr(celery, "_run", lambda stack, *command: commands.append(command))
    celery.prepare(stack)
    assert [command[:2] for command in commands] == [("db", "migrate"), ("variables", "import")]
    celery.prepare(stack)
    assert len(commands) == 2
    (stack.state / "airflow" / "migrated").write_text("")  # as earlier versions of Storeside wrote it
    celery.prepare(stack)
    celery.prepare(stack)
    assert commands[2:] == [("db", "migrate")]
