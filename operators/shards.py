"""The operator that splits tar shards into objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket, objects_url
from storeside.aistore.spec import EtlSpec
from storeside.operators.aistore import AISTransformBucketOperator, transformer_command
from storeside.operators.hooks.aistore import AIStoreHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class AISSplitShardsOperator(AISTransformBucketOperator):
    """Splits the tar shards of one bucket into objects of another, beside the disks that hold the shards.

    The members of ``000.tar`` become the objects ``000/<member>``, and ``000.jsonl`` lists them with their sizes and
    checksums. It is written last, so a shard with a list is complete, except for failed members, which the ledger
    lists. Transformers reach the destination at the connection's ``transformer_endpoint``. The other arguments are
    those of `AISTransformBucketOperator`.

    :param members: patterns of the members that become objects, such as ``*.flac,*.json``
    """

    def __init__(self, *, members: str = "*", **kwargs: Any) -> None:
        # the server does not call the transformer
        command = transformer_command("text_facts")
        super().__init__(command=command, extensions={"tar": "jsonl"}, members=members, **kwargs)

    def spec(self, context: Context) -> EtlSpec:
        """Add the address of the destination, which changes no result, to the ETL's tuning."""
        endpoint = AIStoreHook(self.aistore_conn_id).transformer_endpoint
        return self._spec().splitting(
            self.members, objects_url(endpoint, Bucket.parse(self.destination), self.prepend)
        )
