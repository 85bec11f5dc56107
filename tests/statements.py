"""Runs a load's statements in ClickHouse's engine in this process: no server, and `file()` in the place of `s3()`.

Preparation, grouping, reading, checks, retries of objects that fail alone, and their errors are those of the product.
Only listing, plan, ledger and lock are absent: the objects of a load are in a folder, and its outcomes in memory.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from botocore.response import StreamingBody
from clickhouse_connect.driver._chdbclient import ChdbClient
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from clickhouse_connect.driver.summary import QuerySummary

from storeside.sql.quoting import literal
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Listed, Source, wild
from storeside.transfer.run.batch import BatchLoad
from storeside.transfer.run.preparation import Preparation
from storeside.transfer.run.table_setup import TableSetup
from storeside.transfer.staging.private import quiet_client
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import LONG_STATEMENT, Loaded, Planned, Unplanned
from storeside.transfer.state.plan import Batch
from storeside.transfer.tables.table import LOAD_ID
from tests.support import unique
from tests.transfers import Cases, request_of

INPUT = re.compile(r"FROM input\(('(?:[^'\\]|\\.)*')\)", re.DOTALL)
# Statements here have a few rows: the compilation of an expression takes longer than all of them.
COMPILES_NOTHING = dict.fromkeys(
    ("compile_expressions", "compile_aggregate_expressions", "compile_sort_description"), 0
)


class Engine(ChdbClient):
    """A client of the engine. It gives INSERT its settings as a clause, and reads the body of an INSERT from a file.

    `statements` are the statements that fill staging tables.
    """

    def __init__(self) -> None:
        # `command` needs four statements to set a setting and to reset it, so this one is set for the session.
        super().__init__(settings={"session_timezone": "UTC", "max_query_size": LONG_STATEMENT, **COMPILES_NOTHING})
        self.statements: list[str] = []
        for database in (STAGING, "data"):
            self.command(f"CREATE DATABASE IF NOT EXISTS {database}")

    def query(self, *args: Any, **more: Any) -> Any:
        try:
            return super().query(*args, **more)
        except ClickHouseError:
            # chdb 26.9.0 puts what a failed query had written before the result of the next one.
            super().command("SELECT 1")
            raise

    def command(self, cmd: str, *args: Any, **more: Any) -> Any:
        if cmd.startswith("INSERT INTO") and more.get("settings"):
            given = {name: value for name, value in more.pop("settings").items() if name != "query_id"}
            cmd += f" SETTINGS {', '.join(f'{name} = {literal(str(value))}' for name, value in given.items())}"
            self.statements.append(cmd)
        more["settings"] = {k: v for k, v in (more.get("settings") or {}).items() if k != "max_query_size"} or None
        return super().command(cmd, *args, **more)

    def raw_insert(self, *args: Any, insert_block: Any = None, settings: Any = None, compression: Any = None,
                   **more: Any) -> Any:  # fmt: skip
        table, fmt = statement_of(next(insert_block), compression)
        self.statements.append(f"INSERT INTO {table}")
        with tempfile.NamedTemporaryFile() as body:
            try:
                body.writelines(insert_block)
            except OSError as e:  # as the client over HTTP does
                raise OperationalError(str(e)) from e
            body.flush()
            where = f"{literal(body.name)}, {literal(fmt)}"
            packed = literal(compression or "none")
            made, found = INPUT.subn(lambda m: f"FROM file({where}, {m[1]}, {packed})", table)
            assert found == 1
            rows = f"SELECT count() FROM {table.partition(' (')[0]}"
            before = int(self.command(rows))
            self.command(f"INSERT INTO {made}", settings=settings)
            # The engine reports no rows read. No condition of the statement leaves out rows.
            return QuerySummary({"read_rows": str(int(self.command(rows)) - before)})


def statement_of(packed: bytes, compression: str | None) -> tuple[str, str]:
    """Return what follows INSERT INTO in the statement at the beginning of a body, and the format of the rest."""
    unpack: dict[str | None, Callable[[bytes], bytes]] = {
        "gzip": gzip.decompress, "xz": lzma.decompress, None: bytes
    }  # fmt: skip
    text = unpack[compression](packed).decode()
    statement, _, form = text.removeprefix("INSERT INTO ").rpartition(" FORMAT ")
    assert text.startswith("INSERT INTO ")
    assert text.endswith("\n")
    return statement, form.strip()


@dataclass(frozen=True)
class Files(Source):
    """The files in the folder `endpoint`/`bucket` as the objects of a bucket."""

    def path_of(self, key: str) -> str:
        return f"{self.endpoint}/{self.bucket}/{key}"

    @property
    def key(self) -> str:
        return f"substring(_path, {len(self.path_of('').encode()) + 1})"

    def key_named(self, file: str) -> str:
        return file.removeprefix(self.path_of(""))

    def _function(self, path: str, form: str, structure: str = "", compression: str = "auto") -> str:
        given = (self.path_of(unquote(path)), form, structure or "auto", compression)
        return f"file({', '.join(map(literal, given))})"


class Objects:
    """The part of boto3's client with which the worker reads objects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get_object(self, *, Bucket: str, Key: str, Range: str = "", **_: Any) -> Any:
        content = (self.folder / Bucket / Key).read_bytes()
        if Range:
            first, last = Range.removeprefix("bytes=").split("-")
            content = content[int(first) : int(last) + 1]
        return {"Body": StreamingBody(io.BytesIO(content), len(content)), "ETag": '""'}


