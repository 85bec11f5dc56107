"""Reports on targets that do not answer: a test's proxy answers for them, as AIStore's does."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storeside.aistore import control_plane, jobs
from storeside.aistore.cluster import Cluster
from storeside.aistore.control_plane import Target, stuck, unanswering
from storeside.aistore.errors import AIStoreTransientError, StuckTargetError
from storeside.doctor import aistore as doctor
from storeside.stack import authn
from storeside.stack.servers.trouble import ControlPlane
from storeside.stack.settings import HOST, Stack
from tests.support import small_spec

SECONDS = 0.3
# For answers that come: a busy machine delays them.
PATIENCE = 0.8


class Proxy(http.server.ThreadingHTTPServer):
    """An AIStore proxy whose targets leave some calls unanswered: `silent` maps ids to kinds of calls."""

    def __init__(self, targets: dict[str, str], silent: dict[str, set[str]]) -> None:
        self.targets, self.silent = targets, silent
        self.capacities: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.over = threading.Event()
        super().__init__((HOST, 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that has stopped waiting


class Handler(http.server.BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        names = parts.path.removeprefix("/v1/").split("/")
        what = parse_qs(parts.query).get("what", [""])[0]
        node = names[3] if names[0] == "etl" and len(names) > 3 else self.headers.get("ais-node-id", "")
        kind = "etl" if names[0] == "etl" else what
        self.server.asked.append((node, kind))
        if kind in self.server.silent.get(node, ()):
            self.server.over.wait(20)
            return
        if not node and kind == "smap":
            self.say(
                200, {"tmap": {t: {"intra_control_net": {"node_ip_addr": a}} for t, a in self.server.targets.items()}}
            )
        elif kind == "etl":
            self.say(404, {"message": "etl does not exist"})
        else:
            self.say(200, {"capacity": self.server.capacities.get(node)})

    def do_PUT(self) -> None:
        self.server.asked.append(("", "PUT"))
        self.say(400, {"message": "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"})

    def say(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


ON_KUBERNETES = "ais-target-7.ais-target.ais.svc.cluster.local"


@pytest.fixture
def proxy() -> Iterator[Any]:
    made: list[Proxy] = []

    def make(silent: dict[str, set[str]], targets: dict[str, str] | None = None) -> tuple[Proxy, Any]:
        found = Proxy(targets or {"aistarget0": HOST, "aistarget1": HOST}, silent)
        threading.Thread(target=found.serve_forever, daemon=True, args=(0.05,)).start()
        made.append(found)
        return found, Cluster(f"http://{HOST}:{found.server_port}").client(patient=False)

    yield make
    for found in made:
        found.over.set()
        found.shutdown()
        found.server_close()


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane.unanswering, "__defaults__", (SECONDS, ()))


def test_a_healthy_cluster_has_nothing_to_say(proxy: Any) -> None:
    found, client = proxy({})
    assert unanswering(client) == []
    assert sorted(found.asked)[1:] == [
        (target, kind) for target in ("aistarget0", "aistarget1") for kind in ("etl", "node_status", "smap")
    ]


@pytest.mark.parametrize(("kind", "name"), [("node_status", "status and jobs"), ("etl", "ETLs")])
def test_a_target_that_answers_simple_questions_only_is_stuck(proxy: Any, kind: str, name: str) -> None:
    _, client = proxy({"aistarget1": {kind}})
    (found,) = stuck(client)
    assert (found.id, found.stuck) == ("aistarget1", True)
    assert name in found.call
    assert "target aistarget1 is stuck" in str(found)
    assert "'make restart COMPONENT=ais-target-1'" in str(found)


def test_a_target_that_answers_nothing_is_down_and_not_stuck(proxy: Any) -> None:
    _, client = proxy({"aistarget0": {"smap", "node_status", "etl"}})
    (found,) = unanswering(client)
    assert not found.stuck
    assert stuck(client) == []


def test_on_kubernetes_the_pod_is_named(proxy: Any) -> None:
    _, client = proxy({"NlLtPtrm": {"etl"}}, {"NlLtPtrm": ON_KUBERNETES, "qVJt8087": "10.0.0.7"})
    (found,) = stuck(client)
    assert "kubectl delete pod ais-target-7" in str(found)
    assert "kubectl delete pod <the pod of x>" in str(Target("x", "no answer", stuck=True))


def test_a_target_that_is_missing_in_the_cluster_map_is_named(proxy: Any) -> None:
    _, client = proxy({}, {"aistarget0": HOST})
    (found,) = unanswering(client, SECONDS, expected=["aistarget0", "aistarget1"])
    assert (found.id, found.stuck, found.call) == ("aistarget1", False, "it is not in the cluster map")


def test_a_proxy_that_is_gone_is_no_stuck_target() -> None:
    assert stuck(Cluster(f"http://{HOST}:1").client(patient=False)) == []


def test_an_authn_that_is_gone_makes_no_target_stuck(tmp_path: Path) -> None:
    stack = Stack.create(tmp_path, 2)
    assert stuck(authn.cluster(stack).client(patient=False)) == []
    for target in ("aistarget0", "aistarget1"):
        assert "AuthN at http://127.0.0.1:" in ControlPlane(stack).of(target)


def test_an_etl_is_not_started_beside_a_stuck_target(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task raises one error with the target's name at once, instead of four attempts that time out."""
    found, client = proxy({"aistarget1": {"node_status"}})
    monkeypatch.setattr("storeside.aistore.etl._running", lambda client, spec: False)
    monkeypatch.setattr("storeside.aistore.etl.locked", lambda *a, **k: jobs.naming_stuck_targets(client))
    from storeside.aistore import etl

    with pytest.raises(StuckTargetError, match=r"target aistarget1 is stuck.*make restart COMPONENT=ais-target-1"):
        etl.ensure(client, small_spec("upper"))
    assert ("", "PUT") not in found.asked, "it was not even tried"
    assert found.asked.count(("aistarget1", "node_status")) < 4, "not once with each of four attempts"


