"""Checks ClickHouse: the login, the user's rights in Storeside's databases, and the server's access to objects."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from storeside.doctor.findings import Finding, System
from storeside.doctor.remedies import TIME_OUT, reach
from storeside.doctor.roles import UNREADABLE, may
from storeside.ledger.unproven import unproven
from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import ACCESS_DENIED, code_of, is_transient, plain
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.request.source import Source

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

NAME = "ClickHouse"
TESTED = "26.9"
LEDGER = "storeside"
# Settings that Storeside's statements use and older servers lack.
SETTINGS = ("s3_validate_etag_on_read", "insert_allow_materialized_columns", "input_format_parquet_preserve_order")

_RIGHTS = ("SELECT", "INSERT", "ALTER DELETE", "CREATE DATABASE", "CREATE TABLE", "DROP TABLE")
_UNKNOWN_DATABASE, _READ_ONLY, _AUTHENTICATION, _NO_COLLECTION = 81, 164, 516, 669
_NO_ROOM = (241, 243)
# How ClickHouse words S3's errors and network errors: all of them have the same error code.
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist", re.IGNORECASE)
_NO_WAY = re.compile(r"Connection refused|Timeout|timed out|DNS error|Host not found|No route to host", re.IGNORECASE)
_REFUSED = re.compile(
    r"HTTP response code: 40[13]|AccessDenied|Access Denied|InvalidAccessKeyId|SignatureDoesNotMatch"
)
_here = System(NAME)
# Connections that the doctor makes to detect a proxy, which would send some of them to another server.
_CONNECTIONS = 4


def connect(make: Callable[[], Any], check: str = "login") -> tuple[Any, Finding]:
    """Log in; return the client (None after a failure) and the finding."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    try:
        client = make()
        version, user = first_row(client.query("SELECT version(), currentUser()"))
    except (ClickHouseError, OSError, ValueError) as e:
        return None, _here.failed(check, plain(e), _login_remedy(e))
    return client, _here.ok(check, f"{version} as {user}; tested with {TESTED}")


def _login_remedy(error: BaseException) -> str:
    code = code_of(error)
    if code == _AUTHENTICATION:
        return "correct login and password of the ClickHouse connection"
    if code == _UNKNOWN_DATABASE:
        return "leave the schema of the ClickHouse connection empty, or create that database"
    ways = (
        'correct host and port (HTTP: 8123, or 8443 with the extra "secure": true), and let this machine reach them'
    )
    return reach(error, ways, tls="secure, and ca_cert in client_kwargs")


def examine(client: Client, ledger: Client | None = None, write: bool = True) -> Iterator[Finding]:
    """Check the server's settings and the users' rights in Storeside's databases.

    `ledger` is the client of the user that writes Storeside's tables. With it, `client` needs no rights on them.
    Without `write` the grants are read instead of used.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    rows = client.query(
        "SELECT name FROM system.settings WHERE has({names:Array(String)}, name)",
        parameters={"names": list(SETTINGS)},
    ).result_rows
    missing = sorted(set(SETTINGS) - {name for (name,) in rows})
    if missing:
        yield _here.failed("settings", f"it does not know {', '.join(missing)}", f"use ClickHouse {TESTED} or newer")
    else:
        yield _here.ok("settings", "the server knows all settings that Storeside uses")
    for user, check, database in (
        ((client, "databases", LEDGER),)
        if ledger is None
        else ((ledger, "databases", LEDGER), (client, "databases of loads", STAGING))
    ):
        names = " and ".join(sorted({database, STAGING}))
        try:
            missing = [] if write else list(_missing_rights(user, database))
            if write:
                _use_databases(user, database)
        except ClickHouseError as e:
            yield _here.failed(check, plain(e), _rights_remedy(user, database, e))
            continue
        if missing:
            yield _here.failed(check, f"the user lacks {', '.join(missing)}", _grants(user, database))
        else:
            yield _here.ok(check, f"the user can create, fill, attach and drop tables in {names}")


def one_server(make: Callable[[], Any]) -> Finding:
    """Check that all connections lead to one server, which has the ledger and the locks; `make` connects."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    check = "one server"
    try:
        clients = [make() for _ in range(_CONNECTIONS)]
        # Some proxies divide connections between servers, and others divide requests.
        answers = (client.query("SELECT serverUUID(), hostName(), tcpPort()") for client in clients for _ in range(2))
        found = {tuple(first_row(answer)) for answer in answers}
    except ClickHouseError as e:
        return _here.failed(check, plain(e), "start all servers behind the address of the ClickHouse connection")
    if len(found) == 1:
        return _here.ok(check, f"{_CONNECTIONS} connections lead to the same server")
    return _here.failed(
        check,
        f"{_CONNECTIONS} connections lead to {len(found)} servers: each has its own ledger and locks, so objects are"
        " loaded twice",
        "list the servers in the extra `servers` of the ClickHouse connection, which replaces the address of a proxy;"
        " see docs/configuration.md",
    )


