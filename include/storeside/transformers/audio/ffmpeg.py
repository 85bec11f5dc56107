"""Audio through the ffmpeg command: one process per object, with every allowed filter and encoder of ffmpeg.

For a short object, starting a process costs several times what `transcoding` needs: use this transform only for
features that `AudioFormat` lacks.

The command receives no file name. It reads standard input, writes to memory, cannot open any other input, and reads
only containers that cannot refer to other files. The kernel enforces its limits of CPU time, memory and output.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ffmpeg
from ffmpeg.nodes import FilterNode

from storeside.transformers.isolation.decoders import COMMANDS
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data, Source

from . import errors
from .errors import AudioError
from .ffmpeg_settings import FfmpegSettings
from .input import CONTAINERS, Input, open_input
from .limits import Limits

_PIECE_BYTES = 1 << 20
# The characters that end a value of a filter.
_SPECIAL = "\\'=:"
_REPORTED_BYTES = 64 << 10  # from the end of the command's messages
_ERROR_LINE = re.compile(r"^(?:\[[^\]\n]* @ 0x[0-9a-f]+\] )*\[(?:error|fatal|panic)\] (.+)$", re.MULTILINE)
# Messages that report an error without its reason.
_FOLLOWING = re.compile(
    r"^(Conversion failed|Error (opening|initializing|while|submitting|processing|sending|parsing)|Terminating)"
)


class _NothingComesOut(AudioError):
    pass


class AudioFfmpeg:
    """Runs one ffmpeg command for each object.

    A recording in a file is copied into memory if a tag or other bytes follow it; `server` limits its size.
    The constructor tests the command on a second of silence. Raises ValueError if that fails, and FileNotFoundError
    without ``ffmpeg`` or ``prlimit`` (part of util-linux).
    """

    needs = frozenset((COMMANDS,))
    opens_source = True

    def __init__(self, settings: FfmpegSettings, limits: Limits, server: Settings) -> None:
        for tool in ("ffmpeg", "prlimit"):
            if not shutil.which(tool):
                raise FileNotFoundError(f"there is no {tool} command: apt-get install ffmpeg util-linux")
        self.mime_type = settings.mime_type
        self._settings = settings
        self._limits = limits
        self._server = server
        self._input = _input_url()
        try:
            self.transform(_second_of_silence(), "", "")
        except _NothingComesOut:
            pass  # a valid command may drop silence
        except AudioError as e:
            raise ValueError(f"FFMPEG_FILTERS and FFMPEG_OUTPUT do not work together: {e}") from e

    def transform(self, source: Source, _name: str, _arguments: str) -> Data:
        """Return the command's result for the object.

        Raises AudioError if the command fails or exceeds a limit that depends only on the object, TimeoutError if it
        takes too long, and ChildProcessError if another cause kills it.
        """
        before = _children_seconds()
        with open_input(source) as checked, _memory_file() as result, _memory_file() as report:
            if isinstance(source, str) and checked.stated.end == checked.size and not checked.stated.head:
                status = self._run(checked.fileno(), result, report)
            else:
                if isinstance(source, str):
                    self._require_small(checked)
                with _memory_file(iter(lambda: checked.read(_PIECE_BYTES), b"")) as content:
                    status = self._run(content, result, report)
            said = _tail(report)
            if status:
                raise self._failure(status, said, _children_seconds() - before)
            size = os.fstat(result).st_size
            if not size or "nothing was encoded" in said:
                raise _NothingComesOut("ffmpeg: the result has no audio samples")
            return memoryview(mmap.mmap(result, size, prot=mmap.PROT_READ))

    def _require_small(self, recording: Input) -> None:
        """Raise AudioError if a recording in a file, which other bytes follow, is too large for a copy in memory."""
        stated, most = recording.stated, self._server.largest_body
        if stated.end - stated.start > most:
            why, remedy = (
                f"{recording.size - stated.end} bytes follow the recording ({stated.ignored})",
                "remove these bytes",
            )
            if stated.head:
                why, remedy = "its header is replaced for ffmpeg", "convert it to WAV"
            raise AudioError(
                f"{why}, so it must fit into memory, and it has more than {most} bytes: {remedy}, or raise"
                f" {self._server.body_limit}"
            )

    def _run(self, stdin: int, result: int, report: int) -> int:
        bounds = {
            "cpu": self._settings.seconds,
            "as": self._settings.memory_bytes,
            "fsize": self._limits.result_bytes,
            "core": 0,
        }
        command = ["prlimit", *(f"--{name}={value}" for name, value in bounds.items()), *self._command(result)]
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=report,
            pass_fds=[result],
            env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
        )
        try:
            return process.wait(_PATIENCE * self._settings.seconds)
        except subprocess.TimeoutExpired as e:
            raise TimeoutError(f"ffmpeg used less than {self._settings.seconds} s of CPU in {e.timeout:g} s") from e
        finally:
            process.kill()
            process.wait()

    def _command(self, result: int) -> list[str]:
        audio: Any = ffmpeg.input(
            self._input,
            format_whitelist=CONTAINERS,
            protocol_whitelist="pipe,fd",
            err_detect="explode+crccheck",
            threads=1,
        )["a:0"]
        for name, positional, named in self._settings.filters:
            audio = _Filter(audio, name, args=positional, kwargs=named).stream()
        output = dict(self._settings.output)
        if keeps := self._settings.kept_channels:
            # An equal number of channels stays unchanged; ffmpeg's -ac would mix them for another layout.
            audio = audio.filter("aformat", channel_layouts=f"{keeps}C")
            output.pop("ac")
        # A file by its descriptor's path, so that muxers can seek back to write sizes; a pipe does not allow that.
        made = ffmpeg.output(audio, f"file:/proc/self/fd/{result}", threads=1, **output)
        made = made.global_args("-nostdin", "-hide_banner", "-xerror", "-loglevel", "level+warning", "-y")
        command: list[str] = made.compile()
        return command

    def _failure(self, status: int, said: str, cpu_seconds: float) -> Exception:
        if status == -signal.SIGXFSZ:
            return errors.too_large(self._limits.result_bytes)
        if status == -signal.SIGKILL:
            # The kernel counts CPU time in ticks, which on a busy machine can exceed the time that was used.
            if cpu_seconds > 0.5 * self._settings.seconds:
                return AudioError(f"more than {self._settings.seconds} s of CPU: raise FFMPEG_SECONDS")
            return ChildProcessError("ffmpeg was killed, possibly because the node ran out of memory")
        if status < 0:
            return AudioError(f"ffmpeg crashed with {signal.Signals(-status).name}")
        return AudioError(f"ffmpeg: {_reason(said)}")


class _Filter(FilterNode):  # type: ignore[misc] # ffmpeg-python is untyped
    """A filter whose positional values are escaped as often as ffmpeg unescapes them, like its named values.

    ffmpeg-python 0.2.0 escapes them once more, so that ``pan`` gets ``mono|c0\\=c1`` instead of ``mono|c0=c1``.
    """

    def _get_filter(self, outgoing_edges: Any) -> str:
        values = [_escaped(str(value), _SPECIAL) for value in self.args]
        values += [f"{name}={_escaped(str(value), _SPECIAL)}" for name, value in sorted(self.kwargs.items())]
        return _escaped(f"{self.name}={':'.join(values)}" if values else self.name, "\\'[],;")


def _escaped(text: str, special: str) -> str:
    return text.translate({ord(character): f"\\{character}" for character in special})


# Elapsed time that a command may take on a busy machine, as a multiple of its CPU time limit.
_PATIENCE = 4


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _input_url() -> str:
    """Return ffmpeg's URL for standard input: ``fd:``, since FFmpeg 6, can seek back; ``pipe:`` cannot.

    Without seeking back, ffmpeg reads only MP4 files that start with their index (faststart).
    """
    protocols = subprocess.run(
        ["ffmpeg", "-hide_banner", "-loglevel", "error", "-protocols"], capture_output=True, text=True, check=True
    ).stdout
    return "fd:" if "fd" in protocols.partition("Output:")[0].split() else "pipe:0"


@contextmanager
def _memory_file(content: Iterable[bytes] = ()) -> Iterator[int]:
    """Yield the descriptor of a nameless file in memory with this content, at its start."""
    descriptor = os.memfd_create("storeside", os.MFD_CLOEXEC)
    try:
        for piece in content:
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _tail(report: int) -> str:
    size = os.fstat(report).st_size
    return os.pread(report, _REPORTED_BYTES, max(0, size - _REPORTED_BYTES)).decode(errors="replace")


def _reason(said: str) -> str:
    """Return the last message that contains the reason of the error."""
    lines = _ERROR_LINE.findall(said) or said.splitlines()
    telling = [line for line in lines if not _FOLLOWING.match(line)]
    last: str = (telling or lines or ["it failed without a message"])[-1]
    return last.removeprefix("pipe:0: ").removeprefix("fd:: ")


def _second_of_silence() -> bytes:
    head = struct.pack("<HHIIHH", 1, 2, 48_000, 192_000, 4, 16)
    return b"RIFF" + struct.pack("<I", 192_036) + b"WAVEfmt " + struct.pack("<I", 16) + head + _SILENCE


_SILENCE = b"data" + struct.pack("<I", 192_000) + bytes(192_000)
