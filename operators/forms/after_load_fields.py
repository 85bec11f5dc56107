"""Form fields, and arguments that read them, for what happens to source objects after their load."""

from __future__ import annotations

from typing import Final, TypedDict

from airflow.sdk import Param

from storeside.operators.entries import must_match
from storeside.operators.restrictions import form_choices
from storeside.transfer.request.after_load import ACTIONS, AfterLoad
from storeside.transfer.request.template import Template

AFTER: Final = {
    "after_load": Param(
        "none",
        type="string",
        enum=[*ACTIONS],
        title="Loaded objects",
        section="After the load",
        **form_choices("after load"),
        values_display={
            "none": "Leave them as they are",
            "delete": "Delete them from the bucket",
            "move": "Move them to another place",
            "tag": "Tag them",
        },
        description="What happens to an object of S3 when its rows are in the table and on disk",
    ),
    "move_to": Param(
        None,
        type=["null", "string"],
        **must_match(r"s3://[^/]+(/.*)?", "write bucket and prefix in S3, such as s3://archive/trips/"),
        title="Destination of moved objects",
        section="After the load",
        **form_choices(
            "place",
            description="Bucket and prefix of moved objects, such as s3://archive/trips/; their whole keys follow it",
        ),
    ),
    "tags": Param(
        None,
        type=["null", "string"],
        title="Tags",
        section="After the load",
        **form_choices("tags"),
        description="Tags of S3 for loaded objects: loaded=true, by=storeside",
    ),
}


class AfterLoadTemplates(TypedDict):
    """The argument in `AFTER_LOAD`."""

    after_load: AfterLoad


# Arguments of the load operators that read the fields of `AFTER`.
AFTER_LOAD: Final[AfterLoadTemplates] = {
    "after_load": AfterLoad(
        Template("{{ params.after_load }}"),
        "{{ params.move_to or '' }}",
        "{{ params.tags or '' }}",  # type: ignore[arg-type]
    )
}
