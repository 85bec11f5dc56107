"""Existing ETLs, which tasks use but do not start: their descriptions by AIStore."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError, said
from storeside.aistore.spec import KEEPER, MARK, EtlSpec
from storeside.aistore.spec_file import OBJECT_TIMEOUT, seconds

if TYPE_CHECKING:
    from aistore.sdk import Client

RUNNING, ABORTED = "Running", "Aborted"
# Variables that change with the cluster or with time-outs, not with the result; see `EtlSpec.message`.
_NO_EFFECT = frozenset({MARK, KEEPER, "AIS_NODES", "TRANSFORM_VARIABLES", "OBJECT_TIMEOUT", "ETL_DIRECT_FQN"})


def stage_of(client: Client, name: str) -> str:
    """Return AIStore's stage of an ETL, such as ``Running``; empty when there is no such ETL."""
    # not the SDK's method, which shows running ETLs only
    listed = client.cluster().client.request("get", path="etl").json() or ()
    return next((str(etl["stage"]) for etl in listed if etl["id"] == name), "")


def details(client: Client, name: str, job_id: str = "") -> dict[str, Any]:
    """Return what AIStore says about an ETL: ``init_msg``, and ``obj_errors`` of a job.

    SDK 2.0.0 cannot read an ETL with an empty variable, so the answer is plain JSON. Raises AISError.
    """
    parameters = {"uuid": job_id} if job_id else {}
    answer = client.cluster().client.request("get", path=f"etl/{name}", params=parameters).json()
    return dict(answer)


def variables(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment in an ETL's ``init_msg``. A variable without a plain value counts as empty."""
    runtime = message.get("runtime") or {}
    entries = (*(message.get("env") or ()), *(runtime.get("env") or ()))
    return {entry["name"]: entry.get("value", "") for entry in entries}


def described(client: Client, spec: EtlSpec) -> EtlSpec:
    """Return a chain with the definitions that its existing ETLs have in the cluster; other ETLs are unchanged.

    Raises AIStoreInputError when there is no such ETL, or when it has another communication type than `spec`. Raises
    AIStoreTransientError while it is stopped or starting.
    """
    first, *others = (_described(client, stage) if stage.is_existing else stage for stage in spec.stages)
    return replace(first, then=tuple(others)) if others else first


def _described(client: Client, spec: EtlSpec) -> EtlSpec:
    from aistore.sdk.errors import AISError

    _require_running(client, spec.name)
    try:
        message = details(client, spec.name)["init_msg"]
    except AISError as e:
        raise _away(spec.name, said(e)) from e
    communication = str(message["communication"]).removesuffix("://")
    if spec.communication and spec.communication != communication:
        raise AIStoreInputError(
            f"ETL {spec.name} is called over {communication}, not over {spec.communication}: correct the task's"
            " communication type, or have the ETL started with the other type"
        )
    runtime = message.get("runtime") or {}
    return replace(
        spec,
        image=runtime.get("image") or f"pod {hashlib.sha256(str(message.get('spec')).encode()).hexdigest()}",
        command=tuple(runtime.get("command") or ()),
        environment={n: v for n, v in variables(message).items() if n not in _NO_EFFECT},
        communication=communication,
        direct_put=bool(message.get("support_direct_put")),
        object_timeout=seconds(message.get("obj_timeout", OBJECT_TIMEOUT), "obj_timeout"),
    )


def _require_running(client: Client, name: str) -> None:
    stage = stage_of(client, name)
    if not stage:
        raise AIStoreInputError(
            f"there is no ETL {name} in the cluster, and tasks do not start an existing ETL: start it with `ais etl"
            " init` or AISInitEtlOperator, or correct its name"
        )
    if stage != RUNNING:
        raise _away(name, "it is stopped" if stage == ABORTED else f"AIStore calls it {stage}")


def _away(name: str, why: str) -> AIStoreTransientError:
    return AIStoreTransientError(
        f"ETL {name} does not run ({why}), and tasks do not start an existing ETL: start it with AISStartEtlOperator"
        " or `ais etl start`"
    )


def require_reports(spec: EtlSpec, what: str) -> None:
    """Raise AIStoreInputError for an ETL whose failures AIStore does not learn.

    These are those of an existing ETL over ``ws``, and those of members of shards. `what` names the work that needs
    them.
    """
    if spec.in_shards:
        raise AIStoreInputError(f"AIStore does not learn which members of a shard fail, and {what} needs that")
    if spec.has_several_results:
        raise AIStoreInputError(
            f"only a transform from one bucket to another has several results of an object, not {what}"
        )
    for stage in spec.stages:
        if stage.is_existing and stage.communication == "ws":
            raise AIStoreInputError(
                f"ETL {stage.name} is called over ws, where AIStore does not learn which objects fail, and {what}"
                " needs that: use an ETL over hpush or hpull"
            )
