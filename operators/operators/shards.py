"""Operators that split tar shards into objects, and make them of objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

from storeside.aistore.buckets import Bucket, objects_url
from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.operators.arguments import check_literals, refuse
from storeside.operators.bases.bucket_job import BucketJobOperator, JobArguments, PrependArguments
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.operators.aistore import AISTransformBucketOperator, EtlArguments, TimeoutArguments
from storeside.operators.outcome import check_policy
from storeside.operators.shared import as_number, ledger, run_key, task_key
from storeside.transform.make_shards import ShardsJob
from storeside.transform.shard_plan import SHARD_SIZE, Packing, check_name
from storeside.transform.state import Options

if TYPE_CHECKING:
    from airflow.sdk import Context


class SplitArguments(EtlArguments, TimeoutArguments, PrependArguments, total=False):
    """Arguments that `AISSplitShardsOperator` shares with other transforms."""


class AISSplitShardsOperator(AISTransformBucketOperator):
    """Splits the tar shards of one bucket into objects of another, beside the disks that hold the shards.

    The members of ``000.tar`` become the objects ``000/<member>``, and ``000.jsonl`` lists them with their sizes and
    checksums. It is written last, so a shard with a list is complete, except for failed members, which the ledger
    lists. Transformers reach the destination at the connection's ``transformer_endpoint``. The other arguments are
    those of `AISTransformBucketOperator`.

    :param members: patterns of the members that become objects, such as ``*.flac,*.json``
    """

    refused = ("in_place",)

    def __init__(self, *, members: str = "*", **kwargs: Unpack[SplitArguments]) -> None:
        # the server does not call the transformer
        command = transformer_command("text_facts")
        refuse(self, kwargs)
        super().__init__(
            command=command, extensions={"tar": "jsonl"}, members=members, several_results=False, **kwargs
        )

    def spec(self, context: Context) -> EtlSpec:
        """Add the address of the destination, which changes no result, to the ETL's tuning."""
        endpoint = AIStoreHook(self.aistore_conn_id).transformer_endpoint
        return self._spec().splitting(
            self.members, objects_url(endpoint, Bucket.parse(self.destination), self.prepend)
        )


class AISMakeShardsOperator(BucketJobOperator):
    """Makes WebDataset's tar shards of the objects of a bucket, inside the cluster.

    Objects with the same name up to the first dot of its last part, such as ``a/1.flac`` and ``a/1.json``, are one
    sample. A shard has whole samples in the order of their names. It counts as made only if AIStore lists exactly the
    planned members in it. A missing object fails its shard alone. A later run makes only the shards whose objects
    changed; the sources stay unchanged. The transformers read the objects at the connection's
    ``transformer_endpoint``.

    :param source: URI of the bucket with the objects
    :param destination: URI of the bucket for the shards; a missing ``ais://`` bucket is created. It may be the
        source, if `prefix` and `objects` leave the shards out
    :param prefix: only objects whose names start with this
    :param objects: patterns of names, such as ``*.flac,*.json``; ``*`` also matches slashes. Markers of writers, such
        as ``_SUCCESS``, are left out and counted, unless the last part of a pattern or of `prefix` names them
    :param name: names of the shards, with one place for their numbers, which begin at 0. Tasks of one run that make
        shards of different objects in the same bucket need different names, also mapped tasks
    :param shard_size: maximum bytes of a shard; a larger sample gets a separate shard
    :param samples_per_shard: maximum samples of a shard; 0 is no limit
    :param on_failed_objects: ``fail`` the task when shards failed, or ``report`` them and succeed
    :param plan_only: change nothing; only report how many shards would be listed, made and skipped
    :param workers: concurrent shards per target; 0 lets AIStore choose
    :param stall_seconds: seconds without a finished shard after which the job is aborted and the rest is retried
    :param image: the transformer's image
    :param pod_resources: Kubernetes' ``requests`` and ``limits`` for the transformer's pods
    """

    template_fields = (
        "source",
        "destination",
        "prefix",
        "objects",
        "name",
        "shard_size",
        "samples_per_shard",
        "on_failed_objects",
        "plan_only",
        "on_nothing",
    )
    kind = "transform"
    refused = ("prepend", "latest", "quarantine", "retry_failed", "continue_on_error", "skip_idle")

    def __init__(
        self,
        *,
        source: str,
        destination: str,
        prefix: str = "",
        objects: str = "*",
        name: str = "shard-{:06d}.tar",
        shard_size: int | str = SHARD_SIZE,
        samples_per_shard: int | str = 0,
        stall_seconds: float = 3600,
        image: str = TRANSFORMER_IMAGE,
        pod_resources: Mapping[str, Mapping[str, str]] | None = None,
        **kwargs: Unpack[JobArguments],
    ) -> None:
        refuse(self, kwargs)
        super().__init__(source=source, destination=destination, prefix=prefix, stall_seconds=stall_seconds, **kwargs)
        self.objects = objects
        self.name = name
        self.shard_size = shard_size
        self.samples_per_shard = samples_per_shard
        self.image = image
        self.pod_resources = pod_resources
        check_literals(
            self, name=check_name, objects=lambda value: Packing(objects=value),
            shard_size=lambda value: Packing(shard_size=as_number(value, "shard_size", int)),
            samples_per_shard=lambda value: Packing(
                samples_per_shard=as_number(value, "samples_per_shard", int)
            ),
        )  # fmt: skip

    def spec(self, context: Context) -> EtlSpec:
        """Return the ETL that reads the objects of the source."""
        endpoint = AIStoreHook(self.aistore_conn_id).transformer_endpoint
        # the server does not call the transformer
        command = transformer_command("text_facts")
        spec = EtlSpec(
            self.task_id,
            self.image,
            command,
            tuning={"NUM_WORKERS": "1"},
            resources=dict(self.pod_resources or {}),
            communication="hpush",
        )
        return spec.gathering(objects_url(endpoint, Bucket.parse(self.source), ""))

    def job(self, context: Context) -> ShardsJob:
        """Build the engine's job. Raises OperatorInputError and AIStoreInputError for invalid arguments."""
        check_policy(self.on_failed_objects)
        hook = AIStoreHook(self.aistore_conn_id)
        return ShardsJob(
            hook.get_conn(),
            ledger(self.clickhouse_conn_id),
            Bucket.parse(self.source),
            Bucket.parse(self.destination),
            run_id=run_key(context),
            spec=self.spec(context),
            packing=self.packing(),
            task=task_key(context),
            options=Options(workers=self.workers),
            pods=hook.pods,
        )

    def packing(self) -> Packing:
        """Return which objects become members of which shards. Raises AIStoreInputError and OperatorInputError."""
        return Packing(
            self.prefix,
            self.objects,
            self.name,
            as_number(self.shard_size, "shard_size", int),
            as_number(self.samples_per_shard, "samples_per_shard", int),
        )
