"""Shared by tests of transfers into ClickHouse: a bucket, a table, and checks of the transfers between them."""

from __future__ import annotations

import dataclasses
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import pytest

from storeside.aistore.buckets import Bucket
from storeside.stack import authn, demo
from storeside.stack.servers import s3
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER
from storeside.stack.settings import HOST, Stack
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.request.options import Batches, ReadOptions, TableOptions
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Prepared, Report, Transfer
from storeside.transfer.state import lock
from storeside.transfer.tables.servers import NO_SERVERS, Servers
from tests.support import kill, put, unique, until

# An expectation of small numbers in a column n, the default of the fixture `suite`.
SMALL = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "max_value": 89}}


def request_of(source: Source, table: str, format: str = "auto", **options: Any) -> Request:
    """Make a request; options of its objects have their own names, those of `Batches` are like ``batch_bytes``.

    ``chosen`` are the options of `Columns`.
    """

    def taken(options_of: type, **names: str) -> Any:
        named = {field.name: names.get(field.name, field.name) for field in dataclasses.fields(options_of)}
        return options_of(**{field: options.pop(name) for field, name in named.items() if name in options})

    given = {
        "read": taken(ReadOptions, columns="chosen"),
        "table_options": taken(TableOptions),
        "batches": taken(Batches, bytes="batch_bytes", objects="batch_objects"),
    }
    return Request(source, table, format, **given, **options)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """An object, and all rows that the table must have of it, in any order, as values of these columns."""

    content: bytes
    rows: Sequence[tuple[Any, ...]] = ()
    columns: str = "*"


@dataclasses.dataclass(frozen=True)
class Refused:
    """An object that must fail, and text or a pattern that its reason must contain."""

    content: bytes
    reason: str | re.Pattern[str]


def wrong_cases(cases: Mapping[str, Loaded | Refused], found: Mapping[str, str | Sequence[Any]]) -> list[str]:
    """Return a line for each case whose object has another outcome: `found` has its rows, or why it failed."""
    return [
        f"{name}: expected {_expectation(case)}, found {_text(found.get(name, 'neither rows nor a reason'))}"
        for name, case in cases.items()
        if name not in found or not _is_as_expected(case, found[name])
    ]


def _is_as_expected(case: Loaded | Refused, found: str | Sequence[Any]) -> bool:
    if isinstance(case, Loaded):
        return not isinstance(found, str) and sorted(found, key=repr) == sorted(case.rows, key=repr)
    if not isinstance(found, str):
        return False
    return case.reason in found if isinstance(case.reason, str) else bool(case.reason.search(found))


def _expectation(case: Loaded | Refused) -> str:
    if isinstance(case, Loaded):
        return _text(case.rows)
    return f"the reason {case.reason if isinstance(case.reason, str) else case.reason.pattern!r}"


def _text(found: str | Sequence[Any]) -> str:
    return f"the reason {found!r}" if isinstance(found, str) else f"{len(found)} rows {str(found)[:1000]}"


class Outcomes(Protocol):
    """The numbers of objects in the report of a load."""

    @property
    def loaded(self) -> int: ...

    @property
    def failed(self) -> int: ...


Reported = TypeVar("Reported", bound=Outcomes)


class Cases(ABC, Generic[Reported]):
    """A table, and objects that are loaded into it: each is a case, and one load takes many."""

    table: str

    @abstractmethod
    def put(self, objects: Mapping[str, bytes]) -> None:
        """Store objects."""

    @abstractmethod
    def load(self, keys: str = "", **request: Any) -> Reported:
        """Load objects."""

    @abstractmethod
    def query(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""

    @abstractmethod
    def newest(self) -> dict[int, tuple[str, str | None]]:
        """Return the key of each load, and why it failed, or None; the newest load of a key is the last one."""

    def cases(
        self, cases: Mapping[str, Loaded | Refused], suffix: str = "", folder: str = "", **request: Any
    ) -> Reported:
        """Load one object for each case into the existing table with one load, and report all wrong cases by name.

        A case's object is named `folder` + its name + `suffix`. A test that calls this several times, for other
        options or the other loader, gives each call its own folder, such as ``"push/"``. If the table has a column
        for each case, its object has this column only, and the case names it in its `columns`.
        """
        by_key = {f"{folder}{name}{suffix}": case for name, case in cases.items()}
        self.put({key: case.content for key, case in by_key.items()})
        report = self.load(folder, **request)
        assert report.loaded + report.failed == len(cases), f"not one outcome for each case: {report}"
        wrong = wrong_cases(by_key, self._outcomes(by_key))
        assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)} cases are wrong:", *wrong])
        return report

    def _outcomes(self, by_key: Mapping[str, Loaded | Refused]) -> dict[str, str | list[Any]]:
        """Return the rows of each object in the columns of its case, or the reason why it failed."""
        loads = self.newest()
        columns = {key: case.columns if isinstance(case, Loaded) else "1" for key, case in by_key.items()}
        rows: dict[str, list[Any]] = {key: [] for key in by_key}
        for chosen in {*columns.values()}:
            for load, *row in self.query(f"SELECT _storeside_load, {chosen} FROM {self.table}"):
                key, _ = loads[load]
                if columns.get(key) == chosen:
                    rows[key].append(tuple(row))
        outcomes = {key: reason for key, reason in loads.values() if key in by_key}
        return {
            key: rows[key] if reason is None else [*rows[key], reason] if rows[key] else reason
            for key, reason in outcomes.items()
        }


