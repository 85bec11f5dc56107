"""The installed package: in a new environment with Airflow, beside a project with its own `include`, `operators`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storeside import __version__
from storeside.stack.airflow import airflow as stack_airflow
from storeside.stack.settings import CHECKOUT, Stack, default_folder
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

LOAD = """
import json
import os

from airflow.sdk import DAG, task

from include.shared import greeting
from operators.own import OwnOperator
from storeside.operators import S3ToClickHouseOperator

with DAG("load") as dag:
    own = OwnOperator(task_id="own")
    load = S3ToClickHouseOperator(
        task_id="load", bucket=os.environ["BUCKET"], table=os.environ["TABLE"], deferrable=False
    )
    own >> load

if __name__ == "__main__":
    from airflow import plugins_manager
    from airflow.providers_manager import ProvidersManager

    import storeside

    manager = ProvidersManager()
    provider = manager.providers["storeside"]
    hooks = {kind: manager.hooks[kind].hook_class_name for kind in ("aistore", "hsds")}
    run = dag.test()
    plugins, _ = plugins_manager._get_plugins()
    found = {
        "state": str(run.state),
        "greeting": greeting(),
        "package": storeside.__file__,
        "version": provider.version,
        "hooks": hooks,
        "links": sorted(link for link in manager.extra_links_class_names if link.startswith("storeside")),
        "plugins": [plugin.name for plugin in plugins if plugin.name == "storeside"],
        "errors": plugins_manager.get_import_errors(),
    }
    print("FOUND", json.dumps(found))
"""


def uv() -> str:
    own = default_folder() / "uv" / "bin" / "uv"
    found = str(own) if own.exists() else shutil.which("uv")
    assert found, f"uv is needed and is not at {own}: run 'make install'"
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([uv(), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(CHECKOUT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment that has the package and its dependencies."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([uv(), "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    found = folder / "bin" / "python"
    # The lock only constrains: the environment has only the packages' own requirements.
    command = [uv(), "pip", "install", "--quiet", "--python", str(found), "--constraint", "requirements.lock"]
    subprocess.run([*command, f"{wheel}[aistore,quality]"], check=True, cwd=CHECKOUT)
    return found


def test_the_wheel_has_engine_operators_and_pages_but_not_the_embedded_stack(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (entry_points,) = (opened.read(n).decode() for n in names if n.endswith("entry_points.txt"))
    assert {name.split("/")[0] for name in names} == {"storeside", f"storeside-{__version__}.dist-info"}
    for name in (
        "py.typed", "operators/__init__.py", "operators/triggers/aistore.py", "plugins/storeside_plugin.py",
        "plugins/pages/templates/run.html", "plugins/pages/static/pages.css", "transfer/run/engine.py",
        "sql/migrations/0001_objects_and_runs.sql", "transformers/native/pcm.c",
        "transformers/native/signal.c", "transformers/native/signal.h",
    ):  # fmt: skip
        assert f"storeside/{name}" in names, name
    assert not [name for name in names if name.startswith("storeside/stack") or name.endswith((".so", ".pyc"))]
    assert "[apache_airflow_provider]\nprovider_info = storeside.operators.provider:get_provider_info" in entry_points
    assert "[airflow.plugins]\nstoreside = storeside.plugins.storeside_plugin:StoresidePlugin" in entry_points


def test_every_module_of_the_wheel_is_imported_or_names_the_extra(python: Path, tmp_path: Path) -> None:
    """Without the extras audio, hsds, lake and oci: only modules for those, and for pytest, may lack a library."""
    code = (
        "import importlib, pkgutil, storeside\n"
        "for m in pkgutil.walk_packages(storeside.__path__, 'storeside.'):\n"
        "    if m.name.endswith('__main__') or 'native.build' in m.name: continue\n"
        "    try: importlib.import_module(m.name)\n"
        "    except ImportError as e: print('MISSING', m.name, getattr(e, 'name', e))\n"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AIRFLOW_HOME": str(tmp_path)}
    command = [str(python), "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    missing = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("MISSING")]
    wrong = [
        (module, name)
        for module, name in missing
        if name.split(".")[0] not in ("av", "deltalake", "ffmpeg", "h5py", "h5pyd", "oci", "pyiceberg")
        and (module, name) != ("storeside.testing", "pytest")
    ]
    assert wrong == []


@pytest.fixture(scope="module")
def found(
    python: Path, stack: Stack, clickhouse: Any, s3_client: S3Client, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    bucket, table = unique("wheel"), "data." + unique("wheel").replace("-", "_")
    s3_client.create_bucket(Bucket=bucket)
    s3_client.put_object(Bucket=bucket, Key="a.csv", Body=b"n,x\n1,a\n2,b\n")
    project = tmp_path_factory.mktemp("project")
    for name in ("include", "operators", "dags", "plugins"):
        (project / name).mkdir()
    (project / "include" / "shared.py").write_text("def greeting():\n    return 'from the project'\n")
    (project / "operators" / "own.py").write_text(
        "from airflow.sdk import BaseOperator\n\n"
        "class OwnOperator(BaseOperator):\n    def execute(self, context):\n        return 1\n"
    )
    (project / "dags" / "load.py").write_text(LOAD)
    home = tmp_path_factory.mktemp("home")
    shutil.copy(stack_airflow.template(stack.cache), home / stack_airflow.DATABASE_FILE)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))},
        **stack_airflow.environment(stack),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / stack_airflow.DATABASE_FILE}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(project / "plugins"),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "PYTHONPATH": str(project),
        "BUCKET": bucket,
        "TABLE": table,
    }
    command = [str(python), "dags/load.py"]
    done = subprocess.run(
        command, env=variables, cwd=project, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        **json.loads(done.stdout.rpartition("FOUND ")[2].splitlines()[0]),
        "rows": clickhouse.query(f"SELECT n, x FROM {table} ORDER BY n").result_rows,
        "environment": str(python.parents[1]),
    }


def test_a_dag_of_another_project_loads_a_table(found: dict[str, Any]) -> None:
    assert found["state"] == "success"
    assert [tuple(row) for row in found["rows"]] == [(1, "a"), (2, "b")]
    assert found["greeting"] == "from the project"
    assert found["package"].startswith(found["environment"])


def test_airflow_knows_the_provider_and_the_plugin(found: dict[str, Any]) -> None:
    assert found["version"] == __version__
    assert found["hooks"] == {
        "aistore": "storeside.operators.hooks.aistore.AIStoreHook",
        "hsds": "storeside.operators.hooks.hsds.HSDSHook",
    }
    assert found["links"] == [
        "storeside.operators.links.BenchmarksPageLink",
        "storeside.operators.links.QueuePageLink",
        "storeside.operators.links.RunPageLink",
    ]
    assert found["plugins"] == ["storeside"]
    assert found["errors"] == {}
