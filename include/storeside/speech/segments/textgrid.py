"""Reads Praat's TextGrids with the package praatio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from .entries import Entry, Found, SegmentsError


def textgrid(text: str, place: str, recording: str) -> Iterator[Found]:
    """Yield the intervals with a label; the name of their tier is the speaker. Raises SegmentsError."""
    try:
        from praatio import textgrid as praat
        from praatio.utilities.errors import PraatioException
    except ImportError as e:
        raise SegmentsError(
            f"{place}: TextGrids need the package praatio: install storeside[segments] on the workers"
        ) from e
    with TemporaryDirectory() as folder:
        file = Path(folder, "one.TextGrid")  # praatio reads files only
        file.write_text(text, "utf-8")
        try:
            grid = praat.openTextgrid(str(file), includeEmptyIntervals=False, reportingMode="error")
        except (PraatioException, ValueError, LookupError, AttributeError, TypeError) as e:
            raise SegmentsError(f"{place}: this is no TextGrid that praatio can read: {e!r}") from e
    for tier in grid.tiers:
        for interval in tier.entries if isinstance(tier, praat.IntervalTier) else ():
            yield Entry(
                recording, place, float(interval.start), float(interval.end), text=interval.label, speaker=tier.name
            )
