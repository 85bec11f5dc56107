"""Airflow as part of the embedded stack."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.fernet import Fernet, InvalidToken

from storeside.operators import restrictions
from storeside.stack.airflow import airflow
from storeside.stack.airflow.airflow import DATABASE_FILE, components, environment, prepare
from storeside.stack.settings import Stack, StackError, default_folder
from storeside.stack.supervision.processes import MARK, mark


def test_all_processes_of_a_stack_encrypt_with_one_key(tmp_path: Path) -> None:
    one, other = (Stack.create(tmp_path / name, 1) for name in ("one", "other"))
    key = environment(one)["AIRFLOW__CORE__FERNET_KEY"]
    assert key == environment(one)["AIRFLOW__CORE__FERNET_KEY"]
    sealed = Fernet(key).encrypt(b"kwargs")
    with pytest.raises(InvalidToken):
        Fernet(environment(other)["AIRFLOW__CORE__FERNET_KEY"]).decrypt(sealed)


def test_tasks_have_an_api_server_of_their_own(tmp_path: Path) -> None:
    stack = Stack.create(tmp_path, 1)
    ports = {component.name: component.ports for component in components(stack)}
    assert ports["execution-api"] != ports["api-server"]
    address = environment(stack)["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
    assert address == f"http://127.0.0.1:{ports['execution-api'][0]}/execution/"


def test_passwords_are_those_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.stack.airflow.airflow.compile_packages", lambda tell: None)
    for _ in range(2):  # the second stack replaces the first, whose record was deleted
        stack = Stack.create(tmp_path, 1)
        passwords = stack.state / "airflow" / "passwords.json"
        passwords.parent.mkdir(parents=True, exist_ok=True)
        database = passwords.parent / DATABASE_FILE
        database.touch()
        monkeypatch.setattr(airflow, "template", lambda cache, same=database: same)
        prepare(stack)
        wanted = {user: stack.secrets[f"airflow_{user}"] for user in ("admin", "viewer")}
        assert json.loads(passwords.read_text()) == wanted
        assert passwords.stat().st_mode & 0o077 == 0


def test_a_new_stack_has_the_settings_of_the_speech_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may change or delete them: an existing database is not changed."""
    template = tmp_path / "template.db"
    with closing(sqlite3.connect(template)) as database:
        database.execute("CREATE TABLE variable (key TEXT UNIQUE, val TEXT, description TEXT, is_encrypted BOOLEAN)")
    monkeypatch.setattr("storeside.stack.airflow.airflow.compile_packages", lambda tell: None)
    monkeypatch.setattr("storeside.stack.airflow.airflow.template", lambda cache: template)
    stack = Stack.create(tmp_path, 1)
    prepare(stack)
    with closing(sqlite3.connect(stack.state / "airflow" / DATABASE_FILE)) as database:
        found = database.execute("SELECT key, val FROM variable WHERE NOT is_encrypted").fetchall()
        assert [name for name, _ in found] == ["storeside_speech_pipeline", "storeside_forms"]
        settings = json.loads(found[0][1])
        assert (settings["source"], settings["keep_extension"]) == ("s3://recordings", True)
        database.execute("DELETE FROM variable")
        database.commit()
        prepare(stack)
        assert not database.execute("SELECT * FROM variable").fetchall()


def test_forms_of_a_trial_take_every_name_of_its_own_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    value, _ = airflow.variables(Stack.create(tmp_path, 1))["storeside_forms"]
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_FORMS", json.dumps(value))
    lists = restrictions.listed()
    for names, name in (
        ("read", "s3://trips"),
        ("delete", "ais://mine"),
        ("queues", "mine"),
        ("tables", "mine.trips"),
    ):
        assert restrictions.is_listed(names, name, lists[names])
    for names, name in (("read", "ais://@other/mine"), ("queues", "http://elsewhere/0/mine"), ("write", "gs://mine")):
        assert not restrictions.is_listed(names, name, lists[names])
    assert "storeside_forms" not in airflow.variables(Stack.create(tmp_path, 1, tls=True))


def _revisions(folder: Path) -> dict[str, str]:
    """Return the revision of each of Airflow's databases in a folder."""
    found = {}
    for path in folder.glob(f"{DATABASE_FILE}*"):
        with closing(sqlite3.connect(path)) as database:
            ((found[path.name],),) = database.execute("SELECT version_num FROM alembic_version")
    return found


@pytest.mark.exhaustive
def test_the_database_of_an_earlier_airflow_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow, "compile_packages", lambda tell: None)
    stack = replace(Stack.create(tmp_path, 1), cache=default_folder() / "cache")
    prepare(stack)
    home = stack.state / "airflow"
    ((_, current),) = _revisions(home).items()
    said: list[str] = []
    prepare(stack, said.append)
    assert said == []
    variables = {**os.environ, **environment(stack)}
    down = [sys.executable, "-m", "airflow", "db", "downgrade", "--to-version", "3.2.0", "--yes"]
    subprocess.run(down, env=variables, cwd=tmp_path, check=True, capture_output=True)
    ((_, old),) = _revisions(home).items()
    assert old != current
    with subprocess.Popen(["sleep", "60"], env={MARK: mark(stack.state, "scheduler")}) as scheduler:
        try:
            with pytest.raises(StackError, match="Airflow has another version now, and runs: run 'make down'"):
                prepare(stack)
        finally:
            scheduler.kill()
    prepare(stack, said.append)
    assert _revisions(home) == {DATABASE_FILE: current, f"{DATABASE_FILE}.{old}": old}
    assert "migrating Airflow's database" in said[0]
    with closing(sqlite3.connect(home / DATABASE_FILE)) as database:
        kept = database.execute("SELECT key FROM variable ORDER BY key").fetchall()
        assert kept == [("storeside_forms",), ("storeside_speech_pipeline",)]


def test_a_stack_of_an_older_version_gets_the_ports_it_lacks(tmp_path: Path) -> None:
    stack = Stack.create(tmp_path, 1)
    old = {name: port for name, port in stack.ports.items() if name != "airflow_execution"}
    replace(stack, ports=old).save()
    found = Stack.load(tmp_path)
    assert found is not None
    assert found.ports == {**old, "airflow_execution": found.ports["airflow_execution"]}
    assert found == Stack.load(tmp_path)
