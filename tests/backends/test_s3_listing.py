"""Listings of versitygw, whose objects are files in folders: a prefix that is also a folder hides no object."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from storeside.stack.settings import default_folder
from tests.benchmarks import versitygw
from tests.listings import check_server

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


def test_no_object_beside_a_folder_is_hidden(tmp_path: Path) -> None:
    binary = versitygw.build(default_folder() / "cache" / "bench")
    with versitygw.serve(binary, tmp_path) as gateway:
        check_server(cast("S3Client", gateway.client()), "listed")
