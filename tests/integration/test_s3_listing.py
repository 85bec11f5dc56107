"""Listings of the stack's S3 server: a prefix that is also a folder hides no object, as it does in AIStore."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.listings import check_server
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


def test_no_object_beside_a_folder_is_hidden(s3_client: S3Client) -> None:
    check_server(s3_client, unique("listed"))
