"""The ffmpeg command as a transformer: its results, its refusals, its restrictions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storeside.stack.speech_corpus import make_bad
from storeside.transformers import audio_transformers
from storeside.transformers.audio.ffmpeg import AudioFfmpeg
from storeside.transformers.audio.ffmpeg_settings import FORMATS, FfmpegSettings
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.transcoding import AudioError, probe, transcode
from storeside.transformers.isolation.decoders import environment as decoders_environment
from storeside.transformers.settings import Settings
from tests.unit.test_audio import FLAC, SPEECH, WAV, Watch, playlists, riff, s16, secret, sine, wav

pytestmark = pytest.mark.skipif(
    not shutil.which("ffmpeg") or not shutil.which("prlimit"), reason="apt-get install ffmpeg util-linux"
)
__all__ = ["secret"]  # a fixture

WAV_16K = {"format": "wav", "ac": 1, "ar": 16_000, "acodec": "pcm_s16le", "fflags": "+bitexact"}


def made_by(output: dict[str, Any], *filters: Any, limits: Limits | None = None, **bounds: int) -> AudioFfmpeg:
    environment = {"FFMPEG_OUTPUT": json.dumps(output), "FFMPEG_FILTERS": json.dumps(filters)}
    environment |= {f"FFMPEG_{name.upper()}": str(value) for name, value in bounds.items()}
    return AudioFfmpeg(FfmpegSettings.from_environment(environment), limits or Limits(), Settings())


@pytest.fixture(scope="module")
def to_wav() -> AudioFfmpeg:
    return made_by(WAV_16K)


# --- results


def test_it_writes_the_file_that_the_others_write(to_wav: AudioFfmpeg) -> None:
    wanted = bytes(transcode(str(SPEECH), AudioFormat()))
    assert to_wav.mime_type == "audio/wav"
    for source in (str(SPEECH), FLAC):
        assert bytes(to_wav.transform(source, "a.flac", "")) == wanted  # type: ignore[arg-type]


def test_filters_are_applied_in_order() -> None:
    transformer = made_by(
        {"format": "flac"},
        ["atempo", [2.0]],
        ["volume", {"volume": "-20dB"}],
        ["aeval", ["val(0)*2|0"], {"c": "stereo"}],
    )
    facts = probe(transformer.transform(wav(s16(sine(1.0, amplitude=0.5))), "", ""))
    assert (facts.codec, facts.channels) == ("flac", 2)
    assert facts.duration_seconds == pytest.approx(0.5, abs=0.05)
    assert facts.peak_dbfs == pytest.approx(-20.0, abs=1.0)


@pytest.mark.parametrize("value", ["mono|c0=c1", "mono|c0 = c1", "mono|c0=0*c0+c1"])
@pytest.mark.parametrize("form", ["positional", "named"])
def test_a_filter_gets_the_value_that_was_given(value: str, form: str) -> None:
    stereo = wav(s16(np.column_stack([sine(0.5, amplitude=0.5), sine(0.5, amplitude=0.05)])))
    given = [[value]] if form == "positional" else [{"args": value}]
    made = made_by({"format": "wav", "acodec": "pcm_s16le"}, ["pan", *given]).transform(stereo, "", "")
    assert (probe(made).channels, probe(made).peak_dbfs) == (1, pytest.approx(-26.0, abs=0.2))


@pytest.mark.parametrize(
    "text", ["a=b", "a:b", "it's", "a\\b", "a,b;c", "[a]", "a\\=b", ":", "='", "volume=2:eval=once"]
)
def test_ffmpeg_reads_each_character_of_a_value(text: str) -> None:
    """The error repeats what ffmpeg has read of the value."""
    with pytest.raises(ValueError, match="do not work together") as positional:
        made_by({"format": "wav"}, ["volume", [f"x{text}"]])
    with pytest.raises(ValueError, match="do not work together") as named:
        made_by({"format": "wav"}, ["volume", {"volume": f"x{text}"}])
    assert str(positional.value) == str(named.value)


@pytest.mark.parametrize("name", FORMATS)
def test_every_listed_format_can_be_written(name: str) -> None:
    transformer = made_by({"format": name, "ar": 48_000})
    assert transformer.mime_type == FORMATS[name]
    result = bytes(transformer.transform(WAV, "", ""))
    if name not in ("s16le", "s24le", "f32le"):
        assert probe(result).duration_seconds == pytest.approx(0.25, abs=0.1)


def test_the_environment_round_trips() -> None:
    settings = FfmpegSettings({"format": "mp3", "audio_bitrate": "64k"}, [("loudnorm", [], {"I": -16})], 60, 1 << 30)
    assert FfmpegSettings.from_environment(settings.environment()).environment() == settings.environment()


def test_the_name_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFMPEG_OUTPUT", json.dumps(WAV_16K))
    transformer = audio_transformers.audio_ffmpeg()
    assert transformer.transform(WAV, "", "") == transcode(WAV, AudioFormat())


# --- refusals


def test_a_large_recording_with_a_tag_is_not_copied_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, tagged = tmp_path / "plain", tmp_path / "tagged"
    plain.write_bytes(WAV)
    tagged.write_bytes(WAV + b"TAG" + bytes(125))
    monkeypatch.setenv("FFMPEG_OUTPUT", json.dumps(WAV_16K))
    limits = {"MAX_BODY": "1Gi", "WORKER_MEMORY_LIMIT": "2Gi"}
    assert decoders_environment(limits) == limits
    for size in (len(WAV), len(WAV) - 1):
        monkeypatch.setenv("MAX_BODY", str(size))
        transformer = audio_transformers.audio_ffmpeg()
        assert transformer.transform(str(plain), "", "") == transcode(WAV, AudioFormat())
        if size == len(WAV):
            assert transformer.transform(str(tagged), "", "") == transcode(WAV, AudioFormat())
            continue
        reason = rf"128 bytes follow the recording \(.*\), .* more than {size} bytes: remove these .* raise MAX_BODY"
        with pytest.raises(AudioError, match=reason):
            transformer.transform(str(tagged), "", "")


@pytest.mark.parametrize(
    ("output", "filters", "message"),
    [
        ({}, [], "format 'None' is not one of adts"),
        ({"format": "hls"}, [], "format 'hls' is not one of"),
        ({"format": "tee"}, [], "format 'tee' is not one of"),
        ({"format": "wav", "filename": "/etc/passwd"}, [], "'filename' is not one of"),
        ({"format": "wav", "vstats_file": "x"}, [], "'vstats_file' is not one of"),
        ({"format": "wav", "ac": [1, 2]}, [], r"ac is \[1, 2\] instead of"),
        ({"format": "wav"}, [["amovie", ["/etc/passwd"]]], "'amovie' is not one of"),
        ({"format": "wav"}, [["azmq"]], "'azmq' is not one of"),
        ({"format": "wav"}, [["arnndn", {"m": "/x"}]], "'arnndn' is not one of"),
        ({"format": "wav"}, [["anull[x];amovie"]], "is not one of"),
        ({"format": "wav"}, [["volume", {"/volume": "/etc/passwd"}]], "volume has no option '/volume'"),
        ({"format": "wav"}, [["volume", {"volume": [1]}]], r"volume is \[1\] instead of"),
        ({"format": "wav"}, ["volume"], r"'volume' does not have the form \[name, \[arguments\]"),
        ({"format": "wav"}, [["atempo", [1_000_000]]], "do not work together: ffmpeg: "),
        ({"format": "wav", "acodec": "nonsense"}, [], "do not work together: ffmpeg: Unknown encoder 'nonsense'"),
        ({"format": "mp3", "acodec": "flac"}, [], "do not work together: ffmpeg: "),
    ],
)
def test_command_lines_that_do_not_work_say_why(output: dict[str, Any], filters: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made_by(output, *filters)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FFMPEG_OUTPUT": "{"}, "FFMPEG_OUTPUT is not JSON"),
        ({"FFMPEG_OUTPUT": "[]"}, "FFMPEG_OUTPUT must be a JSON object"),
        ({"FFMPEG_OUTPUT": '{"format": "wav"}', "FFMPEG_SECONDS": "0"}, "FFMPEG_SECONDS and FFMPEG_MEMORY_BYTES"),
    ],
)
def test_settings_that_make_no_sense_say_why(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FfmpegSettings.from_environment(environment)


def test_an_injected_graph_is_only_a_value(secret: Path) -> None:
    watch = Watch(secret)
    with pytest.raises(ValueError, match="do not work together"):
        made_by({"format": "wav"}, ["volume", [f"1[x];amovie={secret}[y];[x][y]amix"]])
    assert not watch.opened()


def test_a_filter_that_drops_silence_is_no_mistake() -> None:
    transformer = made_by(WAV_16K, ["silenceremove", {"start_periods": 1, "start_threshold": "-50dB"}])
    assert probe(transformer.transform(str(SPEECH), "", "")).samples > 16_000
    with pytest.raises(AudioError, match="the result has no audio samples"):
        transformer.transform(wav(s16(sine(1.0, amplitude=0.0))), "", "")


def test_bad_objects_are_refused(to_wav: AudioFfmpeg, tmp_path: Path) -> None:
    for name in make_bad(tmp_path):
        for source in (str(tmp_path / name), (tmp_path / name).read_bytes()):
            with pytest.raises(AudioError) as caught:
                to_wav.transform(source, name, "")
            assert "\n" not in str(caught.value)
            assert "0x" not in str(caught.value)


def test_a_truncated_wav_is_refused(to_wav: AudioFfmpeg) -> None:
    with pytest.raises(AudioError, match="truncated: 16000 of 32000 declared bytes"):
        to_wav.transform(wav(s16(sine()))[:-16_000], "", "")


@pytest.mark.parametrize("kind", playlists(Path("/x")))
def test_playlists_open_no_other_file(to_wav: AudioFfmpeg, secret: Path, kind: str) -> None:
    playlist = secret.with_name("take.m3u8")
    playlist.write_text(playlists(secret)[kind])
    watch = Watch(secret)
    for source in (str(playlist), playlist.read_bytes()):
        with pytest.raises(AudioError, match="ffmpeg: "):
            to_wav.transform(source, "take.m3u8", "")
    assert not watch.opened()


# --- limits


def test_results_beyond_the_limit_are_refused() -> None:
    transformer = made_by(WAV_16K, limits=Limits(result_bytes=100_000))
    assert transformer.transform(WAV, "", "")
    with pytest.raises(AudioError, match="more than 100000 bytes: raise AUDIO_MAX_RESULT_BYTES"):
        transformer.transform(str(SPEECH), "", "")


def test_endless_work_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.transformers.audio.ffmpeg._PATIENCE", 300)  # on a busy machine
    with pytest.raises(ValueError, match="more than 1 s of CPU: raise FFMPEG_SECONDS"):
        made_by({"format": "s16le"}, ["aloop", {"loop": -1, "size": 48_000}], seconds=1)


def test_the_address_space_is_bounded() -> None:
    with pytest.raises(ValueError, match="do not work together: ffmpeg: "):
        made_by(WAV_16K, memory_bytes=200 << 20)


def instead_of_ffmpeg(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the command by a script."""
    tool = folder / "ffmpeg"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_command_that_waits_is_ended_and_may_be_tried_again(
    to_wav: AudioFfmpeg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformer = made_by(WAV_16K, seconds=1)
    marker = tmp_path / "pid"
    instead_of_ffmpeg(tmp_path, f"echo $$ > {marker}; exec sleep 100", monkeypatch)
    with pytest.raises(TimeoutError, match="used less than 1 s of CPU in 4 s"):
        transformer.transform(WAV, "", "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


@pytest.mark.parametrize(
    ("name", "error"), [(signal.SIGKILL, ChildProcessError), (signal.SIGSEGV, AudioError)], ids=["killed", "crashed"]
)
def test_a_crash_is_the_objects_fault_and_a_kill_is_not(
    to_wav: AudioFfmpeg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: signal.Signals, error: type[Exception]
) -> None:
    instead_of_ffmpeg(tmp_path, f"kill -{name.value} $$", monkeypatch)
    with pytest.raises(error, match=r"killed|crashed with SIGSEGV"):
        to_wav.transform(WAV, "", "")


def test_the_command_gets_no_secrets(to_wav: AudioFfmpeg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("FFREPORT", f"file={tmp_path}/report")
    seen = tmp_path / "environment"
    instead_of_ffmpeg(tmp_path, f"env > {seen}; exit 1", monkeypatch)
    with pytest.raises(AudioError, match="ffmpeg: it failed without a message"):
        to_wav.transform(WAV, "", "")
    assert {line.partition("=")[0] for line in seen.read_text().splitlines()} <= {
        "PATH",
        "LD_LIBRARY_PATH",
        "PWD",
        "_",
        "SHLVL",
        "OLDPWD",
    }


def test_without_the_command_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no ffmpeg command: apt-get install ffmpeg"):
        made_by(WAV_16K)


def test_results_stay_and_descriptors_do_not(to_wav: AudioFfmpeg) -> None:
    before = len(os.listdir("/proc/self/fd"))
    results = [to_wav.transform(WAV, "", "") for _ in range(3)]
    for content in (b"text", riff(b"", 1, 16_000, 2)):
        with pytest.raises(AudioError):
            to_wav.transform(content, "", "")
    assert results[0] == results[1] == results[2] == transcode(WAV, AudioFormat())
    del results
    assert len(os.listdir("/proc/self/fd")) <= before


def test_mp4_with_its_index_behind_needs_a_command_that_can_go_back(to_wav: AudioFfmpeg) -> None:
    m4a = bytes(transcode(str(SPEECH), AudioFormat("m4a", "aac")))
    if to_wav._input == "fd:":
        assert probe(to_wav.transform(m4a, "", "")).samples
    else:
        with pytest.raises(AudioError, match="ffmpeg: "):
            to_wav.transform(m4a, "", "")
    front = made_by({"format": "ipod", "movflags": "+faststart"}).transform(
        m4a if to_wav._input == "fd:" else WAV, "", ""
    )
    assert probe(to_wav.transform(bytes(front), "", "")).samples


def test_the_control_ffmpeg_alone_does_follow_a_playlist(secret: Path) -> None:
    watch = Watch(secret)
    playlist = secret.with_name("list.ffconcat")
    playlist.write_text(playlists(secret)["concat"])
    subprocess.run(["ffmpeg", "-v", "error", "-safe", "0", "-i", str(playlist), "-f", "null", "-"], check=True)
    assert watch.opened(), "the watch sees nothing, so the test above proves nothing"
