"""Decides which objects are copied in parts, the part sizes, and the number of concurrent parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from storeside.copying.errors import CopyInputError, CopyObjectError

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of an endpoint's API: bytes of a part (the last may be smaller) and of a single PUT, number of parts."""

    least_part: int
    most_part: int
    most_parts: int
    most_put: int


# https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
S3_LIMITS = Limits(5 * MIB, 5 << 30, 10_000, 5 << 30)
# https://docs.oracle.com/iaas/Content/Object/Tasks/usingmultipartuploads.htm
OCI_LIMITS = Limits(1, 50 << 30, 10_000, 50 << 30)


@dataclass(frozen=True)
class Part:
    """A range of an object; numbers start at 1."""

    number: int
    start: int
    size: int


class PartSettings(TypedDict, total=False):
    """`Settings` as an operator's argument, whose numbers may be templates."""

    threshold: int | str
    """bytes from which an object is copied in parts"""
    part_size: int | str
    """bytes of a part"""
    concurrency: int | str
    """parts that are copied at the same time"""
    preferred_transfer_client: Literal["classic", "auto"]
    """Boto3's setting of this name, which has no effect here"""


@dataclass(frozen=True)
class Settings:
    """How to copy objects of a given size: in parts from `threshold` bytes, with `concurrency` parts at once.

    Raises CopyInputError for impossible numbers.
    """

    threshold: int = 16 * MIB
    part_size: int = 8 * MIB
    concurrency: int = 8

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise CopyInputError(f"multipart {name} {value!r}: needs a whole number of 1 or more")
        if self.concurrency > 256:
            raise CopyInputError(f"multipart concurrency {self.concurrency}: more than 256 threads do not help")

    @property
    def memory(self) -> int:
        """Maximum bytes of objects in memory at once, except for objects of more than 10,000 parts of this size."""
        return max(self.threshold, self.part_size) * self.concurrency

    def check(self, limits: Limits, where: str) -> None:
        """Raise CopyInputError when an endpoint does not accept parts of this size."""
        if self.part_size < limits.least_part:
            raise CopyInputError(
                f"part size {self.part_size} is under the minimum of {limits.least_part} bytes at {where}:"
                f" set part_size to {limits.least_part} or more"
            )
        if self.part_size > limits.most_part:
            raise CopyInputError(
                f"part size {self.part_size} is over the maximum of {limits.most_part} bytes at {where}:"
                f" set part_size to {limits.most_part} or less"
            )

    def parts(self, size: int, limits: Limits) -> list[Part]:
        """Return the parts of an object; none when it is copied in one piece.

        Parts grow if their number would exceed the endpoint's limit. Raises CopyObjectError for an object that
        exceeds the maximum number of parts of maximum size.
        """
        if size < self.threshold and size <= limits.most_put:
            return []
        length = max(self.part_size, -(-size // limits.most_parts))
        if length > limits.most_part:
            raise CopyObjectError(
                f"{size} bytes do not fit into {limits.most_parts} parts of {limits.most_part} bytes"
            )
        if size <= length:
            return []
        return [
            Part(number, start, min(length, size - start)) for number, start in enumerate(range(0, size, length), 1)
        ]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings of a connection's extra ``multipart`` or of an operator's argument.

        Raises CopyInputError for an unknown name, and for boto3's ``crt`` client, which ignores a connection's
        endpoint.
        """
        client = values.get("preferred_transfer_client", "classic")
        if client not in ("classic", "auto"):
            raise CopyInputError(
                f"multipart preferred_transfer_client {client!r}: it ignores endpoint_url and sends requests to"
                " AWS: leave it out, or set it to 'classic'"
            )
        rest = {name: value for name, value in values.items() if name != "preferred_transfer_client"}
        if unknown := sorted(set(rest) - set(cls.__dataclass_fields__)):
            raise CopyInputError(f"multipart {', '.join(unknown)}: use {', '.join(cls.__dataclass_fields__)}")
        try:
            numbers = {name: int(value) for name, value in rest.items()}
        except (TypeError, ValueError) as e:
            raise CopyInputError(f"multipart settings {rest}: need whole numbers") from e
        return cls(**numbers)


@dataclass(frozen=True)
class Profile:
    """Settings by object size: each step applies from its size in bytes up to the next step."""

    steps: tuple[tuple[int, Settings], ...] = ((0, Settings()),)

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.steps]
        if not sizes or sizes[0] != 0 or sizes != sorted(set(sizes)):
            raise CopyInputError(f"multipart steps at {sizes}: need to start at 0 and to ascend")

    @classmethod
    def of(cls, settings: Settings) -> Profile:
        """Return the profile with the same settings for all objects."""
        return cls(((0, settings),))

    def for_size(self, size: int) -> Settings:
        """Return the settings for an object of this many bytes."""
        return next(settings for start, settings in reversed(self.steps) if size >= start)

    @property
    def concurrency(self) -> int:
        """The largest number of concurrent parts of all steps."""
        return max(settings.concurrency for _, settings in self.steps)
