"""The users of the embedded ClickHouse server, each with the rights of its connection and no others.

`USER` is for queries by hand and for tests. The three users of Airflow's connections are `LOADER`, which reads
objects and fills users' tables, `LEDGER`, which writes Storeside's own tables, and `PAGES`, which only reads these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

USER = "storeside"
LOADER, LEDGER, PAGES = "storeside_loader", "storeside_ledger", "storeside_pages"
DATABASE = "storeside"
# The database of tables that users load. The engine's own `default` is none: it also holds files as tables, so even a
# table function is refused there without rights on files.
DATA = "data"
# The databases of Storeside's own tables, and of the rows that are being loaded.
OURS = (DATABASE, "storeside_staging", "speech")

ENGINES = (
    *("MergeTree", "AggregatingMergeTree", "CoalescingMergeTree", "CollapsingMergeTree", "GraphiteMergeTree"),
    *("ReplacingMergeTree", "SummingMergeTree", "VersionedCollapsingMergeTree"),
    *("Buffer", "Dictionary", "GenerateRandom", "Join", "Log", "MaterializedView", "Memory", "Merge", "Null"),
    *("S3", "Set", "StripeLog", "TinyLog", "View", "WindowView"),
)
_TABLES = (
    "SHOW, SELECT, INSERT, ALTER TABLE, ALTER VIEW, CREATE DATABASE, CREATE TABLE, CREATE VIEW, DROP, TRUNCATE, "
    "OPTIMIZE"
)
GRANTS: Mapping[str, tuple[str, ...]] = {
    USER: (
        "SHOW, SELECT, INSERT, ALTER TABLE, ALTER VIEW, ALTER DATABASE, CREATE DATABASE, CREATE TABLE, CREATE VIEW, "
        "CREATE TEMPORARY TABLE, DROP, UNDROP TABLE, TRUNCATE, OPTIMIZE, MOVE PARTITION BETWEEN SHARDS, dictGet, "
        "SYSTEM FLUSH LOGS, SYSTEM MERGES, SYSTEM DROP CACHE ON *.*",
        "CREATE FUNCTION, DROP FUNCTION ON *.*",
        "READ, WRITE ON S3",
        *(f"TABLE ENGINE ON {engine}" for engine in ENGINES),
    ),
    LOADER: (
        "SHOW, SELECT, INSERT, ALTER TABLE, CREATE DATABASE, CREATE TABLE, DROP TABLE, OPTIMIZE ON *.*",
        "CREATE TEMPORARY TABLE, SYSTEM FLUSH LOGS ON *.*",
        # No engine that writes to another table later, as Buffer does without asking for a right.
        "TABLE ENGINE ON MergeTree, TABLE ENGINE ON ReplacingMergeTree, TABLE ENGINE ON Null",
        "READ ON S3",
    ),
    LEDGER: (
        *(f"{_TABLES} ON {database}.*" for database in OURS),
        "SELECT ON system.*",
        "CREATE TEMPORARY TABLE, SYSTEM FLUSH LOGS ON *.*",
        "TABLE ENGINE ON MergeTree, TABLE ENGINE ON ReplacingMergeTree, TABLE ENGINE ON View",
        "READ ON S3",
    ),
    PAGES: (
        "SHOW, SELECT ON storeside.*",
        "SHOW, SELECT ON speech.*",
        "SELECT ON system.tables, SELECT ON system.columns, SELECT ON system.settings",
    ),
}
# Rights in `*.*` that do not hold in the databases of the ledger.
REVOKED = {LOADER: tuple(f"ALL ON {name}" for name in ("storeside.*", "speech.manifest"))}
# Users that read S3 with a named collection's keys, and the collection by which the facts are read from AIStore.
READERS = (USER, LOADER)
AISTORE_COLLECTION = "storeside_aistore"

# The session that runs the statements of the server's launcher has no password. Its only slot is taken as long as
# the server runs, so no other client can use it.
BOOT_GRANTS = (
    "SYSTEM LISTEN ON *.*",
    "FILE, CREATE TEMPORARY TABLE ON *.*",
    *(f"CREATE DATABASE ON {database}.*" for database in (DATABASE, DATA)),
)

_PROFILES = {LOADER: "loader", PAGES: "reader"}
_LOADS_SHARE = 0.8

_XML = """\
<clickhouse>
  <profiles>
    <default/>
    <boot><max_sessions_for_user>1</max_sessions_for_user></boot>
    <loader><max_memory_usage_for_user>{loader_memory}</max_memory_usage_for_user></loader>
    <reader>
      <readonly>2</readonly>
      <max_memory_usage>{reader_memory}</max_memory_usage>
      <max_execution_time>30</max_execution_time>
    </reader>
  </profiles>
  <quotas><default/></quotas>
  <users>
    <default>
      <password/>
      <networks><ip>127.0.0.1</ip></networks>
      <profile>boot</profile><quota>default</quota>
      <grants>{boot}</grants>
    </default>
{users}
  </users>
</clickhouse>
"""
_USER = """\
    <{name}>
      <password_sha256_hex>{digest}</password_sha256_hex>
      <networks><ip>127.0.0.1</ip><ip>::1</ip></networks>
      <profile>{profile}</profile><quota>default</quota>
      <default_database>{database}</default_database>
      <grants>{grants}</grants>
    </{name}>"""


def users_xml(passwords: Mapping[str, str], collections: tuple[str, ...], memory: int) -> str:
    """Return users.xml for these users, with hashes of their passwords; readers of S3 may use the `collections`.

    `memory` is the server's limit in bytes: all loads together leave some of it to the ledger and to the pages.
    """
    named = {name: collections if name in READERS else () for name in GRANTS}
    named[LEDGER] = tuple(name for name in collections if name == AISTORE_COLLECTION)
    users = [
        _USER.format(
            name=name,
            digest=hashlib.sha256(password.encode()).hexdigest(),
            profile=_PROFILES.get(name, "default"),
            database=DATA if name == LOADER else DATABASE,
            grants=_queries("GRANT", (*GRANTS[name], *(f"NAMED COLLECTION ON {one}" for one in named[name])))
            + _queries("REVOKE", REVOKED.get(name, ())),
        )
        for name, password in passwords.items()
    ]
    return _XML.format(
        boot=_queries("GRANT", BOOT_GRANTS),
        users="\n".join(users),
        loader_memory=int(memory * _LOADS_SHARE),
        reader_memory=memory // 4,
    )


def _queries(verb: str, rights: tuple[str, ...]) -> str:
    return "".join(f"<query>{verb} {right}</query>" for right in rights)
