"""AIStore as plain processes: a proxy and its targets, with the embedded S3 as ``aws`` backend."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from storeside.stack import tls
from storeside.stack.building import backends
from storeside.stack.building.patch import LOOPBACK_VARIABLE, SEED_VARIABLE, SERVICE_ACCOUNT_VARIABLE
from storeside.stack.podrunner.component import NAMESPACE, node_name, pod_name, service_account
from storeside.stack.servers.s3 import keys as s3_keys
from storeside.stack.servers.trouble import ControlPlane
from storeside.stack.settings import HOST, SOURCES, Stack
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import answers

REGION = "us-east-1"
# Variables that configure the nodes' backend for s3:// buckets.
BACKEND = ("S3_ENDPOINT", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

# Bits of `features`, see AIStore's cmn/feat/feat.go: S3-API-via-Root, S3-Reverse-Proxy, S3-Use-Path-Style.
FEATURES = 1 << 3 | 1 << 13 | 1 << 14

# Percent of the disk above which AIStore creates no bucket and no ETL, and copies nothing.
HIGH_WATERMARK = 98

# Files in which a node remembers the cluster's settings and map, see AIStore's cmn/fname/fname.go.
_REMEMBERED = (".ais.conf", ".ais.override_config", ".ais.smap")
# Runs a command whose new files its group can read; the supervisor sets a stricter mask.
_GROUP_READS = ("/bin/sh", "-c", 'umask 027; exec "$0" "$@"')


@dataclass(frozen=True)
class Hosts:
    """Names of hosts: of the nodes for clients and for transformers, and of the pod runner.

    If the pod runner has another host than the nodes, transformers are another user of the nodes' group: this group
    can read objects.
    """

    clients: str = HOST
    transformers: str = HOST
    pods: str = HOST


def folder(stack: Stack) -> Path:
    """Return the folder that AIStore's nodes write to."""
    return stack.state / "aistore"


def data_folder(stack: Stack) -> Path:
    """Return the folder with the objects of all targets."""
    return folder(stack) / "data"


def components(
    stack: Stack, binary: Path, hosts: Hosts = Hosts(), backend: Mapping[str, str] | None = None, write: bool = True
) -> list[Component]:
    """Write the configuration of all nodes and return their components; without `write` only return them.

    `backend` has values for the variables `BACKEND`; None uses the embedded S3.
    """
    if backend is None:
        backend = dict(zip(BACKEND, (stack.url("s3"), REGION, *s3_keys(stack)), strict=True))
    # Targets must join while the proxy starts: earlier registrations may get lost, later ones cause a rebalance.
    proxy_up = f"{stack.url('ais_proxy')}/v1/health"
    proxy = Component(
        name="ais-proxy",
        command=(*_command(stack, binary, "proxy"), f"-ntargets={stack.targets}", "-skip_startup=true"),
        environment=_environment(stack, "proxy", "node-proxy", "ais-proxy", hosts, backend),
        directory=folder(stack) / "proxy",
        healthy=partial(answers, f"{proxy_up}?prr=true", authority=stack.authority),
        stop_signal="INT",
    )
    if write:
        _write_join_secret(stack)
        _write(stack, "proxy", ("ais_proxy", "ais_proxy_control", "ais_proxy_data"), hosts)
    mask = _GROUP_READS if hosts.pods != HOST else ()
    control_plane = ControlPlane(stack)
    targets = []
    for number in range(stack.targets):
        name = f"target-{number}"
        ports = tuple(f"ais_target{number}_{kind}" for kind in ("public", "control", "data"))
        if write:
            _write(stack, name, ports, hosts, instance=number + 1)
        targets.append(
            Component(
                name=f"ais-{name}",
                command=(*_after(proxy_up, stack), *mask, *_command(stack, binary, name)),
                environment=_environment(stack, name, node_name(number), pod_name(number), hosts, backend),
                directory=SOURCES,
                healthy=partial(
                    answers, f"{stack.url(ports[0])}/v1/health?readiness=true", authority=stack.authority
                ),
                trouble=partial(control_plane.of, f"aistarget{number}"),
                stop_signal="INT",
            )
        )
    return [proxy, *targets]


def forget_settings(stack: Stack) -> None:
    """Let stopped nodes start with the settings in `components`, and keep their buckets and objects.

    A node remembers the settings of its cluster and the URLs of the other nodes. Both contain the protocol, so nodes
    that used HTTP would never find each other over HTTPS.
    """
    for name in _REMEMBERED:
        for path in (*folder(stack).glob(f"*/{name}"), *data_folder(stack).glob(f"*/*/{name}")):  # nodes, disks
            path.unlink()


def _after(url: str, stack: Stack) -> tuple[str, ...]:
    return (sys.executable, "-m", "storeside.stack.supervision.start_after", url, str(stack.authority or ""))


def _command(stack: Stack, binary: Path, node: str) -> tuple[str, ...]:
    home = folder(stack) / node
    return (
        str(binary),
        f"-config={home / 'ais.json'}",
        f"-local_config={home / 'ais_local.json'}",
        f"-role={node.partition('-')[0]}",
    )


