"""The option for source objects after their load: delete, move or tag them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.source import Source, place_of
from storeside.transfer.request.template import Template

Action = Literal["none", "delete", "move", "tag"]
ACTIONS: tuple[Action, ...] = get_args(Action)
# S3's limits.
_MOST_TAGS, _LONGEST_NAME, _LONGEST_VALUE = 10, 128, 256


@dataclass(frozen=True)
class AfterLoad:
    """What happens to a source object after its rows are in the table, on disk, and recorded in the ledger.

    A load that does not name an action never changes its source. An object that failed, or that was overwritten
    after it was read, stays as it is.

    :param action: ``none``; ``delete`` the object; ``move`` it to `move_to`; ``tag`` it with `tags`
    :param move_to: bucket and prefix of moved objects, such as ``s3://archive/trips/``, at the source's endpoint. The
        whole key follows the prefix
    :param tags: S3 tags by name, such as ``{"loaded": "true"}``; an object's other tags stay
    :param rejected: also delete, move or tag objects of which rows were rejected
    """

    action: Action | Template = "none"
    move_to: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    rejected: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.tags, str) and "{{" not in self.tags:  # a form has one text
            pairs = (text.partition("=") for text in self.tags.split(",") if text.strip())
            object.__setattr__(self, "tags", {name.strip(): value.strip() for name, _, value in pairs})

    def __bool__(self) -> bool:
        return self.action != "none"

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and prefix of moved objects. Raises TransferInputError."""
        bucket, prefix = place_of(self.move_to, "move_to")
        if Source(bucket).in_aistore:
            raise TransferInputError(f"move_to {self.move_to!r}: write the URI of an S3 bucket, s3://bucket/prefix/")
        return bucket, prefix if not prefix or prefix.endswith("/") else f"{prefix}/"

    def check(self) -> None:
        """Raise TransferInputError for invalid options."""
        if self.action not in ACTIONS:
            raise TransferInputError(f"after_load {self.action!r}: choose one of {', '.join(ACTIONS)}")
        if bool(self.move_to) != (self.action == "move"):
            raise TransferInputError("move_to: set it with after_load 'move', and only then: s3://archive/trips/")
        if isinstance(self.tags, str):
            raise TransferInputError(f"tags {self.tags!r}: write name=value, without braces")
        if bool(self.tags) != (self.action == "tag"):
            raise TransferInputError("tags: set them with after_load 'tag', and only then: loaded=true")
        if self.move_to:
            _ = self.place
        for name, value in self.tags.items():
            if not 0 < len(name) <= _LONGEST_NAME or len(value) > _LONGEST_VALUE or name.startswith("aws:"):
                raise TransferInputError(
                    f"tag {name!r}: S3 allows names of 1 to {_LONGEST_NAME} characters without the prefix aws:, and"
                    f" values of up to {_LONGEST_VALUE}"
                )
        if len(self.tags) > _MOST_TAGS:
            raise TransferInputError(f"{len(self.tags)} tags: S3 allows {_MOST_TAGS} per object")

    def check_source(self, source: Source) -> None:
        """Raise TransferInputError for a source whose objects this action cannot change."""
        if not self:
            return
        if source.in_aistore:
            raise TransferInputError(
                f"after_load {self.action!r}: only objects of S3 are changed after a load, not those of"
                f" {source.bucket}: omit the option"
            )
        if self.action == "move" and self.selects(source, source.prefix):
            raise TransferInputError(
                f"move_to {self.move_to!r} is among the keys of {source.uri}, so moved objects would be loaded again:"
                " choose another bucket or prefix"
            )

    def selects(self, source: Source, key: str) -> bool:
        """Return whether a source contains the place to which this key is moved."""
        bucket, prefix = self.place
        return bucket == source.bucket and source.selects(prefix + key)
