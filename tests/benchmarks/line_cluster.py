"""An AIStore cluster whose proxy and targets are nodes behind shaped links, with a pod runner beside each target."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from storeside.aistore.buckets import Bucket, delete_objects
from storeside.aistore.cluster import Cluster
from storeside.stack.building import nodes
from storeside.stack.podrunner import component as podrunner
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.servers import aistore
from storeside.stack.settings import HOST, Stack
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import answers
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks.line_network import ControlGroup, Network, Node
from tests.support import allow

_THREADS = 8
# Surplus objects are put and deleted until every target holds equally many.
_SURPLUS = 1.6


class LineCluster:
    """A running cluster of `targets` targets below `folder`."""

    def __init__(self, network: Network, folder: Path, cache: Path, targets: int) -> None:
        folder.mkdir()
        (folder / "cache").symlink_to(cache, target_is_directory=True)
        allow(folder)
        self.stack = Stack.create(folder, targets, secure=False)
        self.stack.save()
        self._groups = ControlGroup.own()
        self._proxy = network.node(f"p{targets}")
        self.targets = [network.node(f"t{targets}-{number}") for number in range(targets)]
        self._supervisor = Supervisor(self.stack)
        self._supervisor.start([self._runners(), self._nodes()])
        self.cluster = Cluster(f"http://{self._proxy.address}:{self.stack.ports['ais_proxy']}")
        self.client: Any = self.cluster.client()

    def stop(self) -> None:
        """Stop all processes."""
        self._supervisor.stop()

    def limit_workers(self, cores: float) -> None:
        """Limit the transformers beside each target together to a fraction of a core; 0 removes the limit."""
        for node in self.targets:
            self._groups.limit(f"pods-{node.name}", cores)

    def fill(self, bucket: Bucket, per_target: int, content: Callable[[int], tuple[str, bytes]]) -> None:
        """Create a bucket with `per_target` objects on each target; `content` returns name and bytes of the nth.

        AIStore places each object by a hash of its name. Millions of objects are spread evenly, hundreds are not:
        the fullest of eight targets would end the measurement.
        """
        handle = bucket.handle(self.client)
        handle.create()

        def put(number: int) -> None:
            name, data = content(number)
            handle.object(name).get_writer().put_content(data)

        count = round(per_target * len(self.targets) * (_SURPLUS if len(self.targets) > 1 else 1))
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(put, range(count)))
        placed: dict[str, list[str]] = defaultdict(list)
        for entry in handle.list_objects_iter(props="name,location"):
            placed[entry.location.partition(":")[0]].append(entry.name)
        if len(placed) < len(self.targets) or min(map(len, placed.values())) < per_target:
            raise SystemExit(f"error: {count} objects are too few for {per_target} on each target")
        delete_objects(self.client, bucket, (name for names in placed.values() for name in names[per_target:]))

    def sent(self) -> list[int]:
        """Return the bytes that each target has sent through its link."""
        return [node.sent() for node in self.targets]

    def within(self) -> int:
        """Return the bytes that targets and the transformers beside them have sent to each other."""
        return sum(node.within() for node in self.targets)

    def _runners(self) -> list[Component]:
        """Return a pod runner for each node, also the proxy: loopback addresses of nodes are independent."""
        config = podrunner.write(self.stack, IMAGES)
        port = self.stack.ports["podrunner"]
        found = []
        for node in (self._proxy, *self.targets):
            home = podrunner.folder(self.stack) / node.name
            home.mkdir(mode=0o700, exist_ok=True)
            own = home / "config.json"
            own.write_text(json.dumps({**json.loads(config.read_text()), "state": str(home)}))
            (component,) = podrunner.components(self.stack, IMAGES)
            command = [str(own) if part == str(config) else part for part in component.command]
            found.append(
                replace(
                    component,
                    name=f"podrunner-{node.name}",
                    command=(*self._groups.joining(f"pods-{node.name}"), *node.command, *command),
                    healthy=partial(node.listens, port),
                )
            )
        return found

    def _nodes(self) -> list[Component]:
        """Return the components of the embedded stack, moved into their namespaces and to their addresses."""
        built = aistore.components(self.stack, nodes.build(self.stack.cache))
        return [
            self._moved(component, node) for component, node in zip(built, (self._proxy, *self.targets), strict=True)
        ]

    def _moved(self, component: Component, node: Node) -> Component:
        name = component.name.removeprefix("ais-")
        home = aistore.folder(self.stack) / name
        local = json.loads((home / "ais_local.json").read_text())
        for field in ("hostname", "hostname_intra_control", "hostname_intra_data"):
            local["host_net"][field] = node.address
        (home / "ais_local.json").write_text(json.dumps(local))
        shared = home / "ais.json"
        shared.write_text(shared.read_text().replace(HOST, self._proxy.address))
        command = [part.replace(f"//{HOST}:", f"//{self._proxy.address}:") for part in component.command]
        public = self.stack.ports["ais_proxy" if node is self._proxy else f"ais_{name.replace('-', '')}_public"]
        question = "prr" if node is self._proxy else "readiness"
        return replace(
            component,
            command=(*node.command, *command),
            healthy=partial(answers, f"http://{node.address}:{public}/v1/health?{question}=true"),
            trouble=str,
        )


def random_objects(size: int) -> Callable[[int], tuple[str, bytes]]:
    """Return names and random contents of objects of one size."""
    data = os.urandom(size)
    return lambda number: (f"{number:06}", data)


def files(paths: Iterable[Path]) -> Callable[[int], tuple[str, bytes]]:
    """Return names and contents of files, each of them as often as necessary under other names."""
    contents = [path.read_bytes() for path in paths]
    return lambda number: (f"{number:06}.flac", contents[number % len(contents)])
