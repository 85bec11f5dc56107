"""Reads failed objects from the logs of transformers; see `storeside.transformers.failures`."""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from storeside.aistore import jobs
from storeside.transformers.failures import Failure, Shard, parse, parse_shards

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)
E = TypeVar("E", bound="Failure | Shard")


def failures(client: Client, etl_names: Iterable[str], job_id: str, bucket: str) -> Iterator[Failure]:
    """Yield the failures of one job on `bucket` (its name), read from the logs of its ETLs.

    A transformer's log has the same clock as the job's snapshot on its target, so an entry that is older than the job
    belongs to another job. Yields nothing if the ETL no longer exists or the cluster does not answer.
    """
    for entry in _entries(client, etl_names, job_id, bucket, parse):
        if not entry.member:
            yield entry


def shards(client: Client, etl_name: str, job_id: str, bucket: str) -> Iterator[Failure | Shard]:
    """Yield the shards that one job on `bucket` delivered, and the members that failed; see `failures`."""
    for entry in _entries(client, [etl_name], job_id, bucket, _of_shards):
        if isinstance(entry, Shard) or entry.member:
            yield entry


def _of_shards(log: str) -> Iterator[Failure | Shard]:
    yield from parse(log)
    yield from parse_shards(log)


def _entries(
    client: Client, etl_names: Iterable[str], job_id: str, bucket: str, read: Callable[[str], Iterator[E]]
) -> Iterator[E]:
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        since = jobs.starts(client, job_id)
        for name in etl_names:
            for target, text in _logs(client, name):
                for entry in read(text):
                    if entry.time >= since.get(target, 0) and entry.bucket in ("", bucket):
                        yield entry
    except (AISError, RequestException) as e:
        log.info("job %s: cannot read the logs of its ETL: %s", job_id, " ".join(str(e).split())[:300])


def _logs(client: Client, name: str) -> Iterator[tuple[str, str]]:
    """Yield each target and its transformer's log. SDK 2.0.0's method fails when one of the logs is empty."""
    for entry in client.cluster().client.request("get", path=f"etl/{name}/logs").json():
        yield entry["target_id"], b64decode(entry["logs"] or b"").decode(errors="replace")
