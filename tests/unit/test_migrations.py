"""The numbered migrations of Storeside's tables, in ClickHouse's own engine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside import sql
from storeside.sql import migrate as module
from storeside.sql.migrate import Migration, migrate, migrations, tables
from storeside.stack.settings import CHECKOUT
from storeside.transfer.base.errors import FailureKind
from tests.unit.test_sql import Engine

# A released migration never changes: it made users' tables.
RELEASED = {
    "0001_objects_and_runs": "10a683727eb7cb12c7271bf26f80a4426435851f30bf6f04a96f3d3f45132918",
    "0002_loads": "83a5d1f70bbb234390a863b6458ffb8c93b2777a0e78f48cb0480a3fa2223faa",
    "0003_events": "3e617420d972474394d25b7dbab95d654b38672d0688fa7c8ffb92c63f9b4383",
    "0004_storage": "19d7b3bef07036afbb6f55f4e2e62893df1f89c03f2f166ab6a436e29a27f774",
    "0005_throughput": "5db0edf2299671b817f79d09ecf7508df644b9576f22fc90555a17b4fbcc62dd",
    "0006_result_versions": "18cd0549209025d5f3865e2bbd3f60eba78039264a2635014f14bf7372076182",
    "0007_complete_recordings": "ced57bbbb3e316b7ba8719a5350dc0959a1b184077cd4a50b2f770f628b55bec",
    "0008_failure_kinds": "f5b8422eeaf186765205d73f320dc6bc57cbfedba26551e4c5adb84b16f6cc9d",
    "0009_manifest_of_users": "c390d19b6a1e47e66142bd9eab5b70bdd7e126c0a3c61f6fccb6a3923678ae52",
    "0010_failures": "037f2a7070f944cfe2e480cb5901b5e0c3ebf7e9d9f4f2474238e25fbfe5aeb0",
    "0011_members": "b446214be4932e707f6110c4189eb4d68caa54c982cd4228795d9b6b492d58e2",
    "0012_filtered_rows": "e97aa682e4304419c916875ca8cdcf77a56825ab7ee38e7f2b3f8d017d9d2786",
    "0013_after_load": "725f4c34b3f87697a81870d32b77c659619145e598a7388aace65940082d70ca",
    "0014_signal_facts": "89367646d23467c2b7e48ce18183eaab5cd02dfefcb5cfea0ebed5b9cbaad7ca",
    "0015_prefixes_of_results": "0aae8877b4d7f59ae27b1ad3c6464f2bb163532517e8f2dcbc3226152e1c92df",
    "0016_throughput_loaders": "937f5f27e201d0066e41f33745a1913308aee3f61da90f02822984b0145f6f24",
    "0017_transform_benchmark": "181cba9b4665cedc3121a3913c40870b951b6f95318987e2f30d71ab07e61236",
    "0018_times_of_listings": "45d9ee5fbc3bdde390c0f44c77405a0d0afa2ada9e114f247d8a1b8dba8d5529",
    "0019_replacing_loads": "2b8a02277b15c5800fcf32acb4c683218a4cd436fc36fb880561b7d7288321ca",
    "0020_prefixes_of_failures": "5ce6a05714b51bf74cd56e672dd6cd0f8bdc3af558833b372268852569d2134f",
    "0021_versions_of_copies": "1f53cb7840c77a9511b7fbd78822634c321cdf45c2e255f7d5397a88b8f6b119",
    "0022_accepted_failures": "8500845d95283efd53bfdcd457a0d79fe424b0a09571d06a11979c238444360b",
    "0023_accepted_results": "8c76bb0537cef5c0ff920c40fbe6c54eb3a674b4a808ebb4e34213d599c83e3c",
    "0024_left_out": "43891260e76511098ca620373b023e0058ec017c37fbdc83ef3c89d037f6bfcd",
    "0025_several_results": "de45780218afcbcd04d8b4fad431e0f6e0b8506958d53249caf5ac247f038ca8",
    "0026_alerts": "8381c7932fe3df698d45cdb54dcb66cfe081be1ad26fccdfb0245dbd5891254c",
    "0027_loaded_manifest": "43fcd5f9b5c29f24ad7e3b6e604fd7a36ca4fdce4b080383fc073637b6363eb1",
    "0028_given": "65b7b4ce00d2acf905816804114af02374512953517bda36d5e497b4fa869a65",
    "0029_validations": "aa6d826ee8992da37530d33c87b8f2a6d399c0444ebb4f2ac6a5838fa6791c40",
    "0030_facts": "3111faefbc39408e4466ffffde2ad17cc93b6de6661e927de0825e56d58ca528",
    "0031_views_of_one_definition": "b3dc377e3c226c7879b29f5b2d73c271379bf813e0138e84482d6e155690a953",
}
DATABASES = ("storeside", "storeside_staging", "speech")
SIGNAL = "silence_share, clipped_share, bandwidth_hz, snr_db"
# Those of version 0.1.0, which kept no record of them.
FIRST_EDITION = 5


class Client:
    """The part of a clickhouse-connect client that migrations use, on the engine in process."""

    def __init__(self, engine: Engine, last: int | None = None) -> None:
        self.engine = engine
        self.commands: list[str] = []
        self.last = last  # the number of statements after which the process is killed

    def query(self, text: str) -> Any:
        try:
            return SimpleNamespace(result_rows=self.engine.run(text))
        except RuntimeError as e:
            code = re.search(r"Code: (\d+)", str(e))
            raise DatabaseError(str(e), code=int(code[1]) if code else None) from e

    def command(self, text: str) -> None:
        if self.last is not None and len(self.commands) == self.last:
            raise KeyboardInterrupt
        self.commands.append(text)
        self.engine.run(text)

    def insert(self, table: str, rows: Sequence[Sequence[Any]], **_: Any) -> None:
        for number, name in rows:
            self.command(f"INSERT INTO {table} (number, name) VALUES ({number}, '{name}')")


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    for database in DATABASES:
        engine.run(f"DROP DATABASE IF EXISTS {database}")
    engine.session.close()


def definitions(engine: Engine) -> dict[str, str]:
    """Return the definition of each table and view, without values that ClickHouse chose at random."""
    rows = engine.run(
        "SELECT database || '.' || name, create_table_query FROM system.tables"
        " WHERE database IN ('storeside', 'speech')"
    )
    return {name: re.sub(r" UUID '[^']*'", "", text) for name, text in rows}


def test_released_migrations_are_as_they_were_released() -> None:
    found = {m.name: hashlib.sha256(sql.query(f"migrations/{m.name}").encode()).hexdigest() for m in migrations()}
    assert {name: found.get(name) for name in RELEASED} == RELEASED


def test_numbers_are_without_gaps_and_every_file_is_a_migration() -> None:
    assert [m.number for m in migrations()] == list(range(1, len(migrations()) + 1))
    assert {path.stem for path in (sql.FOLDER / "migrations").iterdir()} == {m.name for m in migrations()}


def test_a_new_database_gets_every_migration_once(engine: Engine) -> None:
    client = Client(engine)
    assert migrate(client) == list(migrations())
    assert tables() <= set(definitions(engine))
    client.commands.clear()
    assert migrate(client) == []
    assert client.commands == []


def test_a_server_that_cannot_read_the_record_gets_no_migration_again(engine: Engine) -> None:
    """With a full disk, the first migration replaced the view of the last one, and the task then failed."""

    class Full(Client):
        def query(self, text: str) -> Any:
            if "storeside.migrations" in text:
                raise DatabaseError("Cannot reserve 1.00 MiB, not enough space", code=243)
            return super().query(text)

    migrate(Client(engine))
    client = Full(engine)
    with pytest.raises(DatabaseError, match="not enough space"):
        migrate(client)
    assert client.commands == []


def filled(engine: Engine) -> dict[str, int]:
    """Insert a row into every existing table; return the tables."""
    names = engine.run(
        "SELECT name FROM system.tables WHERE database = 'storeside' AND engine LIKE '%MergeTree' AND name !="
        " 'migrations'"
    )
    for (name,) in names:
        engine.run(
            f"INSERT INTO storeside.{name} SELECT * FROM generateRandom('{structure(engine, name)}', 1, 8) LIMIT 3"
        )
    return {name: 3 for (name,) in names}


def structure(engine: Engine, table: str) -> str:
    rows = engine.run(
        f"SELECT name, type FROM system.columns WHERE database = 'storeside' AND table = '{table}' ORDER BY position"
    )
    return ", ".join(f"`{name}` {kind}" for name, kind in rows).replace("'", "\\'")


def test_tables_of_the_first_edition_keep_their_rows(engine: Engine) -> None:
    """Version 0.1.0 made its tables without a record; an upgrade ends with the tables of a new installation."""
    for migration in migrations()[:FIRST_EDITION]:
        for statement in migration.statements:
            engine.run(statement)
    engine.run("SYSTEM STOP MERGES")  # TTLs and ReplacingMergeTree would take random rows away
    rows = filled(engine)
    assert len(rows) >= 15
    manifest = engine.run("SELECT * FROM storeside.speech ORDER BY object")
    migrate(Client(engine))
    rows["speech"] = 0  # users' tables have another database
    assert {name: engine.run(f"SELECT count() FROM storeside.{name}")[0][0] for name in rows} == rows
    later = f"complete, declared_seconds, ignored, {SIGNAL}"
    moved = engine.run(f"SELECT * EXCEPT ({later}) FROM speech.manifest ORDER BY object")
    assert moved == manifest
    assert engine.run(f"SELECT DISTINCT {SIGNAL} FROM speech.manifest") == [[None] * 4]
    completeness = engine.run("SELECT DISTINCT complete, declared_seconds, ignored FROM speech.manifest")
    assert completeness == [["unknown", None, ""]]
    assert engine.run("SELECT DISTINCT result_version, prepend FROM storeside.objects") == [["", ""]]
    upgraded = definitions(engine)
    for database in DATABASES:
        engine.run(f"DROP DATABASE {database}")
    migrate(Client(engine))
    assert definitions(engine) == upgraded


def test_prefixes_of_results_have_outcomes_of_their_own_in_tables_of_earlier_versions(engine: Engine) -> None:
    for migration in migrations()[:14]:
        for statement in migration.statements:
            engine.run(statement)
    insert = (
        "INSERT INTO storeside.objects (source, destination, object, destination_object, status{column}) VALUES"
        " ('s', 'd', 'o', '{prepend}o', 'done'{value})"
    )
    engine.run(insert.format(column="", prepend="old/", value=""))
    migrate(Client(engine))
    for prepend in ("x/", "y/"):
        engine.run(insert.format(column=", prepend", prepend=prepend, value=f", '{prepend}'"))
    engine.run("OPTIMIZE TABLE storeside.objects FINAL")
    there = "SELECT destination_object FROM storeside.objects ORDER BY destination_object"
    assert engine.run(there) == [["old/o"], ["x/o"], ["y/o"]]
    engine.run(insert.format(column="", prepend="older/", value=""))  # by a task of the previous version
    engine.run("OPTIMIZE TABLE storeside.objects FINAL")
    assert engine.run(there) == [["older/o"], ["x/o"], ["y/o"]]


def test_rows_of_benchmarks_of_transforms_are_kept(engine: Engine) -> None:
    """Until migration 17, a command of the checkout created the table, with other measures."""
    for migration in migrations()[:16]:
        for statement in migration.statements:
            engine.run(statement)
    engine.run(
        "CREATE TABLE storeside.transform_benchmark (server LowCardinality(String), channel LowCardinality(String),"
        " file_access LowCardinality(String), direct_put LowCardinality(String), round UInt16,"
        " objects_per_second Float64, cpu_ms_per_object Float64, recorded_at DateTime64(3) DEFAULT now64(3))"
        " ENGINE = MergeTree ORDER BY (server, channel, file_access, direct_put, recorded_at)"
    )
    engine.run(
        "INSERT INTO storeside.transform_benchmark (server, channel, round, objects_per_second) VALUES"
        " ('http', 'hpull', 1, 5)"
    )
    migrate(Client(engine))
    engine.run(
        "INSERT INTO storeside.transform_benchmark (run_id, server, targets, objects, seconds, objects_per_second)"
        " VALUES ('d/r', 'client', 2, 10, 2.5, 4)"
    )
    found = engine.run(
        "SELECT run_id, server, objects, seconds, objects_per_second FROM storeside.transform_benchmark ORDER BY 1"
    )
    assert found == [["", "http", 0, 0, 5], ["d/r", "client", 10, 2.5, 4]]


def test_failures_of_the_first_edition_are_tried_again_as_before(engine: Engine) -> None:
    """Version 0.1.0 read from the start of a reason whether the next run tries an object again."""
    expected = {
        "loaded": ("loaded", "", "none"),
        "publishing": ("publishing", "", "none"),
        "bad": ("failed", "row 7, column 'id': Cannot parse input", "object"),
        "gone": ("failed", "it was deleted after it was listed", "object"),
        "denied": ("failed", "S3 denies the access to it (403): allow s3:GetObject on it", "access"),
        "hint": (
            "failed",
            "S3 denies the access to it (403): allow s3:GetObject on it (the object is empty)",
            "access",
        ),
        "busy": ("failed", "it cannot be read for now: 5 times: SlowDown", "transient"),
        "quoted": ("failed", "column 'it cannot be read for now' is not in the table", "object"),
    }

    def record(key: str) -> None:
        state, reason, _ = expected[key]
        engine.run(
            "INSERT INTO storeside.loads (destination, bucket, key, version, state, reason)"
            " VALUES ('db.table', 'bucket', {k:String}, 'e', {s:String}, {r:String})",
            {"k": key, "s": state, "r": reason},
        )

    for migration in migrations()[:FIRST_EDITION]:
        for statement in migration.statements:
            engine.run(statement)
    for key in list(expected)[:-2]:
        record(key)
    migrate(Client(engine))
    for key in list(expected)[-2:]:  # by a task of that version, while an upgrade is rolled out
        record(key)
    kinds = {key: kind for key, (_, _, kind) in expected.items()}
    assert dict(engine.run("SELECT key, toString(kind) FROM storeside.loads FINAL")) == kinds
    engine.run("OPTIMIZE TABLE storeside.loads FINAL")
    assert dict(engine.run("SELECT key, toString(kind) FROM storeside.loads")) == kinds


def test_the_kinds_of_failures_are_those_of_the_ledger(engine: Engine) -> None:
    migrate(Client(engine))
    rows = engine.run(
        "SELECT type FROM system.columns WHERE database = 'storeside' AND table = 'loads' AND name = 'kind'"
    )
    assert re.findall(r"'(\w+)' =", rows[0][0]) == [kind.value for kind in FailureKind]


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_process_that_dies_after_any_statement_is_made_up_for(engine: Engine, every: int) -> None:
    client = Client(engine)
    migrate(client)
    whole, count = definitions(engine), len(client.commands)
    engine.run("DROP DATABASE storeside")
    for last in range(0, count, every):
        with pytest.raises(KeyboardInterrupt):
            migrate(Client(engine, last))
        migrate(Client(engine))
        assert definitions(engine) == whole, last
        engine.run("DROP DATABASE storeside")


def test_a_manifest_without_the_newest_columns_survives_a_lost_ledger(engine: Engine) -> None:
    migrate(Client(engine))
    whole = definitions(engine)
    engine.run("INSERT INTO speech.manifest (bucket, object) VALUES ('ais://speech', 'a.wav')")
    columns = ", ".join(f"DROP COLUMN {name}" for name in SIGNAL.split(", "))
    engine.run(f"ALTER TABLE speech.manifest {columns}")
    engine.run("DROP DATABASE storeside")
    migrate(Client(engine))
    assert definitions(engine) == whole
    assert engine.run(f"SELECT object, {SIGNAL} FROM speech.manifest") == [["a.wav", *[None] * 4]]


def test_rows_that_a_task_of_the_version_before_published_move_with_the_next_application(engine: Engine) -> None:
    """While an upgrade is rolled out, such a task still publishes to the former table; docs/versions.md has this."""
    migrate(Client(engine))
    engine.run("INSERT INTO storeside.speech (bucket, object) VALUES ('ais://speech', 'late.wav')")
    (statement,) = (text for text in migrations()[8].statements if "MOVE PARTITION" in text)
    assert statement in (CHECKOUT / "docs" / "versions.md").read_text()
    for _ in range(2):
        engine.run(statement)
        assert engine.run("SELECT object FROM speech.manifest") == [["late.wav"]]


def test_a_lost_table_is_made_again_and_the_others_are_kept(engine: Engine) -> None:
    client = Client(engine)
    migrate(client)
    engine.run("INSERT INTO storeside.objects (source, object, status) VALUES ('s', 'o', 'done')")
    whole = definitions(engine)
    engine.run("DROP TABLE storeside.loads")
    migrate(client)
    assert definitions(engine) == whole
    assert engine.run("SELECT source, object FROM storeside.objects") == [["s", "o"]]


@pytest.mark.parametrize("lost", ["TABLE storeside.loads", "VIEW storeside.job_results"])
def test_a_process_that_dies_while_it_replaces_a_table_is_made_up_for(engine: Engine, lost: str) -> None:
    client = Client(engine)
    migrate(client)
    whole = definitions(engine)
    for last in range(3, len(client.commands), 13):
        engine.run(f"DROP {lost} SYNC")
        with pytest.raises(KeyboardInterrupt):
            migrate(Client(engine, last))
        migrate(Client(engine))
        assert definitions(engine) == whole, last


@pytest.mark.parametrize("last", [10, 20, 30])
def test_views_outlive_a_process_that_dies_while_another_one_migrates(engine: Engine, last: int) -> None:
    """Both find no tables; the slower one dies after the record is whole, with early definitions of views."""

    class Slow(Client):
        def query(self, text: str) -> Any:
            migrate(Client(self.engine))
            return SimpleNamespace(result_rows=[])

    with pytest.raises(KeyboardInterrupt):
        migrate(Slow(engine, last))
    assert migrate(Client(engine)) == []
    assert engine.run("SELECT result_version FROM storeside.job_results(job = '', effect = '')") == []


def test_a_view_has_one_definition() -> None:
    """A task that applies the migrations again would take it back to an early one; up to 0025, two have several."""
    made = re.findall(r"CREATE (?:OR REPLACE )?VIEW (?:IF NOT EXISTS )?(\S+)", "".join(
        statement for migration in migrations()[25:] for statement in migration.statements
    ))  # fmt: skip
    assert sorted(made) == sorted(set(made))
    assert all("OR REPLACE" not in statement for m in migrations()[25:] for statement in m.statements)


def test_a_later_migration_is_applied_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(engine)
    migrate(client)
    added = Migration(len(migrations()) + 1, "9999_test")
    statement = "ALTER TABLE storeside.runs ADD COLUMN IF NOT EXISTS more UInt8 DEFAULT 7"
    monkeypatch.setattr(Migration, "statements", property(lambda m: [statement]))
    monkeypatch.setattr(module, "tables", tables)
    every = (*migrations(), added)
    monkeypatch.setattr(module, "migrations", lambda: every)
    engine.run("INSERT INTO storeside.runs (run_id) VALUES ('r')")
    client.commands.clear()
    assert migrate(client) == [added]
    assert [text for text in client.commands if text.startswith("ALTER")] == [statement]
    assert engine.run("SELECT run_id, more FROM storeside.runs") == [["r", 7]]


def test_a_worker_of_the_version_before_leaves_later_migrations_alone(engine: Engine) -> None:
    client = Client(engine)
    migrate(client)
    client.insert("storeside.migrations", [[len(migrations()) + 1, "of the next version"]])
    client.commands.clear()
    assert migrate(client) == []
    assert client.commands == []
