"""Errors of audio objects, in the same words for every decoder."""

from __future__ import annotations

from .transformer import ObjectError

# Permitted recordings, by their common names; `audio_input.CONTAINERS` has libav's names.
ACCEPTED = (
    "AAC, AC-3, AIFF, AMR, AU, CAF, DSF and DSDIFF, FLAC, Matroska and WebM, Monkey's Audio, MP3, MP4 and M4A, Ogg,"
    " TTA, W64, WAV, WavPack and WMA"
)


class AudioError(ObjectError):
    """The object is not audio that can be read completely; the message says why."""


def empty() -> AudioError:
    """Return the error for an object of 0 bytes."""
    return AudioError("the object is empty")


def not_audio(reason: str) -> AudioError:
    """Return the error for an object that no permitted demuxer reads."""
    return AudioError(f"not an audio container that can be read ({reason}); accepted are {ACCEPTED}")


def no_stream(container: str) -> AudioError:
    """Return the error for a container without audio."""
    return AudioError(f"the {container} container holds no audio stream")


def unknown_codec(container: str) -> AudioError:
    """Return the error for a stream without a decoder."""
    return AudioError(f"the codec in the {container} container is not known: convert it to WAV or FLAC")


def bad_rate(rate: int) -> AudioError:
    """Return the error for a sample rate, in Hz, outside `SOURCE_RATES`."""
    return AudioError(f"the sample rate {rate} Hz is not that of a recording")


def damaged(codec: str, samples: int, reason: str) -> AudioError:
    """Return the error for a stream whose decoding failed after `samples` per channel."""
    return AudioError(f"damaged {codec} data after {samples} samples: {reason}")


def no_samples(codec: str) -> AudioError:
    """Return the error for a stream that ends before its first sample."""
    return AudioError(f"the {codec} stream holds no audio samples")


def truncated(samples: int, declared: int) -> AudioError:
    """Return the error for a stream that has fewer samples than its header states."""
    return AudioError(f"truncated: {samples} of {declared} declared samples are there")


def truncated_bytes(there: int, declared: int) -> AudioError:
    """Return the error for a container with fewer bytes than it states, both without headers where it has any."""
    return AudioError(f"truncated: {there} of {declared} declared bytes of samples are there")


def cut_frame(there: int, declared: int) -> AudioError:
    """Return the error for a stream whose last frame has fewer bytes than its header states."""
    return AudioError(f"truncated: the last frame has {there} of {declared} bytes")


def no_last_page(codec: str) -> AudioError:
    """Return the error for an Ogg stream without its last page."""
    return AudioError(f"truncated: the {codec} stream in Ogg has no end-of-stream page")


def not_transcodable(codec: str, channels: int, rate: int, samples: int, reason: str) -> AudioError:
    """Return the error for samples that cannot be resampled, mixed or encoded."""
    return AudioError(
        f"{codec} of {channels} channels at {rate} Hz cannot be transcoded after {samples} samples: {reason}"
    )


def form_changed(codec: str, samples: int) -> AudioError:
    """Return the error for a stream whose rate, channels or sample format change within the stream."""
    return AudioError(f"the {codec} stream changes its rate, channels or sample format after {samples} samples")


def too_long(max_seconds: int) -> AudioError:
    """Return the error for a recording longer than `Limits.seconds`."""
    return AudioError(f"longer than {max_seconds} seconds: AUDIO_MAX_SECONDS is the limit to raise")


def too_large(max_bytes: int) -> AudioError:
    """Return the error for a result larger than `Limits.result_bytes`."""
    return AudioError(f"the result has more than {max_bytes} bytes: AUDIO_MAX_RESULT_BYTES is the limit to raise")


def too_short(samples: int, rate: int) -> AudioError:
    """Return the error for a recording so short that no sample is left at `rate` Hz."""
    return AudioError(f"too short: {samples} samples become none at {rate} Hz")


def before_segment(seconds: float, start_seconds: float) -> AudioError:
    """Return the error for a recording that ends before the requested segment."""
    return AudioError(
        f"the recording of {seconds:.3f} seconds ends before the segment from {start_seconds:g} seconds on"
    )