def test_an_error_of_a_control_call_becomes_the_name_of_the_stuck_target(proxy: Any) -> None:
    _, client = proxy({"aistarget0": {"etl"}})
    with pytest.raises(StuckTargetError, match="aistarget0"), jobs.naming_stuck_targets(client):
        raise AIStoreTransientError("the AIStore cluster still does not answer as a whole")


def test_without_a_stuck_target_the_error_stays(proxy: Any) -> None:
    _, client = proxy({"aistarget0": {"smap"}})
    with pytest.raises(AIStoreTransientError, match=r"^try later$"), jobs.naming_stuck_targets(client):
        raise AIStoreTransientError("try later")


def test_the_doctor_names_target_and_remedy(proxy: Any) -> None:
    _, client = proxy({"aistarget1": {"etl"}})
    finding = doctor.control_plane(client)
    assert (finding.check, finding.state) == ("control calls", "failed")
    assert "target aistarget1: no answer to ETLs" in finding.found
    assert "make restart COMPONENT=ais-target-1" in finding.remedy
    assert doctor.control_plane(proxy({})[1]).state == "ok"


def test_the_doctor_reports_full_disks(proxy: Any) -> None:
    server, client = proxy({})
    server.capacities = {
        "aistarget0": {"pct_max": 40, "cs_err": ""},
        "aistarget1": {"pct_max": 96, "cs_err": "out of space: used 96%, high-wm 90%"},
    }
    finding = doctor.disks(client)
    assert (finding.check, finding.state) == ("disks", "failed")
    assert finding.found == "target aistarget1: 96 % of a disk are used: out of space: used 96%, high-wm 90%"
    server.capacities["aistarget1"] = {"pct_max": 70}
    assert doctor.disks(client).found == "at most 70 % of a target's disk are used"


KINDS = st.sets(st.sampled_from(["smap", "node_status", "etl"]))


@settings(max_examples=8)  # each waits PATIENCE seconds for the silent targets
@given(st.dictionaries(st.sampled_from(["aistarget0", "aistarget1", "aistarget2"]), KINDS))
def test_every_silent_target_is_named_and_no_other(silent: dict[str, set[str]]) -> None:
    targets = {f"aistarget{n}": HOST for n in range(3)}
    found = Proxy(targets, silent)
    threading.Thread(target=found.serve_forever, daemon=True, args=(0.01,)).start()
    try:
        named = unanswering(Cluster(f"http://{HOST}:{found.server_port}").client(patient=False), PATIENCE)
    finally:
        found.over.set()
        found.shutdown()
        found.server_close()
    assert {t.id: t.stuck for t in named} == {t: "smap" not in kinds for t, kinds in silent.items() if kinds}
