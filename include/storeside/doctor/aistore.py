"""Checks AIStore: whether it answers, accepts the login, can run ETLs, and serves the S3 API for ClickHouse."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.aistore.control_plane import unanswering
from storeside.aistore.entries import entries
from storeside.aistore.errors import AIStoreError, said
from storeside.doctor.findings import Finding, System
from storeside.doctor.remedies import answered, reach
from storeside.doctor.report import Report

if TYPE_CHECKING:
    from aistore.sdk import Client
    from aistore.sdk.errors import AISError

# Bits of `features`; see AIStore's cmn/feat/feat.go.
FEATURES = {"S3-API-via-Root": 1 << 3, "S3-Reverse-Proxy": 1 << 13}
_PATH_STYLE = 1 << 14
_LOGIN_REMEDY = (
    "set the password of the AIStore connection to a token from AIStore's AuthN, or set its extra authn_url, its"
    " login and its password"
)
_UNREACHABLE = re.compile(r"deadline exceeded|timed? ?out|i/o timeout|connection refused|no such host", re.IGNORECASE)
_TARGETS = "let this machine reach the addresses of AIStore's targets, to which the proxy redirects it"
_TLS = "its schema, and the extra ca_cert"
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_here = System("AIStore")


@dataclass(frozen=True)
class Probe:
    """A test object in a bucket that exists only while the checks run; `path` is bucket and object name."""

    path: str
    content: bytes


def connect(make: Callable[[], Cluster]) -> tuple[Any, Finding]:
    """Log in and list the buckets; return the client (None after a failure) and the finding."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        cluster = make()
        _reach(cluster)
        client = cluster.client()
        nodes = client.cluster().get_info()
        client.cluster().list_buckets()
        if not client.cluster().is_ready():
            return None, _here.failed("login", f"{cluster.endpoint} is not ready", "wait, or see its proxies' logs")
    except AISError as e:
        not_found = e.status_code == HTTPStatus.NOT_FOUND
        otherwise = "correct host and port: no AIStore proxy answers there" if not_found else "see its proxies' logs"
        return None, _here.failed("login", said(e), _remedy(e, _LOGIN_REMEDY, otherwise))
    except AIStoreError as e:  # AuthN refuses the login
        return None, _here.failed("login", e, reach(e, _LOGIN_REMEDY, tls=_TLS))
    except (RequestException, OSError, ValueError) as e:
        ways = "correct the AIStore connection: host, port and schema of a proxy, and for TLS its extras"
        return None, _here.failed("login", e, reach(e, ways, tls=_TLS))
    return client, _here.ok("login", f"{cluster.endpoint}, {len(nodes.tmap)} targets")


def _remedy(error: AISError, allow: str, otherwise: str = "see its proxies' logs") -> str:
    """Return the remedy for an answer of AIStore: `allow` for a denial, `otherwise` for a permanent fault."""
    return allow if error.status_code in _REFUSED else answered(error.status_code, otherwise)


def _reach(cluster: Cluster) -> None:
    """Send one request first: the SDK retries for much longer. Raises requests.RequestException without an answer."""
    import requests

    trusted = (cluster.ca_cert or True) if cluster.verify else False
    requests.get(f"{cluster.endpoint}/v1/health", timeout=5, verify=trusted, cert=cluster.certificate)


def control_plane(client: Client) -> Finding:
    """Check whether every target answers control calls; one silent target prevents new ETLs and the end of jobs."""
    from requests import RequestException

    try:
        found = unanswering(client)
    except (RequestException, ValueError, KeyError) as e:
        return _here.failed("control calls", e, reach(e, "see its proxies' logs"))
    if found:
        what = "; ".join(f"target {target.id}: {target.call}" for target in found)
        return _here.failed("control calls", what, "; ".join(target.remedy for target in found))
    return _here.ok("control calls", "every target answers")


def disks(client: Client) -> Finding:
    """Check whether the disks of all targets have space; on full ones, AIStore deletes files that it writes.

    AIStore reports a disk above its limits (``highwm`` and ``out_of_space`` of its configuration, 90 and 95 % by
    default) in the field ``cs_err`` of a target's status (fs/api.go, Tcdf).
    """
    sdk, fullest = client.cluster().client, 0
    for target in sdk.request("get", path="daemon", params={"what": "smap"}).json()["tmap"] or ():
        answer = sdk.request(
            "get", path="reverse/daemon", params={"what": "node_status"}, headers={"ais-node-id": target}
        )
        found = answer.json().get("capacity") or {}
        used = int(found.get("pct_max") or 0)
        if found.get("cs_err"):
            what = f"target {target}: {used} % of a disk are used: {found['cs_err']}"
            return _here.failed("disks", what, "free space on the disks of this target, or add disks")
        fullest = max(fullest, used)
    return _here.ok("disks", f"at most {fullest} % of a target's disk are used")


