"""A cluster without TLS and AuthN, as earlier versions made for Compose, gets both and keeps its objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storeside.stack import authn, tls
from storeside.stack.building import nodes as aistore_build
from storeside.stack.podrunner import component as podrunner
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.servers import aistore
from storeside.stack.settings import Stack, free_ports
from storeside.stack.supervision.supervisor import Supervisor

BACKEND = dict.fromkeys(aistore.BACKEND, "none")
OBJECTS = {f"folder/{number}": f"content {number}".encode() for number in range(20)}


@pytest.fixture
def old(stack: Stack, tmp_path: Path) -> Iterator[Stack]:
    """A new cluster of two targets, which is stopped afterwards whatever its settings are."""
    made = replace(Stack.create(tmp_path, 2, secure=False), cache=stack.cache)
    made.save()
    yield made
    Supervisor(made).stop()


def started(stack: Stack) -> Any:
    """Start the cluster and return a client of it."""
    binary = aistore_build.build(stack.cache, print)
    stages = [podrunner.components(stack, IMAGES), aistore.components(stack, binary, backend=BACKEND)]
    if stack.secure:
        servers = authn.components(stack, binary)
        Supervisor(stack).start([servers])
        authn.prepare(stack)
        stages.insert(0, servers)
    Supervisor(stack).start(stages)
    return authn.cluster(stack).client()


def contents(client: Any) -> dict[str, bytes]:
    bucket = client.bucket("kept")
    return {e.name: bucket.object(e.name).get_reader().read_all() for e in bucket.list_all_objects()}


def test_objects_are_kept_and_requests_need_tls_and_a_token(old: Stack) -> None:
    import requests

    bucket = started(old).bucket("kept").create()
    for name, content in OBJECTS.items():
        bucket.object(name).get_writer().put_content(content)
    Supervisor(old).stop()
    control = [name for name in old.ports if name.endswith("_control")]
    moved = dict(zip(control, free_ports(len(control)), strict=True))  # as under Compose
    new = replace(old, tls=True, secure=True, ports=old.ports | moved)
    tls.prepare(new)
    aistore.forget_settings(new)
    client = started(new)
    assert contents(client) == OBJECTS
    nodes = client.cluster().get_info()
    urls = {node.public_net.direct_url for node in (nodes.proxy_si, *nodes.tmap.values())}
    assert len(urls) == 3
    assert all(url.startswith("https://") for url in urls)
    url = f"{new.url('ais_proxy')}/v1/objects/kept/folder/0"
    answer = requests.get(url, verify=str(new.authority), timeout=10)
    assert answer.status_code == 401
    Supervisor(new).stop()
    assert contents(started(new)) == OBJECTS, "after a restart without changes"
