"""Breaks of the product: for each row of the guarantees, changes after which its promise is false.

A break is small, such as a careless change could make it: the product can still be imported, and otherwise works.
Where two guards keep a promise, the break removes both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Text that occurs once in a file of the checkout, and its replacement."""

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return the file's text with the replacement. Raises ValueError unless the old text occurs once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"no longer applies: {self.file} has its old text {count} times")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Break:
    """One way in which the promise of a `row` becomes false. `restart`: servers of the stack run the code."""

    row: str
    what: str
    edits: tuple[Edit, ...]
    restart: bool = False


ENGINE = "include/storeside"

BREAKS = (
    # transforms and copies
    Break(
        "transform-complete",
        "an object counts as done unless the transformer states a failure, with or without result",
        (
            Edit(
                f"{ENGINE}/sql/settle.sql",
                "multiIf(r.fresh, 'done', e.is_left_out",
                "multiIf(r.fresh OR e.why = '', 'done', e.is_left_out",
            ),
        ),
    ),
    Break(
        "transform-once",
        "only the same run knows which objects are done",
        (
            Edit(
                f"{ENGINE}/sql/plan.sql",
                "l.status = 'done' AND l.version = s.version AND l.effect = {effect:String}",
                "l.status = 'done' AND l.version = s.version AND l.run_id = {run_id:String}",
            ),
        ),
    ),
    Break(
        "pipeline-twice",
        "a run transforms each object that it has not transformed itself",
        (
            Edit(
                f"{ENGINE}/sql/plan.sql",
                "(result_is_there OR NOT {keeps_result:Bool})",
                "l.run_id = {run_id:String} AND (result_is_there OR NOT {keeps_result:Bool})",
            ),
        ),
    ),
    Break(
        "idle-run",
        "a task after the first counts as idle although objects are pending",
        (
            Edit(
                f"{ENGINE}/transform/bucket_job.py",
                "            if plan.pending or plan.refused:",
                "            if plan.refused:",
            ),
        ),
    ),
    Break(
        "lost-by-websocket",
        "objects without a result are not transformed again",
        (
            Edit(
                f"{ENGINE}/transform/bucket_job.py",
                "retries = RETRIES if self._may_continue() else 0",
                "retries = 0",
            ),
        ),
    ),
    Break(
        "transform-bad-object",
        "a worker that exceeds the time limit is not ended, and gets the next object",
        (
            Edit(
                f"{ENGINE}/transformers/workers/pool.py",
                "        except TimeoutError:\n            worker.kill()\n",
                "        except TimeoutError:\n",
            ),
        ),
        restart=True,
    ),
    Break(
        "left-out",
        "an object that its transformer leaves out counts as failed",
        (
            Edit(
                f"{ENGINE}/transformers/workers/pool.py",
                'return job.left_out(str(head["left_out"]), str(head.get("facts", "")))',
                'return job.failure(str(head["left_out"]), final=True)',
            ),
        ),
        restart=True,
    ),
    Break(
        "suites",
        "a segment that does not meet the suite stays in the shard",
        (
            Edit(
                f"{ENGINE}/transformers/audio/utterances.py",
                "        if told.get(LEFT_OUT):\n",
                '        if told.get(LEFT_OUT) == "":\n',
            ),
        ),
    ),
    Break(
        "several-results",
        "an object counts as done although one of its results was not stored",
        (
            Edit(
                f"{ENGINE}/sql/record_incomplete.sql",
                "WHERE t.announced = 0 OR t.stored != t.announced",
                "WHERE t.announced = 0",
            ),
        ),
    ),
    Break(
        "transform-resumed",
        "a retry makes a new plan and does not continue with that of the killed try",
        (
            Edit(
                f"{ENGINE}/transform/bucket_job.py",
                "        return self._planner.resume() or self._planner.plan()\n",
                "        return self._planner.plan()\n",
            ),
        ),
    ),
    Break(
        "overwritten-recording",
        "an object is done in any version, once it was done in one",
        (
            Edit(
                f"{ENGINE}/sql/plan.sql",
                "l.status = 'done' AND l.version = s.version AND l.effect = {effect:String}",
                "l.status = 'done' AND l.effect = {effect:String}",
            ),
        ),
    ),
    Break(
        "broken-recording",
        "an object that failed is skipped even if it was replaced",
        (
            Edit(
                f"{ENGINE}/sql/plan.sql",
                "l.status = 'failed' AND l.version = s.version AND",
                "l.status = 'failed' AND",
            ),
        ),
    ),
    Break(
        "given-segments",
        "a changed text of a recording has no effect on its outcome",
        (Edit(f"{ENGINE}/sql/plan.sql", "l.given = g.given AS same_given", "1 AS same_given"),),
    ),
    Break(
        "utterances",
        "rows of the former version of an object stay beside those of the new one",
        (
            Edit(
                f"{ENGINE}/transfer/publish/publishing.py",
                "waiting = [o for o in objects if o.load_id not in done] if loads.replaces else []",
                "waiting: list[Planned] = []",
            ),
        ),
    ),
    Break(
        "apart",
        "buckets are compared by their URIs, not by where their objects are",
        (
            Edit(
                f"{ENGINE}/aistore/places.py",
                'backend = _backend(client, bucket) if bucket.scheme == "ais" and clusters.answers(bucket) else None',
                "backend = None",
            ),
        ),
    ),
    Break(
        "in-place",
        "an object is replaced even if it changed while it was transformed",
        (
            Edit(
                f"{ENGINE}/transform/in_place.py",
                "while changed := self.ledger.changed(self.scope, _WINDOW):",
                "while changed := self.ledger.changed(self.scope, 0):",
            ),
        ),
    ),
    Break(
        "damaged-results",
        "a result counts as there if it has the right name and size",
        (
            Edit(
                f"{ENGINE}/sql/plan.sql",
                "AND d.size = l.bytes_out AND same_version\n",
                "AND d.size = l.bytes_out\n",
            ),
        ),
    ),
    Break(
        "names-refused",
        "names with an empty component within them are accepted",
        (Edit(f"{ENGINE}/transformers/contract/names.py", "if part in parts:", "if part and part in parts:"),),
    ),
    Break(
        "names-refused",
        "two objects whose results have the same name are both transformed",
        (
            Edit(
                f"{ENGINE}/sql/plan.sql",
                "s.reason != '' OR s.object != winner OR f.shard != '' AS is_refused",
                "s.reason != '' OR f.shard != '' AS is_refused",
            ),
        ),
    ),
    Break(
        "results-owned",
        "the owner of an existing result is not asked for",
        (Edit(f"{ENGINE}/sql/plan.sql", "if(c.owner != '', c.owner, s.first) AS winner", "s.first AS winner"),),
    ),
    Break(
        "results-owned",
        "results of other sources are not looked for",
        (
            Edit(
                f"{ENGINE}/sql/plan.sql",
                "r.owner != '' AND NOT content_is_there AS is_of_another",
                "0 AS is_of_another",
            ),
        ),
    ),
    Break(
        "results-owned",
        "results that running jobs of other sources are to make are not looked for",
        (
            Edit(
                f"{ENGINE}/sql/claim_results_of_running.sql",
                "WHERE side = 'planned' AND destination_object =",
                "WHERE side = 'none' AND destination_object =",
            ),
        ),
    ),
    Break(
        "mapped-tasks",
        "tasks that process parts of one bucket share a plan",
        (
            Edit(
                f"{ENGINE}/transform/terms.py",
                "selection = repr((self.options.prefix, list(self.options.names or ()), self.named))",
                'selection = ""',
            ),
        ),
    ),
    Break(
        "names-not-sql",
        "the name of the last object becomes a part of a statement",
        (
            Edit(
                f"{ENGINE}/ledger/objects.py",
                '" WHERE NOT fresh AND object > {after:String} AND ({final:Bool} OR object NOT IN"',
                "f\" WHERE NOT fresh AND object > '{after}' AND ({{final:Bool}} OR object NOT IN\"",
            ),
        ),
    ),
    Break(
        "names-not-sql",
        "a key in a statement is quoted as it is",
        (Edit(f"{ENGINE}/sql/quoting.py", "return str(format_str(text))", "return f\"'{text}'\""),),
    ),
    # loads
    Break(
        "load-once",
        "the ledger does not record that a publication begins",
        (Edit(f"{ENGINE}/transfer/publish/publishing.py", '            loads.record(new, "publishing")\n', ""),),
    ),
    Break(
        "load-once-shards",
        "rows of an incomplete publication stay",
        (
            Edit(
                f"{ENGINE}/transfer/publish/publishing.py",
                "        destination.remove(partial, hold)\n",
                '        log.info("%d loads are incomplete", len(partial))\n',
            ),
        ),
    ),
    Break(
        "load-two-runs",
        "a publication does not ask the ledger what another run has loaded",
        (
            Edit(
                f"{ENGINE}/transfer/publish/publishing.py",
                'done = {o.load_id for o in objects if states.get(o.load_id) == "loaded"}',
                "done: set[int] = set()",
            ),
        ),
    ),
    Break(
        "load-fenced",
        "who breaks a lock does not drop the staging table of its holder",
        (
            Edit(
                f"{ENGINE}/transfer/state/lock.py",
                "_break(client, name, uuid, _staged_by(comment), others)",
                '_break(client, name, uuid, "", others)',
            ),
        ),
    ),
    Break(
        "load-model",
        "in the model, a lock is broken without its fence",
        (
            Edit(
                "tests/model/Publishing.tla",
                'IF Has("fence") /\\ lock.table # 0',
                'IF FALSE /\\ Has("fence") /\\ lock.table # 0',
            ),
        ),
    ),
    Break(
        "load-model",
        "a lock that another run may be breaking is dropped when it is released",
        (
            Edit(
                f"{ENGINE}/transfer/state/lock.py",
                "    if age < STALE_SECONDS / 2:\n",
                "    if age < 100 * STALE_SECONDS:\n",
            ),
        ),
    ),
    Break(
        "load-values",
        "a number that is too large for its column wraps",
        (
            Edit(
                f"{ENGINE}/transfer/statements/composing.py",
                "    if not (kept := whole(value, source, target, padded=padded)):\n",
                '    if not (kept := ""):\n',
            ),
        ),
    ),
    Break(
        "load-values",
        "spaces around texts of CSV are trimmed",
        (
            Edit(
                f"{ENGINE}/transfer/types/conversion.py",
                "    if same(a, b) and (is_nullable(target) or not is_nullable(source)):\n        return value\n",
                "    if same(a, b) and (is_nullable(target) or not is_nullable(source)):\n"
                '        return _unpadded(value) if padded and a == "String" else value\n',
            ),
        ),
    ),
    Break(
        "load-values",
        "a list that is NULL becomes an empty list",
        (
            Edit(
                f"{ENGINE}/transfer/statements/composing.py",
                "        if lost and refuse_nulls:\n",
                "        if lost and refuse_nulls and target is None:\n",
            ),
        ),
    ),
    Break(
        "load-expectations",
        "only a repeated publication fills the quarantine",
        (
            Edit(
                f"{ENGINE}/transfer/publish/publishing.py",
                "            if has_bad:\n",
                "            if has_bad and again:\n",
            ),
        ),
    ),
    Break(
        "expectations-gx",
        "strict limits include the limit",
        (
            Edit(
                f"{ENGINE}/transfer/staging/expectations.py",
                """found.append(f"{sql} {sign}{'' if given.get(strict) else '='} {constant(given[name], kind)}")""",
                'found.append(f"{sql} {sign}= {constant(given[name], kind)}")',
            ),
        ),
    ),
    Break(
        "after-load",
        "an object is deleted even if another version has replaced the loaded one",
        (
            Edit(
                f"{ENGINE}/transfer/objects/object_changes.py",
                """        if head["ETag"].strip('"') != o.version:\n""",
                '        if not head["ETag"]:\n',
            ),
        ),
    ),
    Break(
        "load-upserts",
        "rows that merges have left of an interrupted load are removed",
        (
            Edit(
                f"{ENGINE}/transfer/publish/publishing.py",
                "    if destination.replaces_at_once and found.get(o.planned.load_id):\n        return True\n",
                "",
            ),
        ),
    ),
    Break(
        "load-deleted",
        "any number of objects may be gone",
        (
            Edit(
                f"{ENGINE}/transfer/publish/mirror.py",
                "                self._check_share(gone, self.most_removed)\n",
                "                pass\n",
            ),
        ),
    ),
    Break(
        "load-tables",
        "any name in a key becomes a table",
        (
            Edit(
                f"{ENGINE}/transfer/many/names.py",
                "if not _NAME.fullmatch(name):",
                'if name == "":',
            ),
        ),
    ),
    Break(
        "load-partition",
        "the new rows appear before the old ones go",
        (
            Edit(
                f"{ENGINE}/transfer/publish/publishing.py",
                "if mirror is not None and mirror.partition:",
                "if False:",
            ),
        ),
    ),
    Break(
        "load-snapshot-rows",
        "a delete by values also removes the rows that were added with it",
        (
            Edit(
                f"{ENGINE}/transfer/lakes/deletes.py",
                "(*self._values[None], *self._values[partition]) if s > sequence]",
                "(*self._values[None], *self._values[partition]) if s >= sequence]",
            ),
        ),
    ),
    Break(
        "load-snapshot-rows",
        "positions count from the beginning of a batch instead of the file",
        (Edit(f"{ENGINE}/transfer/lakes/edits.py", "            start += batch.num_rows\n", ""),),
    ),
    Break(
        "load-snapshot-rows",
        "a column is found by its name in the file",
        (
            Edit(
                f"{ENGINE}/transfer/lakes/edits.py",
                "fields = edit.fields if edit.fields and not edit.fields.are_in(schema) else None",
                "fields = None",
            ),
        ),
    ),
    Break(
        "load-secrets",
        "without a named collection, ClickHouse gets the connection's keys in the endpoint",
        (
            Edit(
                "operators/hooks/transfer.py",
                "    return source_of(aws.extra_dejson if aws else {}, bucket, keys)\n",
                "    extra = aws.extra_dejson if aws else {}\n"
                '    if aws and aws.password and not extra.get("clickhouse_collection"):\n'
                '        endpoint = source_of(extra, bucket).endpoint.replace("://", f"://{aws.login}:{aws.password}@")\n'
                '        extra = {**extra, "clickhouse_endpoint": endpoint}\n'
                "    return source_of(extra, bucket, keys)\n",
            ),
        ),
    ),
    # events and the manifest
    Break(
        "events-settled",
        "messages are deleted before their objects are loaded",
        (
            Edit(
                f"{ENGINE}/events/load.py",
                "        known = self.ledger.known(messages)\n",
                "        self.queue.delete(messages)\n        known = self.ledger.known(messages)\n",
            ),
        ),
    ),
    Break(
        "events-settled",
        "a message that can never succeed is deleted instead of sent to the dead letters",
        (Edit(f"{ENGINE}/events/deliveries.py", 'return "bury" if failed else "delete"', 'return "delete"'),),
    ),
    Break(
        "events-overwritten",
        "an event is done if a version was transformed after it, listed before or after it",
        (
            Edit(
                f"{ENGINE}/sql/events_transformed.sql",
                "AS status, reason, listed_at\n",
                "AS status, reason, recorded_at AS listed_at\n",
            ),
        ),
    ),
    Break(
        "manifest-once",
        "rows that another run has published are loaded again",
        (
            Edit(
                f"{ENGINE}/sql/manifest_rows.sql",
                "AND p.source_version = version, p.checksum, '')",
                "AND p.source_version = version, '', '')",
            ),
        ),
    ),
    Break(
        "manifest-invalid",
        "rows are loaded without the suite of the manifest",
        (
            Edit(
                f"{ENGINE}/speech/suites.py",
                'return {"name": "speech_manifest", "expectations": [*expectations, *(signal',
                'return {"name": "speech_manifest", "expectations": [*expectations[:1], *(signal',
            ),
        ),
    ),
    Break(
        "notifications",
        "a plus sign in an encoded key does not become a space",
        (
            Edit(
                f"{ENGINE}/events/notifications.py",
                "from urllib.parse import unquote_plus\n",
                "from urllib.parse import unquote as unquote_plus\n",
            ),
        ),
    ),
    Break(
        "follower",
        "a watcher leases messages although a task follows the queue",
        (
            Edit(
                f"{ENGINE}/events/watch.py",
                "        if unsettled or self._is_followed():\n",
                "        if unsettled:\n",
            ),
        ),
    ),
    Break(
        "hsds-export",
        "parts contain the run that wrote them, so unchanged slabs are new objects",
        (
            Edit(
                f"{ENGINE}/hsds/export.py",
                "        pq.write_table(\n            table,\n",
                '        pq.write_table(\n            table.replace_schema_metadata({"run": self._run}),\n',
            ),
        ),
    ),
    # operation
    Break(
        "time-limit",
        "a deferral has no time limit",
        (
            Edit(
                "operators/bases/deferring.py",
                "            timeout = self.execution_timeout\n        if timeout is not None:\n",
                "            limit = self.execution_timeout\n        if timeout is not None or limit is not None:\n",
            ),
        ),
    ),
    Break(
        "time-limit",
        "a task whose time is over leaves its job or query running",
        (Edit("operators/bases/deferring.py", "            self._stop(context)\n", ""),),
    ),
    Break(
        "light-dags",
        "a DAG imports pyarrow when it is parsed",
        (
            Edit(
                "dags/ingest.py",
                "from airflow.sdk import DAG, Param\n",
                "import pyarrow\nfrom airflow.sdk import DAG, Param\n",
            ),
        ),
    ),
    Break(
        "engine-alone",
        "a module of the engine imports Airflow",
        (
            Edit(
                f"{ENGINE}/copying/job.py",
                "from __future__ import annotations\n",
                "from __future__ import annotations\n\nfrom airflow.sdk import Variable  # noqa: F401\n",
            ),
        ),
    ),
    Break(
        "doctor",
        "the object that tests a bucket is not deleted",
        (Edit(f"{ENGINE}/doctor/s3.py", "        if not refused.is_set():\n", "        if refused.is_set():\n"),),
    ),
    Break(
        "doctor",
        "findings quote secrets",
        (
            Edit(
                f"{ENGINE}/doctor/examination.py",
                "(shown,) = without_secrets([finding], systems.secrets)",
                "(shown,) = without_secrets([finding], ())",
            ),
        ),
    ),
    Break(
        "alerts-once",
        "an alert repeats a standing problem in each run",
        (
            Edit(
                f"{ENGINE}/alerts/memory.py",
                "if sent is None or problem.level > sent.level:",
                "if sent is None or problem.level >= sent.level:",
            ),
        ),
    ),
    Break(
        "docs-true",
        "a link leads to a page that does not exist",
        (Edit("docs/guarantees.md", "[Reliability](reliability.md)", "[Reliability](faults.md)"),),
    ),
    # security
    Break(
        "hostile-media",
        "libav reads playlists and opens what they name, and the decoder is not isolated",
        (
            Edit(
                f"{ENGINE}/transformers/audio/libav_decoder.py",
                'options={"format_whitelist": CONTAINERS, "protocol_whitelist": "", **edges},',
                'options={"safe": "0"},',
            ),
            Edit(
                f"{ENGINE}/transformers/workers/decoder.py",
                "missing = decoders.isolate(needs)",
                "missing: list[str] = []",
            ),
        ),
    ),
    Break(
        "hostile-names",
        "a name of a column or table is quoted as it is",
        (Edit(f"{ENGINE}/sql/quoting.py", 'return f"`{escape_str(name)}`"', 'return f"`{name}`"'),),
    ),
    Break(
        "hostile-names",
        "a log line has the key of an object that failed as it is",
        (
            Edit(
                f"{ENGINE}/transfer/run/mending.py",
                'log.debug("%r: %s", o.key, reason)',
                'log.debug("%s: %s", o.key, reason)',
            ),
        ),
    ),
    Break(
        "no-secrets",
        "the result of a copy, an XCom, has the password of the source's connection",
        (
            Edit(
                "operators/operators/storage.py",
                'matches the prefix {self.prefix!r}")\n        return result\n',
                'matches the prefix {self.prefix!r}")\n'
                "        connection = connection_of(self.source, self.source_conn_id or None)\n"
                '        return {**result, "login": [connection.login, connection.password]}\n',
            ),
        ),
    ),
    Break(
        "closed",
        "who may read pages may also read dead letters and send them back",
        (
            Edit(
                "plugins/pages/queues.py",
                "if not (may_run(user) if of_no_dag else any(may_run(user, dag) for dag in dags)):",
                "if not dags and not of_no_dag:",
            ),
        ),
        restart=True,
    ),
)
