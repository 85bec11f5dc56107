"""Definitions of Distributed tables, addresses of servers, and their connections."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.operators.hooks.transfer import other_servers, server_names
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.tables.servers import Servers, address
from storeside.transfer.tables.shards import Distribution, distribution, shards_of


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("Distributed('c', 'd', 't', row)", ("c", "d", "t", "row")),
        ("Distributed('c', 'd', 't')", ("c", "d", "t", "")),
        ("Distributed('c', 'd', 't', cityHash64(a, `b, c)`) % 7, 'policy') SETTINGS x = 1",
         ("c", "d", "t", "cityHash64(a, `b, c)`) % 7")),
        (r"Distributed('it\'s', 'd,(', 't\\', if(a = ')', 1, [2][1]))",
         ("it's", "d,(", "t\\", "if(a = ')', 1, [2][1])")),
        ("Distributed('c', 'd', 't', (a + 1) * 2)", ("c", "d", "t", "(a + 1) * 2")),
    ],
)  # fmt: skip
def test_the_arguments_of_an_engine_are_found(engine: str, expected: tuple[str, str, str, str]) -> None:
    assert distribution(engine) == Distribution(*expected)


@pytest.mark.parametrize("text", ["", "host", "host:", ":8123", "host:x", "http://host:8123", "user@host:1", "h:1/x"])
def test_an_address_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(TransferInputError, match="write host:port"):
        address(text)


@pytest.mark.parametrize(
    ("rows", "key", "error"),
    [
        ([(1, 1), (1, 0), (2, 0), (2, 0)], "a", "several replicas of a shard"),
        ([(1, 1), (2, 0)], "a", "no server of shard 2 is known"),
        ([(1, 1), (2, 0)], "", "no sharding key"),
        ([], "a", "no cluster 'c'"),
    ],
)
def test_a_cluster_to_whose_shards_no_load_can_publish_is_refused(
    rows: list[tuple[int, int]], key: str, error: str
) -> None:
    client: Any = SimpleNamespace(query=lambda *_, **__: SimpleNamespace(result_rows=rows))
    with pytest.raises(TransferInputError, match=error):
        shards_of(Distribution("c", "d", "t_local", key), "d.t", client, Servers())


def test_addresses() -> None:
    assert address(" ch-0.svc:8123") == ("ch-0.svc", 8123)
    assert address("[::1]:8443") == ("::1", 8443)


def test_a_server_that_refuses_the_connection_is_named() -> None:
    error: list[Exception] = [OperationalError("no route")]

    def refuse(name: str) -> Any:
        raise error[0]

    servers = Servers(("ch-1:8123",), refuse)
    assert servers.connected == ()
    with pytest.raises(TransferTransientError, match="server ch-1:8123 of the cluster"):
        servers.clients()
    error[0] = DatabaseError("wrong password", code=516)
    with pytest.raises(TransferInputError, match="server ch-1:8123 of the cluster"):
        servers.clients()


@pytest.mark.parametrize("given", [["ch-0:8123", "ch-1:8123"], "ch-0:8123, ch-1:8123"])
def test_the_first_server_of_a_connection_has_the_ledger(given: Any) -> None:
    connection = Connection(
        conn_id="c", conn_type="clickhouse", host="proxy", port=1, extra=json.dumps({"servers": given})
    )
    assert server_names(connection) == ["ch-0:8123", "ch-1:8123"]
    assert other_servers(connection).names == ("ch-1:8123",)
    assert other_servers(Connection(conn_id="c", conn_type="clickhouse", host="proxy")).names == ()
