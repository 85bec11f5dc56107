"""Cleanup after tests of the engine against the real stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from tests.support import shared_etls, until


@pytest.fixture
def no_etl_is_left(aistore: Any) -> Iterator[None]:
    """End the ETLs of a test, except for those that the next ones use."""
    yield
    until(lambda: not jobs.running_transforms(aistore), 30, "end of the transforms")
    etls.release(aistore, set(etls.ours(aistore)) - shared_etls())
    assert {etl.id for etl in aistore.cluster().list_etls()} <= shared_etls()
