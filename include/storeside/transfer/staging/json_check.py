"""Checks that JSON Lines objects that ClickHouse reads contain valid JSON; see `strict_json`.

ClickHouse checks each line. A document may span lines, so the worker reads each object that has a line which is not a
document.
"""

from __future__ import annotations

from collections.abc import Sequence

from storeside.transfer.base.errors import GoneError, LoadObjectError, about
from storeside.transfer.objects.streams import pieces
from storeside.transfer.objects.strict_json import checked
from storeside.transfer.staging.json_values import JsonValues
from storeside.transfer.staging.line_facts import line_facts, place_of
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import Planned


class JsonCheck:
    """Checks the JSON Lines objects of one transfer."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def broken(
        self, query_id: str, objects: Sequence[Planned], values: JsonValues, compression: str = "auto"
    ) -> list[Planned]:
        """Return the objects with a line that is not a JSON document, or has one of the `values`.

        Raises GoneError for a version that no longer exists.
        """
        rows = line_facts(
            self.work, objects,
            (
                "countIf((NOT isValidJSON(line) AND notEmpty(trimBoth(line, ' \\t\\r')))"
                f" OR {values.condition}) AS wrong",
            ),
            compression,
            query_id=query_id,
            # One thread splits bytes into lines faster than the network delivers them. Smaller blocks take less
            # memory.
            max_parsing_threads=1,
            max_block_size=4096,
        )  # fmt: skip
        wrong = {(path, version) for path, version, count in rows if count}
        seen = {path: version for path, version, _ in rows}
        broken = []
        for o in objects:
            path, version = place_of(self.work, o)
            if seen.get(path, version) != version:
                raise about(GoneError("it was overwritten after it was listed"), o.key)
            if (path, version) in wrong:
                broken.append(o)
        return broken

    def refuse(self, objects: Sequence[Planned], values: JsonValues) -> None:
        """Read these objects on the worker.

        Raises LoadObjectError for the first one with invalid JSON, or with a text in a column of `values`.
        """
        for o in objects:
            try:
                for _ in checked(pieces(self.work.content(o).plain()), values):
                    pass
            except LoadObjectError as e:
                raise about(e, o.key) from e