def examine(client: Client) -> Iterator[Finding]:
    """Check whether the cluster runs ETLs, and whether its S3 API is enabled at the URL that ClickHouse uses."""
    from aistore.sdk.errors import AISError

    requests = client.cluster().client
    nobody = {"etl_name": f"doctor-{uuid.uuid4().hex[:8]}", "provider": "ais"}
    try:
        requests.request(
            "put", path="objects/storeside-doctor/probe", params=nobody
        )  # AIStore checks the ETL before it looks up the object
    except AISError as e:
        if nobody["etl_name"] in said(e):  # AIStore looked up the ETL, so the feature is built in
            yield _here.ok("ETL", "the cluster can run ETLs")
        else:
            remedy = "deploy AIStore on Kubernetes, for example with its operator; build aisnode with the tag etl"
            yield _here.failed("ETL", said(e), _LOGIN_REMEDY if e.status_code in _REFUSED else remedy)
    bits = _features(client)
    missing = [name for name, bit in FEATURES.items() if not bits & bit]
    if missing:
        names = " ".join(missing)
        yield _here.failed("S3 API", f"{', '.join(missing)} off", f"ais config cluster features {names}")
    else:
        yield _here.ok("S3 API", f"{', '.join(FEATURES)} on")


def _features(client: Client) -> int:
    """Return the bits of the cluster's features."""
    request = client.cluster().client.request
    return int(request("get", path="cluster", params={"what": "cluster_config"}).json().get("features") or 0)


def backend(client: Client, bucket: Bucket, endpoint: str = "") -> Finding:
    """Check whether the cluster itself reaches a bucket in S3; `endpoint` is the server's URL, empty for AWS."""
    from aistore.sdk.errors import AISError

    check = "reads S3"
    try:
        next(entries(client, bucket, page=1), None)
    except AISError as e:
        text = said(e)
        keys = f"give AIStore's targets credentials for {bucket}, and S3_ENDPOINT unless it is AWS"
        if style := path_style(client, bucket, endpoint, text):
            return _here.failed(check, text, f"{style}; if that does not help, {keys}")
        if _UNREACHABLE.search(text):
            return _here.failed(check, text, f"let AIStore's targets reach the S3 server of {bucket}")
        if e.status_code == HTTPStatus.NOT_FOUND:
            keys = f"check that {bucket} exists; if it does, {keys}"
        return _here.failed(check, text, keys)
    return _here.ok(check, f"{bucket} through the cluster's backend")


def path_style(client: Client, bucket: Bucket, endpoint: str, text: str = "") -> str:
    """Return the remedy if path style may cure an error, whose `text` may be known; empty if AIStore uses it already.

    By default AIStore puts the bucket's name into the host (virtual-host style). A server of one's own often has no
    such host, and its certificate does not cover a bucket's name with dots.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    own_server = bool(endpoint) and not str(urlsplit(endpoint).hostname).endswith(".amazonaws.com")
    if f"{bucket.name}." not in text and "." not in bucket.name and not own_server:
        return ""
    try:
        if _features(client) & _PATH_STYLE:
            return ""
    except (AISError, RequestException):  # the check of the features reports it
        return ""
    return (
        f"AIStore puts the name of {bucket} into the host; many servers other than AWS accept only path style: ais"
        " config cluster features S3-Use-Path-Style (name the features that are on, too: the command replaces them),"
        f" and for a bucket that AIStore knows already: ais bucket props set {bucket} features S3-Use-Path-Style;"
        " then restart the targets, which keep their clients of S3"
    )


@contextmanager
def probe(client: Client, report: Report) -> Iterator[Probe | None]:
    """Create a bucket with one object and remove it at the end; yield None if that fails.

    Unless AIStore refuses to create it, the bucket is removed in any case: a check that exceeds its time may have
    created it.
    """
    name, content, refused = f"storeside-doctor-{uuid.uuid4().hex[:12]}", uuid.uuid4().hex.encode(), Event()
    handle = client.bucket(name)
    try:
        filled = report.check(_here, "buckets", lambda: _fill(handle, content, refused), remedy=_TARGETS)
        yield Probe(f"{name}/probe", content) if filled else None
    finally:
        if not refused.is_set():
            report.check(_here, "cleaning up", lambda: _remove(handle))


def _fill(handle: Any, content: bytes, refused: Event) -> Finding:
    """Create the bucket and put the object; sets `refused` if AIStore does not create the bucket."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    doing = "create buckets"
    try:
        handle.create()
        doing = "put objects"
        handle.object("probe").get_writer().put_content(content)
    except AISError as e:
        if doing == "create buckets":
            refused.set()
        return _here.failed("buckets", said(e), _remedy(e, f"allow the AIStore connection's user to {doing}"))
    except RequestException as e:
        return _here.failed("buckets", e, reach(e, _TARGETS, tls=_TLS))
    return _here.ok("buckets", f"the user can create {handle.name} and put an object")


def _remove(handle: Any) -> Finding:
    """Remove the test bucket."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        handle.delete(missing_ok=True)
    except (AISError, RequestException) as e:
        allow = "allow the AIStore connection's user to delete buckets"
        remedy = _remedy(e, allow) if isinstance(e, AISError) else reach(e, _TARGETS, tls=_TLS)
        return _here.failed("cleaning up", f"{handle.name}: {said(e)}", f"{remedy}; then delete the bucket")
    return _here.ok("cleaning up", "the bucket is removed")
