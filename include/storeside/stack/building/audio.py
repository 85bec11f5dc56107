"""The native audio library, with which the stack's ETLs transcode."""

from __future__ import annotations

from storeside.transformers.native.build import BuildError, build


def slow_because() -> str:
    """Build the native library unless it is up to date; return why it cannot be built, with the remedy, else "".

    How much slower PyAV is: five recordings of 12 s, transcoded and measured, took 4.8 times the CPU time of the
    library on two cores; the work in the cluster of a whole demonstration took nine times as long.
    """
    try:
        build()
    except BuildError as e:
        return (
            "audio is transcoded 5 to 9 times slower than with the native audio library, which cannot be built:"
            f" {str(e).partition(chr(10))[0]}; then run this command again"
        )
    return ""
