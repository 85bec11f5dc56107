"""Rows of the speech manifest: the facts of a run's recordings in AIStore, each with the recording's origin.

The facts are one small JSON object per recording. A request for each would take longer than everything else, so the
task reads thousands of them with one GetBatch of AIStore.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.aistore.buckets import Bucket
from storeside.aistore.many import Wanted, read_many
from storeside.ledger.scope import Scope
from storeside.speech.columns import RECORDING_COLUMNS
from storeside.speech.errors import MissingFactsError, UnreadableFactsError

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient


@dataclass
class Collected:
    """The number of facts, their bytes, and the number of rows for the manifest."""

    facts: int = 0
    facts_bytes: int = 0
    rows: int = 0


def rows(
    clickhouse: HttpClient, aistore: Any, bucket: Bucket, facts: Bucket, probes: Sequence[Scope], found: Collected
) -> Iterator[bytes]:
    """Yield the manifest's rows of the objects in `bucket` with a result of a probe, as lines of JSON, by name.

    Rows that another run has published with all facts are left out. `probes` are the scopes of the run's probes, and
    `found` counts what is read. Raises MissingFactsError if facts are missing, and UnreadableFactsError.
    """
    sources: dict[str, tuple[Any, ...]] = {}

    def wanted() -> Iterator[Wanted]:
        for name, path, size, *source in _recordings(clickhouse, bucket, probes):
            sources[path] = (name, *source)
            yield path, int(size)

    missing, example = 0, ""
    for batch in read_many(aistore, facts, wanted()):
        for path, content in batch:
            name, *source, published, has_signal = sources.pop(path)
            if content is None:
                missing, example = missing + 1, name
                continue
            found.facts += 1
            found.facts_bytes += len(content)
            known = _known(f"{facts}/{path}", content)
            is_complete = has_signal or known.get("silence_share") is None
            if not published or published != known.get("checksum") or not is_complete:
                found.rows += 1
                origin = dict(zip(("source_bucket", "source_object", "source_version"), source, strict=True))
                row = {"bucket": str(bucket), "object": name, **origin, **known, "run_id": probes[0].run_id}
                yield os.fsencode(json.dumps(row, ensure_ascii=False, allow_nan=False)) + b"\n"
    if missing:
        raise MissingFactsError(
            f"{facts} has lost {missing} facts of this run, such as those of {example!r}: a retry reads them again"
        )


def _recordings(clickhouse: HttpClient, bucket: Bucket, probes: Sequence[Scope]) -> Iterator[Sequence[Any]]:
    """Yield each recording's name, name and size of its facts, origin, and what another run has published of it."""
    parameters = {"bucket": str(bucket), "run_id": probes[0].run_id}
    results = []
    for n, probe in enumerate(probes):
        parameters |= {f"job_{n}": probe.job, f"effect_{n}": probe.effect}
        given = f"job = {{job_{n}:String}}, effect = {{effect_{n}:String}}"
        results.append(f"SELECT * FROM storeside.job_results({given})")
    query = sql.query("manifest_rows").replace("RESULTS", f"({' UNION ALL '.join(results)})")
    with clickhouse.query_rows_stream(query, parameters=parameters) as found:
        yield from found


def _known(path: str, content: bytes) -> dict[str, Any]:
    """Return the facts at a path. Raises UnreadableFactsError if they are not one JSON object."""
    try:
        facts = json.loads(content, parse_constant=list)  # NaN is no number of JSON
        if isinstance(facts, dict):
            # facts of earlier transformers do not state whether a recording is complete, and lack those of its signal
            known = {name: facts[name] for name in RECORDING_COLUMNS if name in facts}
            wrong = [name for name, value in known.items() if not _suits(value, RECORDING_COLUMNS[name])]
            if not wrong:
                return {**known, "complete": known.get("complete") or "unknown"}
            reason = f"the value of {wrong[0]!r} has another type"
        else:
            reason = "it is a list or a value"
    except (ValueError, RecursionError) as e:
        reason = str(e)
    raise UnreadableFactsError(
        f"the facts {path} cannot be read: it is no JSON object of facts ({reason}): delete them, and clear the"
        " task that probes the objects"
    )


def _suits(value: Any, kind: str) -> bool:
    """Return whether a value of JSON is a text or a number, as the column is, or missing."""
    if value is None or kind == "String":
        return value is None or isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool)