@dataclass(frozen=True)
class Outcome:
    """Objects and rows of a load, as in `Report`."""

    skipped: int
    loaded: int
    failed: int
    rows: int
    rejected: int
    filtered: int


class Ledger:
    """Plan and ledger of one load, in memory; `client` runs its locks."""

    def __init__(self, client: Any, transfer: str, objects: Sequence[Planned]) -> None:
        self.client, self.transfer, self.objects_left = client, transfer, list(objects)
        self.loads = self
        self.loaded: list[Loaded] = []
        self.failed: dict[str, str] = {}
        self.ignored: dict[str, int] = {}

    needs_tables = False

    def create(self) -> None: ...

    def forget(self, table: str) -> None: ...

    def record_listing(self, pages: Iterable[Sequence[Listed]]) -> None: ...

    def doubtful(self) -> list[Loaded]:
        return []

    def states(self, objects: Sequence[Planned]) -> dict[int, str]:
        return {}

    def require_no_rows(self) -> None:
        """No load of these tests follows another one."""

    def make(self, *, push: bool, **_: Any) -> tuple[int, int, int]:
        self.push = push
        return len(self.objects_left), len(self.objects_left), sum(o.size for o in self.objects_left)

    def known_bad(self, limit: int, since: int = 0) -> Unplanned:
        return Unplanned()

    def sample(self, count: int) -> list[Planned]:
        return [o for o in self.objects_left if o.size][:count]

    def unfinished(self, limit: int = 0) -> list[Planned]:
        return list(self.objects_left)

    def facts(self, expressions: str) -> tuple[Any, ...]:
        assert expressions == "countIf(size > 0)"
        return (sum(o.size > 0 for o in self.objects_left),)

    def listed_below(self, prefix: str) -> int:
        return sum(o.key.startswith(prefix) for o in self.objects_left)

    def batches(self) -> list[Batch]:
        pushed = [o for o in self.objects_left if self.push or wild(o.key)]
        others = [o for o in self.objects_left if o not in pushed]
        return [
            Batch(n, n > 0, len(some), sum(o.size for o in some), tuple(some))
            for n, some in enumerate((others, pushed)) if some
        ]  # fmt: skip

    def objects(self, number: int) -> list[Planned]:
        return next(list(batch.listed) for batch in self.batches() if batch.number == number)

    def record(self, loaded: Sequence[Loaded], state: str) -> None:
        self.loaded += loaded
        self._done([o.planned for o in loaded])

    def record_failed(self, failed: Iterable[tuple[Planned, Any, str]]) -> None:
        failed = list(failed)
        self.failed |= {o.key: reason for o, _, reason in failed}
        self._done([o for o, *_ in failed])

    def _done(self, objects: Sequence[Planned]) -> None:
        self.objects_left = [o for o in self.objects_left if o not in objects]


