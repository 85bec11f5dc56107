"""Whether the targets of an AIStore cluster answer control calls, and not only ``/health``.

A target whose locks are held for ever keeps its place in the cluster map and answers ``/health``, while each control
call to it hangs: no ETL starts, no job ends. Such a target is *stuck* until it is restarted. A target that answers
nothing at all is *down*: AIStore removes it from the map by itself, and what runs on it can be tried again.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests import Session

# Seconds for one control call; an idle target answers within 0.05.
CALL_SECONDS = 10.0
_PARALLEL = 16
# The ids that the embedded stack and the container image give to targets (`include.stack.aistore`).
_EMBEDDED_ID = re.compile(r"aistarget(\d+)")


@dataclass(frozen=True)
class Target:
    """One target that does not answer control calls.

    `call` names the call that it did not answer. `stuck` is off when the target does not even answer a simple
    question, so that it may be down or stopped. `pod` is its pod on Kubernetes, empty when that is not known.
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
        """What to do about it, in one clause."""
        if found := _EMBEDDED_ID.fullmatch(self.id):
            return (
                f"restart it with 'make restart COMPONENT=ais-target-{found[1]}' (embedded stack) or "
                "'docker compose restart aistore' (Compose)"
            )
        pod = self.pod or f"<the pod of {self.id}>"
        return f"delete its pod with 'kubectl delete pod {pod}', so that Kubernetes starts it again"


def unanswering(client: Any, seconds: float = CALL_SECONDS, expected: Collection[str] = ()) -> list[Target]:
    """Ask every target for its cluster map, status, jobs and ETLs; return those that leave a call unanswered.

    `client` is an SDK client. Each call has `seconds`; targets are asked at the same time. An answer that refuses the
    call is an answer. Targets whose ids are `expected` and that are not in the cluster map are returned too.

    Raises requests.RequestException or ValueError when the proxy does not tell the cluster map.
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


def stuck(client: Any) -> list[Target]:
    """Return the stuck targets, each found so twice; none when the cluster map cannot be read.

    For use after a control call has failed: a busy target gets a second chance, and this never raises.
    """
    from requests import RequestException

    try:
        first = {target.id for target in unanswering(client) if target.stuck}
        return [t for t in unanswering(client) if t.stuck and t.id in first] if first else []
    except (RequestException, ValueError, KeyError):
        return []


def _session(sdk: Any) -> Session:
    """Return a session that is let in as the SDK's is, and that tries nothing again."""
    import requests

    theirs = sdk.session_manager.session
    session = requests.Session()
    session.verify, session.cert, session.trust_env = theirs.verify, theirs.cert, theirs.trust_env
    if sdk.token:
        session.headers["Authorization"] = f"Bearer {sdk.token}"
    return session


def _calls(target: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield what is asked of a target through the proxy: a name, a path, and its parameters.

    The first call takes no lock of AIStore's. The status reads the registry of jobs, the log of an ETL the table of
    ETLs; the latter does not exist, and a healthy target says so at once.
    """
    yield "cluster map", "reverse/daemon", {"what": "smap"}
    yield "status and jobs", "reverse/daemon", {"what": "node_status"}
    yield "ETLs", f"etl/probe-{uuid.uuid4().hex[:8]}/logs/{target}", {}


def _ask(session: Session, url: str, target: str, node: Mapping[str, Any], seconds: float) -> Target | None:
    import requests

    for number, (name, path, parameters) in enumerate(_calls(target)):
        try:
            # a reverse call goes to the node of this header (AIStore, ais/prxrev.go)
            answer = session.get(f"{url}/{path}", params=parameters, headers={"ais-node-id": target}, timeout=seconds)
        except requests.RequestException:
            return Target(target, f"no answer to {name} within {seconds:g} s", stuck=number > 0, pod=_pod(node))
        if number == 0 and not answer.ok:
            return Target(target, f"{name}: {answer.status_code} {_said(answer)}", stuck=False, pod=_pod(node))
        if number > 0 and _gave_up(answer):
            return Target(target, f"no answer to {name}: {_said(answer)}", stuck=True, pod=_pod(node))
    return None


def _gave_up(answer: Any) -> bool:
    """Tell whether the proxy answers in place of the target, because it has waited in vain."""
    return not answer.ok and any(
        text in answer.text for text in ("deadline exceeded", "Client.Timeout", "i/o timeout")
    )


def _said(answer: Any) -> str:
    return " ".join(str(answer.text).split())[:200]


def _pod(node: Mapping[str, Any]) -> str:
    """Return the pod of a target: on Kubernetes its host name in the cluster begins with it."""
    host = str(node.get("intra_control_net", {}).get("node_ip_addr", ""))
    name = host.partition(".")[0]
    return "" if name.isdigit() or ":" in host else name
