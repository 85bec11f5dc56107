"""Stores the objects of a source as the input of a plan: from a listing, an inventory, or a table's snapshot."""

from __future__ import annotations

import logging
from typing import Any

from storeside.amounts import counted, size
from storeside.transfer.lakes.snapshots import Snapshot
from storeside.transfer.objects.aistore_objects import list_bucket
from storeside.transfer.objects.content import s3_error
from storeside.transfer.objects.inventory import Inventory
from storeside.transfer.objects.listing import OutOfOrderError, list_in_ranges, list_objects
from storeside.transfer.request.source import Source
from storeside.transfer.state.plan import Plan

log = logging.getLogger(__name__)


def record_source(plan: Plan, reader: Any, source: Source, after: str = "", snapshot: Snapshot | None = None) -> None:
    """Store a listing of a source as the input of a plan; the listing of an S3 bucket can begin `after` a key.

    With a `snapshot`, only its files are stored.

    `reader` is a boto3 client, or the SDK's client for a source in AIStore. Raises TransferError if the source cannot
    be listed.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    if source.in_aistore:
        plan.record_listing(list_bucket(reader, source.bucket, source.prefix))
        return
    if source.inventory:
        inventory = Inventory.find(reader, source.inventory, source.bucket)
        plan.record_inventory(inventory.read(reader, source.prefix))
        return
    place = (reader, source.bucket, source.prefix, after)
    chosen = snapshot.listed if snapshot else iter
    try:
        try:
            plan.record_listing(chosen(list_in_ranges(*place)))
        except OutOfOrderError:
            log.warning("the endpoint of %s lists keys in another order than S3: listing page by page", source.bucket)
            plan.record_listing(chosen(list_objects(*place)))
    except (BotoCoreError, ClientError) as e:
        raise s3_error(e, source.bucket, source.prefix) from e


def size_of_plan(listed: int, planned: int, bytes: int, *, push: bool) -> str:
    """Return the size of a plan for the log: ``3 objects listed, 1 to load (824 B), by pull``."""
    to_load = f"{planned:,} to load ({size(bytes)}), by {'push' if push else 'pull'}" if planned else "none to load"
    return f"{counted(listed, 'object')} listed, {to_load}"
