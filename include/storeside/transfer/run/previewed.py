"""The result of a preview."""

from __future__ import annotations

from dataclasses import dataclass

from storeside.transfer.run.remarks import TextColumn
from storeside.transfer.state.loads import Unplanned


@dataclass(frozen=True, kw_only=True)
class Preview(Unplanned):
    """The plan of a load that was not started, with the statements and the first rows of its table.

    :param source: URI of the source
    :param table: ``database.table``
    :param listed: objects that the keys match; markers are not
    :param planned: objects that the load would read; earlier runs have loaded the others, or they failed for good
    :param bytes: bytes of the planned objects
    :param loader: ``pull`` if ClickHouse would read the objects, ``push`` if the worker would
    :param options: the format and the dialect with which objects are read
    :param statements: the statements that would create the table, or change its columns, in their order
    :param drift: differences between the columns of sampled objects and those of the existing table
    :param texts: columns that are text because of one value, as (column, that value, type of most other values)
    :param read: objects whose first rows were read
    :param refused: objects of these that the load would refuse, as (key, reason)
    :param columns: the table's columns after the load, as (name, type)
    :param rows: the first rows as the table would have them, with values as texts, shortened; None is NULL
    :param problem: why the load as a whole would fail; empty if it would not
    :param not_foreseen: what the load would also do, and the preview does not count
    :param seconds: estimated duration of the load; None if no speed is recorded
    """

    source: str
    table: str
    listed: int = 0
    planned: int = 0
    bytes: int = 0
    loader: str = ""
    options: str = ""
    statements: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    texts: tuple[TextColumn, ...] = ()
    read: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    problem: str = ""
    not_foreseen: str = ""
    seconds: float | None = None
