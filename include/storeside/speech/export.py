"""Exports of recordings and utterances for training frameworks; ClickHouse itself writes the file into S3."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from storeside import sql
from storeside.errors import BadInput, StoresideError
from storeside.speech.columns import TEXTS
from storeside.sql.answers import first_row
from storeside.transfer.base.errors import ACCESS_DENIED, code_of, is_transient, plain
from storeside.transfer.request.request import require_table
from storeside.transfer.request.source import Source, wild

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient

log = logging.getLogger(__name__)

# The query of each format. It reads from `EXPORTED`: recordings of the manifest, or utterances of a table.
ManifestFormat = Literal["nemo", "nemo_tarred", "lhotse_recordings", "lhotse_cuts", "huggingface"]
FORMATS = {
    "nemo": lambda: sql.query("export_nemo"),
    "nemo_tarred": lambda: sql.query("export_nemo_tarred"),
    "lhotse_recordings": lambda: sql.query("export_lhotse_recordings"),
    "lhotse_cuts": lambda: sql.query("export_lhotse_cuts"),
    "huggingface": lambda: sql.query("export_huggingface"),
}
# Formats that describe members of shards.
_OF_SHARDS = ("nemo_tarred", "huggingface")
_SETTINGS = {
    "max_threads": 1,  # reads in the order of the table's key, so that sorting needs no memory
    "s3_truncate_on_insert": 1,  # a repeated task replaces the file
    "output_format_json_quote_64bit_integers": 0,
    "output_format_json_quote_denormals": 0,
    "output_format_json_escape_forward_slashes": 0,
    "output_format_json_named_tuples_as_objects": 1,
}


class ExportError(StoresideError, BadInput):
    """The file cannot be written where the task wants it, or its lines could not be read; the message states why."""


def export(client: HttpClient, target: Source, form: str, bucket: str, run_id: str = "", table: str = "") -> int:
    """Write the rows of a bucket's recordings in a format; return their number.

    `target` is one object in S3, compressed with gzip if its key ends with ``.gz``; `form` is one of FORMATS. With
    `run_id`, only the rows that this run published are written. With `table`, ``database.table`` with the columns
    `UTTERANCE_COLUMNS` or `SEGMENT_COLUMNS`, its utterances are written instead, with their texts if it has them;
    `bucket` has their shards. One statement writes the object, which readers see when it is complete; until then,
    they see the previous one. Without rows, nothing is written. Raises ExportError, also for rows that the readers of
    the format would not find, and TransferInputError for a table without a database.
    """
    with _with_remedies():
        return _export(client, target, form, bucket, run_id, table)


@contextlib.contextmanager
def _with_remedies() -> Iterator[None]:
    """Turn ClickHouse's errors that no retry cures into ExportError, with the remedy."""
    from clickhouse_connect.driver.exceptions import DatabaseError

    try:
        yield
    except DatabaseError as e:
        if is_transient(e):
            raise
        remedy = ""
        if code_of(e) == ACCESS_DENIED:
            remedy = ": choose a clickhouse_conn_id whose user may export; docs/audio.md has its grants"
        elif "bucket does not exist" in str(e):
            remedy = ": create the bucket, or correct its name"
        raise ExportError(f"{plain(e)}{remedy}") from e


def _export(client: HttpClient, target: Source, form: str, bucket: str, run_id: str, table: str) -> int:
    key = target.keys
    check_target(key)
    compression = "gzip" if key.endswith(".gz") else "none"
    function = replace(target, cluster="").objects([key], "JSONEachRow", compression=compression)
    check_rows(form, run_id, table)
    database, _, name = table.partition(".")
    parameters = {"bucket": bucket, "run_id": run_id, "database": database, "table": name}
    columns = _columns(client, parameters) if table else set()
    told = {"has_texts": columns >= {"segment", *TEXTS}, "has_left_out": "left_out" in columns}
    query = whole_query(form, table, **told)
    rows = int(first_row(client.query(f"SELECT count() FROM ({query})", parameters=parameters))[0])
    if not rows:
        log.warning("%s has no rows of %s %s: nothing is written", table or "speech.manifest", bucket, run_id)
        return 0
    _require_readable(client, unreadable_query(table, **told), form, table, parameters)
    client.command(f"INSERT INTO FUNCTION {function} {query}", parameters=parameters, settings=_SETTINGS)
    log.info("ClickHouse wrote %d %s of %s to %s", rows, "utterances" if table else "recordings", bucket, target.uri)
    return rows


def _columns(client: HttpClient, parameters: dict[str, str]) -> set[str]:
    query = "SELECT name FROM system.columns WHERE database = {database:String} AND table = {table:String}"
    return {name for (name,) in client.query(query, parameters=parameters).result_rows}


def _require_readable(client: HttpClient, query: str, form: str, table: str, parameters: dict[str, str]) -> None:
    count, name, reason = first_row(client.query(query, parameters={**parameters, "form": form}))
    if count:
        raise ExportError(
            f"{count} {'utterances' if table else 'recordings'} could not be found by readers of the file, such as"
            f" {name!r}: {reason}. Nothing was written. Rename these recordings, run the pipeline again, and delete"
            " their old rows"
        )


def whole_query(form: str, table: str, *, has_texts: bool = False, has_left_out: bool = False) -> str:
    """Return the whole query of a format: of a table's utterances, or without a table of recordings.

    A table that `has_texts` has the columns `SEGMENT_COLUMNS`. If it `has_left_out`, a column states which utterances
    a suite has left out of their shards.
    """
    # NeMo reads the language from this field
    texts = "text, speaker, language AS lang" if "nemo" in form else ", ".join(TEXTS)
    query = query_of(form).replace(", TEXTS\n", f", {texts}\n" if has_texts else "\n")
    return query.replace("EXPORTED", _rows(table, has_texts, has_left_out))


def unreadable_query(table: str, *, has_texts: bool = False, has_left_out: bool = False) -> str:
    """Return the query that counts the rows which readers of the file would not find."""
    query = sql.query("export_unreadable_utterances") if table else sql.query("export_unreadable_recordings")
    return query.replace("EXPORTED", _rows(table, has_texts, has_left_out))


def _rows(table: str, has_texts: bool, has_left_out: bool) -> str:
    if not table:
        return sql.query("export_recordings")
    query = sql.query("export_segments") if has_texts else sql.query("export_utterances")
    return query.replace("KEPT", "left_out IS NULL" if has_left_out else "true")


def query_of(form: str) -> str:
    """Return the query of a format. Raises ExportError for other formats."""
    if form not in FORMATS:
        raise ExportError(f"format {form!r} is not one of {', '.join(FORMATS)}")
    return FORMATS[form]()


def check_rows(form: str, run_id: str, table: str) -> None:
    """Raise ExportError, or TransferInputError, if the format or the choice of rows does not suit the table."""
    if table:
        require_table(table)
        if run_id:
            raise ExportError(f"only_this_run: rows of {table} name no run: leave it out")
    elif form in _OF_SHARDS:
        raise ExportError(f"format {form!r} describes members of shards: name the table of their utterances")


def check_target(key: str) -> None:
    """Raise ExportError if ClickHouse cannot write an object with this key."""
    if not key or key.endswith("/") or wild(key):
        raise ExportError(
            f"key {key!r}: name one object, such as manifests/train.jsonl.gz, without ?, *, braces, // and endings of"
            " archives or compressions other than .gz"
        )