def results(ledger: Client) -> Iterator[Finding]:
    """Yield a finding if the ledger has results that may be of older versions of their objects."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    check = "results"
    try:
        found = unproven(ledger)
    except ClickHouseError as e:
        if code_of(e) not in UNREADABLE:
            yield _here.failed(check, plain(e), "see the server's log")
        return
    if found:
        count, first = sum(pair.objects for pair in found), found[0]
        yield _here.failed(
            check,
            f"{count} results of cloud buckets were recorded before versions were compared, so they may be of older"
            f" versions of their objects, such as {first.source} -> {first.destination}",
            "storeside unproven lists them, and with --again the next tasks make them again",
        )


def _use_databases(client: Client, database: str) -> None:
    """Run a load's statements in a database, on tables that are dropped afterwards."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    name = f"{database}.doctor_{uuid.uuid4().hex[:12]}"
    staged = f"{STAGING}.doctor_{uuid.uuid4().hex[:12]}"
    drops = [f"DROP TABLE IF EXISTS {table} SYNC" for table in (name, staged)]
    if database == LEDGER:
        drops.insert(0, f"DROP VIEW IF EXISTS {name}_view")
    try:
        for table in (name, staged):
            client.command(f"CREATE DATABASE IF NOT EXISTS {table.partition('.')[0]}")
            client.command(f"CREATE TABLE {table} (n UInt8) ENGINE = MergeTree PARTITION BY n ORDER BY n")
        client.command(f"INSERT INTO {staged} SELECT 1 SETTINGS async_insert = 0")
        client.command(f"ALTER TABLE {name} ATTACH PARTITION ALL FROM {staged}")
        client.command(f"ALTER TABLE {name} DROP PARTITION 1")
        if database == LEDGER:
            client.command(f"CREATE VIEW {name}_view AS SELECT n FROM {name}")
        for statement in drops:
            client.command(statement)
    except ClickHouseError:
        for statement in drops:
            with suppress(ClickHouseError):  # a user without the right to create a table may not drop it either
                client.command(statement)
        raise


def _missing_rights(client: Client, database: str) -> Iterator[str]:
    """Yield the rights for the statements of `_use_databases` that the user lacks; changes nothing."""
    if int(first_row(client.query("SELECT getSetting('readonly')"))[0]):
        yield "a profile in which readonly is 0"
    wanted = [(right, f"{where}.*") for where in (database, STAGING) for right in _RIGHTS]
    if database == LEDGER:
        wanted += [(right, f"{LEDGER}.*") for right in ("CREATE VIEW", "DROP VIEW")]
    for right, where in dict.fromkeys([*wanted, ("TABLE ENGINE", "MergeTree")]):
        if not may(client, right, where):
            yield f"{right} ON {where}"


def _rights_remedy(client: Client, database: str, error: BaseException) -> str:
    """Return the missing grants after a refusal, and other remedies for errors that do not concern rights."""
    if code_of(error) in (ACCESS_DENIED, _READ_ONLY):
        return _grants(client, database)
    if code_of(error) in _NO_ROOM:
        return "free disk space or memory of the ClickHouse server"
    if is_transient(error):
        return f"the server is overloaded or faulty: see its logs; {TIME_OUT}"
    return "see the error's text, and the server's log"


def _grants(client: Client, database: str) -> str:
    user = first_row(client.query("SELECT currentUser()"))[0]
    what = "SELECT, INSERT, ALTER, CREATE, DROP, TRUNCATE, OPTIMIZE"
    return (
        f"GRANT {what} ON {database}.* TO {user}; the same on {STAGING}.* and on the destination tables;"
        f" GRANT TABLE ENGINE ON * TO {user}"
    )


