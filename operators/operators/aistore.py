"""Operators that copy and transform buckets inside an AIStore cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from storeside.aistore.buckets import Bucket, objects_url
from storeside.aistore.names import expand
from storeside.aistore.spec import (
    ALL_WORKERS,
    TRANSFORMER_IMAGE,
    EtlSpec,
    check_communication,
    check_direct_put,
)
from storeside.operators.arguments import check_literals, flag, is_literal, literal_errors
from storeside.operators.bases.bucket_job import (
    BucketArguments,
    BucketJobOperator,
    CopyArguments,
    PrependArguments,
    StallArguments,
)
from storeside.operators.errors import OperatorInputError
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.hooks.transfer import listed_by_s3
from storeside.operators.outcome import check_policy
from storeside.operators.shared import as_bool, as_list, as_mapping, as_object, as_seconds, ledger, run_key
from storeside.transform.naming import Naming

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from storeside.aistore.spec import Communication
    from storeside.transfer.request.template import Template
    from storeside.transform.state import Job, ListSource, Options


class AISCopyBucketOperator(BucketJobOperator):
    """Copies one bucket into another through AIStore, such as ``s3://in`` to ``ais://in``; both may be remote.

    The task copies only objects that are new or changed since the last copy. With `aws_conn_id`, it lists an
    ``s3://`` source through S3's own API, so the versions are ETags.

    :param source: bucket URI; AIStore reads it through its own backend
    :param aws_conn_id: connection to S3 for the listing of an ``s3://`` source; None lets AIStore list it
    """

    def __init__(self, *, aws_conn_id: str | None = "aws_default", **kwargs: Unpack[CopyArguments]) -> None:
        super().__init__(**kwargs)
        self.aws_conn_id = aws_conn_id

    def listing(self, source: Bucket) -> ListSource | None:
        """Return a listing of an ``s3://`` source through S3's own API; None lets AIStore list the source."""
        if source.scheme != "s3" or self.aws_conn_id is None:
            return None
        return lambda: listed_by_s3(self.aws_conn_id, source.name, self.prefix)


class EtlArguments(BucketArguments, total=False):
    """Arguments of all operators that transform the objects of a bucket with an ETL."""

    etl: EtlSpec | XComArg | str | None
    """A complete ETL, or a chain of ETLs (``a >> b``), which replaces the arguments that describe one ETL; a text is
    the name of an ETL that already runs. See `AISTransformBucketOperator`
    """
    image: str
    """the transformer's image"""
    environment: Mapping[str, str] | str | None
    """the transformer's parameters; each set of parameters runs as a separate ETL"""
    communication: Communication | Template
    """``ws``, ``hpush`` or ``hpull``"""
    direct_put: bool | str
    """the transformer sends each result straight to the target that stores it; ``ws`` needs it"""
    file_access: bool | str
    """the transformer reads objects from the target's disk"""
    init_timeout: int | str
    """maximum seconds until the transformer is ready"""
    processes: int | None
    """worker processes of the transformer beside each target; by default one per CPU of its pod"""
    pod_resources: Mapping[str, Mapping[str, str]] | None
    """Kubernetes' ``requests`` and ``limits`` for the transformer's pods"""
    sync: bool | str
    """also remove results whose objects no longer exist in a remote source"""
    keep_etl: bool
    """leave the ETL running for later tasks; it is stopped two days after its last use, or earlier by
    `AISDeleteEtlOperator`
    """


class ExtensionsArguments(TypedDict, total=False):
    """The extensions of results."""

    extensions: Mapping[str, str] | str | None
    """maps the extension of a source object (without dot) to the extension of its result; a template may render a
    JSON object
    """


class InPlaceArguments(TypedDict, total=False):
    """Where results are stored."""

    in_place: bool | str
    """replace each object with its result, which has the same name; see `AISTransformBucketOperator`"""


class TimeoutArguments(StallArguments, total=False):
    """The time-outs of transforms."""

    object_timeout: int
    """maximum seconds for one object"""


class ProbeArguments(EtlArguments, TimeoutArguments, InPlaceArguments, total=False):
    """Arguments of `AISProbeAudioOperator`."""


class TranscodeArguments(ProbeArguments, PrependArguments, ExtensionsArguments, total=False):
    """Arguments that `AISTranscodeAudioOperator` shares with other transforms."""

    members: str
    """transform members of tar shards instead of whole objects: patterns of their names, such as ``*.flac``,
    separated by commas; see `AISTransformBucketOperator`
    """


