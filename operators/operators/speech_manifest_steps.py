"""Deprecated operators: each does one step of the load of the manifest of recordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Required, Unpack

from storeside.operators.arguments import refuse
from storeside.operators.bases.deprecated import warn_of_class
from storeside.operators.operators.speech_manifest import (
    OF_LOADS,
    ClickHouseLoadManifestOperator,
    ConnectionArguments,
)

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template


class ManifestArguments(ConnectionArguments, total=False):
    """Arguments of the operators for the facts of recordings."""

    bucket: Required[str]
    """URI of the AIStore bucket whose audio the manifest describes"""
    facts: Required[str]
    """URI of the bucket that `AISTranscodeAudioOperator` and `AISProbeAudioOperator` wrote to"""


class LimitArguments(ManifestArguments, total=False):
    """Arguments of the operators that check the rows of the manifest."""

    sample_rate: int | str
    """Hz that every row must have"""
    channels: int | str
    """channels that every row must have"""
    min_seconds: float | str
    """shortest valid duration"""
    max_seconds: float | str
    """longest valid duration"""
    on_invalid_rows: OnFailed | Template
    """``fail`` the task and publish nothing, or ``report``: quarantine these rows and publish the others"""
    require_complete: bool | str
    """accept a row only if its recording's container states the length and the recording has this length. Recordings
    in containers that state no length, such as AAC in ADTS, are then invalid
    """
    max_silence_share: float | str
    """largest share of silent frames, 0 to 1; a row without this fact is valid, here and below"""
    max_clipped_share: float | str
    """largest share of clipped samples, 0 to 1"""
    min_bandwidth_hz: float | str
    """lowest effective bandwidth of the recording in Hz"""
    min_snr_db: float | str
    """lowest estimate of the signal-to-noise ratio in dB"""


_LIMITS = LimitArguments.__annotations__.keys() - ManifestArguments.__annotations__.keys()


class ClickHouseStageManifestOperator(ClickHouseLoadManifestOperator):
    """Deprecated: use `ClickHouseLoadManifestOperator` for the three tasks. Collects the rows of the run.

    Returns the numbers of facts, of their bytes, and of rows.

    :param effect: the ``effect`` in the result of the `AISProbeAudioOperator`
    """

    refused = (*OF_LOADS, *_LIMITS)

    def __init__(self, *, effect: XComArg | str, **kwargs: Unpack[ManifestArguments]) -> None:
        refuse(self, kwargs)
        super().__init__(effect=effect, **kwargs)
        warn_of_class(ClickHouseStageManifestOperator, ClickHouseLoadManifestOperator)

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect the rows."""
        return dict(self.collect(context))


class GXValidateManifestOperator(ClickHouseLoadManifestOperator):
    """Deprecated: use `ClickHouseLoadManifestOperator` for the three tasks. Loads the rows that meet the limits.

    Returns the engine's `Report` as a dictionary, and the verdict's ``success``, ``rows`` and ``invalid``.
    """

    refused = (*OF_LOADS, "effect")

    def __init__(self, **kwargs: Unpack[LimitArguments]) -> None:
        refuse(self, kwargs)
        super().__init__(effect="", **kwargs)
        warn_of_class(GXValidateManifestOperator, ClickHouseLoadManifestOperator)

    def execute(self, context: Context) -> dict[str, Any]:
        """Load the collected rows."""
        report = self.load(context)
        return {**report, **(report["verdict"] or {"success": True, "rows": 0, "invalid": 0})}


class ClickHousePublishManifestOperator(ClickHouseLoadManifestOperator):
    """Deprecated: use `ClickHouseLoadManifestOperator` for the three tasks. Records the objects of the run as done.

    It also collects and loads the rows that no task before it has loaded, such as one of an earlier version. Returns
    the number of rows of the bucket in ``speech.manifest`` that this run has published.

    :param effect: the ``effect`` in the result of the `AISProbeAudioOperator` whose objects this task records as done
    """

    refused = (*OF_LOADS, *_LIMITS)

    def __init__(self, *, effect: XComArg | str, **kwargs: Unpack[ManifestArguments]) -> None:
        refuse(self, kwargs)
        super().__init__(effect=effect, **kwargs)
        warn_of_class(ClickHousePublishManifestOperator, ClickHouseLoadManifestOperator)

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect and load the rows that are not loaded, and record their objects as done."""
        self.collect(context)
        self.load(context)
        return {"rows": self.finish_run(context)}

    def _suite(self) -> Mapping[str, Any]:
        return {}  # a task before it has checked the rows
