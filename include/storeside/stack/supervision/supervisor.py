"""Start, watch and stop the stack's processes with the `supervisor` package."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from storeside.stack.settings import HOST, SOURCES, Stack, StackError
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.processes import end, listener, marked
from storeside.stack.supervision.supervisord import (
    PROGRAM,
    SUPERVISORD,
    Transport,
    environment,
    escape,
    read,
    runs,
    tail,
    write,
)

UNANSWERED = (OSError, xmlrpc.client.Error, http.client.HTTPException)
RETRIES = 3
STEADY_SECONDS = 3
NOISE = re.compile(r"\s*(at |File |\^|~|$)|Traceback |\s+raise |.*\bDEBUG\b")


@dataclass(frozen=True)
class Status:
    """The state of one component; `healthy` is None if it has no probe.

    `trouble` is the fault of a component that answers, with the remedy; such a component is not healthy.
    """

    name: str
    state: str
    healthy: bool | None
    pid: int | None
    uptime: float | None
    trouble: str = ""


class Supervisor:
    """The supervisor of one stack, whose folder gets `mode`. It runs as a daemon, independently of this object."""

    def __init__(self, stack: Stack, mode: int = 0o700) -> None:
        self.stack, self._mode = stack, mode
        self.logs = stack.state / "logs"
        self._run = stack.state / "run"
        self._probed: dict[str, Component] = {}

    def start(self, stages: Sequence[Sequence[Component]], tell: Callable[[str], object] = lambda text: None) -> None:
        """Start the components stage by stage, each after the stage before is healthy; `tell` receives the progress.

        Unchanged components that already run, and running components outside `stages`, keep running.

        Raises:
            StackError: a port is taken, or a component ended or did not become healthy in time.
        """
        with self._locked():
            self._daemon()
            for number, stage in enumerate(stages):
                for component in stage:
                    self._probed[component.name] = component
                    if self._place(component, number):
                        tell(f"starting {component.name}")
                self._wait(stage)

    def stop(self) -> None:
        """Stop all components in reverse order, then the supervisor; afterwards no process of the stack is left."""
        with self._locked():
            if self.running():
                for names in reversed(self._stages()):
                    last = [name for name in names if self._record(name)["stop_last"]]
                    self._halt([name for name in names if name not in last])
                    self._halt(last)
                daemon = self._call("getPID")
                with contextlib.suppress(*UNANSWERED):
                    self._call("shutdown")
                _until(lambda: not psutil.pid_exists(daemon), 10)
            end(marked(self.stack.state))
            shutil.rmtree(self._run / "programs", ignore_errors=True)

    def status(self, components: Iterable[Component] = ()) -> list[Status]:
        """Return the status of every component, in start order; empty if the stack is not running.

        `components` add health probes to those of the components that this object started.
        """
        if not self.running():
            return []
        probed = {**self._probed, **{component.name: component for component in components}}
        info = {entry["name"]: entry for entry in self._call("getAllProcessInfo")}
        found = []
        for name in (name for names in self._stages() for name in names if name in info):
            entry = info[name]
            pid = entry["pid"] or None
            answers = bool(pid) and _healthy(probed[name]) if name in probed else None
            trouble = probed[name].trouble() if answers else ""
            found.append(
                Status(
                    name=name,
                    state=entry["statename"].lower(),
                    healthy=answers and not trouble,
                    pid=pid,
                    uptime=float(entry["now"] - entry["start"]) if pid else None,
                    trouble=trouble,
                )
            )
        return found

    def restart(self, name: str, components: Iterable[Component] = ()) -> None:
        """Stop one component and start it again; wait until it is healthy if it has a probe.

        `components` add health probes to those of the components that this object started.

        Raises:
            StackError: the component is unknown, or did not become healthy again.
        """
        with self._locked():
            if name not in self.names():
                raise StackError(f"{name} is not a running component: {', '.join(self.names()) or 'none runs'}")
            self._halt([name])
            self._call("startProcess", f"{name}:{name}", False)
            probed = {**self._probed, **{component.name: component for component in components}}
            if name in probed:
                self._wait([probed[name]])

    def running(self) -> bool:
        """Return whether this stack's supervisor answers; any other program at its port receives no password."""
        try:
            return runs(self.stack.state) and bool(self._call("getState")["statecode"] == 1)
        except UNANSWERED:
            return False

    def names(self) -> list[str]:
        """Return the components of the running stack in start order."""
        return [name for names in self._stages() for name in names] if self.running() else []

    def log(self, name: str) -> Path:
        """Return the path of a component's log."""
        return self.logs / f"{name}.log"

    def _daemon(self) -> None:
        if self.running():
            return
        end(marked(self.stack.state))  # a supervisor that was killed leaves its children
        shutil.rmtree(self._run / "programs", ignore_errors=True)
        if re.search(r"\s[;#]|\n", str(self._run)):
            raise StackError(f"supervisord cannot use the path {self._run}: choose a path without ' ;' and ' #'")
        port = self.stack.ports["supervisor"]
        self._check_port("the supervisor", port)
        self.logs.mkdir(parents=True, exist_ok=True)
        configuration = self._configure()
        result = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(configuration)],
            cwd=self._run,
            env=environment(self.stack.state),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if result.returncode or not _until(self.running, 20):
            said = " ".join((result.stdout + result.stderr).split())[-300:]
            raise StackError(
                f"the supervisor does not start: {said or 'no message'}; see {self.logs}/supervisord.log"
            )

    def _configure(self) -> Path:
        """Write the supervisor's configuration for all registered components and return its path."""
        text = SUPERVISORD.format(
            logs=escape(self.logs),
            run=escape(self._run),
            host=HOST,
            port=self.stack.ports["supervisor"],
            password=escape(self.stack.secrets["supervisor"]),
        )
        programs = sorted((self._run / "programs").glob("*.conf"))
        path = self._run / "supervisord.conf"
        write(path, "\n".join([text, *(program.read_text() for program in programs)]))
        return path

    def _place(self, component: Component, stage: int) -> bool:
        """Register and start a component unless it runs unchanged; return whether it was started."""
        path = self._run / "programs" / f"{component.name}.json"
        program = path.with_suffix(".conf")
        record = json.dumps(
            {
                "name": component.name,
                "stage": stage,
                "stop_last": component.stop_last,
                "state": str(self.stack.state),
                "command": component.command,
                "directory": str(component.directory),
                "environment": dict(component.environment),
            },
            indent=1,
        )
        text = PROGRAM.format(
            name=component.name,
            command=escape(shlex.join([sys.executable, "-m", "storeside.stack.supervision.launch", str(path)])),
            sources=escape(SOURCES),
            steady=STEADY_SECONDS,
            retries=RETRIES,
            signal=component.stop_signal,
            stop_seconds=component.stop_seconds,
        )
        state = self._info(component.name).get("statename")
        unchanged = state and read(path) == record and read(program) == text
        if unchanged and state in ("STARTING", "RUNNING"):
            return False
        if state and not unchanged:
            self._halt([component.name])
            self._call("removeProcessGroup", component.name)
        elif state:
            self._halt([component.name])
        for port in component.ports:
            self._check_port(component.name, port)
        if not unchanged:
            write(path, record)
            write(program, text)
            self._configure()
            self._call("reloadConfig")
            self._call("addProcessGroup", component.name)
        self._call("startProcess", f"{component.name}:{component.name}", False)
        return True

    def _wait(self, stage: Sequence[Component]) -> None:
        """Wait until all components of a stage are healthy. Raises StackError for the first that fails."""
        begin = time.monotonic()
        first = {component.name: self._info(component.name)["pid"] for component in stage}
        waiting = list(stage)
        while waiting:
            for component in list(waiting):
                name = component.name
                info = self._info(name)
                if info["statename"] not in ("STARTING", "RUNNING") or info["pid"] != first[name]:
                    raise self._failure(name, self._exit_reason(name))
                if component.healthy():
                    waiting.remove(component)
                elif time.monotonic() - begin > component.start_seconds:
                    raise self._failure(name, f"did not become healthy within {component.start_seconds:g} s")
            if waiting:
                time.sleep(0.25)

    def _failure(self, name: str, reason: str) -> StackError:
        """Stop a failed component and return an error that describes the failure in one line."""
        self._halt([name])
        path = self.log(name)
        lines = [line.strip() for line in tail(path) if not NOISE.match(line)][-3:]
        said = f"; last lines: {' | '.join(line[-300:] for line in lines)}" if lines else ""
        return StackError(f"{name} {reason}{said}; see {path}")

    def _exit_reason(self, name: str) -> str:
        """Return the supervisor's last log entry about the end of a component."""
        pattern = re.compile(rf"(?:exited: {re.escape(name)} |spawnerr: )\(?(.*?)(?:; (?:not )?expected)?\)?$")
        found = [match[1] for line in tail(self.logs / "supervisord.log") if (match := pattern.search(line))]
        return f"ended ({found[-1]})" if found else "ended"

    def _halt(self, names: Sequence[str]) -> None:
        """Stop components at the same time and wait until they have ended."""
        for name in names:
            with contextlib.suppress(xmlrpc.client.Fault):  # not running
                self._call("stopProcess", f"{name}:{name}", False)
        _until(lambda: not any(self._info(name).get("pid") for name in names), 90)

    def _info(self, name: str) -> dict[str, Any]:
        """Return the supervisor's information on a component; empty if the supervisor does not know it."""
        try:
            info: dict[str, Any] = self._call("getProcessInfo", f"{name}:{name}")
        except xmlrpc.client.Fault:
            return {}
        return info

    def _stages(self) -> list[list[str]]:
        """Return the names of the registered components by stage."""
        stages: dict[int, list[str]] = {}
        for path in sorted((self._run / "programs").glob("*.json")):
            stages.setdefault(self._record(path.stem)["stage"], []).append(path.stem)
        return [stages[number] for number in sorted(stages)]

    def _record(self, name: str) -> dict[str, Any]:
        """Return the record that `_place` wrote for a component."""
        record: dict[str, Any] = json.loads((self._run / "programs" / f"{name}.json").read_text())
        return record

    def _check_port(self, name: str, port: int) -> None:
        owner = listener(port)
        if owner:
            raise StackError(
                f"port {port} of {name} is taken by {owner}: end that process, "
                "or take the stack down and up again to give the component another port"
            )

    def _call(self, method: str, *arguments: object) -> Any:
        secret, port = self.stack.secrets["supervisor"], self.stack.ports["supervisor"]
        url = f"http://storeside:{secret}@{HOST}:{port}/RPC2"
        with xmlrpc.client.ServerProxy(url, transport=Transport()) as proxy:
            return getattr(proxy.supervisor, method)(*arguments)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the stack's lock, so that only one command starts or stops the stack at a time."""
        self._run.mkdir(parents=True, exist_ok=True)
        self.stack.state.chmod(self._mode)
        with (self._run / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StackError(
                    f"another command is starting or stopping the stack in {self.stack.state}: wait until it ends"
                ) from error
            try:
                yield
            except UNANSWERED as error:
                log = self.logs / "supervisord.log"
                raise StackError(f"the supervisor failed: {error}; see {log}") from error


def _healthy(component: Component) -> bool:
    """Probe twice: a busy component may miss a single probe."""
    if component.healthy():
        return True
    time.sleep(0.5)
    return component.healthy()


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until `condition` holds; return whether it held within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
