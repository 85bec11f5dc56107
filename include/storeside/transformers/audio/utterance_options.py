"""Options of the transform that cuts recordings into utterances; this module imports quickly."""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from storeside.transformers.contract.webdataset_names import unread

from .formats import EXTENSIONS, AudioFormat

# Samples per second of the audio in which speech is detected, and samples of one decision of the detector (32 ms).
RATE, WINDOW = 16_000, 512
_PREFIX = "AUDIO_UTTERANCE_"
_SHARD = "tar"
# Lhotse's loader of batches divides the URL of a member after the first of these endings that the URL contains, in
# this order, where a slash follows (lhotse 1.33, `lhotse.ais.batch_loader.AISBatchLoader`).
_ARCHIVES = (".tar.gz", ".tar", ".tgz")


@dataclass(frozen=True)
class UtteranceOptions:
    """How speech becomes utterances. All times are in seconds of the recording.

    Speech begins with a window of 32 ms whose probability of speech is at least `threshold` (0 to 1), and ends before
    one below `threshold` minus 0.15. Speech after a pause of less than `merge_gap_seconds` belongs to the same
    utterance. Speech of less than `min_seconds` is left out. Longer speech than `max_seconds` is divided at its least
    probable window. `padding_seconds` of the recording are added at both ends, but at most half of the pause to the
    next utterance; `max_seconds` includes them. Raises ValueError for values out of range.
    """

    threshold: float = 0.5
    padding_seconds: float = 0.3
    merge_gap_seconds: float = 0.5
    min_seconds: float = 0.25
    max_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("threshold", 0.2, 0.95),
            ("padding_seconds", 0.0, 5.0),
            ("merge_gap_seconds", 0.0, 60.0),
            ("min_seconds", 0.05, 60.0),
            ("max_seconds", 1.0, 600.0),
        ):
            value = getattr(self, name)
            if not (least <= value <= most and math.isfinite(value)):
                raise ValueError(f"{name} {value} is outside {least:g} to {most:g}")
        if self.max_seconds < 2 * (self.min_seconds + self.padding_seconds):
            raise ValueError(
                f"max_seconds {self.max_seconds:g} is less than twice the sum of min_seconds {self.min_seconds:g} and"
                f" padding_seconds {self.padding_seconds:g}: raise it, so that long speech can be divided"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> UtteranceOptions:
        """Read the options from the ``AUDIO_UTTERANCE_*`` variables that `environment()` writes."""
        env = os.environ if environment is None else environment
        names = {name: _PREFIX + name.upper() for name in cls.__dataclass_fields__}
        return cls._read({name: (variable, env.get(variable)) for name, variable in names.items()})

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> UtteranceOptions:
        """Return the options with these fields, whose values may be texts; None and "" mean the default."""
        return cls._read({name: (name, value) for name, value in values.items()})

    @classmethod
    def _read(cls, values: Mapping[str, tuple[str, Any]]) -> UtteranceOptions:
        given = {}
        for field, (name, value) in values.items():
            if value not in (None, "", "None"):
                try:
                    given[field] = float(value)
                except ValueError as e:
                    raise ValueError(f"{name}={value!r} is not a number") from e
        return cls(**given)

    def environment(self) -> dict[str, str]:
        """Return the variables that pass these options to the transformer."""
        return {_PREFIX + name.upper(): f"{value:g}" for name, value in asdict(self).items()}


def utterance_format(values: Mapping[str, Any]) -> AudioFormat:
    """Return the format of utterances with these fields; see `AudioFormat.from_values`. FLAC is the default.

    Raises ValueError for a lossy codec, and for any other change of the audio than its rate and channels.
    """
    given = dict(values)
    if not given.get("codec"):
        given["codec"] = "pcm_s16le" if given.get("container") == "wav" else "flac"
    target = AudioFormat.from_values(given)
    if target.codec not in ("flac", "pcm_s16le"):
        raise ValueError(f"codec {target.codec!r}: utterances are written as flac or pcm_s16le, both of 16 bits")
    if not target.is_whole or target.channel:
        raise ValueError(
            "start_seconds, duration_seconds, trim_silence_dbfs, loudness_lufs, channel:"
            " utterances cannot have these options"
        )
    return target


def shard_extensions(keep_extension: bool) -> dict[str, str]:
    """Return the extension of the shard for each extension of recordings."""
    known = [e for name in EXTENSIONS for e in (name, name.upper())]
    return {e: f"{e}.{_SHARD}" if keep_extension else _SHARD for e in known}


def shard_name(name: str, keep_extension: bool) -> str:
    """Return the name of the shard of the recording `name`."""
    stem, dot, extension = name.rpartition(".")
    shards = shard_extensions(keep_extension)
    return f"{stem}.{shards[extension]}" if dot and extension in shards else name


def sample_name(name: str, keep_extension: bool) -> str:
    """Return the first part of the names of utterances: the name of the recording without extension.

    WebDataset takes the name up to the first dot of its last part as the key of a sample, so dots become underscores.
    With `keep_extension`, the extension stays a part of the name, as in the shard's name.
    """
    plain = posixpath.normpath("/" + name).lstrip("/")  # a name that leads out of the shard would be refused
    folder, _, last = plain.rpartition("/")
    stem, dot, extension = last.rpartition(".")
    if not keep_extension and dot and stem and extension in shard_extensions(False):
        last = stem
    last = last.replace(".", "_") or "_"
    return f"{folder}/{last}" if folder else last


def unreadable(name: str, shard: str, keep_extension: bool) -> str | None:
    """Return why loaders could not read the utterances of the recording `name` in `shard`; None if they can."""
    if not shard.endswith(f".{_SHARD}"):
        return (
            f"its shard would be named {shard!r}, without .tar, so loaders would not find it: give the recording one"
            f" of the extensions {', '.join(EXTENSIONS)}, in lower or upper case"
        )
    if shard != shard_name(name, keep_extension):
        return (
            f"its shard would be named {shard!r}, but the facts have {shard_name(name, keep_extension)!r}: leave"
            " extensions out"
        )
    member = f"{sample_name(name, keep_extension)}-00001.flac"
    if reason := unread(member, "flac"):
        return f"its utterances would be named {member!r}. {reason}: rename its first folder"
    url = f"{shard}/{member}"
    archive = next(ending for ending in _ARCHIVES if ending in url)
    if url.partition(f"{archive}/")[0] + archive != shard:
        return (
            f"Lhotse and NeMo would look for {member!r} in another object than {shard!r}, because of {archive!r} in"
            " its name: rename the recording"
        )
    return None