class TransformArguments(TranscodeArguments, total=False):
    """All arguments of `AISTransformBucketOperator`."""

    several_results: bool | str
    """the transformer yields several results of each object; see `AISTransformBucketOperator`"""
    command: Sequence[str] | str
    """the command to run in the image; a text is split at spaces. Empty runs the image's own command"""


class AISTransformBucketOperator(BucketJobOperator):
    """Transforms one bucket into another with an ETL that runs beside AIStore's targets.

    AIStore 5.0 reports objects as done although they failed over WebSocket, so the task reconciles the destination
    with the source. It retries missing objects over ``hpush``, unless the transformer refused the object itself, and
    lists failed objects with their reasons. The other arguments are those of `AISCopyBucketOperator`.

    :param etl: a complete ETL, or a chain of ETLs (``a >> b``); replaces the arguments that describe one ETL, from
        `image` to `pod_resources`. A text, which may be a template or the result of another task, is the name of an
        ETL that already runs: the task uses it unchanged, and never starts, stops or replaces it; see
        `EtlSpec.existing`
    :param image: the transformer's image
    :param command: the command to run in the image; a text is split at spaces. Empty runs the image's own command
    :param environment: the transformer's parameters; each set of parameters runs as a separate ETL
    :param communication: ``ws``, ``hpush`` or ``hpull``
    :param direct_put: the transformer sends each result straight to the target that stores it; ``ws`` needs it
    :param file_access: the transformer reads objects from the target's disk
    :param init_timeout: maximum seconds until the transformer is ready
    :param object_timeout: maximum seconds for one object
    :param processes: worker processes of the transformer beside each target; by default one per CPU of its pod
    :param workers: objects in flight per target; AIStore limits it to the target's CPUs plus four, and 0 means one
        per disk
    :param pod_resources: Kubernetes' ``requests`` and ``limits`` for the transformer's pods
    :param extensions: maps the extension of a source object (without dot) to the extension of its result; a template
        may render a JSON object
    :param members: transform members of tar shards instead of whole objects: patterns of their names, such as
        ``*.flac``, separated by commas; see `EtlSpec.of_members`. `extensions` then applies to members, and
        ``{"tar": "jsonl"}`` makes one object of JSON Lines of each shard. `object_timeout` applies to one member,
        `stall_seconds` to a shard. Needs Storeside's transform server, and excludes `in_place`
    :param several_results: the transformer yields several results of each object. Those of ``calls/a.wav`` are stored
        in the folder ``calls/a/``, and ``calls/a.jsonl`` lists them: set ``extensions={"wav": "jsonl"}``. An object
        is done when the destination, an ``ais://`` bucket, has all of them. Transformers reach it at the connection's
        ``transformer_endpoint``. Excludes `members`, `sync` and `in_place`
    :param sync: also remove results whose objects no longer exist in a remote source
    :param keep_etl: leave the ETL running for later tasks; it is stopped two days after its last use, or earlier by
        `AISDeleteEtlOperator`
    :param in_place: replace each object with its result, which has the same name. `destination` must then be the same
        URI as `source`, and the bucket must be an ``ais://`` bucket of this cluster. Failed objects stay unchanged,
        and nothing is deleted. When this is off, the task refuses a destination that is the source's bucket, even
        under another URI
    """

    template_fields = (
        *BucketJobOperator.template_fields,
        "existing_etl",
        "image",
        "command",
        "environment",
        "communication",
        "direct_put",
        "file_access",
        "init_timeout",
        "extensions",
        "members",
        "several_results",
        "sync",
        "in_place",
    )
    kind = "transform"

    def __init__(
        self,
        *,
        etl: EtlSpec | XComArg | str | None = None,
        image: str = TRANSFORMER_IMAGE,
        command: Sequence[str] | str = (),
        environment: Mapping[str, str] | str | None = None,
        communication: Communication | Template = "ws",
        direct_put: bool | str = True,
        file_access: bool | str = True,
        init_timeout: int | str = 60,
        object_timeout: int = 300,
        processes: int | None = None,
        pod_resources: Mapping[str, Mapping[str, str]] | None = None,
        extensions: Mapping[str, str] | str | None = None,
        members: str = "",
        several_results: bool | str = False,
        sync: bool | str = False,
        keep_etl: bool = False,
        in_place: bool | str = False,
        **kwargs: Unpack[CopyArguments],
    ) -> None:
        kwargs.setdefault("workers", ALL_WORKERS)
        super().__init__(**kwargs)
        self.etl = etl if isinstance(etl, EtlSpec) else None
        # the result of another task is a text when this task runs
        self.existing_etl = "" if etl is None or isinstance(etl, EtlSpec) else cast("str", etl)
        self.image = image
        self.command = command
        self.environment = environment
        self.communication = communication
        self.direct_put = direct_put
        self.file_access = file_access
        self.init_timeout = init_timeout
        self.object_timeout = object_timeout
        self.tuning = {"NUM_WORKERS": str(processes)} if processes else {}
        self.pod_resources = pod_resources
        self.extensions = extensions
        self.members = members
        self.several_results = several_results
        self.sync = sync
        self.keep_etl = keep_etl
        self.in_place = in_place
        check_literals(
            self, existing_etl=EtlSpec.existing, communication=check_communication, direct_put=flag("direct_put"),
            file_access=flag("file_access"), init_timeout=as_seconds,
            extensions=lambda value: Naming(as_mapping(value, "extensions")), sync=flag("sync"),
            in_place=flag("in_place"), several_results=flag("several_results"),
            members=EtlSpec("members", image).of_members,
        )  # fmt: skip
        if is_literal(communication) and is_literal(direct_put):
            with literal_errors(self):
                check_direct_put(communication, as_bool(direct_put, "direct_put"))

    def job(self, context: Context) -> Job:
        """Build the engine's job: an `InPlaceJob` when objects are replaced."""
        if not as_bool(self.in_place, "in_place"):
            return super().job(context)
        from storeside.transform.in_place import InPlaceJob

        bucket = Bucket.parse(self.source)
        if Bucket.parse(self.destination) != bucket:
            raise OperatorInputError(
                f"in_place: the destination {self.destination} differs from the source {self.source}: set both to the"
                " same URI, or turn in_place off"
            )
        check_policy(self.on_failed_objects)
        if self.members:
            raise OperatorInputError(
                "members: shards cannot be replaced in place: write their results to another bucket"
            )
        hook = AIStoreHook(self.aistore_conn_id)
        return InPlaceJob(
            hook.get_conn(),
            ledger(self.clickhouse_conn_id),
            bucket,
            run_id=run_key(context),
            spec=self.spec(context),
            naming=self.naming(context),
            options=self.options(),
            pods=hook.pods,
        )

    def spec(self, context: Context) -> EtlSpec:
        """Return the ETL's specification. Raises OperatorInputError or AIStoreInputError for wrong arguments."""
        spec = self._spec()
        spec = spec.of_members(self.members, self.renaming()) if self.members else spec
        if not as_bool(self.several_results, "several_results"):
            return spec
        endpoint = AIStoreHook(self.aistore_conn_id).transformer_endpoint
        return spec.storing_results(objects_url(endpoint, Bucket.parse(self.destination), self.prepend))

    def _spec(self) -> EtlSpec:
        if self.existing_etl:
            return EtlSpec.existing(self.existing_etl)
        return self.etl or EtlSpec(
            label=self.task_id,
            image=self.image,
            command=tuple(as_list(self.command)),
            environment=as_object(self.environment or {}, "environment"),
            tuning=self.tuning,
            resources=dict(self.pod_resources or {}),
            communication=self.communication,
            direct_put=as_bool(self.direct_put, "direct_put"),
            file_access=as_bool(self.file_access, "file_access"),
            init_timeout=as_seconds(self.init_timeout),
            object_timeout=self.object_timeout,
        )

    def options(self) -> Options:
        """Add the options that only transforms have."""
        return replace(super().options(), sync=as_bool(self.sync, "sync"), keep_etl=self.keep_etl)

    def naming(self, context: Context) -> Naming:
        """Return the mapping of extensions and the prefix for results; ``tar`` is the extension of shards."""
        extensions = self.renaming()
        if self.members:
            extensions = {name: to for name, to in extensions.items() if name == "tar"}
        return Naming(extensions, self.prepend)

    def renaming(self) -> dict[str, str]:
        """Return the extensions of results by those of objects, or of members.

        Raises AIStoreInputError for extensions that could lead a result out of its folder.
        """
        return dict(Naming(as_mapping(self.extensions or {}, "extensions")).extensions)


class AISTransformObjectsOperator(AISTransformBucketOperator):
    """Transforms selected objects of a bucket inside AIStore; see `AISTransformBucketOperator`.

    :param objects: names of objects, or a template of names such as ``shard-{0001..0100}.tar``
    """

    template_fields = (*AISTransformBucketOperator.template_fields, "objects")

    def __init__(self, *, objects: Sequence[str] | str, **kwargs: Unpack[TransformArguments]) -> None:
        super().__init__(**kwargs)
        self.objects = objects

    def options(self) -> Options:
        """Add the names of the selected objects."""
        names = expand(self.objects) if isinstance(self.objects, str) else list(self.objects)
        return replace(super().options(), names=names)
