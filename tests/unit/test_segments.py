"""Files of segments and texts: their formats, what is wrong with them, and the recordings that they belong to."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any, cast

import pytest

from storeside.aistore.errors import AIStoreTransientError
from storeside.aistore.stored_objects import StoredObject
from storeside.speech.segments import files
from storeside.speech.segments.entries import MOST_SEGMENTS, Entry, Found, SegmentsError
from storeside.speech.segments.files import LONGEST_LINE, lines, read, whole
from storeside.speech.segments.matched import matched
from storeside.speech.segments.names import pattern_of, place_of
from storeside.transformers.contract import given_index


def found(name: str, content: str | bytes) -> list[Found]:
    raw = content if isinstance(content, bytes) else content.encode()
    return list(read(name, [raw[:7], raw[7:]], f"ais://c/{name}"))


def told(entries: Iterable[Found]) -> list[tuple[Any, ...]]:
    return [
        (e.recording, e.start, e.end, e.channel, e.id, e.speaker, e.language, e.text)
        for e in entries
        if isinstance(e, Entry)
    ]


RTTM = """SPKR-INFO talk 1 <NA> <NA> <NA> unknown ada <NA> <NA>
SPEAKER talk 1 0.50 2.25 <NA> <NA> ada <NA> <NA>
SPEAKER talk 1 3 1 <NA> <NA> <NA> <NA> <NA>
"""
STM = """;; a comment
talk 1 ada 0.5 2.75 <o,f0,female> hello  there
talk 1 bob 3 4 yes
talk A excluded 4 5 IGNORE_TIME_SEGMENT_IN_SCORING
talk 1 bob 5 6
"""
NEMO = (
    '{"audio_filepath": "in/a.wav", "duration": 2.0, "text": "one", "speaker": "ada", "lang": "en"}\n\n'
    '{"audio_filepath": "in/b.wav", "offset": 1.5, "duration": 2, "text": "two\\u0007\\u2028", "speaker": 7}\n'
    '{"recording_id": "c", "start": 0, "end": 1, "id": "c-1"}\n'
)
LHOTSE = (
    '{"id": "u1", "recording_id": "talk", "start": 0, "duration": 1, "channel": 0, "text": "one", "speaker": "ada"}\n'
    '{"id": "u2", "recording_id": "talk", "start": 1, "duration": 1, "channel": [0, 1], "text": "two"}\n'
)
WHOLE = (None, None, "", "", "", "")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.rttm", RTTM, [
            ("talk", 0.5, 2.75, "1", "", "ada", "", ""), ("talk", 3.0, 4.0, "1", "", "", "", ""),
        ]),
        ("a.stm", STM, [
            ("talk", 0.5, 2.75, "1", "", "ada", "", "hello  there"), ("talk", 3.0, 4.0, "1", "", "bob", "", "yes"),
            ("talk", 5.0, 6.0, "1", "", "bob", "", ""),
        ]),
        ("a.CTM", "talk 1 0.5 0.25 hello 0.9\r\n", [("talk", 0.5, 0.75, "1", "", "", "", "hello")]),
        ("nemo.jsonl", NEMO, [
            ("in/a.wav", None, None, "", "", "ada", "en", "one"),
            ("in/b.wav", 1.5, 3.5, "", "", "7", "", "two\7\u2028"), ("c", 0.0, 1.0, "", "c-1", "", "", ""),
        ]),
        ("nemo.json", NEMO, [
            ("in/a.wav", None, None, "", "", "ada", "en", "one"),
            ("in/b.wav", 1.5, 3.5, "", "", "7", "", "two\7\u2028"), ("c", 0.0, 1.0, "", "c-1", "", "", ""),
        ]),
        ("in/a.json", '{"text": "one",\n "language": "de"}', [("in/a", None, None, "", "", "", "de", "one")]),
        ("in/a.txt", "\ufeffone\ntwo\r\n", [("in/a", None, None, "", "", "", "", "one\ntwo")]),
        ("in/a.lab", "grüße".encode("utf-16"), [("in/a", None, None, "", "", "", "", "grüße")]),
        ("84/1/84-1.trans.txt", "84-1-0 HE SAID\n84-1-1\n", [
            ("ais://c/84/1/84-1-0", None, None, "", "", "", "", "HE SAID"),
            ("ais://c/84/1/84-1-1", None, None, "", "", "", "", ""),
        ]),
        ("data/segments", "u1\ttalk 0.5 2\nu2 talk 2 -1 1\n", [
            ("talk", 0.5, 2.0, "", "u1", "", "", ""), ("talk", 2.0, None, "1", "u2", "", "", ""),
        ]),
        ("a.rttm", "SPEAKER \u4f1a\u8b70\u3000\u4e00 1 0.5 2 <NA> <NA> anne\u00a0b <NA> <NA>\n", [
            ("\u4f1a\u8b70\u3000\u4e00", 0.5, 2.5, "1", "", "anne\u00a0b", "", ""),
        ]),
        ("a.ctm", "talk 1 0.5 0.25 10\u202f000 NA\n", [("talk", 0.5, 0.75, "1", "", "", "", "10\u202f000")]),
        ("a.stm", "talk\u00a01 1 ada 0.5 2 \u00a0Quoi\u202f?\n", [
            ("talk\u00a01", 0.5, 2.0, "1", "", "ada", "", "\u00a0Quoi\u202f?"),
        ]),
        ("84/1/84-1.trans.txt", "84-1-0 \u3000\u4e00\n", [("ais://c/84/1/84-1-0", *WHOLE, "\u3000\u4e00")]),
        ("lhotse.jsonl", LHOTSE, [
            ("talk", 0.0, 1.0, "0", "u1", "ada", "", "one"), ("talk", 1.0, 2.0, "0+1", "u2", "", "", "two"),
        ]),
        ("diarize.json", '{"audio_filepath": "a.wav", "offset": 0.5, "duration": null, "text": "-"}', [
            ("a.wav", 0.5, None, "", "", "", "", "-"),
        ]),
    ],
)  # fmt: skip
def test_a_format(name: str, content: str | bytes, expected: list[tuple[Any, ...]]) -> None:
    assert told(found(name, content)) == expected


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.rttm", RTTM + "SPEAKER talk 1 x 2 <NA> <NA> ada\n", "a.rttm:4: 'x' is not a time in seconds"),
        ("a.rttm", "SPEAKER talk 1\n", "a.rttm:1: the line has 3 fields, and 8 are needed"),
        ("a.rttm", "SPEAKER talk 2 1 0.5 1 <NA> <NA> ada <NA> <NA>\n", "has 11 fields, and at most 10 are possible"),
        ("a.ctm", "talk 2 1 0.5 0.25 hello 0.9\n", "a.ctm:1: 'hello' is not the confidence of a word"),
        ("data/segments", "u1 talk 2 0.5 2 1\n", "has 6 fields, and at most 5 are possible"),
        ("a.stm", "talk 1 ada 0.5\n", "a.stm:1: the line has 4 fields"),
        ("a.ctm", b"talk 1 0 1 caf\xe9\n", "a.ctm:1: this is not UTF-8"),
        ("a.txt", b"caf\xe9\n", "a.txt: this is not UTF-8"),
        ("a.jsonl", "{}\n", "a.jsonl:1: there is no recording"),
        ("a.jsonl", '\n["a"]\n', "a.jsonl:2: this is no JSON object"),
        ("a.jsonl", '{"audio": "a", "offset": "1"}', "offset '1' is not a time"),
        ("a.jsonl", '{"audio": "a", "start": 1' + "0" * 400 + ', "end": 2}', "a time is too large"),
        ("a.jsonl", '{"audio": "a", "text": {}}', "text is neither a text nor a whole number"),
        ("a.jsonl", "[" * 100_000, "a.jsonl:1: this is no JSON object"),
        ("a.ctm", b"x" * (LONGEST_LINE + 10), "a.ctm:1: the line has more than"),
        ("a.TextGrid", "nonsense", "this is no TextGrid|install storeside"),
    ],
)
def test_a_file_that_is_not_of_its_format(name: str, content: str | bytes, reason: str) -> None:
    with pytest.raises(SegmentsError, match=reason):
        found(name, content)


GRID = '''File type = "ooTextFile"
Object class = "TextGrid"

0
3.5
<exists>
1
"IntervalTier"
"ada"
0
3.5
3
0
1.25
""
1.25
2.5
"hello ""there"""
2.5
3.5
""
'''


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_textgrid(encoding: str) -> None:
    entries = told(found("in/talk.TextGrid", GRID.encode(encoding)))
    assert entries == [("in/talk", 1.25, 2.5, "", "", "ada", "", 'hello "there"')]


def given(entries: Iterable[Found], *objects: str) -> tuple[dict[str, Any], dict[str, int]]:
    with matched(entries) as segments:
        for name in objects:
            segments.see(name)
        return dict(segments.entries()), dict(segments.strays())


def entry(recording: str, start: float | None = 0, end: float | None = 1, **fields: Any) -> Entry:
    return Entry(recording, f"ais://c/x.jsonl:{fields.pop('line', 1)}", start, end, **fields)


@pytest.mark.parametrize(
    ("name", "objects", "matches"),
    [
        ("in/a.wav", ["in/a.wav", "in/a.flac"], ["in/a.wav"]),
        ("in/a", ["in/a.wav", "b.wav"], ["in/a.wav"]),
        ("a", ["in/a.wav", "b/c.wav"], ["in/a.wav"]),
        ("a", ["in/a.wav", "a.flac"], ["a.flac"]),  # the better match
        ("a.b", ["in/a.b.wav"], ["in/a.b.wav"]),
        ("/data/corpus/in/a.wav", ["in/a.wav"], ["in/a.wav"]),
        ("./in/a.wav", ["in/a.wav"], ["in/a.wav"]),
        ("s3://corpus/in/a.wav", ["in/a.wav"], ["in/a.wav"]),
        ("../../a.wav", ["a.wav"], ["a.wav"]),
        ("a\udcff", ["a\udcff.wav"], ["a\udcff.wav"]),
        ("other", ["a.wav"], []),
        ("v1", ["v1.5/talk", "in/v1.wav"], ["in/v1.wav"]),  # the dot of a folder begins no extension
    ],
)
def test_a_name_in_a_file_is_that_of_a_recording(name: str, objects: list[str], matches: list[str]) -> None:
    entries, strays = given([entry(name)], *objects)
    assert list(entries) == matches
    assert len(strays) == (not matches)


def test_a_name_of_several_recordings_is_refused_for_each() -> None:
    entries, strays = given([entry("a"), entry("b")], "x/a.wav", "y/a.wav", "b.wav")
    assert entries["b.wav"] == {"segments": [{"start": 0.0, "end": 1.0}]}
    for name in ("x/a.wav", "y/a.wav"):
        assert "several recordings match the name 'a'" in entries[name]["refused"]
    assert not strays


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([entry("a", float("nan"), 1)], "a time that is not a number"),
        ([entry("a", 0, float("inf"))], "a time that is not a number"),
        ([entry("a", -1, 1)], "begins at -1 s, before its recording"),
        ([entry("a", 1, 1, id="u1")], "segment 'u1' in ais://c/x.jsonl:1 from 1 to 1 s is shorter than 0.01 s"),
        ([entry("a", 2, 1)], "from 2 to 1 s is shorter"),
        ([entry("a", 2, None)], "has one time only"),
        ([entry("a", -1, None, is_open=True)], "begins at -1 s, before its recording"),
        ([entry("a", text="x" * 1_000_001)], "1000001 characters"),
        ([entry("a", text="\ud800")], "is not Unicode"),
        ([entry("a"), entry("a", line=2)], "x.jsonl:2 repeats the segment in ais://c/x.jsonl:1"),
        ([entry("a", id="u"), entry("a", 3, 4, id="u")], "2 of its segments have the id 'u'"),
        ([entry("a", None, None, text="x"), entry("a")], "has a text of the whole recording"),
        ([entry("a", channel="1"), entry("a", 1, 2, channel="2")], "of the channels 1, 2"),
        ([entry("a", n, n + 1) for n in range(MOST_SEGMENTS + 1)], "more than 100000 segments"),
    ],
)
def test_wrong_segments_refuse_their_recording_alone(entries: list[Entry], reason: str) -> None:
    made, _ = given([*entries, entry("b")], "a.wav", "b.wav")
    assert reason in made["a.wav"]["refused"]
    assert made["b.wav"] == {"segments": [{"start": 0.0, "end": 1.0}]}


def test_speakers_may_overlap_and_segments_are_in_the_order_of_their_starts() -> None:
    entries, _ = given([entry("a", 1, 3, speaker="bob"), entry("a", 0, 2, speaker="ada")], "a.wav")
    assert [one["speaker"] for one in entries["a.wav"]["segments"]] == ["ada", "bob"]


def test_the_files_of_a_kaldi_folder_belong_together() -> None:
    files = {
        "d/segments": "u1 talk 0.5 2\nu2 talk 3 -1\n", "d/text": "u1 hello there\nu3 lost\n", "d/utt2spk": "u2 ada\n",
        "d/utt2lang": "u1 en\n", "d/wav.scp": "talk /mnt/corpus/2026/talk.flac\nother sph2pipe x.sph |\n",
        "e/text": "b whole text\n", "e/wav.scp": "b cat b.wav |\n",
    }  # fmt: skip
    entries, strays = given(
        [one for name, content in files.items() for one in found(name, content)], "2026/talk.flac", "b.wav"
    )
    assert entries == {
        "2026/talk.flac": {"segments": [
            {"start": 0.5, "end": 2.0, "id": "u1", "text": "hello there", "language": "en"},
            {"start": 3.0, "id": "u2", "speaker": "ada"},
        ]},
        "b.wav": {"segments": [{"id": "b", "text": "whole text"}]},
    }  # fmt: skip
    assert strays == {"u3": 1}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"d/text": "u1 hello\nu2 yes\nu1 bye\n"}, "the files in ais://c/d have several texts"),
        ({"d/text": "u1 hello\nu2 yes\n", "d/utt2spk": "u1 ada\nu1 bob\n"}, "of the utterance u1: keep one of each"),
        (
            {"d/text": "u1 hello\nu2 yes\n", "d/wav.scp": "u1 in/u1.wav\nu1 in/other.wav\n"},
            "wav.scp in ais://c/d has several paths of the recording u1: keep one",
        ),
    ],
)
def test_files_of_kaldi_that_contradict_themselves_refuse_their_recording_alone(
    files: dict[str, str], reason: str
) -> None:
    entries, _ = given(
        [one for name, content in files.items() for one in found(name, content)], "in/u1.wav", "in/u2.wav"
    )
    assert reason in entries["in/u1.wav"]["refused"]
    assert entries["in/u2.wav"] == {"segments": [{"id": "u2", "text": "yes"}]}


def test_the_name_of_a_file_need_not_be_unicode() -> None:
    entries, _ = given(found("d\udcff/text", "a yes\n"), "a.wav")
    assert entries["a.wav"] == {"segments": [{"id": "a", "text": "yes"}]}
    wrong = '{"recording": "a", "start": 2, "end": 1, "channel": "\\ud800"}'
    entries, _ = given(found("\udcff.jsonl", wrong), "a.wav")
    assert entries["a.wav"]["refused"].startswith("the segment in ais://c/\\udcff.jsonl:1 from 2 to 1 s is shorter")


def test_a_listed_file_that_aistore_does_not_return_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [StoredObject("d/a.txt", 5, "1/x"), StoredObject("d/b.txt", 3, "1/y")]
    monkeypatch.setattr(files, "list_aistore", lambda *_: iter(listed))
    monkeypatch.setattr(files, "read_many", lambda *_: iter([[("d/a.txt", b"hello"), ("d/b.txt", None)]]))
    with (
        pytest.raises(AIStoreTransientError, match=r"ais://c/d/b\.txt: AIStore lists this file and does not return"),
        files.segments_at(cast("Any", None), "ais://c/d/"),
    ):
        pytest.fail("the segments are incomplete")


def test_names_of_files_tell_their_formats() -> None:
    names = ("x/A.RTTM", "84-1.trans.txt", "a.txt", "data/segments", "a.wav", "context", "a.tar")
    assert [pattern_of(name) for name in names] == ["*.rttm", "*.trans.txt", "*.txt", "segments", None, None, None]
    assert place_of("ais://c/data/") == (place_of("ais://c/a.rttm")[0], "data/")
    with pytest.raises(SegmentsError, match=r"a file is named as one of \*\.rttm"):
        place_of("ais://c/talks.csv")


def test_an_index_returns_the_entry_of_each_object() -> None:
    names = [f"in/{n}\udcff\u20ac.wav" for n in range(3_000)]
    entries = sorted((given_index.slot(name), given_index.line(name, {"n": name[3:5]})) for name in names)
    file = io.BytesIO()
    given_index.write(file, iter(entries))
    content = file.getvalue()

    def entry_of(name: str) -> str | None:
        first, last = given_index.places_of(name)
        start, end = given_index.places(content[first : last + 1])
        return given_index.found(content[start:end], name)

    assert all(json.loads(entry_of(name) or "") == {"n": name[3:5]} for name in names)
    assert entry_of("other") is None
    with pytest.raises(ValueError, match="not two places"):
        given_index.places(b"x")


def test_lines_are_the_same_however_the_file_is_divided() -> None:
    content = "a\nä\r\n\nlast".encode()
    expected = [("f:1", "a"), ("f:2", "ä"), ("f:3", ""), ("f:4", "last")]
    for size in (1, 2, 100):
        pieces = [content[n : n + size] for n in range(0, len(content), size)]
        assert list(lines(pieces, "f")) == expected


def test_a_list_of_json_objects_is_a_file_of_segments() -> None:
    listed = json.dumps([{"recording": "a", "start": 0, "end": 1}, {"start": 1, "end": 2}]).encode()
    assert told(whole(listed, "ais://c/b.json", "b.json")) == [
        ("a", 0.0, 1.0, "", "", "", "", ""), ("b", 1.0, 2.0, "", "", "", "", ""),
    ]  # fmt: skip