class Statements(Cases[Outcome]):
    """A table, and objects to read into it. The methods are those of `Loading`."""

    def __init__(self, client: Engine, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.bucket = unique("bucket")
        self.table = f"data.{unique('read').replace('-', '_')}"
        (folder / self.bucket).mkdir()
        self._loaded: set[str] = set()
        self._failed: dict[str, str] = {}
        self._others: list[Statements] = []

    def put(self, objects: Mapping[str, bytes]) -> None:
        for key, content in objects.items():
            path = self.folder / self.bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def another(self) -> Statements:
        """Return another table, without objects."""
        self._others.append(Statements(self.client, self.folder))
        return self._others[-1]

    def fresh(self) -> Statements:
        """Return another table, with the same objects."""
        other = self.another()
        other.put({o.key: (self.folder / self.bucket / o.key).read_bytes() for o in self._objects()})
        return other

    def create(self, columns: str, order_by: str = "tuple()") -> None:
        columns += f", {LOAD_ID} UInt64 MATERIALIZED 0"  # as after a first load
        self.client.command(f"CREATE TABLE {self.table} ({columns}) ENGINE = MergeTree ORDER BY {order_by}")

    def load(self, keys: str = "", **options: Any) -> Outcome:
        """Read the objects that are not loaded into the table; failed ones only with `retry_failed`.

        Raises TransferInputError for a request that cannot be carried out.
        """
        request = request_of(Files(self.bucket, keys, endpoint=str(self.folder)), self.table, **options)
        done = self._loaded if request.retry_failed else {*self._loaded, *self._failed}
        selected = [
            o for o in self._objects() if re.match(request.source.regex, o.key) and not request.source.ignores(o.key)
        ]
        planned = [o for o in selected if o.key not in done]
        ledger = Ledger(self.client, uuid.uuid4().hex[:16], planned)
        self._read(request, ledger)
        self._loaded |= {o.planned.key for o in ledger.loaded}
        self._failed = {k: v for k, v in self._failed.items() if k not in self._loaded} | ledger.failed
        self._check(ledger)
        return Outcome(
            len(selected) - len(planned), len(ledger.loaded), len(ledger.failed), sum(o.rows for o in ledger.loaded),
            sum(o.rejected for o in ledger.loaded), sum(o.filtered for o in ledger.loaded),
        )  # fmt: skip

    def _read(self, request: Request, ledger: Ledger) -> None:
        client: Any = quiet_client(self.client) if request.read.columns.mask else self.client
        objects, plan = Objects(self.folder), cast("Any", ledger)
        preparation = Preparation(TableSetup(request, client, objects, plan))
        prepared = preparation.prepare(None)
        form = request.form(prepared.format)
        work = Work(
            request, form, client, plan, uuid.uuid4().hex[:8], objects, prepared.push, recent=preparation.recent
        )
        for batch in ledger.batches():
            load = BatchLoad(work, batch)
            for staged in load.staged():
                load.staging.destination.take(staged.table, staged.table)
                load.staging.drop(staged.table)
                ledger.record(staged.loaded, "loaded")

    def _check(self, ledger: Ledger) -> None:
        """Check that the table has the rows of the load as they were counted, and that no staging table is left."""
        left = f"SELECT name, toUInt64(1) FROM system.tables WHERE database = '{STAGING}'"
        if not ledger.loaded:
            assert self.query(left) == []
            return
        ids = ", ".join(str(o.planned.load_id) for o in ledger.loaded)
        counts = (
            f"SELECT toString(_storeside_load), count() FROM {self.table} WHERE _storeside_load IN ({ids}) GROUP BY 1"
        )
        expected = {str(o.planned.load_id): o.rows for o in ledger.loaded if o.rows}
        assert dict(self.query(f"{counts} UNION ALL {left}")) == expected

    def _objects(self) -> list[Planned]:
        root = self.folder / self.bucket
        keys = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        return [
            Planned(key, "", (root / key).stat().st_size, 0.0, zlib.crc32(key.encode()) + 1) for key in keys
        ]  # fmt: skip

    def query(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.query(statement, parameters=parameters).result_rows]

    def rows(self, columns: str = "*", order: str = "ALL") -> list[tuple[Any, ...]]:
        return self.query(f"SELECT {columns} FROM {self.table} ORDER BY {order}")

    def types(self) -> dict[str, str]:
        return {row[0]: row[1] for row in self.query(f"DESCRIBE TABLE {self.table}") if row[0] != LOAD_ID}

    def reasons(self) -> dict[str, str]:
        """Return the reasons of failed objects."""
        return dict(self._failed)

    def newest(self) -> dict[int, tuple[str, str | None]]:
        done = {*self._loaded, *self._failed}
        return {o.load_id: (o.key, self._failed.get(o.key)) for o in self._objects() if o.key in done}

    def drop(self) -> None:
        """Drop the table, and those of `another`."""
        self.client.command(f"DROP TABLE IF EXISTS {self.table} SYNC")
        for other in self._others:
            other.drop()
