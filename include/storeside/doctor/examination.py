"""The whole examination: every system that has a connection, and the paths between the systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.aistore.pods import PodWatch
from storeside.doctor import aistore, clickhouse, hsds, kubernetes, s3
from storeside.doctor.findings import Finding, System, without_secrets
from storeside.transfer.source import Source

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


@dataclass(frozen=True)
class Systems:
    """The systems to examine; None for a system without a connection.

    `clickhouse`, `s3`, `sqs` and `aistore` connect when they are called. `source` is the bucket from ClickHouse's
    point of view; `aistore_endpoint` is the cluster's URL for ClickHouse, if it differs, and `aistore_collection`
    ClickHouse's collection with a token for it. Without `write` no object is put anywhere. An S3 event may take
    `event_seconds` to arrive. `secrets` are removed from all findings.
    """

    clickhouse: Callable[[], Any] | None = None
    s3: Callable[[], Any] | None = None
    sqs: Callable[[], Any] | None = None
    aistore: Callable[[], Cluster] | None = None
    source: Source | None = None
    queue: str = ""
    aistore_endpoint: str = ""
    aistore_collection: str = ""
    pods: PodWatch | None = None
    hsds: hsds.Service | None = None
    write: bool = True
    event_seconds: float = 20
    secrets: Sequence[str] = field(default=(), repr=False)


def examine(systems: Systems) -> list[Finding]:
    """Run all checks and return the findings without secrets."""
    return list(without_secrets(_Examination(systems).findings(), systems.secrets))


class _Examination:
    """One examination; later checks use the connections of earlier ones."""

    def __init__(self, systems: Systems) -> None:
        self.systems = systems
        self.clickhouse: Client | None = None
        self.found: list[Finding] = []

    def findings(self) -> list[Finding]:
        """Run the checks in the order in which a pipeline needs the systems."""
        for name, part in (
            ("ClickHouse", self._clickhouse),
            ("S3", self._s3),
            ("AIStore", self._aistore),
            ("Kubernetes", self._kubernetes),
            ("HSDS", self._hsds),
        ):
            try:
                part()
            except Exception as e:  # an unforeseen error must not hide the findings of the other parts
                remedy = "this is not foreseen: please report it"
                self.found.append(System(name).failed("all", f"{type(e).__name__}: {e}", remedy))
        return self.found

    def _clickhouse(self) -> None:
        if self.systems.clickhouse is None:
            return
        self.clickhouse, finding = clickhouse.connect(self.systems.clickhouse)
        self.found.append(finding)
        if self.clickhouse is not None:
            self.found += clickhouse.examine(self.clickhouse)

    def _kubernetes(self) -> None:
        if self.systems.pods is not None:
            self.found += kubernetes.examine(self.systems.pods)

    def _hsds(self) -> None:
        if self.systems.hsds is not None:
            self.found += hsds.examine(self.systems.hsds)

    def _s3(self) -> None:
        queue = None
        if self.systems.sqs is not None and self.systems.queue:
            queue = s3.queue(self.systems.sqs, self.systems.queue, self.found)
        source = self.systems.source
        if self.systems.s3 is None or source is None:
            return
        client, finding = s3.connect(self.systems.s3, source.bucket)
        self.found.append(finding)
        if client is None:
            return
        crowded = queue is not None and queue.waiting > s3.MOST_WAITING
        if queue is not None and crowded:
            self.found.append(s3.not_received(queue))
        probe = None
        with ExitStack() as stack:
            if self.systems.write and not crowded:
                probe = stack.enter_context(s3.probe(client, source.bucket, self.found))
            if self.clickhouse is not None:
                self.found.append(
                    clickhouse.reads_object(self.clickhouse, source, probe.key, probe.content)
                    if probe
                    else clickhouse.reaches_bucket(self.clickhouse, source)
                )
        # By now the object is deleted, so that no run finds it.
        if queue is not None and probe is not None:
            self.found.append(s3.receive(queue, probe, self.systems.event_seconds, self._recorded))

    def _recorded(self, probe: s3.Probe) -> bool:
        return self.clickhouse is not None and clickhouse.has_event(self.clickhouse, probe.bucket, probe.key)

    def _aistore(self) -> None:
        if self.systems.aistore is None:
            return
        client, finding = aistore.connect(self.systems.aistore)
        self.found.append(finding)
        if client is None:
            return
        self.found.append(aistore.control_plane(client))
        if self.found[-1].state == "failed":
            return  # the other checks would wait for the same targets
        self.found += aistore.examine(client)
        if self.systems.source is not None:
            self.found.append(aistore.backend(client, Bucket("s3", self.systems.source.bucket)))
        if not self.systems.write:
            return
        with aistore.probe(client, self.found) as probe:
            if probe is not None and self.clickhouse is not None:
                endpoint = self.systems.aistore_endpoint or self.systems.aistore().endpoint
                url = f"{endpoint.rstrip('/')}/{probe.path}"
                self.found.append(
                    clickhouse.reads_aistore(self.clickhouse, url, probe.content, self.systems.aistore_collection)
                )
