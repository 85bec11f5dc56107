"""Reads what a job is given beside one object from the job's index in AIStore."""

from __future__ import annotations

from http import HTTPStatus

from storeside.transformers.contract import given_index
from storeside.transformers.settings import Settings

from .http_client import DeliveryError, HttpClient, reason

_NOTHING = b"null"


class GivenEntries:
    """The entries of a job's index, the object at `settings.given_url`."""

    def __init__(self, settings: Settings, client: HttpClient) -> None:
        self.url = settings.given_url
        self._client = client
        self._headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}

    def entry(self, name: str) -> bytes:
        """Return the entry of an object as JSON, ``null`` if it has none. Raises DeliveryError."""
        try:
            start, end = given_index.places(self._read(*given_index.places_of(name)))
            if start == end:
                return _NOTHING
            found = given_index.found(self._read(start, end - 1), name)
        except (ValueError, RecursionError) as e:
            raise DeliveryError(f"the index of this job cannot be read: {e}") from e
        return found.encode() if found is not None else _NOTHING

    def _read(self, first: int, last: int) -> bytes:
        answer = self._client.request("GET", self.url, headers={**self._headers, "Range": f"bytes={first}-{last}"})
        if answer.status != HTTPStatus.PARTIAL_CONTENT:
            raise DeliveryError(f"the index of this job cannot be read: {reason(answer)}")
        return answer.body
