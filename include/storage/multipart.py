"""Which objects go in parts, in which parts, and how many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from include.storage.errors import ObjectError, UsageError

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What an endpoint's API takes: bytes of a part (the last one may be smaller) and of a single PUT, and parts."""

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


@dataclass(frozen=True)
class Settings:
    """How objects of a size are moved: in parts from `threshold` bytes on, `concurrency` of them at once.

    Raises UsageError for numbers that make no sense.
    """

    threshold: int = 16 * MIB
    part_size: int = 8 * MIB
    concurrency: int = 8

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"multipart {name} {value!r}: needs a whole number from 1 on")
        if self.concurrency > 256:
            raise UsageError(f"multipart concurrency {self.concurrency}: more than 256 threads do not help")

    @property
    def memory(self) -> int:
        """The most bytes of objects that are held at once, apart from objects of over 10,000 such parts."""
        return max(self.threshold, self.part_size) * self.concurrency

    def check(self, limits: Limits, where: str) -> None:
        """Raise UsageError when an endpoint does not take parts of this size."""
        if self.part_size < limits.least_part:
            raise UsageError(
                f"part size {self.part_size} is under the {limits.least_part} bytes that {where} takes:"
                f" set part_size to {limits.least_part} or more"
            )
        if self.part_size > limits.most_part:
            raise UsageError(f"part size {self.part_size} is over the {limits.most_part} bytes that {where} takes")

    def parts(self, size: int, limits: Limits) -> list[Part]:
        """Return the parts of an object; none when it goes in one piece.

        Parts grow where there would be more of them than the endpoint takes. Raises ObjectError for an object that no
        number of parts can hold.
        """
        if size < self.threshold and size <= limits.most_put:
            return []
        length = max(self.part_size, -(-size // limits.most_parts))
        if length > limits.most_part:
            raise ObjectError(
                f"{size} bytes are more than {limits.most_parts} parts of {limits.most_part} bytes hold"
            )
        if size <= length:
            return []
        return [
            Part(number, start, min(length, size - start)) for number, start in enumerate(range(0, size, length), 1)
        ]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Settings:
        """Read settings as a connection's extra ``multipart`` or an operator's argument gives them.

        Raises UsageError for an unknown name, and for boto3's ``crt`` client, which ignores a connection's endpoint.
        """
        client = values.get("preferred_transfer_client", "classic")
        if client not in ("classic", "auto"):
            raise UsageError(
                f"multipart preferred_transfer_client {client!r}: it ignores endpoint_url and goes to AWS."
                " Leave it out, or set it to 'classic'"
            )
        rest = {name: value for name, value in values.items() if name != "preferred_transfer_client"}
        if unknown := sorted(set(rest) - set(cls.__dataclass_fields__)):
            raise UsageError(f"multipart {', '.join(unknown)}: use {', '.join(cls.__dataclass_fields__)}")
        try:
            return cls(**{name: int(value) for name, value in rest.items()})
        except (TypeError, ValueError) as e:
            raise UsageError(f"multipart settings {rest}: need whole numbers") from e


@dataclass(frozen=True)
class Profile:
    """Settings by size of object: each step counts from its bytes on, until the next one's."""

    steps: tuple[tuple[int, Settings], ...] = ((0, Settings()),)

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.steps]
        if not sizes or sizes[0] != 0 or sizes != sorted(set(sizes)):
            raise UsageError(f"multipart steps at {sizes}: need to start at 0 and to grow")

    @classmethod
    def of(cls, settings: Settings) -> Profile:
        """Return the profile of the same settings for all objects."""
        return cls(((0, settings),))

    def for_size(self, size: int) -> Settings:
        """Return the settings for an object of this many bytes."""
        return next(settings for start, settings in reversed(self.steps) if size >= start)

    @property
    def concurrency(self) -> int:
        """Threads that every object finds enough of."""
        return max(settings.concurrency for _, settings in self.steps)
