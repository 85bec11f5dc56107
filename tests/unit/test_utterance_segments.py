"""Which parts of a recording are utterances, from the probabilities of its windows, for many generated recordings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.transformers.audio.utterance_options import RATE, WINDOW, UtteranceOptions
from storeside.transformers.audio.utterance_segments import Utterance, utterances

PLAIN = UtteranceOptions(padding_seconds=0, merge_gap_seconds=0, min_seconds=0.05, max_seconds=600)


def found(text: str, options: UtteranceOptions = PLAIN, samples: int | None = None) -> list[tuple[float, float]]:
    """Return the windows of utterances of a recording that is written as digits: 9 is a probability of 0.9."""
    probabilities = [int(digit) / 10 for digit in text]
    size = len(text) * WINDOW if samples is None else samples
    return [(one.start / WINDOW, one.end / WINDOW) for one in utterances(probabilities, size, options)]


def test_speech_begins_at_the_threshold_and_ends_well_below_it() -> None:
    assert found("0049944440099000", PLAIN) == [(3, 9), (11, 13)]
    assert found("44444") == []
    assert found("") == []


def test_speech_after_a_short_pause_belongs_to_the_same_utterance() -> None:
    half = UtteranceOptions(padding_seconds=0, merge_gap_seconds=4 * WINDOW / RATE, min_seconds=0.05)
    assert found("990009900009900", half) == [(0, 7), (11, 13)]


def test_short_speech_is_left_out() -> None:
    assert found("0900099000") == [(5, 7)]
    assert found("0999000", UtteranceOptions(padding_seconds=0, min_seconds=0.1)) == []


def test_padding_ends_at_the_recording_and_in_the_middle_of_a_pause() -> None:
    options = UtteranceOptions(padding_seconds=5 * WINDOW / RATE, merge_gap_seconds=0, min_seconds=0.05)
    assert found("0099000000990" + "0" * 20, options) == [(0, 7), (7, 17)]
    assert found("99", options, samples=WINDOW + 100) == [(0, (WINDOW + 100) / WINDOW)]


def test_long_speech_is_divided_where_speech_is_least_probable() -> None:
    options = UtteranceOptions(padding_seconds=0, min_seconds=0.05, max_seconds=1.0)  # 31 windows
    assert found("9" * 25 + "7" + "9" * 20, options) == [(0, 25), (25, 46)]
    assert found("9" * 40, options) == [(0, 31), (31, 40)]


def test_the_probability_is_the_mean_without_the_padding() -> None:
    options = UtteranceOptions(padding_seconds=0.2, merge_gap_seconds=0, min_seconds=0.05)
    (one,) = utterances([0, 0, 0.5, 1.0, 0, 0], 6 * WINDOW, options)
    assert one.probability == pytest.approx(0.75)


options = st.builds(
    UtteranceOptions,
    threshold=st.floats(0.2, 0.95),
    padding_seconds=st.floats(0, 0.5),
    merge_gap_seconds=st.floats(0, 1),
    min_seconds=st.floats(0.05, 0.5),
    max_seconds=st.floats(2, 4),
)
# Speech comes in runs: pairs of a probability and a number of windows.
runs = st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.49, 0.5, 0.8, 1.0]), st.integers(1, 200)), max_size=12)


@given(runs, options, st.integers(0, WINDOW - 1))
def test_utterances_of_any_recording(runs: list[tuple[float, int]], options: UtteranceOptions, missing: int) -> None:
    probabilities = [value for value, count in runs for _ in range(count)]
    samples = max(0, len(probabilities) * WINDOW - missing)
    made = utterances(probabilities, samples, options)
    assert made == utterances(probabilities, samples, options)
    _in_order(made, samples)
    longest, shortest = options.max_seconds * RATE, options.min_seconds * RATE
    for one in made:
        assert one.end - one.start <= longest + 1
        assert one.end - one.start >= min(shortest, shortest - missing)
        assert 0 <= one.probability <= 1
    covered = [n for one in made for n in range(one.start // WINDOW, -(-one.end // WINDOW))]
    certain = [n for n, value in enumerate(probabilities) if value >= options.threshold]
    for n in set(certain) - set(covered):  # only short speech is left out
        around = probabilities[max(0, n - round(shortest / WINDOW) - 1) : n + round(shortest / WINDOW) + 2]
        assert min(around, default=0) < options.threshold or len(probabilities) * WINDOW < shortest


def _in_order(made: list[Utterance], samples: int) -> None:
    edges = [edge for one in made for edge in (one.start, one.end)]
    assert edges == sorted(edges)
    assert all(one.start < one.end for one in made)
    assert not edges or (edges[0] >= 0 and edges[-1] <= samples)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"threshold": 1.5}, "threshold 1.5 is outside 0.2 to 0.95"),
        ({"min_seconds": "x"}, "min_seconds='x' is not a number"),
        ({"padding_seconds": float("nan")}, "padding_seconds nan is outside"),
        ({"max_seconds": 1, "min_seconds": 0.5}, "raise it, so that long speech can be divided"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        UtteranceOptions.from_values(fields)


def test_options_pass_through_the_environment() -> None:
    options = UtteranceOptions(threshold=0.6, max_seconds=12.5)
    assert UtteranceOptions.from_environment(options.environment()) == options
    with pytest.raises(ValueError, match="AUDIO_UTTERANCE_THRESHOLD='x' is not a number"):
        UtteranceOptions.from_environment({"AUDIO_UTTERANCE_THRESHOLD": "x"})
