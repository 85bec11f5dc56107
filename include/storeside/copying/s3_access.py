"""Settings for every S3 request of a client: requests without signatures, requester pays, a KMS key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

REQUESTER_PAYS = ("x-amz-request-payer", "requester")
_WRITES = ("PutObject", "CopyObject", "CreateMultipartUpload")


@dataclass(frozen=True)
class Access:
    """How a client reaches a bucket.

    `public`: send requests without credentials. `requester_pays`: pay for requests to a bucket of another account.
    `kms_key`: id, alias or ARN of the KMS key with which S3 encrypts what the client writes; the ETags of these
    objects are no checksums.
    """

    public: bool = False
    requester_pays: bool = False
    kms_key: str = ""

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Access:
        """Return the access that the extras of an AWS connection describe."""
        return cls(_is_on(extra, "public"), _is_on(extra, "requester_pays"), str(extra.get("sse_kms_key_id") or ""))

    def given_to(self, client: S3Client) -> S3Client:
        """Let all requests of a client use this access, and return the client."""
        from botocore import UNSIGNED

        events = client.meta.events
        if self.public:
            events.register("choose-signer.s3.*", lambda **_: UNSIGNED, unique_id="storeside-public")
        if self.requester_pays:
            events.register("before-call.s3.*", _pay, unique_id="storeside-pays")
        if self.kms_key:
            encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.kms_key}

            def encrypt(params: dict[str, Any], **_: Any) -> None:
                params |= encryption

            for name in _WRITES:
                events.register(f"provide-client-params.s3.{name}", encrypt, unique_id=f"storeside-{name}")
        return client


def _is_on(extra: Mapping[str, Any], name: str) -> bool:
    """Return whether an extra is true; Airflow's form and URIs store the text ``"true"`` or ``"false"``."""
    return str(extra.get(name, "")).lower() in ("1", "true")


def _pay(params: dict[str, Any], **_: Any) -> None:
    name, value = REQUESTER_PAYS
    params["headers"][name] = value