class Loading(Cases[Report]):
    """One test's own bucket and table."""

    def __init__(self, stack: Stack, clickhouse: Any, s3: Any) -> None:
        self.stack = stack
        self.clickhouse = clickhouse
        self.s3 = s3
        self.bucket = unique("loading")
        self.table = f"data.{unique('loading').replace('-', '_')}"
        s3.create_bucket(Bucket=self.bucket)

    def put(self, objects: Mapping[str, bytes]) -> None:
        for key, content in objects.items():
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=content)

    def create(self, columns: str, order_by: str = "tuple()") -> None:
        self.clickhouse.command(f"CREATE TABLE {self.table} ({columns}) ENGINE = MergeTree ORDER BY {order_by}")

    def truncate(self) -> None:
        self.clickhouse.command(f"TRUNCATE TABLE {self.table}")

    def variables(self) -> dict[str, str]:
        """Return the environment of commands."""
        return environment(self.stack)

    def let_the_lock_age(self) -> None:
        """Wait until other runs may break the lock of the table; ClickHouse states its age in whole seconds."""
        name = lock.lock_name(self.table)

        def is_stale() -> bool:
            found = lock._look(self.clickhouse, name)
            assert found is not None, "the table is not locked"
            return found[2] > lock.STALE_SECONDS

        until(is_stale, 60, "stale lock")

    def kill_engine(self, number: int = 0) -> None:
        """Kill a server, and wait until it answers again; `number` chooses one of several."""
        kill_clickhouse(self.stack)

    def client(self) -> Any:
        return demo.clickhouse_client(self.stack)

    def servers(self, wrap: Callable[[Any], Any] = lambda client: client) -> Servers:
        """Return the other servers of the cluster; `wrap` receives the client of each."""
        return NO_SERVERS

    def transfer(
        self, keys: str = "", *, s3: Any = None, run_id: str = "", collection: str = "storeside_s3", **request: Any
    ) -> Transfer:
        """Make a transfer with the users of Airflow's connections, which have no other rights."""
        return Transfer(
            request_of(Source(self.bucket, keys, collection=collection), self.table, **request),
            demo.clickhouse_client(self.stack, LOADER),
            s3 or self.s3,
            run_id or uuid.uuid4().hex,
            ledger=demo.clickhouse_client(self.stack, LEDGER),
        )

    def load(
        self, keys: str = "", *, between: Callable[[Prepared], Any] = lambda prepared: None, **request: Any
    ) -> Report:
        """Run a transfer; `between` is called after planning and before anything is read."""
        transfer = self.transfer(keys, **request)
        prepared = transfer.prepare()
        between(prepared)
        report = transfer.run(prepared)
        self.check(report)
        assert self.left(transfer) == []
        return report

    def newest(self) -> dict[int, tuple[str, str | None]]:
        return {
            load: (key, reason if state == "failed" else None)
            for load, key, state, reason in self.query(
                "SELECT load_id, key, state, reason FROM storeside.loads FINAL"
                " WHERE bucket = {bucket:String} ORDER BY recorded_at",
                bucket=self.bucket,
            )
        }

    def check(self, report: Report) -> None:
        """Check what must hold after any run: report, ledger and table agree."""
        ledger = self.ledger()
        loads = f"SELECT * FROM storeside.loads FINAL WHERE bucket = '{self.bucket}' AND state = 'loaded'"
        in_table = f"SELECT _storeside_load AS load_id, count() AS found FROM {self.table} GROUP BY 1"
        different = f"SELECT key, rows, found FROM ({loads}) AS l LEFT JOIN ({in_table}) AS t USING load_id"
        assert self.query(f"{different} WHERE rows != found SETTINGS join_use_nulls = 0") == []
        states = [state for state, *_ in ledger.values()]
        assert set(states) <= {"loaded", "failed", "replaced"}
        assert len(report.failures) == min(report.failed, 20)
        known = "SELECT load_id FROM storeside.loads"
        strange = f"SELECT count() FROM {self.table} WHERE _storeside_load GLOBAL NOT IN ({known})"
        assert self.query(strange) == [(0,)]

    def query(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.clickhouse.query(statement, parameters=parameters).result_rows]

    def rows(self, columns: str = "*", order: str = "ALL") -> list[tuple[Any, ...]]:
        return self.query(f"SELECT {columns} FROM {self.table} ORDER BY {order}")

    def types(self) -> dict[str, str]:
        return {row[0]: row[1] for row in self.query(f"DESCRIBE TABLE {self.table}") if row[0] != "_storeside_load"}

    def ledger(self) -> dict[str, tuple[str, int, int, str]]:
        """Return state, rows, rejected rows and reason of the newest version of each object."""
        return {
            row[0]: row[1:]
            for row in self.query(
                "SELECT key, state, rows, rejected, reason FROM storeside.loads FINAL"
                " WHERE bucket = {bucket:String} ORDER BY recorded_at",
                bucket=self.bucket,
            )
        }

    def reasons(self) -> dict[str, str]:
        """Return the reasons of failed objects."""
        return {key: reason for key, (state, _, _, reason) in self.ledger().items() if state == "failed"}

    def left(self, transfer: Transfer) -> list[str]:
        """Return the staging tables of a transfer, and rows of its plan."""
        tables = (
            f"SELECT name FROM system.tables WHERE database = '{STAGING}' AND startsWith(name, 'load_{transfer.id}')"
        )
        plans = f"SELECT key FROM storeside.load_plan WHERE transfer = '{transfer.id}'"
        return [name for (name,) in self.query(f"{tables} UNION ALL {plans}")]


