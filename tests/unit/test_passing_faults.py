"""Faults that pass, of S3, AIStore and HSDS: they are tried again, and are no failures for good."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from aistore.sdk.errors import AISError
from botocore.exceptions import ClientError, CredentialRetrievalError

from include.hsds import errors as hsds
from include.hsds.client import Client
from include.hsds.export import s3_call
from include.storage.errors import TransientError
from include.storage.s3 import s3_errors
from include.transform import single
from include.transform.errors import TransformError, TransientTransformError


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "ExpiredToken", hsds.TransientError),
        (400, "RequestTimeout", hsds.TransientError),
        (403, "RequestTimeTooSkewed", hsds.TransientError),
        (400, "Throttling", hsds.TransientError),
        (503, "SlowDown", hsds.TransientError),
        (403, "AccessDenied", hsds.RequestError),
        (404, "NoSuchBucket", hsds.RequestError),
    ],
)
def test_s3_of_exports(status: int, code: str, kind: type[Exception]) -> None:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def call() -> None:
        raise ClientError(answer, "PutObject")

    with pytest.raises(kind, match=code):
        s3_call(call, "s3://b/p")


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (503, "target is starting", TransientTransformError),
        (403, "aws-error[ExpiredToken: The provided token has expired]", TransientTransformError),
        (403, "access denied", TransformError),
        (404, "no such object", TransformError),
    ],
)
def test_one_object_through_an_etl(
    status: int, message: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    error = AISError(status, json.dumps({"message": message}), "http://p/v1", None)

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    client = SimpleNamespace()
    bucket: Any = SimpleNamespace(
        handle=lambda _: SimpleNamespace(object=lambda _: SimpleNamespace(get_reader=refuse))
    )
    with pytest.raises(TransformError, match="cannot be had") as caught:
        single.get_object(client, bucket, "a", tmp_path / "a")
    assert type(caught.value) is kind


def test_keys_of_a_role_that_cannot_be_fetched_now() -> None:
    client: Any = SimpleNamespace(exceptions=SimpleNamespace(NoSuchUpload=KeyError))
    with pytest.raises(TransientError), s3_errors(client, "s3://b", "b", "key"):
        raise CredentialRetrievalError(provider="iam-role", error_msg="timed out")


@pytest.mark.parametrize(("status", "passes"), [(409, True), (403, False)])
def test_a_domain_that_somebody_else_has_made_is_there(status: int, passes: bool) -> None:
    made = Client.__new__(Client)
    refusal = hsds.RequestError("it says", status)
    absent = hsds.RequestError("no domain", 404)

    def patiently(call: Any) -> Any:
        raise refusal

    def json_of(*_: Any, **__: Any) -> Any:
        raise absent

    made._patiently, made.json = patiently, json_of  # type: ignore[method-assign]
    if passes:
        made.create("/home/d.h5", "/x", {})
        return
    with pytest.raises(hsds.RequestError, match="it says"):
        made.create("/home/d.h5", "/x", {})
