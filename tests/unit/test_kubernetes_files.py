"""The examples for Kubernetes: every key exists in the API, and the files agree with each other and with the code."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from kubernetes import client

from storeside.aistore.cluster import Cluster
from storeside.aistore.spec import TRANSFORMER_IMAGE
from storeside.doctor.aistore import FEATURES
from storeside.doctor.connections import Connection
from storeside.measure.throughput import job_spec, kubernetes
from storeside.sql.visibility import POLICIES
from storeside.stack.containers import aistore as container
from storeside.stack.servers.clickhouse_users import (
    AISTORE_COLLECTION,
    GRANTS,
    LEDGER,
    LOADER,
    OBJECTS_COLLECTION,
    PAGES,
    READERS,
    REVOKED,
)
from storeside.stack.settings import CHECKOUT

FOLDER = CHECKOUT / "docs" / "kubernetes"
OWN = {
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "Secret": "V1Secret",
    "NetworkPolicy": "V1NetworkPolicy",
    "Namespace": "V1Namespace",
    "StorageClass": "V1StorageClass",
    "ServiceAccount": "V1ServiceAccount",
    "ConfigMap": "V1ConfigMap",
    "Service": "V1Service",
    "StatefulSet": "V1StatefulSet",
    "Job": "V1Job",
}


def documents(name: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all((FOLDER / name).read_text()) if d]


def unknown(value: Any, kind: str, path: str = "") -> Iterator[str]:
    """Yield the keys that are missing in Kubernetes' own model of an object; client 37 writes types differently."""
    if kind.startswith(("list[", "List[")):
        for item in value:
            yield from unknown(item, kind[5:-1], path)
        return
    if isinstance(value, dict) and (inner := re.fullmatch(r"dict\(str, (.*)\)|Dict\[str, (.*)\]", kind)):
        for key, item in value.items():
            yield from unknown(item, inner[1] or inner[2], f"{path}.{key}")
        return
    model = getattr(client, kind, None)
    if model is None:
        return
    names = {wire: name for name, wire in model.attribute_map.items()}
    for key, item in value.items():
        if key not in names:
            yield f"{path}.{key}"
        else:
            yield from unknown(item, model.openapi_types[names[key]], f"{path}.{key}")


@pytest.mark.parametrize(
    "name",
    [
        "rbac.yaml", "loaders.yaml", "networkpolicy.yaml", "secrets.yaml", "namespaces.yaml", "storage.yaml",
        "aistore/accounts.yaml", "aistore/config.yaml", "aistore/services.yaml", "aistore/proxy.yaml",
        "aistore/target.yaml", "try.yaml", "etl-account.yaml",
    ],
)  # fmt: skip
def test_the_api_knows_every_key(name: str) -> None:
    found = documents(name)
    assert found
    for document in found:
        assert list(unknown(document, OWN[document["kind"]])) == [], document["metadata"]["name"]


def test_the_api_knows_every_key_of_the_job_of_loaders() -> None:
    made = job_spec.job(
        "n", {"a": "b"}, image="i", cluster=Cluster("http://x"), secret="s", arguments=["-x"], number=2, seconds=9,
        storage="ais", owners=[{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}],
    )  # fmt: skip
    assert list(unknown(made, "V1Job")) == []


def test_the_check_sees_a_wrong_key() -> None:
    wrong = {"kind": "Role", "rules": [{"apiGroups": [""], "resource": ["pods"]}]}
    assert list(unknown(wrong, "V1Role")) == [".rules.resource"]


def test_pods_may_be_read_by_those_who_watch_them() -> None:
    role, binding = documents("rbac.yaml")
    allowed = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    # the calls of storeside.aistore.pods and storeside.doctor.kubernetes
    assert {("pods", "list"), ("pods/log", "get")} <= allowed
    assert not {v for _, v in allowed} & {"create", "delete", "update", "patch", "*"}
    values = documents("airflow-values.yaml")[0]
    accounts = {values[part]["serviceAccount"]["name"] for part in ("workers", "triggerer")}
    assert {s["name"] for s in binding["subjects"]} == accounts
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_pods_of_etls_have_no_token_of_kubernetes() -> None:
    """AIStore names no account for them, so they have that of the namespace, which its own pods have not."""
    (account,) = documents("etl-account.yaml")
    (store,) = documents("aistore.yaml")
    assert account["metadata"] == {"name": "default", "namespace": store["metadata"]["namespace"]}
    assert account["automountServiceAccountToken"] is False
    assert "etl-account.yaml" in documents("kustomization.yaml")[0]["resources"]
    for name in ("proxy", "target"):
        (state,) = documents(f"aistore/{name}.yaml")
        assert state["spec"]["template"]["spec"]["serviceAccountName"] not in ("", "default")


