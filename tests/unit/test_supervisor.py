"""The supervisor with trivial components and a real supervisord."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from storeside.stack import cli
from storeside.stack.settings import Stack, StackError, free_ports
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import answers, listens
from storeside.stack.supervision.processes import marked
from storeside.stack.supervision.supervisor import Supervisor
from tests.support import until

SERVER = """
import http.server, os, subprocess, sys
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("secret is", os.environ["SECRET"], flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.BaseHTTPRequestHandler).serve_forever()
"""


def web(name: str, port: int, **options: Any) -> Component:
    def healthy() -> bool:
        return listens("127.0.0.1", port)

    return Component(
        name,
        (sys.executable, "-c", SERVER, str(port)),
        healthy,
        {"SECRET": "a%b\"c'd,e=f ;g"},
        ports=(port,),
        **options,  # type: ignore[arg-type]
    )


def broken(name: str, code: str, seconds: float = 20) -> Component:
    return Component(name, (sys.executable, "-c", code), lambda: False, start_seconds=seconds)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack.create(tmp_path / "a folder; 100% odd", 0)
    stack.save()
    yield stack
    Supervisor(stack).stop()
    assert not marked(stack.state)


def test_start_restart_stop(stack: Stack) -> None:
    first, second = (web(name, port) for name, port in zip(("one", "two"), free_ports(2), strict=True))
    supervisor = Supervisor(stack)
    supervisor.start([[first], [second]])
    one, two = supervisor.status()
    assert (one.name, one.healthy, two.name, two.healthy) == ("one", True, "two", True)
    assert "secret is a%b\"c'd,e=f ;g" in supervisor.log("one").read_text()
    assert "a%b" not in " ".join(word for process in marked(stack.state) for word in process.cmdline())
    assert all(path.stat().st_mode & 0o077 == 0 for path in (stack.state / "run").rglob("*.*") if path.is_file())

    os.kill(one.pid or 0, signal.SIGKILL)
    until(lambda: supervisor.status()[0].healthy and supervisor.status()[0].pid != one.pid, 60, "healthy replacement")
    until(lambda: len(marked(stack.state, "one")) == 2, 60, "two processes")  # the earlier instance's child was ended

    supervisor.restart("two")
    assert supervisor.status()[1].pid != two.pid
    pids = [status.pid for status in supervisor.status()]
    Supervisor(stack).start([[first], [second]])
    assert [status.pid for status in supervisor.status()] == pids, "an unchanged component was restarted"

    supervisor.stop()
    assert not marked(stack.state)
    assert supervisor.status() == []


def test_trouble_of_a_component_that_answers_is_in_the_status(
    stack: Stack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = ["target one is stuck; restart it"]
    (port,) = free_ports(1)
    one = web("one", port, trouble=lambda: troubles[0] if troubles else "")
    Supervisor(stack).start([[one]])
    (status,) = Supervisor(stack).status([one])
    assert (status.healthy, status.trouble) == (False, troubles[0])
    monkeypatch.setattr(cli, "stages", lambda stack, only, start: [[one]])
    folder = ["--folder", str(stack.state.parent)]
    assert cli.main([*folder, "status"]) == 1
    out = capsys.readouterr().out
    assert "running, not healthy" in out or "starting, not healthy" in out
    assert "one: target one is stuck; restart it" in out
    troubles.clear()
    assert cli.main([*folder, "restart", "one"]) == 0
    assert capsys.readouterr().out == "one was restarted and is healthy\n"
    (again,) = Supervisor(stack).status([one])
    assert again.healthy
    assert again.pid != status.pid
    assert cli.main([*folder, "restart", "two"]) == 1
    assert "two is not a running component: one" in capsys.readouterr().err


def test_failing_components(stack: Stack) -> None:
    supervisor = Supervisor(stack)
    with pytest.raises(StackError, match=r"crash ended \(exit status 3\); last lines: no licence; see .*crash\.log"):
        supervisor.start([[broken("crash", "import sys; print('no licence', flush=True); sys.exit(3)")]])
    with pytest.raises(StackError, match=r"late ended \(exit status 4\)"):
        supervisor.start([[broken("late", "import sys, time; time.sleep(4); sys.exit(4)")]])
    with pytest.raises(StackError, match=r"silent did not become healthy within 1 s; see"):
        supervisor.start([[broken("silent", "import time; time.sleep(60)", 1)]])
    missing = Component("missing", ("/nowhere/program",), lambda: False)
    with pytest.raises(StackError, match="cannot run /nowhere/program: No such file"):
        supervisor.start([[missing]])
    with pytest.raises(StackError, match="nobody is not a running component"):
        supervisor.restart("nobody")


def test_taken_port(stack: Stack) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        message = (
            rf"port {port} of web is taken by pid {os.getpid()} \(.+\): end that process, or take the stack down"
        )
        with pytest.raises(StackError, match=message):
            Supervisor(stack).start([[web("web", port)]])


class _Foreign(http.server.BaseHTTPRequestHandler):
    """A program that has the supervisor's port; it records the logins that it receives, and answers with an error."""

    logins: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.logins.append(self.headers["Authorization"])
        self.send_error(500, "broken")

    def log_message(self, *given: Any) -> None: ...


def test_another_program_at_the_port_gets_no_password(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(stack)
    supervisor.logs.mkdir()
    with http.server.HTTPServer(("127.0.0.1", stack.ports["supervisor"]), _Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert not supervisor.running()
        assert supervisor.status() == supervisor.names() == _Foreign.logins == []
        supervisor.stop()
        assert _Foreign.logins == []
        monkeypatch.setattr("storeside.stack.supervision.supervisor.runs", lambda state: True)
        with (
            pytest.raises(
                StackError, match=r"the supervisor failed: <ProtocolError for /RPC2: 500 broken>"
            ) as failed,
            supervisor._locked(),
        ):
            supervisor._call("getPID")
        server.shutdown()
    monkeypatch.undo()
    assert _Foreign.logins
    assert stack.secrets["supervisor"] not in str(failed.value)


def test_supervisor_killed(stack: Stack) -> None:
    component = web("web", free_ports(1)[0])
    supervisor = Supervisor(stack)
    supervisor.start([[component]])
    before = {process.pid for process in marked(stack.state)}
    os.kill(marked(stack.state, "supervisord")[0].pid, signal.SIGKILL)
    until(lambda: not supervisor.running(), 60, "end of the supervisor")
    supervisor.start([[component]])
    assert supervisor.status()[0].healthy
    assert not before & {process.pid for process in marked(stack.state)}

    os.kill(marked(stack.state, "supervisord")[0].pid, signal.SIGKILL)
    supervisor.stop()
    assert not marked(stack.state)


def test_two_stacks(stack: Stack, tmp_path: Path) -> None:
    other = Stack.create(tmp_path / "other", 0)
    ports = free_ports(2)
    try:
        Supervisor(stack).start([[web("web", ports[0])]])
        Supervisor(other).start([[web("web", ports[1])]])
        pids = [process.pid for process in marked(stack.state)]
        Supervisor(other).stop()
        assert all(psutil.pid_exists(pid) for pid in pids)
        assert not answers(f"http://127.0.0.1:{ports[1]}/")
    finally:
        Supervisor(other).stop()
