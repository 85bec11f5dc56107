"""Reasons why objects are not in the cluster after a prefetch, and which of them are transient."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from aistore.sdk.errors import AISError

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import NO_REASON
from storeside.copying.errors import CopyInputError
from storeside.copying.prefetch import Missing, Prefetch


class Cluster:
    """A client of a cluster that lacks some objects and answers HEADs of them as the test specifies."""

    def __init__(self, answers: dict[str, Exception | None]) -> None:
        self.answers = answers

    def bucket(self, *_: Any, **__: Any) -> Any:
        return self

    name, qparam = "remote", {}

    @property
    def client(self) -> Any:
        return self

    def request_deserialize(self, *_: Any, **__: Any) -> Any:
        """Return a page of the objects that the cluster lacks."""
        found = [
            SimpleNamespace(n=name, s=0 if name.endswith("/") else 10, v="", cs="", m="") for name in self.answers
        ]
        return SimpleNamespace(UUID="u", ContinuationToken="", Entries=found)

    def object(self, name: str) -> Any:
        return SimpleNamespace(head=lambda: self.head(name))

    def head(self, name: str) -> None:
        if error := self.answers[name]:
            raise error


def missing(answers: dict[str, Exception | None]) -> Missing:
    return Prefetch(Cluster(answers), Bucket("s3", "remote")).missing(reasons=True)


@pytest.mark.parametrize(
    ("error", "reason", "passes"),
    [
        (None, NO_REASON, True),
        (AISError(403, "aws-error[Forbidden]", "url", None), "aws-error[Forbidden]", False),
        (AISError(404, "does not exist", "url", None), "does not exist", False),
        (AISError(400, "target is down", "url", None), "target is down", True),
        (AISError(429, "slow down", "url", None), "slow down", True),
        (AISError(503, "starting", "url", None), "starting", True),
        (requests.ConnectionError("gone"), "gone", True),
    ],
)
def test_why_an_object_is_missing(error: Exception | None, reason: str, passes: bool) -> None:
    assert missing({"a": error}) == Missing(1, 10, (("a", reason),), int(passes))


@pytest.mark.parametrize(
    ("prefix", "remedy"),
    [
        ("user@example.com/", "that ends before it, such as 'user'"),
        ("a/100%done/", "that ends before it, such as 'a/100'"),
        ("x/{0..99}", "that ends before it, such as 'x/'"),
        ("x@{a%", "that ends before it, such as 'x'"),
        ("x/*", "that ends before it, such as 'x/'"),
        ("@", "fetch the whole bucket"),
    ],
)
def test_a_prefix_that_aistore_takes_for_a_template_is_refused(prefix: str, remedy: str) -> None:
    with pytest.raises(CopyInputError, match=re.escape(remedy)):
        Prefetch(Cluster({}), Bucket("s3", "remote"), prefix)


@pytest.mark.parametrize("prefix", ["", "2026/", "a*b/", "a b}/", "é/"])
def test_other_prefixes_are_sent_as_they_are(prefix: str) -> None:
    assert Prefetch(Cluster({}), Bucket("s3", "remote"), prefix).prefix == prefix


def test_folder_markers_are_not_missing() -> None:
    assert missing({"2026/": None, "2026/a": None}) == Missing(1, 10, (("2026/a", NO_REASON),), 1)


def test_a_name_that_no_cluster_holds_is_a_reason() -> None:
    found = missing({"a//b": None, "late": None})
    assert "empty component" in found.examples[0][1]
    assert found.passing == 1
