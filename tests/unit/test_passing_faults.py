"""Transient faults of S3, AIStore and HSDS: they are tried again, and are not permanent failures."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from aistore.sdk.errors import AISError
from botocore.exceptions import ClientError, CredentialRetrievalError

from storeside.aistore.errors import AIStoreError, AIStoreInputError, AIStoreTransientError
from storeside.copying.errors import CopyTransientError
from storeside.copying.s3_errors import s3_errors
from storeside.hsds import errors as hsds
from storeside.hsds.client import Client
from storeside.hsds.export import s3_call
from storeside.transform import single


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "ExpiredToken", hsds.HsdsTransientError),
        (400, "RequestTimeout", hsds.HsdsTransientError),
        (403, "RequestTimeTooSkewed", hsds.HsdsTransientError),
        (400, "Throttling", hsds.HsdsTransientError),
        (503, "SlowDown", hsds.HsdsTransientError),
        (403, "AccessDenied", hsds.HsdsInputError),
        (404, "NoSuchBucket", hsds.HsdsInputError),
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
        (503, "target is starting", AIStoreTransientError),
        (403, "aws-error[ExpiredToken: The provided token has expired]", AIStoreTransientError),
        (403, "access denied", AIStoreInputError),
        (404, "no such object", AIStoreInputError),
    ],
)
def test_one_object_through_an_etl(
    status: int, message: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    error = AISError(status, json.dumps({"message": message}), "http://p/v1", None)

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    client = SimpleNamespace()
    bucket: Any = SimpleNamespace(scheme="ais", name="b", object=lambda _, name: SimpleNamespace(get_reader=refuse))
    with pytest.raises(AIStoreError, match="cannot be read") as caught:
        single.get_object(client, bucket, "a", tmp_path / "a")
    assert type(caught.value) is kind


def test_keys_of_a_role_that_cannot_be_fetched_now() -> None:
    client: Any = SimpleNamespace(exceptions=SimpleNamespace(NoSuchUpload=KeyError))
    with pytest.raises(CopyTransientError), s3_errors(client, "s3://b", "b", "key"):
        raise CredentialRetrievalError(provider="iam-role", error_msg="timed out")


@pytest.mark.parametrize(("status", "passes"), [(409, True), (403, False)])
def test_a_domain_that_somebody_else_has_made_is_there(status: int, passes: bool) -> None:
    made = Client.__new__(Client)
    refusal = hsds.HsdsInputError("it says", status)
    absent = hsds.HsdsInputError("no domain", 404)

    def patiently(call: Any) -> Any:
        raise refusal

    def json_of(*_: Any, **__: Any) -> Any:
        raise absent

    made._patiently, made.json = patiently, json_of  # type: ignore[method-assign]
    if passes:
        made.create("/home/d.h5", "/x", {})
        return
    with pytest.raises(hsds.HsdsInputError, match="it says"):
        made.create("/home/d.h5", "/x", {})
