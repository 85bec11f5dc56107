"""The whole examination: every system that has a connection, and the paths between the systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.aistore.pods import PodWatch
from storeside.doctor import aistore, clickhouse, hsds, kubernetes, roles, s3
from storeside.doctor.findings import Finding, System, without_secrets
from storeside.doctor.report import Report
from storeside.transfer.request.source import Source

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_clickhouse, _aistore = System(clickhouse.NAME), System("AIStore")


@dataclass(frozen=True)
class Systems:
    """The systems to examine; None for a system without a connection.

    :param clickhouse: connects to ClickHouse as the loading user
    :param ledger: connects as the user who writes the ledger, if it is a separate one
    :param pages: connects as the user who reads for the pages, if it is a separate one
    :param s3: connects to S3
    :param sqs: connects to SQS
    :param aistore: connects to AIStore
    :param source: the S3 bucket with ClickHouse's endpoint and credentials
    :param queue: name or URL of the queue with the bucket's events; empty for none
    :param aistore_endpoint: the cluster's URL for ClickHouse, if it differs
    :param aistore_collection: ClickHouse's named collection with a token for AIStore
    :param pods: reads the states of the pods of ETLs, if the connection names a kubeconfig
    :param hsds: the HSDS server
    :param write: without it, the doctor puts no objects and creates no tables
    :param check_seconds: seconds that a check may take
    :param event_seconds: seconds that an S3 event may take to arrive
    :param secrets: texts that are removed from findings
    """

    clickhouse: Callable[[], Any] | None = None
    ledger: Callable[[], Any] | None = None
    pages: Callable[[], Any] | None = None
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
    check_seconds: float = 15
    event_seconds: float = 20
    secrets: Sequence[str] = field(default=(), repr=False)


def examine(systems: Systems, tell: Callable[[Finding], None] = lambda finding: None) -> list[Finding]:
    """Run all checks and return the findings without secrets; `tell` receives each finding at once."""
    found: list[Finding] = []

    def add(finding: Finding) -> None:
        (shown,) = without_secrets([finding], systems.secrets)
        found.append(shown)
        tell(shown)

    _Examination(systems, Report(systems.check_seconds, add)).run()
    return found


class _Examination:
    """One examination; later checks use the clients that earlier checks connected."""

    def __init__(self, systems: Systems, report: Report) -> None:
        self.systems = systems
        self.report = report
        self.clickhouse: Client | None = None
        self.ledger: Client | None = None

    def run(self) -> None:
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
                remedy = "this error is a fault of the doctor: please report it"
                self.report.add(System(name).failed("all", f"{type(e).__name__}: {e}", remedy))

    def _clickhouse(self) -> None:
        make = self.systems.clickhouse
        if make is None:
            return
        self.clickhouse = self.report.connect(_clickhouse, "login", lambda: clickhouse.connect(make))
        if self.clickhouse is None:
            return
        clients = {"loads": self.clickhouse}
        for role, other in (("ledger", self.systems.ledger), ("pages", self.systems.pages)):
            if other is not None and (client := self._login(role, other)) is not None:
                clients[role] = client
        self.ledger = clients.get("ledger", self.clickhouse)
        self.report.check(_clickhouse, "one server", lambda: clickhouse.one_server(make))
        rights = clickhouse.examine(self.clickhouse, clients.get("ledger"), self.systems.write)
        self.report.each(_clickhouse, rights)
        self.report.each(_clickhouse, clickhouse.results(self.ledger))
        self.report.each(_clickhouse, roles.examine(clients))

    def _login(self, role: str, make: Callable[[], Any]) -> Client | None:
        check = f"login of {role}"
        return self.report.connect(_clickhouse, check, lambda: clickhouse.connect(make, check))

    def _kubernetes(self) -> None:
        if self.systems.pods is not None:
            self.report.each(System("Kubernetes"), kubernetes.examine(self.systems.pods))

    def _hsds(self) -> None:
        if self.systems.hsds is not None:
            self.report.each(System("HSDS"), hsds.examine(self.systems.hsds))

    def _s3(self) -> None:
        queue, source, make = self._queue(), self.systems.source, self.systems.s3
        if make is None or source is None:
            return
        client = self.report.connect(System("S3"), "list", lambda: s3.connect(make, source.bucket))
        if client is None:
            return
        crowded = queue is not None and queue.waiting > s3.MOST_WAITING
        if queue is not None and crowded:
            self.report.add(s3.not_received(queue))
        probe = None
        with ExitStack() as stack:
            if self.systems.write and not crowded:
                probe = stack.enter_context(s3.probe(client, source.bucket, self.report))
            self._clickhouse_reads(source, probe)
        # The object is deleted before the doctor waits for its event, so that no run loads it.
        if queue is not None and probe is not None:
            self._event(queue, probe)

    def _queue(self) -> s3.Queue | None:
        make, name = self.systems.sqs, self.systems.queue
        return s3.queue(make, name, self.report) if make is not None and name else None

    def _clickhouse_reads(self, source: Source, probe: s3.Probe | None) -> None:
        client = self.clickhouse
        if client is None:
            return
        if probe is None:
            self.report.check(_clickhouse, "reads S3", lambda: clickhouse.reaches_bucket(client, source))
            return
        key, content = probe.key, probe.content
        self.report.check(_clickhouse, "reads S3", lambda: clickhouse.reads_object(client, source, key, content))

    def _event(self, queue: s3.Queue, probe: s3.Probe) -> None:
        seconds = self.systems.event_seconds
        self.report.check(
            System("SQS"), s3.EVENT, lambda: s3.receive(queue, probe, seconds, self._recorded), seconds=seconds
        )

    def _recorded(self, probe: s3.Probe) -> bool:
        return self.ledger is not None and clickhouse.has_event(self.ledger, probe.bucket, probe.key)

    def _aistore(self) -> None:
        make, report = self.systems.aistore, self.report
        if make is None:
            return
        client = report.connect(_aistore, "login", lambda: aistore.connect(make))
        if client is None or not report.check(_aistore, "control calls", lambda: aistore.control_plane(client)):
            return  # the other checks would wait for the same silent targets
        report.check(_aistore, "disks", lambda: aistore.disks(client))
        report.each(_aistore, aistore.examine(client))
        if self.systems.source is not None:
            bucket = Bucket("s3", self.systems.source.bucket)
            own = self.systems.source.endpoint
            style = aistore.path_style(client, bucket, own)  # AIStore repeats requests to an unknown host for long
            report.check(_aistore, "reads S3", lambda: aistore.backend(client, bucket, own), remedy=style)
        if not self.systems.write:
            return
        with aistore.probe(client, report) as probe:
            ledger = self.ledger
            if probe is not None and ledger is not None:
                endpoint = self.systems.aistore_endpoint or make().endpoint
                url, content = f"{endpoint.rstrip('/')}/{probe.path}", probe.content
                collection = self.systems.aistore_collection
                report.check(
                    _clickhouse,
                    "reads AIStore",
                    lambda: clickhouse.reads_aistore(ledger, url, content, collection),
                )
