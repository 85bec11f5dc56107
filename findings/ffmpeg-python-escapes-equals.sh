#!/usr/bin/env bash
# ffmpeg-python: a positional value of a filter with "=" reaches ffmpeg escaped too often, and pan is refused.
#
# One would expect that `stream.filter("pan", "mono|c0=c1")` runs the filter pan=mono|c0=c1, which takes the right
# channel of telephone stereo: positional values are ffmpeg's own syntax. Instead, ffmpeg-python escapes the "=" of
# positional values for two levels of ffmpeg's parser, of which the filter reads only one back: it sees a backslash
# before the "=", and ffmpeg refuses the command with "Invalid argument". The channels named in the message look right,
# so the mistake is searched in the recording. The same text as the named option `args` works.
#
# Seen with ffmpeg-python 0.2.0 and ffmpeg 7.0.2 of imageio-ffmpeg 0.6.0, on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ffmpeg-python==0.2.0 imageio-ffmpeg==0.6.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import platform
import struct
import subprocess
import sys
import wave

import ffmpeg
import imageio_ffmpeg

program = imageio_ffmpeg.get_ffmpeg_exe()
print("Python", platform.python_version(), "ffmpeg", imageio_ffmpeg.get_ffmpeg_version())
with wave.open("stereo.wav", "wb") as file:
    file.setnchannels(2)
    file.setsampwidth(2)
    file.setframerate(8_000)
    file.writeframes(b"".join(struct.pack("<hh", number % 200, -(number % 100)) for number in range(8_000)))


def run(stream):
    """Return ffmpeg's status, the filter that it was given, and its last line of errors."""
    command = ffmpeg.output(stream, "mono.wav").overwrite_output().compile(cmd=program)
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, command[command.index("-filter_complex") + 1], done.stderr.strip().splitlines()[-1][:100]


recording = ffmpeg.input("stereo.wav")
positional, named = recording.filter("pan", "mono|c0=c1"), recording.filter("pan", args="mono|c0=c1")
failed = run(positional)
print("positional:", *failed, sep="\n  ")
worked = run(named)
print("named:", *worked[:2], sep="\n  ")
with wave.open("mono.wav") as file:
    right = file.getnchannels() == 1 and file.readframes(2) == struct.pack("<hh", 0, -1)
print("the named option gives the right channel:", right)
sys.exit(None if failed[0] and not worked[0] and right else "the behaviour has changed")
PYTHON
