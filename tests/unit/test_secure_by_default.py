"""Which stacks have AuthN: new ones, unless their owner asks for one without, and never one that was made without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from storeside.stack import authn, cli
from storeside.stack.containers import aistore
from storeside.stack.servers import clickhouse
from storeside.stack.settings import Stack, StackError
from storeside.stack.supervision.supervisor import Supervisor


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "start", lambda *_: None)


def up(folder: Path, *options: str) -> Stack:
    cli.main(["--folder", str(folder), "up", "--only", "s3", *options])
    found = Stack.load(folder)
    assert found
    return found


def test_a_new_stack_is_secure_and_an_existing_one_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(tmp_path / "new").secure
    assert "has a token" in capsys.readouterr().out
    assert not up(tmp_path / "open", "--open").secure
    assert not up(tmp_path / "open").secure
    assert "open to every user of this machine" in capsys.readouterr().out
    record = tmp_path / "old" / "state" / "stack.json"
    up(tmp_path / "old")
    record.write_text(json.dumps({k: v for k, v in json.loads(record.read_text()).items() if k != "secure"}))
    assert not up(tmp_path / "old").secure
    with pytest.raises(StackError, match=r"is secure: run 'make down' and delete .*state to change"):
        cli.up(tmp_path / "new", only=("s3",), secure=False)


def test_compose_has_tls_and_authn_and_so_has_an_existing_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = aistore._stack(tmp_path / "new", "2")
    assert made.secure
    assert made.tls
    assert replace(made, certificates=None) == Stack.load(tmp_path / "new")
    assert made == aistore._stack(tmp_path / "new", "")
    assert {made.ports[name] for name in ("ais_proxy", "ais_target1_public", "ais_target1_data", "authn")} == {
        aistore.PORT, aistore.PORT + 2, aistore.DATA_PORT + 2, aistore.AUTHN_PORT
    }  # fmt: skip
    assert capsys.readouterr().err == ""
    Stack.create(tmp_path / "old", 1, secure=False).save()
    old = aistore._stack(tmp_path / "old", "")
    assert old.secure
    assert old.tls
    assert (old.targets, old.ports["authn"]) == (1, aistore.AUTHN_PORT)
    assert "a version without TLS" in capsys.readouterr().err


def test_the_first_token_restarts_clickhouse(tmp_path: Path) -> None:
    """ClickHouse may have been started without AIStore, whose AuthN issues the token."""
    stack = Stack.create(tmp_path, 1)
    before, again = (clickhouse.components(stack)[0] for _ in range(2))
    assert before.environment == again.environment
    authn.folder(stack).mkdir(parents=True)
    authn.token_file(stack, "clickhouse").write_text("a-token")
    (after,) = clickhouse.components(stack)
    assert before.environment != after.environment
    assert "a-token" not in repr((after.command, after.environment))


def test_the_environment_is_printed_without_authn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Stack.create(tmp_path, 1).save()
    assert cli.main(["--folder", str(tmp_path), "env"]) == 0
    said = capsys.readouterr()
    assert "export AIS_ENDPOINT=" in said.out
    assert "AIS_AUTHN_TOKEN" not in said.out
    assert "AuthN does not run: start the stack with 'make up'" in said.err
