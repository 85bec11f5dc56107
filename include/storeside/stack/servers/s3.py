"""The embedded S3 and SQS (ministack) as a component of the stack."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storeside.stack import tls
from storeside.stack.settings import HOST, SOURCES, Stack
from storeside.stack.supervision.component import Component

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

REGION = "us-east-1"
BUCKET = "recordings"
QUEUE = f"{BUCKET}-events"
# The bucket of the DAGs that load tables; like the recordings' bucket it has a queue named <bucket>-events.
TABLES = "tables"
# The bucket of exports. It has no notifications: the task that follows an export loads its objects.
ARRAYS = "arrays"
# A kill or a restart also counts as a receive. Storeside moves messages to the dead letters after three failures.
MAX_RECEIVES = 50
# The variable with the file of the authority that the server's own client trusts.
AUTHORITY_VARIABLE = "STORESIDE_S3_AUTHORITY"


def components(stack: Stack) -> list[Component]:
    """Return the S3 and SQS server, which creates buckets, queues and notifications at every start."""
    folder = stack.state / "s3"
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    probe: list[S3Client] = []

    def healthy() -> bool:
        try:
            if not probe:
                probe.append(of_stack("s3", stack, quick=True))
            return bool(probe[0].get_bucket_notification_configuration(Bucket=BUCKET).get("QueueConfigurations"))
        except Exception:
            return False

    access_key, secret_key = keys(stack)
    return [
        Component(
            name="s3",
            command=(sys.executable, "-m", "storeside.stack.servers.s3_server"),
            healthy=healthy,
            environment={
                "AUTH": "true",  # refuses unknown access keys and anonymous requests, but accepts a wrong secret
                "AWS_ACCESS_KEY_ID": access_key,
                "AWS_SECRET_ACCESS_KEY": secret_key,
                "BIND_HOST": HOST,
                "GATEWAY_PORT": str(stack.ports["s3"]),
                "IOT_MTLS_ENABLED": "0",
                "LOG_LEVEL": "WARNING",
                "MINISTACK_HOST": HOST,
                "MINISTACK_REGION": REGION,
                "PERSIST_STATE": "1",
                "S3_DATA_DIR": str(folder / "objects"),
                "S3_PERSIST": "1",
                "SERVICES": "s3,sqs,sts",
                "SFTP_ENABLED": "0",
                "STATE_DIR": str(folder / "services"),
                "TMPDIR": str(folder / "tmp"),
                **_https(stack),
            },
            directory=SOURCES,
            ports=(stack.ports["s3"],),
        )
    ]


def _https(stack: Stack) -> dict[str, str]:
    if not stack.tls:
        return {}
    return {
        "USE_SSL": "1",
        "MINISTACK_SSL_CERT": str(tls.certificate(stack)),
        "MINISTACK_SSL_KEY": str(tls.key(stack)),
        AUTHORITY_VARIABLE: str(stack.authority),
    }


def keys(stack: Stack) -> tuple[str, str]:
    """Return the access key and the secret key of the embedded S3."""
    return stack.secrets["s3_access_key"], stack.secrets["s3_secret_key"]


def of_stack(service: Any, stack: Stack, quick: bool = False) -> Any:
    """Return a boto3 client of a stack's server; see `client`."""
    return client(service, stack.url("s3"), *keys(stack), quick=quick, authority=stack.authority)


def prepare(stack: Stack) -> None:
    """Create missing buckets, queues and notifications on the running server."""
    configure(stack.url("s3"), *keys(stack), authority=stack.authority)


def configure(url: str, access_key: str, secret_key: str, authority: Path | None = None) -> None:
    """Create missing buckets, queues with dead-letter queues, and notifications of new objects."""
    s3: S3Client = client("s3", url, access_key, secret_key, authority=authority)
    sqs: SQSClient = client("sqs", url, access_key, secret_key, authority=authority)
    existing = {found["Name"] for found in s3.list_buckets()["Buckets"]}
    for bucket in {ARRAYS, TABLES, BUCKET} - existing:
        s3.create_bucket(Bucket=bucket)
    for bucket in (TABLES, BUCKET):
        _configure(s3, sqs, bucket)


def _configure(s3: S3Client, sqs: SQSClient, bucket: str) -> None:
    dead_letters = _queue(sqs, f"{bucket}-events-dlq", {})
    redrive = {"deadLetterTargetArn": dead_letters, "maxReceiveCount": str(MAX_RECEIVES)}
    policy = {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Allow",
            "Principal": {"Service": "s3.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": "*",
        },
    }
    queue = _queue(sqs, f"{bucket}-events", {"RedrivePolicy": json.dumps(redrive), "Policy": json.dumps(policy)})
    wanted = {"QueueArn": queue, "Events": ["s3:ObjectCreated:*"]}
    present = s3.get_bucket_notification_configuration(Bucket=bucket).get("QueueConfigurations", [])
    if wanted not in [{key: found.get(key) for key in wanted} for found in present]:
        s3.put_bucket_notification_configuration(
            Bucket=bucket,
            NotificationConfiguration={"QueueConfigurations": [wanted]},  # type: ignore[list-item]
        )


def _queue(sqs: SQSClient, name: str, attributes: dict[str, str]) -> str:
    """Create a queue if it does not exist and return its ARN."""
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    if attributes:
        sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)  # type: ignore[arg-type]
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def client(
    service: Any,
    url: str,
    access_key: str,
    secret_key: str,
    quick: bool = False,
    session_token: str | None = None,
    authority: Path | None = None,
) -> Any:
    """Return a boto3 client of the embedded server; a `quick` client gives up after a second.

    Over HTTPS the server's certificate must come from the `authority` in this file.
    """
    import boto3
    from botocore.config import Config

    limits = {"connect_timeout": 1, "read_timeout": 1, "retries": {"total_max_attempts": 1}} if quick else {}
    session = boto3.Session(access_key, secret_key, session_token, region_name=REGION)
    verify = str(authority) if authority else None
    return session.client(service, endpoint_url=url, verify=verify, config=Config(proxies={}, **limits))  # type: ignore[arg-type]