def test_what_has_no_tls_says_that_it_is_for_trials() -> None:
    plain = re.compile(r"http://|\b(51080|51081|8123)\b")  # ports of AIStore and of ClickHouse without TLS
    page = (CHECKOUT / "docs" / "kubernetes.md").read_text()
    assert page.splitlines()[2].startswith("**The examples are for trials.**")
    assert "\n## Before production\n" in page
    found = {path.name: path.read_text() for path in FOLDER.rglob("*.yaml") if plain.search(path.read_text())}
    assert {"aistore.yaml", "clickhouse.yaml", "secrets.yaml", "config.yaml"} < {*found}
    for name, text in found.items():
        assert re.match("# For trials: .*docs/kubernetes.md, Before production", text), name


def test_workers_may_run_loaders_and_read_no_secret() -> None:
    role, binding = documents("loaders.yaml")
    allowed = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    # the calls of storeside.measure.throughput.kubernetes
    source = inspect.getsource(kubernetes)
    calls = {(resource, verb) for verb, resource in re.findall(r'_request\("(\w+)", "(\w+)"', source)}
    assert allowed == calls | {("pods/log", "get")}
    values = documents("airflow-values.yaml")[0]
    assert [s["name"] for s in binding["subjects"]] == [values["workers"]["serviceAccount"]["name"]]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_airflow_gets_the_secrets_that_there_are() -> None:
    secrets = {d["metadata"]["name"]: d["stringData"] for d in documents("secrets.yaml")}
    values = documents("airflow-values.yaml")[0]
    for entry in values["secret"]:
        conn_id = entry["envName"].removeprefix("AIRFLOW_CONN_").lower()
        connection = Connection.parse(conn_id, secrets[entry["secretName"]][entry["secretKey"]])
        assert connection.extra_dejson or conn_id in ("clickhouse_ledger", "clickhouse_pages")
    for key, name in (
        ("fernet-key", values["fernetKeySecretName"]),
        ("api-secret-key", values["apiSecretKeySecretName"]),
        ("jwt-secret", values["jwtSecretName"]),
        ("connection", values["data"]["metadataSecretName"]),
    ):
        assert key in secrets[name]
    assert documents("aistore.yaml")[0]["spec"]["awsSecretName"] in secrets


def test_the_pod_that_tries_a_cluster_gets_the_secrets_of_airflow() -> None:
    values = documents("airflow-values.yaml")[0]
    pod = documents("try.yaml")[0]["spec"]["template"]["spec"]
    references = [
        {"envName": variable["name"], "secretName": (key := variable["valueFrom"]["secretKeyRef"])["name"],
         "secretKey": key["key"]}
        for variable in pod["containers"][0]["env"]
        if "valueFrom" in variable
    ]  # fmt: skip
    assert references == values["secret"]
    assert pod["serviceAccountName"] == values["workers"]["serviceAccount"]["name"]
    assert pod["containers"][0]["image"] == f"{values['defaultAirflowRepository']}:{values['defaultAirflowTag']}"


def test_the_store_is_as_the_connections_and_policies_say() -> None:
    (store,) = documents("aistore.yaml")
    spec = store["spec"]
    assert int(spec["configToUpdate"]["features"]) == sum(FEATURES.values())
    secrets = {d["metadata"]["name"]: d["stringData"] for d in documents("secrets.yaml")}
    connection = json.loads(secrets["storeside-connections"]["aistore"])
    assert connection["port"] == spec["proxySpec"]["portPublic"]
    assert connection["extra"]["kube_namespace"] == store["metadata"]["namespace"]
    policy = documents("networkpolicy.yaml")[0]
    open_ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", [])}
    assert open_ports == {spec["proxySpec"]["portPublic"], spec["targetSpec"]["portPublic"]}


def test_aistore_without_its_operator_is_as_with_it() -> None:
    spec = documents("aistore.yaml")[0]["spec"]
    shared, proxy, target = (json.loads(next(iter(d["data"].values()))) for d in documents("aistore/config.yaml"))
    assert shared["features"] == spec["configToUpdate"]["features"]
    assert shared["backend"] == spec["configToUpdate"]["backend"]
    images = {
        image["name"]: f"{image['newName']}:{image['newTag']}"
        for image in documents("aistore/kustomization.yaml")[0]["images"]
    }
    assert images == {"aisnode": spec["nodeImage"], "ais-init": spec["initImage"]}
    for local, part in ((proxy, spec["proxySpec"]), (target, spec["targetSpec"])):
        ports = {name: int(local["host_net"][name]) for name in ("port", "port_intra_control", "port_intra_data")}
        assert ports == {
            "port": part["portPublic"],
            "port_intra_control": part["portIntraControl"],
            "port_intra_data": part["portIntraData"],
        }
    (state,) = documents("aistore/target.yaml")
    disks = {claim["metadata"]["name"]: claim["spec"] for claim in state["spec"]["volumeClaimTemplates"]}
    (waiting,) = documents("storage.yaml")
    assert waiting["volumeBindingMode"] == "WaitForFirstConsumer"
    for mount in spec["targetSpec"]["mounts"]:
        assert mount["storageClass"] == disks[mount["label"]]["storageClassName"] == waiting["metadata"]["name"]
        assert target["fspaths"][mount["path"]] == mount["label"]
    pod = state["spec"]["template"]["spec"]
    assert "secret" not in json.dumps(pod["volumes"]).lower(), "pods of ETLs inherit the volumes of targets"


