#!/usr/bin/env bash
# libav: short recordings of Vorbis in Ogg come back too short or too long.
#
# An Ogg Vorbis stream states its exact length: the position of its last page. The encoder pads the last packet, and a
# decoder cuts it at that position. The reference decoder returns exactly as many samples as were written. libav does
# so only if the audio has more than one page, that is, if the recording lasts some seconds. If its first page of audio
# is also the last, libav counts the delay of the first block as samples, and then either cuts 128 (or 256) real
# samples too many, or cuts nothing and returns up to about 1,000 samples of padding. Nothing is reported. Utterances
# are mostly that short, so durations, and samples aligned with a transcript, differ from what was recorded.
#
# Seen with PyAV 18.1.0 (libavcodec 62) against soundfile 0.14.0 (libsndfile 1.2.2 with libvorbis), on Python 3.11 and
# Linux x86-64; the ffmpeg command 5.1.9 returns the same lengths.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import platform
import sys

import av
import numpy
import soundfile

print("Python", platform.python_version(), "PyAV", av.__version__, "libavcodec", av.library_versions["libavcodec"],
      "soundfile", soundfile.__version__, soundfile.__libsndfile_version__)  # fmt: skip
changed = False
# Written samples, and those that libav returned; the last recording has two pages.
for samples, seen in ((44_100, 43_972), (16_000, 16_960), (100, 128), (300_000, 300_000)):
    soundfile.write("tone.ogg", 0.4 * numpy.sin(numpy.arange(samples) / 20), 44_100, format="OGG", subtype="VORBIS")
    reference, _ = soundfile.read("tone.ogg")
    with av.open("tone.ogg") as file:
        decoded = numpy.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    common = min(len(decoded), len(reference))
    difference = abs(decoded[:common] - reference[:common]).max()
    print(f"{samples} samples written: libvorbis reads {len(reference)}, libav {len(decoded)}; what both have differs by"
          f" at most {difference:.1e} of full scale")  # fmt: skip
    changed |= len(reference) != samples or len(decoded) != seen or difference > 1e-4
sys.exit("the behaviour has changed" if changed else None)
PYTHON
