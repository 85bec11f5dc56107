"""The end of a load of the speech manifest, without servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.jobs import Progress
from storeside.aistore.stored_objects import StoredObject
from storeside.ledger.scope import Scope
from storeside.speech import manifest
from storeside.speech.manifest import SpeechManifest


def test_a_load_ends_after_the_job_that_deletes_its_facts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # a run that is cleared then stores facts of the same names, which a running job would delete
    steps: list[str] = []
    polls = iter([Progress(), Progress(finished=True), Progress(), Progress(finished=True, error="aborted")])

    class Follower(jobs.Follower):
        def poll(self) -> Progress:
            progress = next(polls)
            steps.append(f"{self.job_id} {'ended' if progress.finished else 'runs'}")
            return progress

    def deleting(_bucket: Bucket, _client: Any, names: list[str]) -> Any:
        return SimpleNamespace(delete=lambda: f"job of {names[0].rpartition('/')[2]}")

    monkeypatch.setattr(manifest, "acknowledge", lambda *_: None)
    monkeypatch.setattr(manifest, "list_aistore", lambda _, __, p: iter([StoredObject(f"{p}a.json", 1, "1/x")]))
    monkeypatch.setattr(manifest, "Follower", Follower)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(Bucket, "objects", deleting)
    facts = Bucket("ais", "facts")
    SpeechManifest(cast("Any", None), Bucket("ais", "audio"), facts, "dag/run").finish(
        cast("Any", None), Scope("ais://audio", "ais://facts", "e", "dag/run")
    )
    assert [step.rpartition(" ")[2] for step in steps] == ["runs", "ended", "runs", "ended"]
    assert "ais://facts: not all facts of this run are deleted: aborted" in caplog.text
