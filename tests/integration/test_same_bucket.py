"""A copy through the worker never writes into the bucket that it reads, by whatever route."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from storeside.copying.errors import CopyInputError, DeniedError
from storeside.copying.s3 import S3Store
from storeside.copying.store import Head, Store
from storeside.stack.settings import HOST
from tests.integration.test_storage_copy import Copying, contents, copying, oci
from tests.link import linked
from tests.support import s3_of_aistore, set_properties

__all__ = ["copying", "oci"]


NOTHING = Head(0, "", "")
# with `prepend="p/"` each of these results would overwrite another object, and change it
BODIES = {"a": b"first", "p/a": b"second", "p/p/a": b"third"}


@pytest.fixture
def links() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def another_way(copying: Copying, kind: str, links: ExitStack) -> tuple[Store, Store]:
    """Return one bucket as two stores."""
    if kind == "ais by its S3 API":
        ais = copying.ais("a")
        return S3Store(s3_of_aistore(copying.stack, "localhost"), ais.bucket), ais
    if kind == "a front":
        behind, front = copying.s3("a"), copying.ais("front")
        set_properties(copying.stack, front.bucket, backend_bck={"name": behind.bucket, "provider": "aws"})
        return behind, front
    port = copying.stack.ports["s3"] if kind.startswith("s3") else copying.oci_port
    there: Any = copying.s3 if kind.startswith("s3") else copying.oci
    if kind.endswith("again"):
        return there("a"), there("a", port)
    return there("a"), there("a", links.enter_context(linked(port)).port)


@pytest.mark.parametrize("prepend", ["", "p/"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "kind", ["s3 again", "s3 by another address", "oci by another address", "ais by its S3 API", "a front"]
)
def test_a_bucket_is_not_copied_into_itself(
    copying: Copying, links: ExitStack, kind: str, turned: bool, prepend: str
) -> None:
    one, other = another_way(copying, kind, links)
    for name, body in BODIES.items():
        one.put(name, body, NOTHING)
    source, destination = (other, one) if turned else (one, other)
    with pytest.raises(CopyInputError, match="is the same bucket as the source"):
        copying.copy(source, destination, prepend=prepend)
    assert contents(one) == BODIES
    assert copying.left() == 0
    for store in (one, other):
        assert not [u for key in ("", "storeside-same-bucket-") for u in store.uploads(key)]
    assert HOST == "127.0.0.1"  # otherwise `localhost` above is no other name of it


@pytest.mark.parametrize(("source", "destination"), [("s3", "ais"), ("oci", "s3"), ("ais", "oci"), ("s3", "oci")])
def test_buckets_of_one_name_at_two_endpoints_are_two(copying: Copying, source: str, destination: str) -> None:
    a, b = copying.store(source, "same"), copying.store(destination, "same")
    for name, body in BODIES.items():
        a.put(name, body, NOTHING)
    assert copying.copy(a, b).done == len(BODIES)
    assert contents(a) == contents(b) == BODIES
    assert copying.left() == 0


def test_what_cannot_be_told_apart_is_refused(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, other = copying.s3("same"), copying.ais("same"), copying.ais("b")
    a.put("a", b"first", NOTHING)

    def denied(key: str) -> Any:
        raise DeniedError("give it s3:ListBucketMultipartUploads")

    monkeypatch.setattr(a, "uploads", denied)
    with pytest.raises(
        CopyInputError, match=r"may be one bucket under two addresses.* s3:ListBucketMultipartUploads"
    ):
        copying.copy(a, b)
    assert contents(b) == {}
    assert not copying.left()
    assert copying.copy(a, other).done == 1  # another name is another bucket
