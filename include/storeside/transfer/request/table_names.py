"""Keys that name tables: ``raw/{table}/**.csv`` for the tables ``raw.{table}``."""

from __future__ import annotations

from storeside.transfer.base.errors import TransferInputError

# The part of keys, and of the table, that stands for a name.
TABLE = "{table}"


def names_tables(keys: str, table: str) -> bool:
    """Return whether keys and table contain ``{table}``. Raises TransferInputError if only one of them does."""
    if TABLE not in keys and TABLE not in table:
        return False
    database, _, name = table.partition(".")
    if keys.count(TABLE) != 1 or name.count(TABLE) != 1 or TABLE in database:
        raise TransferInputError(
            f"keys {keys!r}, table {table!r}: write {TABLE} once in the keys, and once in the name of the table"
            " behind the database, such as raw/{table}/**.csv and raw.{table}"
        )
    return True
