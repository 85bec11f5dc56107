"""Finds out whether ClickHouse reads the objects of a source itself, or the worker pushes them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import TransferInputError, is_unlistable, is_without_collection, plain
from storeside.transfer.request import aistore_urls
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source, bucket_uri

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)


def let_read(client: Client, source: Source) -> None:
    """Set what this client's statements need to read the source."""
    if source.by_url:
        aistore_urls.configure(client)


def clickhouse_reads(client: Client, request: Request) -> bool:
    """Return whether ClickHouse reads the objects; `client` is the loading user's.

    Raises TransferInputError if it cannot, and the request allows no other way.
    """
    source = request.source
    if request.loader == "push" or source.only_by_worker:
        return False
    try:
        let_read(client, source)
        client.query(
            f"SELECT 1 FROM {source.probe()} LIMIT 1",
            settings={"s3_retry_attempts": 1, "s3_connect_timeout_ms": 2000, "use_hive_partitioning": 0},
        )
    except DatabaseError as e:
        if is_unlistable(e) or (source.by_url and aistore_urls.is_absent(e)):
            return True
        if source.collection and is_without_collection(e):
            raise TransferInputError(
                f"collection {source.collection!r}: ClickHouse has no named collection of this name, or its user"
                f" may not use it: correct the name, or GRANT NAMED COLLECTION ON {source.collection}. Without"
                f" one, ClickHouse reads with its own keys, or the worker pushes: {plain(e)}"
            ) from e
        if request.loader == "pull":
            raise TransferInputError(f"ClickHouse cannot read {bucket_uri(source.bucket)}: {plain(e)}") from e
        how = "" if source.collection else " (a named collection may give ClickHouse the endpoint and the keys)"
        log.info("ClickHouse cannot read the bucket, so the worker pushes%s: %s", how, plain(e))
        return False
    return True
