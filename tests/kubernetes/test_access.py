"""The rights of Airflow's service accounts on the API server."""

from __future__ import annotations

import json

import pytest

from tests.kubernetes.session import Session

ALLOWED = ("list pods", "get pods", "get pods/log")
DENIED = ("create pods", "delete pods", "get secrets", "create pods/exec", "list nodes")


@pytest.mark.parametrize("account", ["airflow-worker", "airflow-triggerer"])
@pytest.mark.parametrize("access", [*ALLOWED, *DENIED])
def test_an_account_may_read_pods_of_etls_and_nothing_else(cluster: Session, account: str, access: str) -> None:
    answer = cluster.as_account(account)("auth", "can-i", *access.split(), check=False).split()
    assert answer[0] == ("yes" if access in ALLOWED else "no"), answer


def test_a_pod_without_an_account_of_its_own_has_no_token(cluster: Session) -> None:
    """Pods of ETLs are such pods; the API server completes this one and does not start it."""
    if not cluster.own_folder:
        pytest.skip("the tests do not change the account `default` of a user's namespace")
    pod = json.loads(cluster.kubectl("run", "etl", "--image=none", "--dry-run=server", "--output=json"))
    assert pod["spec"]["serviceAccountName"] == "default"
    assert "serviceAccountToken" not in json.dumps(pod["spec"].get("volumes", []))


def test_a_denied_access_is_refused_by_the_server(cluster: Session) -> None:
    worker = cluster.as_account("airflow-worker")
    assert "ais-proxy-0" in worker("get", "pods")
    assert worker("logs", "ais-proxy-0", "--tail=1")
    for arguments in (
        ("get", "secrets"),
        ("delete", "pod", "ais-proxy-0"),
        ("exec", "ais-proxy-0", "--", "true"),
        ("get", "nodes"),
        ("run", "intruder", "--image=none"),
    ):
        assert "is forbidden" in worker(*arguments, check=False), arguments
