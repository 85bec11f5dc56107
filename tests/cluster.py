"""Two ClickHouse servers as a cluster of two shards, and a proxy that sends each request to the next of them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from storeside.sql.answers import whole_answers
from storeside.sql.inserts import lean_inserts
from storeside.stack.servers import clickhouse
from storeside.stack.servers.clickhouse_server import Config
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER, PAGES, USER
from storeside.stack.settings import HOST, Stack, free_ports
from storeside.stack.supervision.probes import answers
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from storeside.transfer.tables.servers import Servers
from tests.support import until
from tests.transfers import Loading, request_of

PASSWORD = "of-the-cluster"
SHARDS = 2
_MEMORY = 0.1


@dataclass
class Cluster:
    """The servers; `start` and `kill` take the number of one, from 0. The first server has the ledger."""

    folder: Path
    collections: Mapping[str, Mapping[str, str]]
    http: list[int] = field(default_factory=list)
    tcp: list[int] = field(default_factory=list)
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ports = free_ports(2 * SHARDS)
        self.http, self.tcp = ports[:SHARDS], ports[SHARDS:]

    def start(self, number: int) -> None:
        config = Config(
            str(self.folder / f"server{number}"), self.http[number], self.tcp[number], PASSWORD, _MEMORY,
            dict.fromkeys((LOADER, LEDGER, PAGES), PASSWORD),
            {name: dict(values) for name, values in self.collections.items()}, tuple(self.tcp),
        )  # fmt: skip
        path = self.folder / f"server{number}.json"
        path.write_text(json.dumps(asdict(config)))
        self.processes[number] = subprocess.Popen(
            [sys.executable, "-m", "storeside.stack.servers.clickhouse_server", "--config", str(path)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ready(self) -> None:
        """Wait until all servers answer."""
        until(lambda: all(answers(f"http://{HOST}:{port}/ping") for port in self.http), 60, "servers of the cluster")

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()

    def name(self, number: int) -> str:
        return f"{HOST}:{self.http[number]}"

    def client(self, number: int = 0, user: str = USER, port: int = 0) -> Any:
        import clickhouse_connect

        client = clickhouse_connect.get_client(
            host=HOST, port=port or self.http[number], username=user, password=PASSWORD,
            autogenerate_session_id=False,
        )  # fmt: skip
        return lean_inserts(whole_answers(client))

    def servers(self, user: str = USER, wrap: Any = lambda client: client) -> Servers:
        """Return the other servers; `wrap` receives each client."""
        names = {self.name(number): number for number in range(1, SHARDS)}
        return Servers(tuple(names), lambda name: wrap(self.client(names[name], user)))


@contextmanager
def cluster_of(folder: Path, stack: Stack) -> Iterator[Cluster]:
    """Run the servers; their collections read the S3 of a stack."""
    cluster = Cluster(folder, clickhouse.collections(stack))
    for number in range(SHARDS):
        cluster.start(number)
    try:
        cluster.ready()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def proxy_of(ports: list[int]) -> Iterator[int]:
    """Run a proxy that sends each request to the next port; yield its port."""
    following = itertools.cycle(ports)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server = HTTPConnection(HOST, next(following))
            server.request(self.command, self.path, content, dict(self.headers))
            answer = server.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "keep-alive"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            server.close()

        do_GET = do_POST = forward

        def log_message(self, *_: Any) -> None:
            pass

    proxy = ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy.server_address[1]
    finally:
        proxy.shutdown()
        proxy.server_close()


class ShardedLoading(Loading):
    """One test's own bucket and Distributed table, whose rows a column divides between the shards."""

    def __init__(self, cluster: Cluster, stack: Stack, s3: Any) -> None:
        super().__init__(stack, cluster.client(), s3)
        self.cluster = cluster

    def create(self, columns: str, order_by: str = "tuple()", key: str | None = None) -> None:
        """Create the table; without a `key`, the column ``row``, or else the first one, divides the rows."""
        local = f"{self.table}_local"
        key = ("row" if " row " in columns else columns.split(maxsplit=1)[0]) if key is None else key
        for number in range(SHARDS):
            client = self.cluster.client(number)
            client.command(f"CREATE TABLE {local} ({columns}) ENGINE = MergeTree ORDER BY {order_by}")
            engine_of_all = f"Distributed(shards, {', '.join(local.split('.'))}{f', {key}' if key else ''})"
            client.command(f"CREATE TABLE {self.table} AS {local} ENGINE = {engine_of_all}")

    def truncate(self) -> None:
        for number in range(SHARDS):
            self.cluster.client(number).command(f"TRUNCATE TABLE {self.table}_local")

    def variables(self) -> dict[str, str]:
        names = ",".join(self.cluster.name(number) for number in range(SHARDS))
        return {**super().variables(), "CLICKHOUSE_PASSWORD": PASSWORD, "CLICKHOUSE_SERVERS": names}

    def kill_engine(self, number: int = 0) -> None:
        self.cluster.kill(number % SHARDS)
        self.cluster.start(number % SHARDS)
        self.cluster.ready()

    def client(self) -> Any:
        return self.cluster.client()

    def servers(self, wrap: Any = lambda client: client) -> Servers:
        return self.cluster.servers(wrap=wrap)

    def transfer(
        self, keys: str = "", *, s3: Any = None, run_id: str = "", collection: str = "storeside_s3",
        servers: Servers | None = None, **request: Any,
    ) -> Transfer:  # fmt: skip
        return Transfer(
            request_of(Source(self.bucket, keys, collection=collection), self.table, **request),
            self.cluster.client(user=LOADER),
            s3 or self.s3,
            run_id or uuid.uuid4().hex,
            ledger=self.cluster.client(user=LEDGER),
            servers=self.cluster.servers(LOADER) if servers is None else servers,
        )

    def on_shards(self, what: str) -> list[Any]:
        """Return the value of an aggregate on each shard."""
        query = f"SELECT {what} FROM {self.table}_local"
        return [self.cluster.client(number).query(query).first_row[0] for number in range(SHARDS)]

    def left(self, transfer: Transfer) -> list[str]:
        query = f"SELECT name FROM system.tables WHERE database = '{STAGING}' AND name LIKE 'load_{transfer.id}%'"
        others = (self.cluster.client(number).query(query).result_rows for number in range(1, SHARDS))
        return [*super().left(transfer), *(name for rows in others for (name,) in rows)]
