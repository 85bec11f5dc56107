"""Reads failed objects from the logs of transformers; see `storeside.transformers.contract.failures`."""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from storeside.aistore import jobs
from storeside.aistore.errors import AIStoreInputError
from storeside.transformers.contract.failures import (
    Facts,
    Failure,
    LeftOut,
    Shard,
    Unlisted,
    parse,
    parse_facts,
    parse_left_out,
    parse_shards,
    parse_unlisted,
)
from storeside.transformers.contract.journal import MOST_LINES

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)
T = TypeVar("T")
E = TypeVar("E", bound="Failure | LeftOut | Facts | Shard | Unlisted")


def failures(client: Client, etl_names: Iterable[str], job_id: str, bucket: str) -> Iterator[Failure]:
    """Yield the failures of one job; see `reported`."""
    for entry in reported(client, etl_names, job_id, bucket):
        if isinstance(entry, Failure):
            yield entry


def reported(
    client: Client, etl_names: Iterable[str], job_id: str, bucket: str
) -> Iterator[Failure | LeftOut | Facts]:
    """Yield what the logs of a job's ETLs state of objects of `bucket` (its name).

    These are the objects that failed or were left out, and the facts of others.

    A transformer's log has the same clock as the job's snapshot on its target, so an entry that is older than the job
    belongs to another job. Raises AISError or RequestException if the ETL no longer exists or the cluster does not
    answer, and AIStoreInputError at the end if the logs do not list all failures.
    """
    first, unlisted = None, False
    for entry in _entries(client, etl_names, job_id, bucket, _of_objects):
        if isinstance(entry, Unlisted):
            unlisted = True
        elif isinstance(entry, Facts):
            yield entry
        elif not entry.member:
            if isinstance(entry, Failure):
                first = first or entry
            yield entry
    if unlisted:
        example = f", such as {first.object!r}: {first.reason}" if first else ""
        raise AIStoreInputError(
            f"job {job_id}: the ETL's logs do not list all objects of {bucket} that failed, because a server lists"
            f" {MOST_LINES} in an hour: correct what the objects have in common{example}, or process fewer objects"
        )


def reasons_left_out(client: Client, etl_names: Iterable[str], bucket: str, name: str) -> list[str]:
    """Return why one object of `bucket` (its name) was left out, once for each time that the ETLs' logs list it.

    Raises AISError or RequestException if the logs cannot be read.
    """
    return _reasons(client, etl_names, bucket, name, parse_left_out)


def reasons_failed(client: Client, etl_names: Iterable[str], bucket: str, name: str) -> list[str]:
    """Return why one object of `bucket` (its name) failed, once for each time that the ETLs' logs list it.

    Raises AISError or RequestException if the logs cannot be read.
    """
    return _reasons(client, etl_names, bucket, name, parse)


def _reasons(
    client: Client, etl_names: Iterable[str], bucket: str, name: str,
    read: Callable[[str], Iterator[Failure | LeftOut]],
) -> list[str]:  # fmt: skip
    entries = (entry for etl in etl_names for _, text in _logs(client, etl) for entry in read(text))
    found = (e for e in entries if e.object == name and e.bucket in ("", bucket) and not e.member)
    return [entry.reason for entry in sorted(found, key=lambda entry: entry.time)]


def readable(job_id: str, entries: Iterable[T]) -> Iterator[T]:
    """Yield the entries that can be read, for jobs that find the failed objects in the listing of the results."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        yield from entries
    except (AISError, RequestException, AIStoreInputError) as e:
        log.info("job %s: cannot read all failures: %s", job_id, " ".join(str(e).split())[:300])


def _of_objects(log: str) -> Iterator[Failure | LeftOut | Facts | Unlisted]:
    yield from parse(log)
    yield from parse_left_out(log)
    yield from parse_facts(log)
    yield from parse_unlisted(log)


def shards(client: Client, etl_name: str, job_id: str, bucket: str) -> Iterator[Failure | LeftOut | Shard]:
    """Yield the shards that one job on `bucket` delivered, and members without results; see `reported`."""
    for entry in _entries(client, [etl_name], job_id, bucket, _of_shards):
        if isinstance(entry, Shard) or entry.member:
            yield entry


def _of_shards(log: str) -> Iterator[Failure | LeftOut | Shard]:
    yield from parse(log)
    yield from parse_left_out(log)
    yield from parse_shards(log)


def _entries(
    client: Client, etl_names: Iterable[str], job_id: str, bucket: str, read: Callable[[str], Iterator[E]]
) -> Iterator[E]:
    since = jobs.starts(client, job_id)
    for name in etl_names:
        for target, text in _logs(client, name):
            for entry in read(text):
                if entry.time >= since.get(target, 0) and entry.bucket in ("", bucket):
                    yield entry


def _logs(client: Client, name: str) -> Iterator[tuple[str, str]]:
    """Yield each target and its transformer's log. SDK 2.0.0's method fails when one of the logs is empty."""
    for entry in client.cluster().client.request("get", path=f"etl/{name}/logs").json():
        yield entry["target_id"], b64decode(entry["logs"] or b"").decode(errors="replace")
