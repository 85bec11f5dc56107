"""The plan of a measurement of transforms: its recordings and variants."""

from __future__ import annotations

from dataclasses import dataclass

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec
from storeside.measure.errors import (
    MeasureInputError,
)
from storeside.measure.transforms.variants import Variant
from storeside.transform.naming import Naming
from storeside.transformers.audio.formats import AudioFormat

OBJECTS, ROUNDS, PARALLEL = range(1, 10_001), range(1, 101), range(257)


@dataclass(frozen=True)
class Plan:
    """A measurement of up to `objects` recordings of `source` below `prefix`, in each of the `variants`.

    `spec` is the transcoder's ETL on Storeside's server, and `audio` its format. The client transcodes `parallel`
    objects at the same time; without any, it is left out.
    Raises MeasureInputError for a number out of range.
    """

    source: Bucket
    prefix: str
    objects: int
    spec: EtlSpec
    audio: AudioFormat
    variants: list[Variant]
    rounds: int
    parallel: int

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("objects", self.objects, OBJECTS),
            ("rounds", self.rounds, ROUNDS),
            ("client_workers", self.parallel, PARALLEL),
        ):
            if value not in allowed:
                raise MeasureInputError(f"{name} {value}: use {allowed[0]} to {allowed[-1]}")

    @property
    def naming(self) -> Naming:
        """The names of the results."""
        return Naming(self.audio.extensions)

    @property
    def form(self) -> str:
        """The format of the results in words."""
        return f"{self.audio.codec} {self.audio.sample_rate} Hz, channels: {self.audio.channels}"
