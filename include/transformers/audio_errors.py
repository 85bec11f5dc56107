"""What can be wrong with an audio object, in words that are the same whatever decodes it."""

from __future__ import annotations

from .transformer import ObjectError

# What recordings may be, by the names that people know; `audio_input.CONTAINERS` has libav's.
ACCEPTED = (
    "AAC, AC-3, AIFF, AMR, AU, CAF, DSF and DSDIFF, FLAC, Matroska and WebM, Monkey's Audio, MP3, MP4 and M4A, Ogg,"
    " TTA, W64, WAV, WavPack and WMA"
)


class AudioError(ObjectError):
    """The object is not audio that can be read whole; the message says why."""


def empty() -> AudioError:
    """Return the error of an object of no bytes."""
    return AudioError("the object is empty")


def not_audio(reason: str) -> AudioError:
    """Return the error of an object that no permitted demuxer reads."""
    return AudioError(f"not an audio container that can be read ({reason}); accepted are {ACCEPTED}")


def no_stream(container: str) -> AudioError:
    """Return the error of a container without audio."""
    return AudioError(f"the {container} container holds no audio stream")


def unknown_codec(container: str) -> AudioError:
    """Return the error of a stream that there is no decoder for."""
    return AudioError(f"the codec in the {container} container is not known: convert it to WAV or FLAC")


def bad_rate(rate: int) -> AudioError:
    """Return the error of a sample rate, in Hz, outside `SOURCE_RATES`."""
    return AudioError(f"the sample rate {rate} Hz is not that of a recording")


def damaged(codec: str, samples: int, reason: str) -> AudioError:
    """Return the error of a stream whose decoding failed after `samples` per channel."""
    return AudioError(f"damaged {codec} data after {samples} samples: {reason}")


def no_samples(codec: str) -> AudioError:
    """Return the error of a stream that ends before its first sample."""
    return AudioError(f"the {codec} stream holds no audio samples")


def truncated(samples: int, declared: int) -> AudioError:
    """Return the error of a stream that ends before the samples that its header states."""
    return AudioError(f"truncated: {samples} of {declared} declared samples are there")


def truncated_bytes(there: int, declared: int) -> AudioError:
    """Return the error of a container that has fewer bytes than it states; without headers, where it has such."""
    return AudioError(f"truncated: {there} of {declared} declared bytes of samples are there")


def cut_frame(there: int, declared: int) -> AudioError:
    """Return the error of a stream whose last frame has fewer bytes than its header states."""
    return AudioError(f"truncated: the last frame has {there} of {declared} bytes")


def no_last_page(codec: str) -> AudioError:
    """Return the error of an Ogg stream without the page that ends it."""
    return AudioError(f"truncated: the {codec} stream in Ogg has no end-of-stream page")


def not_transcodable(codec: str, channels: int, rate: int, samples: int, reason: str) -> AudioError:
    """Return the error of samples that cannot be resampled, mixed or encoded."""
    return AudioError(
        f"{codec} of {channels} channels at {rate} Hz cannot be transcoded after {samples} samples: {reason}"
    )


def form_changed(codec: str, samples: int) -> AudioError:
    """Return the error of a stream whose rate, channels or sample format change on the way."""
    return AudioError(f"the {codec} stream changes its rate, channels or sample format after {samples} samples")


def too_long(max_seconds: int) -> AudioError:
    """Return the error of a recording beyond `Limits.seconds`."""
    return AudioError(f"longer than {max_seconds} seconds: AUDIO_MAX_SECONDS is the limit to raise")


def too_large(max_bytes: int) -> AudioError:
    """Return the error of a result beyond `Limits.result_bytes`."""
    return AudioError(f"the result has more than {max_bytes} bytes: AUDIO_MAX_RESULT_BYTES is the limit to raise")


def too_short(samples: int, rate: int) -> AudioError:
    """Return the error of a recording of which nothing is left at `rate` Hz."""
    return AudioError(f"too short: {samples} samples become none at {rate} Hz")


def before_segment(seconds: float, start_seconds: float) -> AudioError:
    """Return the error of a recording that ends before the segment that is wanted of it."""
    return AudioError(
        f"the recording of {seconds:.3f} seconds ends before the segment from {start_seconds:g} seconds on"
    )
