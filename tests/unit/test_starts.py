"""The modules that commands import, and DAG files when Airflow parses them: an unused one costs CPU at each start."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from storeside.stack.settings import CHECKOUT
from tests.unit.test_dag_policy import BANNED, DAGS

HEAVY = BANNED | {"airflow", "asyncpg", "fastapi", "pydantic", "requests", "sqlalchemy"}
# Parts of the engine that only work needs: a start without work imports none of them.
WORK = (
    "copying.s3", "events.load", "ledger", "quality.verdict", "transfer.formats", "transfer.objects",
    "transfer.publish", "transfer.run", "transfer.samples", "transfer.staging", "transfer.state",
    "transfer.statements", "transform.bucket_job", "transform.state", "aistore.jobs", "aistore.etl",
    "speech.manifest",
)  # fmt: skip
SEEN = "import atexit, json, sys; atexit.register(lambda: print('SEEN', json.dumps(sorted(sys.modules)), flush=True))"
NOWHERE = {"CLICKHOUSE_HOST": "localhost", "CLICKHOUSE_PORT": "1", "AWS_DEFAULT_REGION": "us-east-1"}
PARSE = f"""
import gc, importlib, json, os, sys
import airflow.sdk
airflow.sdk.Asset(name="a", uri="s3://a")
for name in {DAGS!r}:
    if (pid := os.fork()) == 0:
        importlib.import_module(f"dags.{{name}}")
        print("SEEN", json.dumps([name, sorted(sys.modules)]), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def seen(code: str, **environment: str) -> list[list[str]]:
    """Return what a new process printed after ``SEEN``."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert found, done.stderr
    return found


def command(module: str, *arguments: str, **environment: str) -> list[str]:
    """Return the modules that a command has imported when it ends."""
    run = f"import runpy; sys.argv = {[module, *arguments]!r}; runpy.run_module({module!r}, run_name='__main__')"
    (modules,) = seen(f"{SEEN}; {run}", **environment)
    return modules


def packages(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def ours(modules: list[str]) -> list[str]:
    return [name for name in modules if name.partition(".")[0] == "storeside"]


def work(modules: list[str]) -> set[str]:
    """Return the parts of `WORK` that are imported."""
    names = [name.removeprefix("storeside.") for name in ours(modules)]
    return {part for part in WORK for name in names if name == part or name.startswith(f"{part}.")}


@pytest.mark.parametrize("name", ["load", "events", "hsds-export", "hsds-import"])
def test_help_imports_no_client_and_nothing_that_works(name: str) -> None:
    modules = command("storeside", name, "--help")
    assert packages(modules) & (HEAVY | {"botocore", "urllib3", "msgspec"}) == set()
    assert work(modules) == set()
    assert len(ours(modules)) <= 50


def test_a_load_has_the_clients_and_nothing_heavy_besides() -> None:
    """The command imports the engine, asks S3's client for its address, and ends at a server that does not answer."""
    modules = command("storeside.transfer", "s3://bucket/a.csv", "d.t", **NOWHERE)
    assert {"storeside.transfer.run.engine", "boto3", "clickhouse_connect"} <= set(modules)
    assert packages(modules) & HEAVY == {"boto3", "clickhouse_connect"}


def test_text_is_read_without_pyarrow() -> None:
    """Text without compression, and in gzip; decoders of pyarrow open the others."""
    read = "import gzip, io; from storeside.transfer.objects.streams import opened"
    read += "; assert opened(io.BytesIO(gzip.compress(b'a')), 'gzip').read(9) == opened(io.BytesIO(b'a'), '').read(9)"
    (modules,) = seen(f"{SEEN}; {read}")
    assert packages(modules) & {"numpy", "pyarrow"} == set()


def test_a_dag_file_imports_operators_without_the_engine() -> None:
    found = {name: modules for name, modules in seen(PARSE)}
    assert set(found) == set(DAGS)
    assert {name: work(modules) for name, modules in found.items()} == {name: set() for name in DAGS}
    assert {name: len(ours(modules)) for name, modules in found.items() if len(ours(modules)) > 83} == {}
