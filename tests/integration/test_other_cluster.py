"""Objects of a second, real AIStore cluster that is attached to the first one: AIStore copies them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.stack import authn, cli
from storeside.stack.settings import Stack, default_folder
from storeside.stack.supervision.supervisor import Supervisor
from storeside.transform.bucket_job import BucketJob
from storeside.transform.state import Options, Summary
from tests.support import ask_aistore, put, read, sizes, unique

NAMES = ("plain", "in/a b+c", "in/ü&=1", "empty")
Drive = Callable[[BucketJob], Summary]


@pytest.fixture(scope="module")
def other(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """The alias of another cluster that is attached to the stack's, and that cluster's own client."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "cache").symlink_to(default_folder().resolve() / "cache", target_is_directory=True)
    # AIStore 5.0 sends no token to an attached cluster, so that one can only be without AuthN.
    theirs = cli.up(folder, targets=1, only=("podrunner", "aistore"), secure=False)
    alias = unique("other").replace("-", "")
    try:
        attach(stack, "attach", alias, theirs.url("ais_proxy"))
        yield alias, authn.cluster(theirs).client()
        attach(stack, "detach", alias)
    finally:
        Supervisor(theirs).stop()


def attach(stack: Stack, action: str, alias: str, url: str = "") -> None:
    """Do the same as ``ais cluster remote-attach``."""
    headers = {"Ais-Remote-Ais-Alias": alias, "Ais-Remote-Ais-Url": url}
    ask_aistore(stack, "PUT", f"cluster/{action}", params={"what": "remote"}, headers=headers).raise_for_status()


def test_a_bucket_of_another_cluster_is_copied(
    other: tuple[str, Any], aistore: Any, clickhouse: Any, drive: Drive
) -> None:
    alias, theirs = other
    bucket = Bucket("ais", unique("theirs"))
    bodies = {name: os.urandom(5000 * n) for n, name in enumerate(reversed(NAMES))}
    put(theirs, bucket, {**bodies, "in/no#1": b"AIStore 5.0 asks the other cluster for in/no"})
    source, destination = Bucket.parse(f"ais://@{alias}/{bucket.name}"), Bucket("ais", unique("ours"))

    def copy() -> Summary:
        return drive(
            BucketJob(aistore, Ledger(clickhouse), source, destination, run_id=unique("run"), options=Options())
        )

    summary = copy()
    assert (summary.listed, summary.done, summary.failed) == (5, 4, 1), summary.examples
    assert [name for name, _ in summary.examples] == ["in/no#1"]
    assert {name: read(aistore, destination, name) for name in NAMES} == bodies
    assert copy().done == 0
    put(theirs, bucket, {"plain": b"new"})
    assert copy().done == 1
    assert read(aistore, destination, "plain") == b"new"
    assert sizes(aistore, destination) == {**{name: len(body) for name, body in bodies.items()}, "plain": 3}


def test_a_cluster_that_is_not_attached_is_named(aistore: Any, clickhouse: Any, drive: Drive) -> None:
    source = Bucket.parse("ais://@nobody/bucket")
    ours = Bucket("ais", unique("ours"))
    job = BucketJob(aistore, Ledger(clickhouse), source, ours, run_id=unique("run"), options=Options())
    with pytest.raises(Exception, match="nobody"):
        drive(job)
