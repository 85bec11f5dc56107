"""The ClickHouse server as a component of the stack."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import urllib.parse
from dataclasses import asdict
from functools import partial

from storeside.stack import authn, tls
from storeside.stack.servers.clickhouse_server import BEARER, Config
from storeside.stack.servers.clickhouse_users import (
    AISTORE_COLLECTION,
    LEDGER,
    LOADER,
    OBJECTS_COLLECTION,
    PAGES,
    USER,
)
from storeside.stack.settings import HOST, SOURCES, Stack
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import answers, listens
from storeside.stack.supervision.supervisord import write

MEMORY_RATIO = 0.4


def components(stack: Stack, write_settings: bool = True) -> list[Component]:
    """Return the ClickHouse server; writes its settings to a file that its owner can read but its SQL cannot.

    Without `write_settings` only return the server.
    """
    folder = stack.state / "clickhouse"
    config = Config(
        folder=str(folder),
        http_port=stack.ports["clickhouse_plain" if stack.tls else "clickhouse_http"],
        tcp_port=stack.ports["clickhouse_tcp"],
        password=stack.secrets["clickhouse"],
        users=passwords(stack),
        memory_ratio=MEMORY_RATIO,
        collections=collections(stack),
        urls=f"{stack.url('ais_proxy').replace('.', '[.]')}/v1/objects/.*",
        authority=str(stack.authority or ""),
    )
    path = stack.state / "run" / "clickhouse.json"
    text = json.dumps(asdict(config), indent=1)
    if write_settings:
        write(path, text)
    (folder / "launcher.json").unlink(missing_ok=True)  # written by version 0.1.0
    return [
        Component(
            name="clickhouse",
            command=(sys.executable, "-m", "storeside.stack.servers.clickhouse_server", "--config", str(path)),
            # `up` restarts the server when its settings have changed, such as the token for AIStore.
            environment={"STORESIDE_SETTINGS": hashlib.sha256(text.encode()).hexdigest()},
            healthy=lambda: healthy(stack),
            directory=SOURCES,
            stop_seconds=40,
            ports=(config.http_port, config.tcp_port),
        ),
        *_https(stack),
    ]


def _https(stack: Stack) -> list[Component]:
    """Return the process that terminates TLS for ClickHouse, because the server of the wheel has no HTTPS."""
    if not stack.tls:
        return []
    listen, to = stack.ports["clickhouse_http"], stack.ports["clickhouse_plain"]
    files = (str(tls.certificate(stack)), str(tls.key(stack)))
    return [
        Component(
            name="clickhouse-https",
            command=(sys.executable, "-m", "storeside.stack.supervision.tls_relay", str(listen), str(to), *files),
            healthy=partial(listens, HOST, listen),
            directory=SOURCES,
            ports=(listen,),
        )
    ]


def passwords(stack: Stack) -> dict[str, str]:
    """Return the passwords of the users of Airflow's connections, by user name."""
    return {name: stack.secrets[name.replace("storeside", "clickhouse")] for name in (LOADER, LEDGER, PAGES)}


def collections(stack: Stack) -> dict[str, dict[str, str]]:
    """Return the named collections, with which queries read S3 without credentials in their text.

    Use: ``s3(storeside_s3, url = 'http://…/bucket/key')`` or ``s3(storeside_s3, filename = 'bucket/key')``.
    """
    token = authn.token(stack, "clickhouse")
    return {
        "storeside_s3": {
            "url": stack.url("s3") + "/",
            "access_key_id": stack.secrets["s3_access_key"],
            "secret_access_key": stack.secrets["s3_secret_key"],
        },
        AISTORE_COLLECTION: {
            "url": stack.url("ais_proxy") + "/",
            "access_key_id": "storeside",
            "secret_access_key": "storeside",
            **({"session_token": token} if token else {}),
        },
        **({OBJECTS_COLLECTION: {"url": f"{stack.url('ais_proxy')}/", BEARER: token}} if token else {}),
    }


def healthy(stack: Stack) -> bool:
    """Return whether the server answers and accepts Storeside's user."""
    query = urllib.parse.urlencode({"query": "SELECT 1"})
    login = base64.b64encode(f"{USER}:{stack.secrets['clickhouse']}".encode()).decode()
    url = f"{stack.url('clickhouse_http')}/?{query}"
    return answers(url, headers={"Authorization": f"Basic {login}"}, authority=stack.authority)
