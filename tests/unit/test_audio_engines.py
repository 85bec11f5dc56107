"""The table of engines: each cell is decoded by its engine, to the samples of the other one and of FFmpeg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from storeside.transformers.audio import engines, libav_engine, native_engine, transcoding
from storeside.transformers.audio.engines import NATIVE, NONE, PYAV, TABLE, Row
from storeside.transformers.audio.facts import stated_of
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.transcoding import AudioError
from tests.fuzz import audio_files as corpus
from tests.fuzz import encoders
from tests.fuzz.differential import audio_reference as reference
from tests.fuzz.encoders import FORMS, Form
from tests.unit.test_audio import needs_native
from tests.unit.test_audio_native import is_of_the_same_libraries

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audio.md"
PROGRAMS = pytest.mark.skipif(bool(encoders.missing()), reason=f"not installed: {' '.join(encoders.missing())}")
# Made in this process, or, if that is not possible, by the program that this project needs anyway.
OWN = [form for program in ("libav of PyAV", "ffmpeg") for form in FORMS if form.program == program]
# The samples that ffmpeg cuts elsewhere: the length that the container states, and the delay of a block of Vorbis.
BEYOND = 16_384


def row_of(form: Form, content: bytes, rate: int) -> Row:
    tag = form.note if form.note in ("ipcm", "fpcm") else ""
    return engines.row(form.demuxer, form.codec, form=stated_of(content).form, rate=rate, tag=tag)


def samples(result: object) -> np.ndarray:
    content = bytes(result)  # type: ignore[call-overload]
    return np.frombuffer(content[content.index(b"data") + 8 :], "<i2").astype(int)


def cells() -> dict[str, list[Form]]:
    """One form of each cell, by container."""
    found: dict[tuple[str, str, str], Form] = {}
    for form in OWN:
        found.setdefault((form.container, form.codec, form.note), form)
    return {
        container: [form for (where, _, _), form in found.items() if where == container] for container, _, _ in found
    }


CELLS = cells()


@needs_native
@pytest.mark.parametrize("container", CELLS)
def test_each_cell_is_decoded_by_its_engine_to_what_the_others_decode(container: str, tmp_path: Path) -> None:
    made = [
        (form, form.rates[-1], form.make(encoders.sweep(2 * form.frame + 77, form.rates[-1], 1), form.rates[-1]))
        for form in CELLS[container]
    ]
    targets = [AudioFormat(sample_rate=48_000 if form.codec == "opus" else rate) for form, rate, _ in made]
    requests = [
        reference.Request(content, target.sample_rate, 1, mixes=False)
        for (_, _, content), target in zip(made, targets, strict=True)
    ]
    theirs = reference.samples(tmp_path, requests) if is_of_the_same_libraries() else [None] * len(made)
    for (form, rate, content), target, ffmpeg in zip(made, targets, theirs, strict=True):
        row = row_of(form, content, rate)
        ours = samples(transcoding.transcode(content, target))
        pyav = samples(libav_engine.transcode(content, target, Limits()))
        assert len(ours) == len(pyav) == transcoding.probe(content).samples, form
        if row.engine == PYAV:
            with pytest.raises(native_engine.NotSupported):
                native_engine.transcode(content, target, Limits())
            assert ours.tolist() == pyav.tolist(), form
        else:
            assert row.engine == NATIVE
            assert ours.tolist() == samples(native_engine.transcode(content, target, Limits())).tolist(), form
            assert np.abs(ours - pyav).max() <= (1 if "1 step" in row.reason else 0), form
            require_same(form, ours, ffmpeg)


def require_same(form: Form, ours: np.ndarray, ffmpeg: bytes | None) -> None:
    if ffmpeg is not None:
        full = np.frombuffer(ffmpeg, "<i2").astype(int)
        common = min(len(full), len(ours))
        assert abs(len(full) - len(ours)) <= BEYOND, form
        assert ours[:common].tolist() == full[:common].tolist(), form


@PROGRAMS
@needs_native
@pytest.mark.exhaustive
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_files_of_every_program_have_the_samples_and_the_length_that_were_given(form: Form) -> None:
    found = corpus.Found()
    for channels in form.channels:
        for count in (1, form.frame + 1, form.rates[0]):
            found.add(corpus.Case(form, count, form.rates[0], channels))
    assert found.files
    assert (found.differences, found.lengths) == ([], [])


def test_the_last_row_decides_what_no_test_compares() -> None:
    last = TABLE[-1]
    assert engines.row("ape", "ape") == engines.row("asf", "wmapro") == last
    assert last.engine == PYAV
    assert engines.row("mov,mp4,m4a,3gp,3g2,mj2", "aac").engine == NATIVE
    assert engines.row("mp3", "mp3float").engine == NATIVE
    assert engines.row("mp3", "mp3float", rate=24_000).engine == PYAV


def test_every_cell_has_an_encoder_and_every_encoder_a_cell() -> None:
    def known(rows: Sequence[Row]) -> set[tuple[str, str]]:
        return {(demuxer, codec) for row in rows for demuxer in row.demuxers for codec in row.codecs}

    tried = {(form.demuxer, form.codec) for form in FORMS}
    decoded = known([row for row in TABLE if row.engine != NONE])
    assert decoded - tried == {("eac3", "ac3"), ("ac3", "eac3")}, "libav names the container by the codec"
    for demuxer, codec in tried:
        assert engines.row(demuxer, codec) != TABLE[-1], (demuxer, codec)


def test_a_codec_that_no_engine_decodes_is_refused_with_the_reason() -> None:
    made = encoders._ffmpeg("matroska", "tta")(encoders.sweep(44_100, 44_100, 1), 44_100)
    for read in (transcoding.probe, lambda content: transcoding.transcode(content, AudioFormat())):
        with pytest.raises(AudioError, match="tta in Matroska is not supported, because libav takes the length from"):
            read(made)


def test_docs_have_the_table() -> None:
    page = PAGE.read_text()
    for row in TABLE:
        assert line(row) in page, line(row)


def line(row: Row) -> str:
    codecs = ", ".join(f"`{codec}`" for codec in row.codecs) or "all"
    special = row.form or (f"{row.rate} Hz" if row.rate else f"`{row.tag}`" if row.tag else "")
    return f"| {row.container} | {codecs}{f', {special}' if special else ''} | {row.engine} | {row.reason} |"


if __name__ == "__main__":  # the lines for docs/audio.md
    print(*map(line, TABLE), sep="\n")
