"""The short form of `make fuzz`: decoders of recordings on input that is no recording."""

from __future__ import annotations

import random

import pytest

from storeside.transformers.audio.transcoding import probe
from tests.fuzz import media, recordings
from tests.fuzz.engines import MEMORY_LIMIT


@pytest.fixture(scope="module")
def corpus() -> list[bytes]:
    return list(recordings.seeds().values())


def test_the_fuzzing_begins_with_good_recordings(corpus: list[bytes]) -> None:
    assert all(probe(content).samples > 1_000 for content in corpus)
    rng = random.Random(0)  # noqa: S311
    assert any(b"/etc/x" in recordings.elsewhere(rng, corpus, "/etc/x") for _ in range(5))


def test_inputs_are_the_same_in_every_run(corpus: list[bytes]) -> None:
    assert list(recordings.seeds().values()) == corpus
    one, other = (recordings.mutated(random.Random(7), corpus) for _ in range(2))  # noqa: S311
    assert one == other


@pytest.mark.guarantee("hostile-media")
def test_workers_survive_hostile_recordings() -> None:
    found, following = media.fuzz(400, seed=2)
    assert not found.wrong
    assert following == 400
    assert sum(found.outcomes.values()) == 400
    assert min(found.outcomes["transformed"], found.outcomes["refused"]) > 50
    assert found.peak < 2 * MEMORY_LIMIT
