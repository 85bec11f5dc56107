"""Checks AIStore: whether it answers, accepts the login, can run ETLs, and serves the S3 API for ClickHouse."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.aistore.control_plane import unanswering
from storeside.aistore.errors import AIStoreError, said
from storeside.doctor.findings import Finding, System

if TYPE_CHECKING:
    from aistore.sdk import Client

# Bits of `features`; see AIStore's cmn/feat/feat.go.
FEATURES = {"S3-API-via-Root": 1 << 3, "S3-Reverse-Proxy": 1 << 13}
_LOGIN_REMEDY = (
    "put a token that AIStore's AuthN has issued into the password of the AIStore connection, or set its extra"
    " authn_url, its login and its password"
)
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_here = System("AIStore")


@dataclass(frozen=True)
class Probe:
    """An object of the doctor in a bucket of its own, which exists while the checks run."""

    path: str
    content: bytes


def connect(make: Callable[[], Cluster]) -> tuple[Any, Finding]:
    """Ask for the buckets; return the client, or None, and the finding."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        cluster = make()
        _reach(cluster.endpoint)
        client = cluster.client()
        nodes = client.cluster().get_info()
        client.cluster().list_buckets()
        if not client.cluster().is_ready():
            return None, _here.failed("login", f"{cluster.endpoint} is not ready", "wait, or see its proxies' logs")
    except AISError as e:
        remedy = _LOGIN_REMEDY if e.status_code in _REFUSED else "see its proxies' logs"
        return None, _here.failed("login", said(e), remedy)
    except AIStoreError as e:  # AuthN refuses the login
        return None, _here.failed("login", e, _LOGIN_REMEDY)
    except (RequestException, OSError, ValueError) as e:
        remedy = "correct the AIStore connection: host, port and schema of a proxy, and for TLS its extras"
        return None, _here.failed("login", e, remedy)
    return client, _here.ok("login", f"{cluster.endpoint}, {len(nodes.tmap)} targets")


def _reach(url: str) -> None:
    """Open and close a connection first, because the SDK retries much longer. Raises OSError."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    socket.create_connection((parts.hostname or "", port), timeout=5).close()


def control_plane(client: Client) -> Finding:
    """Tell whether every target answers control calls: with a target that does not, no ETL starts and no job ends."""
    from requests import RequestException

    try:
        found = unanswering(client)
    except (RequestException, ValueError, KeyError) as e:
        return _here.failed("control calls", e, "see its proxies' logs")
    if found:
        what = "; ".join(f"target {target.id}: {target.call}" for target in found)
        return _here.failed("control calls", what, "; ".join(target.remedy for target in found))
    return _here.ok("control calls", "every target answers")


def examine(client: Client) -> Iterator[Finding]:
    """Yield whether the cluster runs ETLs, and whether its S3 API is at the URL that ClickHouse uses."""
    from aistore.sdk.errors import AISError

    requests = client.cluster().client
    nobody = {"etl_name": f"doctor-{uuid.uuid4().hex[:8]}", "provider": "ais"}
    try:
        requests.request(
            "put", path="objects/storeside-doctor/probe", params=nobody
        )  # refused before AIStore looks up the object
    except AISError as e:
        if nobody["etl_name"] in said(e):  # it looked up the ETL
            yield _here.ok("ETL", "it can run ETLs")
        else:
            remedy = "deploy AIStore on Kubernetes (its operator does), with a node built with the tag etl"
            yield _here.failed("ETL", said(e), remedy)
    configuration = requests.request("get", path="cluster", params={"what": "cluster_config"}).json()
    bits = int(configuration.get("features") or 0)
    missing = [name for name, bit in FEATURES.items() if not bits & bit]
    if missing:
        names = " ".join(missing)
        yield _here.failed("S3 API", f"{', '.join(missing)} off", f"ais config cluster features {names}")
    else:
        yield _here.ok("S3 API", f"{', '.join(FEATURES)} on")


def backend(client: Client, bucket: Bucket) -> Finding:
    """Tell whether the cluster itself reaches a bucket in S3."""
    from aistore.sdk.errors import AISError

    check = "reads S3"
    try:
        bucket.handle(client).list_objects(page_size=1)
    except AISError as e:
        return _here.failed(
            check, said(e), f"give AIStore's targets credentials for {bucket}, and S3_ENDPOINT unless it is AWS"
        )
    return _here.ok(check, f"{bucket} through its own backend")


@contextmanager
def probe(client: Client, findings: list[Finding]) -> Iterator[Probe | None]:
    """Create a bucket with one object, and remove it at the end; yield None when that is not allowed."""
    from aistore.sdk.errors import AISError

    name, content = f"storeside-doctor-{uuid.uuid4().hex[:12]}", uuid.uuid4().hex.encode()
    handle = client.bucket(name)
    try:
        handle.create()
    except AISError as e:
        findings.append(_here.failed("buckets", said(e), "allow the AIStore connection's user to create buckets"))
        yield None
        return
    try:
        handle.object("probe").get_writer().put_content(content)
        findings.append(_here.ok("buckets", "a bucket can be made, filled and removed"))
        yield Probe(f"{name}/probe", content)
    except AISError as e:
        findings.append(_here.failed("buckets", said(e), "allow the AIStore connection's user to put objects"))
        yield None
    finally:
        handle.delete(missing_ok=True)
