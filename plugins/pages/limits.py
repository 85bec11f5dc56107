"""How many requests are served at a time: each occupies one of the API server's threads while its servers answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import HTTPException

# The API server's process has 40 threads (anyio), which Airflow's own requests need, too.
_PAGES, _PAGES_OF_A_USER = 16, 6
# A browser loads the beginnings of a page's recordings at once, over up to six connections.
_STREAMS, _STREAMS_OF_A_USER = 12, 6
_RETRY_SECONDS = 2


class Places:
    """A number of places for requests, of which one user may take only some. Used in the event loop alone."""

    def __init__(self, most: int, most_of_a_user: int) -> None:
        self.most = most
        self.most_of_a_user = most_of_a_user
        self.taken: Counter[str] = Counter()

    @contextmanager
    def place(self, user: str) -> Iterator[None]:
        """Occupy a place. Raises HTTPException 429 if the user, or all users together, occupy too many."""
        if self.taken[user] >= self.most_of_a_user or self.taken.total() >= self.most:
            raise HTTPException(
                429,
                "Too many requests are being answered at the moment. Try again in a few seconds.",
                headers={"Retry-After": str(_RETRY_SECONDS)},
            )
        self.taken[user] += 1
        try:
            yield
        finally:
            self.taken[user] -= 1
            if not self.taken[user]:
                del self.taken[user]


PAGES = Places(_PAGES, _PAGES_OF_A_USER)
STREAMS = Places(_STREAMS, _STREAMS_OF_A_USER)


async def page_place(user: GetUserDep) -> AsyncIterator[None]:
    """Occupy a place while a page is made."""
    with PAGES.place(user.get_id()):
        yield


async def stream_place(user: GetUserDep) -> AsyncIterator[None]:
    """Occupy a place until an object was sent."""
    with STREAMS.place(user.get_id()):
        yield
