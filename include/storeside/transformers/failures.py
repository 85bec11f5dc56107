"""The failure journal: how a server beside a target says which object failed, and why.

Over WebSocket AIStore 5.0 has no answer for a failed object (ext/etl/websocket_comm.go takes any text frame for
success), so servers write one line per failure to their log, which AIStore returns for every target
(``GET /v1/etl/<name>/logs``). The worker that submitted the job reads the failures there.
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

    `time` is the server's clock in seconds since 1970; `bucket` is the source bucket's name, empty where AIStore did
    not send it. A `final` failure is caused by the object itself: trying again does not change it.
    """

    time: float
    bucket: str
    object: str
    reason: str
    final: bool

    def line(self) -> str:
        """Return the journal's line, without its line end: always one line, whatever name and reason hold."""
        fields = asdict(self)
        fields["reason"] = self.reason[:_REASON_LENGTH]
        return MARK + json.dumps(fields, separators=(",", ":"))


def parse(log: str) -> Iterator[Failure]:
    """Yield the failures in a server's log; all other lines, truncated ones included, are skipped."""
    for line in log.splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        try:
            yield Failure(**json.loads(text))
        except (ValueError, TypeError):
            continue
