"""The failure journal, in which the server beside a target lists failed objects with their reasons.

AIStore 5.0 has no answer for a failed object over WebSocket: ext/etl/websocket_comm.go treats any text frame as
success. Servers therefore write one line per failure to their log, which AIStore returns for every target
(``GET /v1/etl/<name>/logs``). The worker that submitted the job reads the failures from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

MARK = "storeside-failure "
_REASON_LENGTH = 500


@dataclass(frozen=True)
class Failure:
    """One object that could not be transformed.

    `time` is the server's clock in seconds since 1970. `bucket` is the name of the source bucket; empty if AIStore
    did not send it. The object itself causes a `final` failure: a retry does not change the result.
    """

    time: float
    bucket: str
    object: str
    reason: str
    final: bool

    def line(self) -> str:
        """Return the journal's line without a line end; line breaks in name and reason are escaped."""
        fields = asdict(self)
        fields["reason"] = self.reason[:_REASON_LENGTH]
        return MARK + json.dumps(fields, separators=(",", ":"))


def parse(log: str) -> Iterator[Failure]:
    """Yield the failures in a server's log; skip all other lines and truncated ones."""
    for line in log.splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        try:
            yield Failure(**json.loads(text))
        except (ValueError, TypeError):
            continue
