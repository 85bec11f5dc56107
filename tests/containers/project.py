"""docker-compose.yaml as a separate project: other ports, own volumes, own secrets; removed at the end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from storeside.stack.settings import CHECKOUT, HOST, free_ports
from tests.containers.engine import Engine, EngineError

BUILD_SECONDS = 3600
UP_SECONDS = 900
PROFILES = ("hsds", "demo", "doctor")
# Services with published ports that use TLS.
TLS = ("clickhouse", "s3")
_CONNECTIONS, DATABASE = ("AIRFLOW_CONN_CLICKHOUSE_DEFAULT", "AIRFLOW_CONN_CLICKHOUSE_LEDGER"), "data"
_CAP_SYS_RESOURCE = 24


@dataclass(frozen=True)
class Project:
    """A project of docker-compose.yaml.

    `ports` has the published port of each service. `secrets` has the variables of `.env`. `authority` is the file for
    the certificate of the private authority; None for a version whose servers have no TLS.
    """

    engine: Engine
    name: str
    arguments: tuple[str, ...]
    ports: Mapping[str, int]
    secrets: Mapping[str, str]
    authority: Path | None = None

    def compose(
        self, *arguments: str, seconds: float = UP_SECONDS, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run ``docker compose`` on the project; with `check`, raises EngineError if it fails."""
        return self.engine.docker("compose", *self.arguments, *arguments, seconds=seconds, check=check)

    def up(self, *profiles: str) -> None:
        """Start the services and wait until they are healthy. Raises EngineError with their logs if one is not."""
        chosen = [part for profile in profiles for part in ("--profile", profile)]
        done = self.compose(*chosen, "up", "--wait", "--detach", check=False)
        if done.returncode:
            logs = self.compose(*chosen, "logs", "--no-color", "--tail", "30", check=False).stdout
            raise EngineError(f"docker compose up: {done.stderr[-2000:]}\n{logs[-6000:]}")

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return what the engine says of each running service's container, by service."""
        ids = self.compose("ps", "--quiet").stdout.split()
        if not ids:
            return {}
        found = json.loads(self.engine.docker("inspect", *ids).stdout)
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def left(self) -> list[str]:
        """Return containers, volumes and networks of the project that exist."""
        label = f"label=com.docker.compose.project={self.name}"
        return [
            f"{kind} {name}"
            for kind, *command in (
                ("container", "ps", "--all", "--format", "{{.Names}}"),
                ("volume", "volume", "ls", "--format", "{{.Name}}"),
                ("network", "network", "ls", "--format", "{{.Name}}"),
            )
            for name in self.engine.docker(*command, "--filter", label).stdout.split()
        ]

    def url(self, service: str) -> str:
        """Return the base URL of a service's published port."""
        scheme = "https" if self.authority and service in TLS else "http"
        return f"{scheme}://{HOST}:{self.ports[service]}"

    def trusted(self) -> Path | None:
        """Fetch the authority's certificate from the running stack, as a user would, and return its file."""
        if self.authority and not self.authority.exists():
            shown = self.compose("exec", "-T", "s3", "cat", "/etc/storeside/tls/ca.pem")
            self.authority.write_text(shown.stdout)
        return self.authority


@contextmanager
def project(engine: Engine, name: str, folder: Path) -> Iterator[Project]:
    """Yield a project that is not started; afterwards its containers, volumes and networks are removed."""
    found = prepare(engine, name, folder)
    try:
        yield found
    finally:
        remove(found)


def prepare(
    engine: Engine, name: str, folder: Path, checkout: Path = CHECKOUT, ports: Mapping[str, int] | None = None,
    tag: str | None = None,
) -> Project:  # fmt: skip
    """Return the project of a checkout's docker-compose.yaml, with its secrets and settings in `folder`.

    `ports` are those of another version of the project. With `tag`, our images have this tag instead of the one in
    docker-compose.yaml, which belongs to the images of this checkout.
    """
    services = yaml.safe_load((checkout / "docker-compose.yaml").read_text())["services"]
    published = [service for service, settings in services.items() if "ports" in settings]
    ports = ports or dict(zip(published, free_ports(len(published)), strict=True))
    override = folder / "override.yaml"
    override.write_text(_override(services, ports, tag))
    subprocess.run(["make", "-C", folder, "-f", checkout / "Makefile", ".env"], check=True, capture_output=True)
    secrets = dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())
    cpus = {"STORESIDE_CPUS": str(min(2, os.cpu_count() or 1))}
    with (folder / ".env").open("a") as env:
        env.writelines(f"{key}={value}\n" for key, value in cpus.items())
    arguments = (
        "--project-name", name, "--project-directory", str(checkout), "--file", str(checkout / "docker-compose.yaml"),
        "--file", str(override), "--env-file", str(folder / ".env"),
    )  # fmt: skip
    authority = folder / "ca.pem" if "certificates" in services else None
    return Project(engine, name, arguments, ports, secrets, authority)


def remove(project: Project) -> None:
    """Remove the containers, volumes and networks of a project."""
    everything = [part for profile in PROFILES for part in ("--profile", profile)]
    project.compose(*everything, "down", "--volumes", "--remove-orphans", "--timeout", "20", check=False)


def _override(services: Mapping[str, Any], ports: Mapping[str, int], tag: str | None) -> str:
    """Return a file for Compose that publishes other ports, and asks for no limits that this machine cannot set.

    Loads use the database `DATABASE`: in the stand-in's database `default`, tables are files as well, which the
    loading user may not read.
    """
    lines = ["services:"]
    for service, settings in services.items():
        changes = []
        if service in ports:
            inner = settings["ports"][0].rpartition(":")[2]
            changes.append(f'    ports: !override ["{HOST}:{ports[service]}:{inner}"]')
        if "ulimits" in settings and not _may_raise_limits():
            changes.append("    ulimits: !reset {}")
        given = settings.get("environment", {}) if tag is None else {}
        if in_data := {
            name: json.dumps(json.loads(given[name]) | {"schema": DATABASE}) for name in _CONNECTIONS if name in given
        }:
            changes.append(f"    environment: {json.dumps(in_data)}")
        if tag and settings["image"].startswith("storeside/"):
            changes += [f"    image: {settings['image'].partition(':')[0]}:{tag}", "    pull_policy: never"]
        if changes:
            lines += [f"  {service}:", *changes]
    return "\n".join(lines) + "\n"


def _may_raise_limits() -> bool:
    """Return whether this machine's root has CAP_SYS_RESOURCE, which the engine needs to raise limits."""
    status = Path("/proc/1/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd"))
    return bool(int(bounding, 16) >> _CAP_SYS_RESOURCE & 1)
