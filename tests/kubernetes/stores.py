"""ClickHouse with the users and settings of ``docs/kubernetes/clickhouse.yaml``, S3 and PostgreSQL, as pods."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import yaml

from storeside.stack.servers.s3 import REGION
from tests.kubernetes.airflow_images import CLICKHOUSE, POSTGRES, S3
from tests.kubernetes.images import LOADER
from tests.kubernetes.overlay import DOCS, S3_HOST, S3_PORT, S3_URL
from tests.kubernetes.resources import RESTRICTED, from_secret, resource, running, service, variables

# The names that Altinity's operator and docs/kubernetes/secrets.yaml use.
CLICKHOUSE_NAME = "clickhouse-storeside"
CLICKHOUSE_PORT = 8123
DATABASE = "data"  # of the tables that the tests load
POSTGRES_HOST = "postgres.airflow"
_DOCUMENTED_S3 = "https://s3.eu-west-3.amazonaws.com/"
_SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "4Gi"}}


def filled_secrets() -> list[dict[str, Any]]:
    """Return the Secrets of ``secrets.yaml`` with generated passwords and the addresses of the stand-ins."""
    found = list(yaml.safe_load_all((DOCS / "secrets.yaml").read_text()))
    made = {secret["metadata"]["name"]: secret["stringData"] for secret in found}
    connections, airflow = made["storeside-connections"], made["storeside-airflow"]
    clickhouse, aistore = made["storeside-clickhouse"], made["ais-aws"]
    clickhouse.update({key: secrets.token_hex(16) for key in clickhouse})
    for name, key in (("clickhouse", "loader"), ("clickhouse-ledger", "ledger"), ("clickhouse-pages", "pages")):
        connections[name] = connections[name].replace("CHANGE-ME", clickhouse[f"{key}_password"])
    # The stand-in's database `default` maps files to tables: there, even the function `format` needs rights on files.
    for name in ("clickhouse", "clickhouse-ledger"):
        connections[name] = json.dumps(json.loads(connections[name]) | {"schema": DATABASE})
    store = json.loads(connections["aistore"])
    store["extra"]["aisloader_image"] = f"registry.test/{LOADER}"
    connections["aistore"] = json.dumps(store)
    aws = json.loads(connections["aws"])
    aws |= {"login": clickhouse["s3_access_key"], "password": clickhouse["s3_secret_key"]}
    aws["extra"] |= {"endpoint_url": S3_URL, "region_name": REGION}
    connections["aws"] = json.dumps(aws)
    aistore |= {
        "region": REGION,
        "access_key_id": clickhouse["s3_access_key"],
        "secret_access_key": clickhouse["s3_secret_key"],
    }
    password = secrets.token_hex(16)
    connection = airflow["connection"].replace("CHANGE-ME", password)
    airflow |= {
        "connection": connection.replace("postgres.example.com", POSTGRES_HOST),
        "fernet-key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "api-secret-key": secrets.token_hex(32),
        "jwt-secret": secrets.token_hex(32),
        "password": password,  # of the stand-in for PostgreSQL
    }
    return [*found, _s3_secret(clickhouse)]


def _s3_secret(clickhouse: Mapping[str, str]) -> dict[str, Any]:
    keys = {name: clickhouse[name] for name in ("s3_access_key", "s3_secret_key")}
    return resource("Secret", "airflow", "s3", stringData=keys)


def resources() -> list[dict[str, Any]]:
    """Return the pods and services of S3, PostgreSQL and ClickHouse; their Secrets exist."""
    return [*_s3(), *_postgres(), *_clickhouse()]


def _s3() -> list[dict[str, Any]]:
    settings = {
        "AUTH": "true",
        "BIND_HOST": "0.0.0.0",  # noqa: S104 - the pod's address
        "GATEWAY_PORT": str(S3_PORT),
        "IOT_MTLS_ENABLED": "0",
        "LOG_LEVEL": "WARNING",
        "MINISTACK_HOST": S3_HOST,
        "MINISTACK_REGION": REGION,
        "PERSIST_STATE": "1",
        "S3_DATA_DIR": "/var/lib/storeside/objects",
        "S3_PERSIST": "1",
        "SERVICES": "s3,sqs,sts",
        "SFTP_ENABLED": "0",
        "STATE_DIR": "/var/lib/storeside/services",
    }
    env = [
        *variables(settings),
        from_secret("AWS_ACCESS_KEY_ID", "s3", "s3_access_key"),
        from_secret("AWS_SECRET_ACCESS_KEY", "s3", "s3_secret_key"),
    ]
    pod = _pod("registry.example.com/" + S3, 50000, env, S3_PORT, "/var/lib/storeside")
    return [running("airflow", "s3", pod), service("airflow", "s3", "s3", S3_PORT)]


def _postgres() -> list[dict[str, Any]]:
    env = [
        *variables({"POSTGRES_USER": "airflow", "POSTGRES_DB": "airflow", "PGDATA": "/var/lib/postgresql/data/new"}),
        from_secret("POSTGRES_PASSWORD", "storeside-airflow", "password"),
    ]
    pod = _pod("docker.io/" + POSTGRES, 50000, env, 5432, "/var/lib/postgresql/data")
    return [running("airflow", "postgres", pod), service("airflow", "postgres", "postgres", 5432)]


def _clickhouse() -> list[dict[str, Any]]:
    """What Altinity's operator makes of the resource, as far as Storeside needs it."""
    installation = yaml.safe_load((DOCS / "clickhouse.yaml").read_text())
    configuration, namespace = installation["spec"]["configuration"], installation["metadata"]["namespace"]
    env, users, profiles = [], _nested(configuration["users"]), _nested(configuration["profiles"])
    for name, settings in users.items():
        _, secret, key = settings.pop("k8s_secret_password").split("/")
        env.append(from_secret(name.upper(), secret, key))
        settings["password"] = {"@from_env": name.upper()}
    (file,) = configuration["files"].items()
    (container,) = installation["spec"]["templates"]["podTemplates"][0]["spec"]["containers"]
    files = {
        "users.xml": _xml({"profiles": profiles, "users": users}),
        "storeside.xml": file[1].replace(_DOCUMENTED_S3, f"{S3_URL}/"),
        "listen.xml": _xml({"listen_host": "0.0.0.0"}),  # noqa: S104 - the pod's address
    }
    pod = _pod("docker.io/" + CLICKHOUSE, 101, env + container["env"], CLICKHOUSE_PORT, "/var/lib/clickhouse")
    assert container["image"] == CLICKHOUSE
    pod["volumes"].append({"name": "settings", "configMap": {"name": CLICKHOUSE_NAME}})
    pod["containers"][0]["volumeMounts"] += [
        {"name": "settings", "mountPath": f"/etc/clickhouse-server/{place}", "subPath": place.rpartition("/")[2]}
        for place in ("users.d/users.xml", "config.d/storeside.xml", "config.d/listen.xml")
    ]
    return [
        resource("ConfigMap", namespace, CLICKHOUSE_NAME, data=files),
        running(namespace, CLICKHOUSE_NAME, pod),
        service(namespace, CLICKHOUSE_NAME, CLICKHOUSE_NAME, CLICKHOUSE_PORT),
    ]


def _pod(image: str, user: int, env: list[dict[str, Any]], port: int, data: str) -> dict[str, Any]:
    return {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsUser": user, "runAsGroup": 0, "runAsNonRoot": True},
        "containers": [
            {
                "name": "server",
                "image": image,
                "env": env,
                "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
                "volumeMounts": [{"name": "data", "mountPath": data}],
                "resources": _SMALL,
                "securityContext": RESTRICTED,
            }
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of settings whose keys are paths."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split("/")
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return tree


def _leaves(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else [str(value)]


def _xml(tree: Mapping[str, Any]) -> str:
    root = ElementTree.Element("clickhouse")
    _append(root, tree)
    return ElementTree.tostring(root, encoding="unicode")


def _append(parent: ElementTree.Element, tree: Mapping[str, Any]) -> None:
    for name, value in tree.items():
        if name.startswith("@"):
            parent.set(name[1:], str(value))
        elif isinstance(value, Mapping):
            _append(ElementTree.SubElement(parent, name), value)
        else:
            for text in _leaves(value):
                ElementTree.SubElement(parent, name).text = text
