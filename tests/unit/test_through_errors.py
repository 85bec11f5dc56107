"""Errors of a benchmark through AIStore: each names the bucket and the object."""

from __future__ import annotations

import pytest
from aistore.sdk.errors import JobInfoNotFound, Timeout

from storeside.aistore.buckets import Bucket
from storeside.copying.errors import CopyTransientError
from storeside.measure.through import _errors


@pytest.mark.parametrize("error", [Timeout("job 'x'", "after 60s"), JobInfoNotFound("x")], ids=["late", "unknown"])
def test_an_eviction_that_does_not_end_is_an_error_of_its_object(error: Exception) -> None:
    with (
        pytest.raises(CopyTransientError, match=r"^s3://data/a key through AIStore: "),
        _errors(Bucket("s3", "data"), "a key"),
    ):
        raise error
