"""Checks whether the targets of an AIStore cluster answer control calls, not only ``/health``.

A target with locks that are never released stays in the cluster map and answers ``/health``, but each control call to
it hangs: no ETL starts, no job ends. Such a target is *stuck* until it is restarted. A target that answers nothing is
*down*: AIStore removes it from the map, and its work can be retried.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.aistore.cluster import keep_verify
from storeside.aistore.errors import AIStoreError

if TYPE_CHECKING:
    from aistore.sdk import Client
    from requests import Session

# Time-out in seconds of one control call. An idle target answers within 0.05 s.
CALL_SECONDS = 10.0
_PARALLEL = 16
# Ids of targets in the embedded stack and in the container image (`storeside.stack.servers.aistore`).
_EMBEDDED_ID = re.compile(r"aistarget(\d+)")


@dataclass(frozen=True)
class Target:
    """One target that does not answer control calls.

    `call` describes the unanswered call. `stuck` is False when the target does not even answer a simple request,
    because it may be down or stopped. `pod` is its pod on Kubernetes, or empty if unknown.
    """

    id: str
    call: str
    stuck: bool
    pod: str = ""

    def __str__(self) -> str:
        if self.stuck:
            return f"target {self.id} is stuck: {self.call}, though it answers /health; {self.remedy}"
        return f"target {self.id} does not answer: {self.call}; {self.remedy}"

    @property
    def remedy(self) -> str:
        """The remedy, in one clause."""
        if found := _EMBEDDED_ID.fullmatch(self.id):
            return (
                f"restart it with 'make restart COMPONENT=ais-target-{found[1]}' (embedded stack) or "
                "'docker compose restart aistore' (Compose)"
            )
        pod = self.pod or f"<the pod of {self.id}>"
        return f"delete its pod with 'kubectl delete pod {pod}', so that Kubernetes starts it again"


def unanswering(client: Client, seconds: float = CALL_SECONDS, expected: Collection[str] = ()) -> list[Target]:
    """Request cluster map, status, jobs and ETLs from every target; return the targets that leave a call unanswered.

    `client` is an SDK client. Each call has a time-out of `seconds`; all targets are called concurrently. A refusal
    counts as an answer. The ids in `expected` that are missing from the cluster map are returned as well.

    Raises requests.RequestException or ValueError when the proxy does not return the cluster map, and AIStoreError
    when AuthN issues no token.
    """
    sdk = client.cluster().client
    with _session(sdk) as session:
        answer = session.get(f"{sdk.base_url}/daemon", params={"what": "smap"}, timeout=seconds)
        answer.raise_for_status()
        targets: Mapping[str, Any] = answer.json()["tmap"] or {}
        with ThreadPoolExecutor(_PARALLEL) as pool:
            found = pool.map(lambda item: _ask(session, sdk.base_url, item[0], item[1], seconds), targets.items())
            absent = [
                Target(name, "it is not in the cluster map", stuck=False) for name in expected if name not in targets
            ]
            return [*absent, *(target for target in found if target)]


def stuck(client: Client) -> list[Target]:
    """Return the targets that are stuck in two consecutive checks; none when the cluster map cannot be read.

    Call it after a control call has failed. The second check excludes targets that are only busy. Never raises.
    """
    from requests import RequestException

    try:
        first = {target.id for target in unanswering(client) if target.stuck}
        return [t for t in unanswering(client) if t.stuck and t.id in first] if first else []
    except (AIStoreError, RequestException, ValueError, KeyError):
        return []


def _session(sdk: Any) -> Session:
    """Return a session with the SDK session's credentials and without retries."""
    import requests

    theirs = sdk.session_manager.session
    session = requests.Session()
    session.verify, session.cert, session.trust_env = theirs.verify, theirs.cert, theirs.trust_env
    keep_verify(session)
    if sdk.token:
        session.headers["Authorization"] = f"Bearer {sdk.token}"
    return session


def _calls(target: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield each call to a target through the proxy: its description, path and parameters.

    The first call takes no lock in AIStore. The status call reads the registry of jobs. The call for the log of an
    ETL that does not exist reads the table of ETLs, and a healthy target refuses it at once.
    """
    yield "cluster map", "reverse/daemon", {"what": "smap"}
    yield "status and jobs", "reverse/daemon", {"what": "node_status"}
    yield "ETLs", f"etl/probe-{uuid.uuid4().hex[:8]}/logs/{target}", {}


def _ask(session: Session, url: str, target: str, node: Mapping[str, Any], seconds: float) -> Target | None:
    import requests

    for number, (name, path, parameters) in enumerate(_calls(target)):
        try:
            # the proxy forwards a reverse call to the node in this header (AIStore, ais/prxrev.go)
            answer = session.get(f"{url}/{path}", params=parameters, headers={"ais-node-id": target}, timeout=seconds)
        except requests.RequestException:
            return Target(target, f"no answer to {name} within {seconds:g} s", stuck=number > 0, pod=_pod(node))
        if number == 0 and not answer.ok:
            return Target(target, f"{name}: {answer.status_code} {_said(answer)}", stuck=False, pod=_pod(node))
        if number > 0 and _gave_up(answer):
            return Target(target, f"no answer to {name}: {_said(answer)}", stuck=True, pod=_pod(node))
    return None


def _gave_up(answer: Any) -> bool:
    """Return whether the proxy answered because the target did not answer in time."""
    return not answer.ok and any(
        text in answer.text for text in ("deadline exceeded", "Client.Timeout", "i/o timeout")
    )


def _said(answer: Any) -> str:
    return " ".join(str(answer.text).split())[:200]


def _pod(node: Mapping[str, Any]) -> str:
    """Return the pod of a target. On Kubernetes, the target's host name begins with the pod's name."""
    host = str(node.get("intra_control_net", {}).get("node_ip_addr", ""))
    name = host.partition(".")[0]
    return "" if name.isdigit() or ":" in host else name
