"""Form fields, and arguments that read them, of DAGs that copy or transform the objects of a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from airflow.sdk import Param

from storeside.aistore.spec import transformer_command
from storeside.operators.entries import bucket_alone, must_match
from storeside.operators.restrictions import described, form_choices
from storeside.transfer.request.template import Template
from storeside.transformers.contract.names import EXTENSION

# URI of a bucket that AIStore can read or write.
BUCKET_URI: Final = r"(s3|gs|az|oci|oc)://[^/]+|ais://(@[^/]+/)?[^/]+"
SOURCE: Final = Param(
    type="string",
    title="Source",
    **must_match(BUCKET_URI, bucket_alone("s3, gs, az, oci or ais")),
    **form_choices("bucket", "read", description="Any bucket that AIStore can read; a name alone means s3://"),
)
RECORDINGS: Final = described(
    SOURCE,
    "FLAC, WAV, MP3, Ogg, Opus, M4A, AIFF and others; any bucket that AIStore can read. A name alone means s3://",
    title="Bucket of recordings",
)
DESTINATION: Final = described(
    SOURCE,
    "A name alone means ais://; a missing ais:// bucket is created",
    title="Destination",
    **form_choices("bucket", "write", bare="ais"),
)
PREFIX: Final = Param(
    None,
    type=["null", "string"],
    title="Prefix",
    description="Only objects whose names start with this; empty means all",
)
SAMPLE_RATE: Final = Param(
    16_000,
    type="integer",
    minimum=4_000,
    maximum=192_000,
    title="Sample rate, Hz",
    section="Audio",
    description="Sample rate of the results",
)
COMMUNICATION: Final = Param(
    "ws",
    type="string",
    enum=["ws", "hpush"],
    title="Communication",
    section="How",
    values_display={"ws": "WebSocket (fastest)", "hpush": "HTTP push"},
    description="How AIStore sends objects to the transformer",
)
ON_FAILURE: Final = Param(
    "report",
    type="string",
    enum=["report", "fail"],
    title="Failed objects",
    section="How",
    values_display={"report": "Succeed and list failed objects", "fail": "Fail the run"},
    description="What happens when some objects cannot be loaded; all other objects are loaded in both cases",
)
RETRY_FAILED: Final = Param(
    False,
    type="boolean",
    title="Retry failed",
    section="How",
    description="Also try objects that failed for good in earlier runs",
)


class ObjectsTemplates(TypedDict):
    """The arguments in `OBJECTS`."""

    prefix: str
    on_failed_objects: Template
    retry_failed: str


# Arguments of operators that read the fields `PREFIX`, `ON_FAILURE` and `RETRY_FAILED`.
OBJECTS: Final[ObjectsTemplates] = {
    "prefix": "{{ params.prefix or '' }}",
    "on_failed_objects": Template("{{ params.on_failure }}"),
    "retry_failed": "{{ params.retry_failed }}",
}
# Argument `latest`: AIStore keeps copies of remote objects, and checks for newer versions only with it.
LATEST: Final = "{{ not params.source.startswith('ais://') }}"


def etl(settings: Mapping[str, Any]) -> dict[str, Param]:
    """Return the form fields that describe an ETL; their defaults are the settings of a DAG, see `dag_settings`."""
    return {
        "transformer": Param(
            settings["transformer"],
            type="string",
            minLength=1,
            title="Transformer",
            section="ETL",
            **form_choices(
                "transformer",
                description="Transform of the transformer's image: a built-in one, or package.module:attribute",
            ),
        ),
        "existing_etl": Param(
            settings["existing_etl"] or None,
            type=["null", "string"],
            title="Existing ETL",
            section="ETL",
            **form_choices(
                "etl",
                description="Name of an ETL that runs in the cluster, instead of the transformer; it is used as it"
                " runs",
            ),
        ),
        "communication": Param(
            settings["communication"],
            **{**COMMUNICATION.schema, "section": "ETL"},
            description=f"{COMMUNICATION.description}; an existing ETL keeps its communication type",
        ),
        "extensions": Param(
            settings["extensions"],
            type="object",
            **must_match(EXTENSION, "write extensions of letters, digits, '_' and '-', such as flac or json.gz"),
            title="Extensions",
            section="ETL",
            description="Extensions of source objects and of their results, without dots; others are kept",
        ),
        "members": Param(
            settings["members"] or None,
            type=["null", "string"],
            title="Members of shards",
            section="ETL",
            description="Members of tar shards to transform, such as *.txt,*.md, to which extensions then apply;"
            " others are kept unchanged. Empty transforms whole objects",
        ),
    }


class EtlTemplates(TypedDict):
    """The arguments in `ETL`."""

    etl: str
    command: tuple[str, ...]
    communication: Template
    extensions: str
    members: str


# Arguments of `AISTransformBucketOperator` that read the fields of `etl`.
ETL: Final[EtlTemplates] = {
    "etl": "{{ params.existing_etl or '' }}",
    "command": transformer_command("{{ params.transformer }}"),
    "communication": Template("{{ params.communication }}"),
    "extensions": "{{ params.extensions | tojson }}",
    "members": "{{ params.members or '' }}",
}