def test_clickhouse_has_what_compose_gives_it() -> None:
    (house,) = documents("clickhouse.yaml")
    configuration = house["spec"]["configuration"]
    collection = re.findall(r"<(storeside_\w+)>", configuration["files"]["config.d/storeside.xml"])
    secrets = {d["metadata"]["name"]: d["stringData"] for d in documents("secrets.yaml")}
    aws, aistore = (json.loads(secrets["storeside-connections"][name]) for name in ("aws", "aistore"))
    assert aws["extra"]["clickhouse_collection"] in collection
    users = ElementTree.parse(CHECKOUT / "include" / "storeside" / "stack" / "images" / "clickhouse" / "users.xml")  # noqa: S314 - ours
    page = (CHECKOUT / "docs" / "configuration.md").read_text()
    for name in (LOADER, LEDGER, PAGES):
        grants = configuration["users"][f"{name}/grants/query"]
        proxy = f"http://{aistore['host'].replace('.', '[.]')}:{aistore['port']}"
        assert grants == grants_of(name, collection, proxy)
        collections = [*collection, AISTORE_COLLECTION, OBJECTS_COLLECTION]  # AIStore requires tokens under Compose
        in_compose = grants_of(name, collections, f"https://aistore:{container.PORT}")
        assert [query.text for query in users.findall(f"users/{name}/grants/query")] == in_compose
        for grant in grants:
            assert f"{grant} {'FROM' if grant.startswith('REVOKE') else 'TO'} {name};" in page
    assert "storeside" not in configuration["users"]
    text = (FOLDER / "clickhouse.yaml").read_text()
    assert text.count("networks/ip: &pods") == 1, "a user of the file changes it in one place"
    networks = [configuration["users"][f"{name}/networks/ip"] for name in (LOADER, LEDGER, PAGES)]
    assert networks == [["10.0.0.0/8"]] * 3
    for table, condition in POLICIES.items():
        assert users.findtext(f"users/{PAGES}/databases/{table.replace('.', '/')}/filter") == condition
        assert configuration["users"][f"{PAGES}/databases/{table.replace('.', '/')}/filter"] == condition
    assert len(users.findall(f"users/{PAGES}/databases/*/*")) == len(POLICIES)
    assert len([name for name in configuration["users"] if name.endswith("/filter")]) == len(POLICIES)


def grants_of(name: str, collections: list[str], aistore: str) -> list[str]:
    """Return what the embedded server grants to a user, with the URL of AIStore as a regular expression."""
    used = [one for one in collections if name in READERS or (name == LEDGER and one == AISTORE_COLLECTION)]
    named = [f"NAMED COLLECTION ON {one}" for one in used]
    urls = [f"READ ON URL('{aistore}/v1/objects/.*')"] if name in READERS else []
    granted = [f"GRANT {right}" for right in (*GRANTS[name], *urls, *named)]
    return [*granted, *(f"REVOKE {right}" for right in REVOKED.get(name, ()))]


def test_nothing_runs_what_only_airflows_own_image_has() -> None:
    values = documents("airflow-values.yaml")[0]
    # by default the chart runs /clean-logs beside each of them
    for part in ("scheduler", "dagProcessor", "triggerer", "workers"):
        assert values[part]["logGroomerSidecar"] == {"enabled": False}, part


def test_targets_start_after_their_secret_exists() -> None:
    """A reference to a Secret that may be absent is resolved once, when the container is created."""
    (state,) = documents("aistore/target.yaml")
    environment = state["spec"]["template"]["spec"]["containers"][0]["env"]
    references = [v["valueFrom"]["secretKeyRef"] for v in environment if "secretKeyRef" in v.get("valueFrom", {})]
    assert references
    assert all(reference["optional"] for reference in references)
    page = (CHECKOUT / "docs" / "kubernetes.md").read_text()
    applied = re.findall(r"^ *kubectl apply (.*)$", page.partition("## Steps")[2].partition("\n## ")[0], re.MULTILINE)
    secrets, manifests = (next(n for n, c in enumerate(applied) if part in c) for part in ("secrets.yaml", "-k "))
    assert secrets < manifests


def test_versions_are_those_of_the_code() -> None:
    values = documents("airflow-values.yaml")[0]
    page = (CHECKOUT / "docs" / "kubernetes.md").read_text()
    pinned = (CHECKOUT / "requirements.txt").read_text()
    assert f"apache-airflow=={values['airflowVersion']}\n" in pinned
    builds = re.findall(r"docker build .*registry.example.com/storeside/(.*)", page)
    assert builds
    assert all('$TAG"' in build for build in builds), "nodes would keep the image of an earlier build"
    assert values["defaultAirflowTag"] == TRANSFORMER_IMAGE.rpartition(":")[2]
    assert TRANSFORMER_IMAGE in page
