"""Errors of audio objects, with the same texts for every decoder."""

from __future__ import annotations

from storeside.transformers.transformer import ObjectError

# Containers of recordings by their common names; `input.CONTAINERS` has libav's names.
ACCEPTED = (
    "AAC, AC-3, AIFF, AMR, AU, CAF, DSF and DSDIFF, FLAC, Matroska and WebM, Monkey's Audio, MP3, MP4 and M4A, Ogg,"
    " SPHERE, TTA, W64, WAV, WavPack and WMA"
)


class AudioError(ObjectError):
    """The object is not audio that can be decoded completely; the message gives the reason."""


def empty() -> AudioError:
    """Return the error for an object of 0 bytes."""
    return AudioError("the object is empty")


def not_audio(reason: str) -> AudioError:
    """Return the error for an object that no allowed demuxer can read."""
    return AudioError(f"not an audio container that can be read ({reason}); supported: {ACCEPTED}")


def no_stream(container: str) -> AudioError:
    """Return the error for a container without audio."""
    return AudioError(f"the {container} container holds no audio stream")


def unknown_codec(container: str) -> AudioError:
    """Return the error for a stream for which libav has no decoder."""
    return AudioError(f"the codec in the {container} container is not supported: convert the object to WAV or FLAC")


def not_decodable(codec: str, container: str, reason: str) -> AudioError:
    """Return the error for a codec in a container that libav decodes wrongly, for a reason."""
    return AudioError(f"{codec} in {container} is not supported, because {reason}: convert the object to WAV or FLAC")


def not_readable(form: str) -> AudioError:
    """Return the error for a `form` of samples that libav would read as noise."""
    return AudioError(f"{form} is not supported: convert the object to FLAC, or to WAV of 16, 24 or 32 bits")


def bad_rate(rate: int) -> AudioError:
    """Return the error for a sample rate, in Hz, outside `SOURCE_RATES`."""
    return AudioError(f"the sample rate {rate} Hz is outside the range of recordings")


def damaged(codec: str, samples: int, reason: str) -> AudioError:
    """Return the error for a stream whose decoding failed after `samples` per channel."""
    if "patches welcome" in reason:  # libav's words for a feature that it does not implement
        return AudioError(
            f"libav cannot decode {codec} data after {samples} samples, because it lacks a feature, such as a"
            " change of channels within a chain of Ogg, or the pauses (DTX) of AMR: convert the object to WAV or FLAC"
        )
    return AudioError(f"damaged {codec} data after {samples} samples: {reason}")


def damaged_at(what: str, at: int) -> AudioError:
    """Return the error for a container in which no `what`, such as a page, is at an offset where one must be."""
    return AudioError(f"damaged: no {what} at byte {at}")


def without_data(kind: str, frames: int) -> AudioError:
    """Return the error for a frame of AMR, after `frames` others, that stands for silence or for lost speech."""
    return AudioError(
        f"AMR with a frame without data ({kind}) after {frames} frames is not supported: convert the object to WAV or"
        " FLAC with a decoder that fills such gaps"
    )


def no_samples(codec: str) -> AudioError:
    """Return the error for a stream that ends before its first sample."""
    return AudioError(f"the {codec} stream holds no audio samples")


def truncated(samples: int, declared: int) -> AudioError:
    """Return the error for a stream with fewer samples than its header declares."""
    return AudioError(f"truncated: {samples} of {declared} declared samples exist")


def contradictory(samples: int, declared: int) -> AudioError:
    """Return the error for a stream with more samples than its header declares."""
    return AudioError(
        f"contradictory: the header declares {declared} samples, and decoding gives {samples}: if the object is"
        " correct, convert it to WAV or FLAC"
    )


def compressed(what: str) -> AudioError:
    """Return the error for a compressed form that has no decoder here."""
    return AudioError(f"{what} is not supported: convert the object to WAV or FLAC, with sph2pipe or SoX")


def truncated_bytes(found: int, declared: int) -> AudioError:
    """Return the error for a container with fewer bytes of samples than it declares; headers do not count."""
    return AudioError(f"truncated: {found} of {declared} declared bytes of samples exist")


def cut_frame(found: int, declared: int) -> AudioError:
    """Return the error for a stream whose last frame has fewer bytes than its header declares."""
    return AudioError(f"truncated: the last frame has {found} of {declared} bytes")


def no_last_page(codec: str) -> AudioError:
    """Return the error for an Ogg stream without its last page."""
    return AudioError(f"truncated: the {codec} stream in Ogg has no end-of-stream page")


def not_transcodable(codec: str, channels: int, rate: int, samples: int, reason: str) -> AudioError:
    """Return the error for samples that cannot be resampled, mixed or encoded."""
    return AudioError(
        f"{codec} of {channels} channels at {rate} Hz cannot be transcoded after {samples} samples: {reason}"
    )


def no_channel(number: int, channels: int) -> AudioError:
    """Return the error for a recording of `channels` channels that lacks the one with this number, from 1."""
    return AudioError(f"the recording has no channel {number}: it has {channels}")


def form_changed(codec: str, samples: int) -> AudioError:
    """Return the error for a stream whose rate, channels or sample format change."""
    return AudioError(f"the {codec} stream changes its rate, channels or sample format after {samples} samples")


def too_long(max_seconds: int) -> AudioError:
    """Return the error for a recording longer than `Limits.seconds`."""
    return AudioError(f"longer than {max_seconds} seconds: raise AUDIO_MAX_SECONDS")


def too_large(max_bytes: int) -> AudioError:
    """Return the error for a result larger than `Limits.result_bytes`."""
    return AudioError(f"the result has more than {max_bytes} bytes: raise AUDIO_MAX_RESULT_BYTES")


def too_short(samples: int, rate: int) -> AudioError:
    """Return the error for a recording so short that resampling to `rate` Hz leaves no sample."""
    return AudioError(f"too short: resampling {samples} samples to {rate} Hz leaves none")


def before_segment(seconds: float, start_seconds: float) -> AudioError:
    """Return the error for a recording that ends before the requested segment."""
    return AudioError(
        f"the recording of {seconds:.3f} seconds ends before the segment that starts at {start_seconds:g} seconds"
    )
