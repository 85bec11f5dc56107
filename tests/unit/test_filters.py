"""Suites that decide which audio is kept: their expectations, the audio that they leave out, and its facts."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import numpy as np
import pytest
import webdataset.tariterators as wds

from storeside.operators import AISCutSegmentsOperator, AISTranscodeAudioOperator
from storeside.operators.arguments import LiteralArgumentError
from storeside.operators.errors import OperatorInputError
from storeside.quality.errors import QualityError
from storeside.speech.filters import filter_of
from storeside.transformers import audio_transformers
from storeside.transformers.audio.suite import Suite
from storeside.transformers.contract.failures import Facts, LeftOut, parse_facts, parse_left_out
from storeside.transformers.transformer import LeaveOut, WithFacts, WithSidecar
from tests.unit.test_audio import s16, sine, wav

BETWEEN, IN_SET = "expect_column_values_to_be_between", "expect_column_values_to_be_in_set"


def expectation(kind: str, column: str, description: str = "", **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": {"column": column, **kwargs}, "description": description}


def suite(*expectations: dict[str, Any]) -> dict[str, Any]:
    return {"name": "corpus", "expectations": list(expectations)}


LONG = expectation(BETWEEN, "duration_seconds", "at least 1 s", min_value=1)


def use(monkeypatch: pytest.MonkeyPatch, facts: Any, *expectations: dict[str, Any]) -> None:
    for name, value in filter_of(suite(*expectations), facts).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("kind", "kwargs", "met", "broken"),
    [
        (BETWEEN, {"min_value": 1, "max_value": 2}, [1, 1.5, 2, None], [0.9, 2.1]),
        (BETWEEN, {"min_value": 1, "strict_min": True}, [1.1, 9e9], [1]),
        (BETWEEN, {"max_value": 2, "strict_max": True}, [-1, 1.9], [2]),
        (IN_SET, {"value_set": ["de", "en"]}, ["de", None], ["", "fr"]),
        ("expect_column_values_to_not_be_in_set", {"value_set": ["de"]}, ["en", None], ["de"]),
        ("expect_column_values_to_not_be_null", {}, [0, ""], [None]),
    ],
)
def test_expectations_mean_what_great_expectations_means(
    kind: str, kwargs: dict[str, Any], met: list[Any], broken: list[Any]
) -> None:
    checked = Suite([expectation(kind, "x", "why", **kwargs)])
    assert {value: checked.reason({"x": value}) for value in met} == dict.fromkeys(met, "")
    assert {value: checked.reason({"x": value}) for value in broken} == dict.fromkeys(broken, "not met: why")


def test_the_first_expectation_that_is_not_met_is_the_reason() -> None:
    checked = Suite([LONG, expectation(BETWEEN, "snr_db", "20 dB", min_value=20)])
    assert checked.reason({"duration_seconds": 0.5, "snr_db": 3}) == "not met: at least 1 s"
    assert checked.reason({"duration_seconds": 5, "snr_db": 3}) == "not met: 20 dB"
    assert checked.reason({"duration_seconds": 5, "snr_db": 30}) == ""


def test_only_critical_expectations_leave_anything_out() -> None:
    noisy = {**expectation(BETWEEN, "snr_db", min_value=20), "severity": "warning"}
    (variable,) = filter_of(suite(LONG, noisy), "recordings").values()
    assert json.loads(variable) == [LONG]
    (variable,) = filter_of(suite({**LONG, "description": None}), "recordings").values()
    assert json.loads(variable)[0]["description"] == "duration_seconds: column values to be between (min_value: 1)"


@pytest.mark.parametrize(
    ("facts", "given", "reason"),
    [
        ("recordings", expectation(BETWEEN, "words_per_second", max_value=6), "no fact 'words_per_second'"),
        ("utterances", expectation(IN_SET, "language", value_set=["de"]), "no fact 'language'"),
        ("segments", expectation(BETWEEN, "left_out", min_value=1), "no fact 'left_out'"),
        ("segments", expectation(BETWEEN, "language", min_value=1), "is a text"),
        ("segments", expectation(IN_SET, "language", value_set=[1]), "has texts, and 1 is none"),
        ("segments", expectation(BETWEEN, "snr_db", min_value="20"), "has numbers, and '20' is none"),
        ("segments", expectation(BETWEEN, "snr_db", min_value=20, mostly=0.9), "leave mostly out"),
        ("segments", expectation("expect_column_values_to_match_regex", "text", regex="a"), "a filter takes only"),
        ("segments", {**LONG, "severity": "info"}, "0 expectations of severity critical"),
    ],
)
def test_suites_that_cannot_filter_are_refused(facts: Any, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(QualityError, match=reason):
        filter_of(suite(given), facts)


def test_wrong_suites_of_a_dag_are_import_errors() -> None:
    wrong = suite(expectation(BETWEEN, "loudness", min_value=1))
    with pytest.raises(LiteralArgumentError, match="no fact 'loudness'"):
        AISTranscodeAudioOperator(task_id="t", source="ais://a", destination="ais://b", suite=wrong)
    with pytest.raises(LiteralArgumentError, match="no fact 'loudness'"):
        AISCutSegmentsOperator(task_id="t", source="ais://a", destination="ais://b", segments="ais://a/", suite=wrong)
    with pytest.raises(LiteralArgumentError, match="write a function as package"):
        AISTranscodeAudioOperator(task_id="t", source="ais://a", destination="ais://b", suite="corpus")
    with pytest.raises(LiteralArgumentError, match="excludes members"):
        AISTranscodeAudioOperator(
            task_id="t", source="ais://a", destination="ais://b", suite=suite(LONG), members="*.flac"
        )


def test_a_suite_excludes_a_rendered_in_place() -> None:
    transcode = AISTranscodeAudioOperator(
        task_id="t", source="ais://a", destination="ais://a", suite=suite(LONG), in_place="{{ params.in_place }}"
    )
    transcode.in_place = "true"
    with pytest.raises(OperatorInputError, match="excludes members and in_place"):
        transcode.spec({})


@pytest.mark.parametrize("container", ["wav", "flac"])
@pytest.mark.parametrize("sidecars", [False, True])
def test_a_transcode_leaves_recordings_out_and_states_the_facts_of_all(
    monkeypatch: pytest.MonkeyPatch, container: str, sidecars: bool
) -> None:
    monkeypatch.setenv("AUDIO_CONTAINER", container)
    monkeypatch.setenv("AUDIO_CODEC", {"wav": "pcm_s16le", "flac": "flac"}[container])
    plain = audio_transformers.audio_transcode()
    if sidecars:
        monkeypatch.setenv("SIDECAR_URL", "http://proxy/")
    use(monkeypatch, "recordings", LONG, expectation(BETWEEN, "bandwidth_hz", "telephone or wider", min_value=3000))
    made = audio_transformers.audio_transcode()
    long, short, narrow = (wav(s16(sine(seconds, hz=hz))) for seconds, hz in ((1.5, 6000), (0.5, 6000), (2.0, 440)))
    found = made.transform(long, "a.wav", "")
    assert isinstance(found, WithFacts)
    assert found.facts == {"duration_seconds": 1.5}
    assert isinstance(found.result, WithSidecar) == sidecars
    data = found.result.data if isinstance(found.result, WithSidecar) else found.result
    assert bytes(data) == bytes(plain.transform(long, "a.wav", ""))  # type: ignore[arg-type]
    for content, reason, seconds in ((short, "at least 1 s", 0.5), (narrow, "telephone or wider", 2.0)):
        with pytest.raises(LeaveOut, match=f"^not met: {reason}$") as left:
            made.transform(content, "b.wav", "")
        assert left.value.facts is not None
        assert left.value.facts["duration_seconds"] == seconds
        assert left.value.facts["clipped_share"] == 0


@pytest.mark.guarantee("suites")
def test_segments_that_are_left_out_keep_only_their_facts_in_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch, "segments", LONG, expectation(BETWEEN, "words_per_second", "at most 4 words/s", max_value=4),
        expectation(IN_SET, "language", "German or English", value_set=["de", "en"]),
    )  # fmt: skip
    given = [
        {"start": 0, "end": 2, "text": "it's a well-known story", "language": "en"},  # 4 words
        {"start": 2, "end": 2.5, "text": "brief", "language": "en"},
        {"start": 3, "end": 4, "text": "one two three four five", "language": "en"},
        {"start": 4, "end": 6, "text": "un deux", "language": "fr"},
        {"start": 6, "end": 8, "language": "de"},
    ]
    noise = np.random.default_rng(1).integers(-9_000, 9_000, 8 * 16_000, np.int16)
    made = audio_transformers.audio_segments().transform(wav(noise), "in/t.wav", json.dumps({"segments": given}))
    assert isinstance(made, WithFacts)
    assert made.facts == {
        "kept": (2, 4.0),
        "left_out": {
            "not met: at least 1 s": (1, 0.5),
            "not met: at most 4 words/s": (1, 1.0),
            "not met: German or English": (1, 2.0),
        },
    }
    shard = bytes(made.result)  # type: ignore[arg-type]
    with tarfile.open(fileobj=io.BytesIO(shard)) as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    kept = ["in/t-00001.flac", "in/t-00001.json", "in/t-00001.txt", "in/t-00005.flac", "in/t-00005.json"]
    left = [f"__left_out__/in/t-{n:05d}.json" for n in (2, 3, 4)]
    assert sorted(files) == sorted(kept + left)
    facts = {name: json.loads(files[name]) for name in files if name.endswith(".json")}
    assert [facts[name]["left_out"] for name in left] == list(made.facts["left_out"])
    assert {facts[name]["member"] for name in left} == {""}
    assert (facts["in/t-00001.json"]["left_out"], facts["in/t-00001.json"]["words_per_second"]) == (None, 2.0)
    assert (facts["in/t-00005.json"]["words_per_second"], facts[left[1]]["words_per_second"]) == (None, 5.0)
    samples = list(wds.group_by_keys(wds.tar_file_expander([{"url": "t.tar", "stream": io.BytesIO(shard)}])))
    assert [one["__key__"] for one in samples] == ["in/t-00001", "in/t-00005"], "loaders see kept segments only"
    monkeypatch.delenv("AUDIO_SUITE")
    plain = audio_transformers.audio_segments().transform(wav(noise), "in/t.wav", json.dumps({"segments": given}))
    assert isinstance(plain, memoryview)
    assert b"left_out" not in plain


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ('{"a": "\\u2028 b"}', '{"a": "\\u2028 b"}'),
        ("[1]", ""),
        ('{"a": NaN}', ""),
        ('{"a": "' + "x" * 6_000 + '"}', ""),
        ("[" * 5_000, ""),
        ("", ""),
    ],
)
def test_facts_are_one_line_of_the_log_and_bounded(told: str, kept: str) -> None:
    entry = Facts(1.0, "b", "o\nx", told)
    assert (entry.facts, len(entry.line().splitlines())) == (kept, 1)
    assert list(parse_facts(f"INFO\n{entry.line()}\n")) == [entry]
    left = LeftOut(1.0, "b", "o", "why", facts=told)
    assert left.facts == kept
    assert list(parse_left_out(left.line())) == [left]
    assert ("facts" in left.line()) == bool(kept), "an earlier version reads a line without facts"
