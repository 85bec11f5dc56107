"""Requests tokens from AIStore's AuthN, and renews them before they expire."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import quote

from storeside.aistore.errors import AIStoreError, AIStoreInputError, AIStoreTransientError

# A token is replaced when this share of its lifetime is left.
_LEFT = 0.3
# Seconds for a request, and seconds between requests for which AuthN issues no token.
_SECONDS, _AGAIN = 10.0, 60.0
log = logging.getLogger(__name__)


class Login:
    """A user of AuthN, whose text is always a valid token, because jobs may last longer than a token.

    AIStore's SDK formats its token into the header of each request, so it accepts this object as a token. `str`
    raises AIStoreInputError when AuthN refuses the user, and AIStoreTransientError when it does not answer, unless
    the last token is still valid.
    """

    def __init__(self, url: str, username: str, password: str, verify: str | bool = True) -> None:
        self._url = f"{url.rstrip('/')}/v1/users/{quote(username, safe='')}"
        self._what = f"AuthN at {url}, user {username!r}"
        self._password = password
        self._verify = verify
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0

    def __str__(self) -> str:
        with self._lock:
            if time.time() >= self._renew_at:
                self._renew()
            return self._token

    def _renew(self) -> None:
        """Request a new token. While AuthN issues none, a token that has not expired stays in use.

        A refusal may pass: an ingress also answers 404 while AuthN restarts. AIStore itself refuses revoked tokens.
        """
        try:
            self._token = self._request()
        except AIStoreError as e:
            if time.time() + _SECONDS >= expiry(self._token):
                raise
            log.warning("%s; the last token is still valid", e)
            self._renew_at = min(time.time() + _AGAIN, expiry(self._token) - _SECONDS)
        else:
            now = time.time()
            self._renew_at = now + (1 - _LEFT) * (expiry(self._token) - now)

    def _request(self) -> str:
        import requests

        try:
            answer = requests.post(
                self._url, json={"password": self._password}, timeout=_SECONDS, verify=self._verify
            )
        except requests.RequestException as e:
            raise AIStoreTransientError(f"{self._what}: no answer: {e}") from e
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            raise AIStoreInputError(f"{self._what}: refused: correct login and password of the AIStore connection")
        if not answer.ok:
            raise AIStoreTransientError(f"{self._what}: {answer.status_code} {answer.text[:200].strip()}")
        try:
            return str(answer.json()["token"])
        except (ValueError, KeyError, TypeError) as e:
            raise AIStoreInputError(f"{self._what}: the answer has no token: correct the address of AuthN") from e


@lru_cache(maxsize=32)
def login(url: str, username: str, password: str, verify: str | bool = True) -> Login:
    """Return the login of a user; all clients of this process share its token."""
    return Login(url, username, password, verify)


def expiry(token: str) -> float:
    """Return the expiry of a JSON Web Token in seconds since the epoch; 0 if it states none."""
    try:
        body = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return 0.0
