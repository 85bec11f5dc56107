import hashlib
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from storeside.stack.settings import StackError
from storeside.stack.speech_corpus import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Corpus,
    make,
    make_bad,
    own_audio,
)

SPEECH = Path(__file__).resolve().parents[1] / "data" / "speech"


def decode(path: Path) -> tuple[np.ndarray, int]:
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        planes = [
            frame.to_ndarray().reshape(-1, stream.channels if not frame.format.is_planar else 1)
            for frame in container.decode(stream)
        ]
        return (np.concatenate(planes) if planes else np.empty((0, 1))), stream.rate


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make(SPEECH, tmp_path_factory.mktemp("corpus"), 20)


def test_shipped_recordings_are_small_and_described() -> None:
    recordings = sorted(SPEECH.glob("*.flac"))
    assert len(recordings) == 5
    assert sum(path.stat().st_size for path in recordings) <= 1_000_000
    readme = (SPEECH / "README.md").read_text()
    for path in recordings:
        audio, rate = decode(path)
        assert rate == 16_000
        assert f"| `{path.name}` | {len(audio) / rate:.2f} |" in readme


def test_forms_and_names(corpus: Corpus) -> None:
    assert [item.name for item in corpus.objects[:2]] == [
        "librivox/0000/austen-00000.flac",
        "librivox/0000/austen-00001.flac",
    ]
    assert corpus.objects[19].name == "librivox/0001/austen-00019.flac"
    assert [(item.sample_rate, item.channels) for item in corpus.objects].count((44_100, 2)) == 1
    assert sorted({item.codec for item in corpus.objects}) == ["flac", "libmp3lame", "pcm_s16le"]
    assert sum(item.codec == "flac" for item in corpus.objects) == 16


def test_record_says_what_was_written(corpus: Corpus) -> None:
    for item in corpus.objects:
        content = (corpus.folder / item.name).read_bytes()
        assert (item.bytes, item.checksum) == (len(content), hashlib.sha256(content).hexdigest())
        audio, rate = decode(corpus.folder / item.name)
        assert (len(audio), rate) == (item.samples, item.sample_rate)
        assert audio.shape[1] == item.channels
        assert SHORTEST_SECONDS - 0.01 <= len(audio) / rate <= LONGEST_SECONDS + 0.01
        assert np.abs(audio.astype(float)).max() > (100 if audio.dtype == np.int16 else 0.01)
    assert corpus.seconds == pytest.approx(sum(item.samples / item.sample_rate for item in corpus.objects))
    assert corpus.bytes == sum(path.stat().st_size for path in corpus.folder.rglob("*.*"))


def test_objects_differ_and_follow_the_seed(corpus: Corpus, tmp_path: Path) -> None:
    assert len({item.checksum for item in corpus.objects}) == 20
    again = make(SPEECH, tmp_path / "again", 5)
    other = make(SPEECH, tmp_path / "other", 5, seed=1)
    assert again.objects == corpus.objects[:5]
    assert not {item.checksum for item in other.objects} & {item.checksum for item in again.objects}


def test_stereo_channels_differ(corpus: Corpus) -> None:
    audio, _ = decode(corpus.folder / corpus.objects[1].name)
    assert np.abs(audio[:, 0]).max() > np.abs(audio[:, 1]).max() > 0


def test_nothing_asked_for_gives_nothing(tmp_path: Path) -> None:
    assert make(SPEECH, tmp_path, 0) == Corpus(tmp_path, ())


def test_unreadable_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.wav").write_text("not audio")
    with pytest.raises(StackError, match=r"notes\.wav"):
        make(tmp_path, tmp_path / "out", 1)


@pytest.mark.parametrize(
    "name", ["empty.flac", "text.flac", "truncated.flac", "corrupt-frames.flac", "no-frames.wav"]
)
def test_bad_source_is_named(tmp_path: Path, name: str) -> None:
    make_bad(tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "bad" / name).rename(source / name)
    with pytest.raises(StackError, match=name):
        make(source, tmp_path / "out", 1)


@pytest.mark.parametrize("seconds", [0.5, 3])
def test_source_without_enough_sound_is_refused(tmp_path: Path, seconds: float) -> None:
    with wave.open(str(tmp_path / "silence.wav"), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(int(seconds * 32_000)))
    with pytest.raises(StackError, match="silent or shorter"):
        make(tmp_path, tmp_path / "out", 1)


def test_bad_objects_do_not_decode_whole(tmp_path: Path) -> None:
    reasons = make_bad(tmp_path)
    assert all(reasons.values())
    assert sorted(reasons) == sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()
    )
    for name in reasons:
        try:
            audio, _ = decode(tmp_path / name)
        except (av.FFmpegError, IndexError):
            continue
        assert len(audio) < 8 * 16_000, name
        if name != "bad/damaged-middle.flac":
            assert len(audio) == 0, name


def test_bad_objects_are_what_their_reasons_say(tmp_path: Path) -> None:
    make_bad(tmp_path)
    content = {path.name: path.read_bytes() for path in (tmp_path / "bad").iterdir()}
    assert content["empty.flac"] == b""
    assert content["text.flac"].isascii()
    assert content["no-samples.flac"][:4] == b"fLaC"
    assert len(content["no-samples.flac"]) == 4 + 4 + 34
    assert len(content["truncated.flac"]) < 0.6 * len(content["corrupt-frames.flac"])
    with av.open(str(tmp_path / "bad" / "corrupt-frames.flac")) as container:
        assert container.duration == 8_000_000
    with av.open(str(tmp_path / "bad" / "no-frames.wav")) as container:
        assert container.streams.audio[0].rate == 16_000


def test_own_audio_goes_by_suffix_in_any_case(tmp_path: Path) -> None:
    for name in ("b.FLAC", "a.wav", "deep/er/c.Mp3", "d.txt", ".hidden.wav", ".cache/e.wav", "flac"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [str(path.relative_to(tmp_path)) for path in own_audio(tmp_path)] == [
        "a.wav",
        "b.FLAC",
        "deep/er/c.Mp3",
    ]


def test_own_audio_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"has no audio file with one of the suffixes .*\.flac.*\.wma"):
        own_audio(tmp_path)
    with pytest.raises(StackError, match="is not a folder"):
        own_audio(tmp_path / "absent")