class FromAIStore(Loading):
    """One test's own bucket of AIStore, and its table."""

    def __init__(self, stack: Stack, clickhouse: Any, aistore: Any) -> None:
        self.stack, self.clickhouse, self.aistore = stack, clickhouse, aistore
        self.place = Bucket("ais", unique("results"))
        self.bucket = str(self.place)
        self.endpoint = stack.url("ais_proxy")
        self.table = f"data.{unique('results').replace('-', '_')}"
        put(aistore, self.place, {})

    def put(self, objects: Mapping[str, bytes]) -> None:
        put(self.aistore, self.place, objects)

    def source(self, keys: str = "") -> Source:
        """Return the source for ClickHouse; without an endpoint, the worker reads it."""
        collection = "storeside_aistore_objects" if self.stack.secure else ""
        return Source(self.bucket, keys, collection, self.endpoint)

    def transfer(self, keys: str = "", *, run_id: str = "", client: Any = None, **request: Any) -> Transfer:
        """Make a transfer with the users of Airflow's connections, which have no other rights."""
        return Transfer(
            request_of(self.source(keys), self.table, **request),
            demo.clickhouse_client(self.stack, LOADER),
            client or authn.cluster(self.stack).client(),
            run_id or uuid.uuid4().hex,
            ledger=demo.clickhouse_client(self.stack, LEDGER),
        )


# Loads of S3, and of AIStore.
each_storage = pytest.mark.parametrize("loading", ["s3", "ais"], indirect=True)


def environment(stack: Stack) -> dict[str, str]:
    """Return the variables with which ``python -m storeside.transfer`` and ``storeside.events`` find the stack."""
    access_key, secret_key = s3.keys(stack)
    return {
        **os.environ,
        "CLICKHOUSE_HOST": HOST,
        "CLICKHOUSE_PORT": str(stack.ports["clickhouse_http"]),
        "CLICKHOUSE_USER": "storeside",
        "CLICKHOUSE_PASSWORD": stack.secrets["clickhouse"],
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_ENDPOINT_URL_S3": stack.url("s3"),
        "AWS_DEFAULT_REGION": s3.REGION,
    }


def kill_clickhouse(stack: Stack) -> None:
    """Kill the engine."""
    kill(stack, "clickhouse", lambda: bool(demo.clickhouse_client(stack).query("SELECT 1")))


def jsonl(rows: Iterable[Any]) -> bytes:
    import json

    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parquet(columns: Any, **options: Any) -> bytes:
    """Return a mapping or an Arrow table as a Parquet file."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), sink, **options)
    return sink.getvalue()