def _environment(
    stack: Stack, node: str, kube_node: str, pod: str, hosts: Hosts, backend: Mapping[str, str]
) -> Mapping[str, str]:
    return {
        "AIS_DAEMON_ID": f"ais{node}".replace("-", ""),
        "GOMEMLIMIT": "1GiB",
        # the pod runner serves the Kubernetes API here
        "KUBERNETES_SERVICE_HOST": hosts.pods,
        "KUBERNETES_SERVICE_PORT": str(stack.ports["podrunner"]),
        "K8S_NS": NAMESPACE,
        "MY_NODE": kube_node,
        "MY_POD": pod,
        "HOSTNAME": pod,
        SERVICE_ACCOUNT_VARIABLE: str(service_account(stack)),
        LOOPBACK_VARIABLE: "1",
        SEED_VARIABLE: hashlib.sha256(f"{node} {stack.secrets['ais_join']}".encode()).hexdigest(),
        # the requested backends, without the user's own AWS configuration
        **backends.settings(os.environ),
        **backend,
        # Go's list of trusted authorities, for requests to other nodes and to the backend
        **({"SSL_CERT_FILE": str(stack.authority)} if stack.tls else {}),
        "AWS_SESSION_TOKEN": "",
        "AWS_PROFILE": "",
        "AWS_CONFIG_FILE": str(folder(stack) / "no-aws-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder(stack) / "no-aws-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _write(stack: Stack, node: str, ports: tuple[str, ...], hosts: Hosts, instance: int = 0) -> None:
    home = folder(stack) / node
    data = data_folder(stack)
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    data.mkdir(exist_ok=True)
    public, control, intra_data = (str(stack.ports[port]) for port in ports)
    local = {
        "confdir": str(home),
        "log_dir": str(home / "log"),
        "host_net": {
            "hostname": hosts.clients,
            "hostname_intra_control": HOST,
            "hostname_intra_data": hosts.transformers,
            "port": public,
            "port_intra_control": control,
            "port_intra_data": intra_data,
        },
        "fspaths": {},
        "test_fspaths": {
            "root": str(data),
            "count": min(instance, 1),
            "instance": instance,  # starts at 1: the folder of instance 0 would contain the others' folders
        },
    }
    for name, content in (("ais_local.json", local), ("ais.json", _cluster(stack))):
        path = home / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1))


def _cluster(stack: Stack) -> dict[str, Any]:
    """Return the configuration that all nodes share; AIStore's defaults apply to omitted settings."""
    primary = stack.url("ais_proxy_control")
    return {
        "backend": {name: {} for name in ("aws", *backends.chosen(os.environ))},
        "features": str(FEATURES),
        "proxy": {
            "primary_url": primary,
            "original_url": primary,
            "discovery_url": "",
            "non_electable": False,
        },
        "log": {
            "level": "3",
            "max_size": "2mb",
            "max_total": "8mb",
            "flush_time": "10s",
            "stats_time": "60s",
        },
        "timeout": {
            "cplane_operation": "1s",
            "max_keepalive": "2s",
            "cold_get_conflict": "5s",
            "max_host_busy": "20s",
            "startup_time": "30s",
            "join_startup_time": "1m",
            "send_file_time": "5m",
            "ec_streams_time": "10m",
            "object_md": "2h",
        },
        # AIStore measures the user's whole disk. Above `highwm` it would delete files that it writes at that moment.
        "space": {
            "cleanupwm": 97,
            "lowwm": 97,
            "highwm": HIGH_WATERMARK,
            "out_of_space": 99,
            "batch_size": 32768,
            "dont_cleanup_time": "15m",  # AIStore's minimum
        },
        "resilver": {"enabled": True},
        "versioning": {"enabled": True, "validate_warm_get": False},
        "auth": _auth(stack),
        "distributed_sort": {
            "duplicated_records": "ignore",
            "missing_shards": "ignore",
            "ekm_malformed_line": "abort",
            "ekm_missing_key": "abort",
            "default_max_mem_usage": "80%",
            "call_timeout": "10m",
            "dsorter_mem_threshold": "100GB",
            "compression": "never",
            "bundle_multiplier": 4,
        },
        "memsys": {
            "min_free": "256mb",
            "default_buf": "32kb",
            "to_gc": "256mb",
            "hk_time": "3m",
            "min_pct_total": 0,
            "min_pct_free": 0,
        },
        "net": {
            "l4": {"proto": "tcp", "sndrcv_buf_size": 131072},
            "http": {
                **tls.go_settings(stack),
                "idle_conn_time": "6s",
                "idle_conns_per_host": 32,
                "idle_conns": 256,
                "write_buffer_size": 65536,
                "read_buffer_size": 65536,
                "chunked_transfer": True,
            },
        },
    }


def _join_secret(stack: Stack) -> Path:
    return folder(stack) / "join"


def _write_join_secret(stack: Stack) -> None:
    """Write the secret with which nodes join; AIStore refuses a file that other users can read."""
    path = _join_secret(stack)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(stack.secrets["ais_join"])


def _auth(stack: Stack) -> dict[str, Any]:
    """Return the authentication settings of a secure cluster for its clients and its nodes; empty if not secure."""
    if not stack.secure:
        return {}
    return {
        "client_auth_required": True,
        "signature": {"key": stack.secrets["authn_key"], "method": "HS256"},
        "intra_cluster": {"request_auth": True, "node_join_secret_path": str(_join_secret(stack))},
    }
