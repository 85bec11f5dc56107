"""The users of the embedded ClickHouse server, each with only the rights of its Airflow connection.

`USER` is for queries by hand and for tests. Airflow's connections have three users: `LOADER` reads objects and fills
users' tables, `LEDGER` writes Storeside's own tables, and `PAGES` only reads the rows that row policies let it read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from storeside.sql.visibility import POLICIES

USER = "storeside"
LOADER, LEDGER, PAGES = "storeside_loader", "storeside_ledger", "storeside_pages"
DATABASE = "storeside"
# The database for tables that users load. The engine's own `default` database is unsuitable: it also maps files to
# tables, so ClickHouse refuses even a table function there without rights on files.
DATA = "data"
# The databases of Storeside's own tables, and of staging tables.
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
        "SYSTEM FLUSH LOGS, SYSTEM MERGES, SYSTEM DROP CACHE, SYSTEM SYNC FILE CACHE ON *.*",
        "CREATE FUNCTION, DROP FUNCTION ON *.*",
        "READ, WRITE ON S3",
        *(f"TABLE ENGINE ON {engine}" for engine in ENGINES),
    ),
    LOADER: (
        "SHOW, SELECT, INSERT, ALTER TABLE, CREATE DATABASE, CREATE TABLE, DROP TABLE, CREATE VIEW, DROP VIEW, "
        "OPTIMIZE ON *.*",
        "CREATE TEMPORARY TABLE, SYSTEM FLUSH LOGS, SYSTEM SYNC FILE CACHE ON *.*",
        # No engine that writes to another table later: Buffer, for example, does so without any right on that table.
        "TABLE ENGINE ON MergeTree, TABLE ENGINE ON ReplacingMergeTree, TABLE ENGINE ON Null, TABLE ENGINE ON View",
        "READ ON S3",
    ),
    LEDGER: (
        *(f"{_TABLES} ON {database}.*" for database in OURS),
        "SELECT ON system.*",
        "CREATE TEMPORARY TABLE, SYSTEM FLUSH LOGS ON *.*",
        "TABLE ENGINE ON MergeTree, TABLE ENGINE ON ReplacingMergeTree, TABLE ENGINE ON Null, TABLE ENGINE ON View",
        "READ ON S3",
    ),
    PAGES: (
        ", ".join(f"SELECT ON {table}" for table in POLICIES),
        "SELECT ON system.tables, SELECT ON system.columns, SELECT ON system.settings",
        "SHOW TABLES ON *.*",  # names and sizes of destination tables, not their rows
    ),
}
# Rights from `*.*` that are revoked in the databases of the ledger.
REVOKED = {LOADER: tuple(f"ALL ON {name}" for name in ("storeside.*", "speech.manifest"))}
# Rights on a server that is a shard: the ledger's user divides staged rows between the shards.
_DISTRIBUTED = ("TABLE ENGINE ON Distributed", "READ, WRITE ON REMOTE")
SHARDED = {USER: _DISTRIBUTED, LEDGER: _DISTRIBUTED}
# Users that read S3 with the keys of a named collection, and the collections with which they read AIStore: facts, and
# the objects of loads.
READERS = (USER, LOADER)
AISTORE_COLLECTION, OBJECTS_COLLECTION = "storeside_aistore", "storeside_aistore_objects"

# The launcher's statements run in a session without a password. That user may have one session, which stays open
# while the server runs, so no other client can log in as this user.
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
      <grants>{grants}</grants>{policies}
    </{name}>"""


def users_xml(
    passwords: Mapping[str, str], collections: tuple[str, ...], memory: int, *, sharded: bool = False, urls: str = ""
) -> str:
    """Return users.xml for these users, with hashes of their passwords; `READERS` may use the `collections`.

    They may also read the URLs that the regular expression `urls` matches, if there is one.

    `memory` is the server's limit in bytes. All loads together may use 80 % of it, so that the ledger and the pages
    keep the rest.
    """
    named = {name: collections if name in READERS else () for name in GRANTS}
    more = dict(SHARDED) if sharded else {}
    if urls:
        more |= {name: (*more.get(name, ()), f"READ ON URL('{urls}')") for name in READERS}
    named[LEDGER] = tuple(name for name in collections if name == AISTORE_COLLECTION)
    users = [
        _USER.format(
            name=name,
            digest=hashlib.sha256(password.encode()).hexdigest(),
            profile=_PROFILES.get(name, "default"),
            database=DATA if name == LOADER else DATABASE,
            grants=_queries(
                "GRANT", (*GRANTS[name], *more.get(name, ()), *(f"NAMED COLLECTION ON {one}" for one in named[name]))
            )
            + _queries("REVOKE", REVOKED.get(name, ())),
            policies=_policies() if name == PAGES else "",
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


def _policies() -> str:
    """Return the row policies, by database and table."""
    tables = [(*table.split("."), condition) for table, condition in POLICIES.items()]
    filters = [f"<{base}><{name}><filter>{condition}</filter></{name}></{base}>" for base, name, condition in tables]
    return f"<databases>{''.join(filters)}</databases>"