def reads_object(client: Client, source: Source, key: str, content: bytes) -> Finding:
    """Check whether ClickHouse itself reads an object from S3, as a load by pull does."""
    check = "reads S3"
    found = _read(client, source.objects([key], "RawBLOB", "content String"), content)
    if found is None:
        how = f"with the named collection {source.collection}" if source.collection else "with the server's own keys"
        return _here.ok(check, f"{source.bucket}/{key} at {source.endpoint}, {how}")
    return _here.failed(check, plain(found), _s3_remedy(source, found))


def reaches_bucket(client: Client, source: Source) -> Finding:
    """Check whether ClickHouse itself lists and reads a bucket to which the doctor must not write."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    try:
        client.query(f"SELECT 1 FROM {source.probe()} LIMIT 1", settings=_QUICK)
    except ClickHouseError as e:
        return _here.failed("reads S3", plain(e), _s3_remedy(source, e))
    return _here.ok("reads S3", f"{source.bucket} at {source.endpoint}")


def has_event(client: Client, bucket: str, key: str) -> bool:
    """Return whether a consumer of the queue has recorded the event of an object that was put a moment ago."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    try:
        count = first_row(
            client.query(
                f"SELECT count() FROM {LEDGER}.events WHERE recorded_at > now() - INTERVAL 10 MINUTE"
                " AND bucket = {bucket:String} AND key = {key:String}",
                parameters={"bucket": bucket, "key": key},
            )
        )[0]
    except ClickHouseError:  # the ledger does not exist yet, so no consumer has run
        return False
    return bool(count)


def reads_aistore(client: Client, url: str, content: bytes, collection: str = "") -> Finding:
    """Check whether ClickHouse itself reads an object through AIStore's S3 API, as the manifest's load does.

    `collection` is the named collection that holds a token for AIStore; empty for a cluster without AuthN.
    """
    function = f"s3({literal(url)}, NOSIGN, 'RawBLOB', 'content String')"
    if collection:
        how = "format = 'RawBLOB', structure = 'content String'"
        function = f"s3({identifier(collection)}, url = {literal(url)}, {how})"
    found = _read(client, function, content)
    if found is None:
        return _here.ok("reads AIStore", f"{url.split('/', 3)[2]}")
    return _here.failed(
        "reads AIStore",
        plain(found),
        "set clickhouse_endpoint in the extras of the AIStore connection to an address that ClickHouse reaches, and"
        " turn on AIStore's features S3-API-via-Root and S3-Reverse-Proxy",
    )


_QUICK = {
    "s3_retry_attempts": 1,
    "s3_connect_timeout_ms": 2000,
    "s3_request_timeout_ms": 5000,
    "use_hive_partitioning": 0,
}


def _read(client: Client, function: str, content: bytes) -> BaseException | None:
    """Read an object with one attempt; return None if its content is as expected, else the error."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    try:
        rows = client.query(
            f"SELECT content FROM {function}", settings={**_QUICK, "s3_validate_etag_on_read": 0}
        ).result_rows
    except ClickHouseError as e:
        return e
    if rows != [(content.decode(),)]:
        return ValueError(
            f"ClickHouse read {len(rows)} rows with another content: the name leads it to another server"
        )
    return None


def _s3_remedy(source: Source, error: BaseException) -> str:
    if source.collection and code_of(error) == ACCESS_DENIED:
        return f"GRANT NAMED COLLECTION ON {source.collection} TO this user, and GRANT READ ON S3 TO this user"
    if code_of(error) == ACCESS_DENIED:
        return "GRANT READ ON S3 TO this user"
    if code_of(error) == _NO_COLLECTION:
        return (
            f"CREATE NAMED COLLECTION {source.collection} AS url = '…', access_key_id = '…', secret_access_key = '…'"
        )
    way = (
        f"let the ClickHouse server reach {source.endpoint}, or set the extra clickhouse_endpoint of the AWS "
        "connection to the address that it reaches"
    )
    keys = "give the ClickHouse server keys: extra clickhouse_collection, or the server's own environment or role"
    text = str(error)
    if _NO_BUCKET.search(text):
        return (
            f"create the bucket {source.bucket}, or name another one: --bucket, or the field Bucket of"
            " check_connections"
        )
    if _NO_WAY.search(text):
        return way
    return keys if _REFUSED.search(text) else f"{way} and {keys}"
