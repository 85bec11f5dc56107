"""A page on another origin, open in a browser of this machine, sends requests to the ports of the embedded stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import requests

from storeside.stack.servers import s3
from storeside.stack.settings import HOST, Stack
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


def test_no_page_erases_or_configures_the_embedded_s3(stack: Stack, s3_client: S3Client) -> None:
    """A form that posts needs no consent of the server (no CORS preflight)."""
    bucket = unique("kept")
    s3_client.create_bucket(Bucket=bucket)
    s3_client.put_object(Bucket=bucket, Key="a", Body=b"content")
    for host in (f"{HOST}:{stack.ports['s3']}", f"localhost:{stack.ports['s3']}"):
        for path in (
            "/_ministack/reset",
            "/_ministack/config",
            "/_ministack/sqs/messages",
            "/_localstack/state/reset",
        ):
            for method in ("GET", "POST", "PUT"):
                answer = requests.request(
                    method, stack.url("s3") + path, headers={"Host": host, "Origin": "http://evil.example"}, timeout=5
                )
                assert answer.status_code == 403, (method, path)
    assert s3_client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"content"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "recordings.localhost"]
)
@pytest.mark.parametrize("path", ["/", "/recordings", "/_ministack/health", "/recordings/x?X-Amz-Credential=x"])
def test_a_rebound_name_reads_nothing_of_s3(stack: Stack, host: str, path: str) -> None:
    answer = requests.get(stack.url("s3") + path, headers={"Host": host}, timeout=5)
    assert answer.status_code in (400, 403)
    assert "Bucket" not in answer.text


def test_a_rebound_name_reads_nothing_of_other_servers(stack: Stack) -> None:
    """They ask for a password or a token, which a browser does not add for another name."""
    for port, path in (
        ("clickhouse_http", "/?query=SELECT+1"),
        ("ais_proxy", "/v1/buckets"),
        ("ais_proxy", "/v1/daemon?what=smap"),
        ("authn", "/v1/users"),
        ("supervisor", "/RPC2"),
    ):
        answer = requests.get(stack.url(port) + path, headers={"Host": "evil.example"}, timeout=5)
        assert not answer.ok, (port, path, answer.text[:100])


def test_buckets_are_not_listed_without_a_signature(stack: Stack) -> None:
    assert requests.get(stack.url("s3") + "/", timeout=5).status_code == 403
    assert s3.of_stack("s3", stack).list_buckets()["Buckets"]
