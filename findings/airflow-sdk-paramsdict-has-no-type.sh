#!/usr/bin/env bash
# Airflow's Task SDK: airflow.sdk exports ParamsDict, but its stub does not, so type checkers refuse the import.
#
# `from airflow.sdk import ParamsDict` works, and the name stands in `airflow.sdk.__all__`. One would expect that mypy
# and pyright accept it. They read the stub `airflow/sdk/__init__.pyi` instead of the module, and the stub lacks this
# name. A DAG that passes its params in the way that pyright accepts has to import ParamsDict from the module that
# defines it, `airflow.sdk.definitions.param`.
#
# Seen with apache-airflow-task-sdk 1.3.2 and mypy 2.4.1 on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    apache-airflow==3.3.2 apache-airflow-core==3.3.2 apache-airflow-task-sdk==1.3.2 mypy==2.4.1
cd "$folder"
export AIRFLOW_HOME="$folder/airflow"
printf 'from airflow.sdk import ParamsDict\n\nprint(ParamsDict.__module__)\n' > top.py
printf 'from airflow.sdk.definitions.param import ParamsDict\n\nprint(ParamsDict.__module__)\n' > own.py
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path

import airflow.sdk

print("task SDK", version("apache-airflow-task-sdk"), "mypy", version("mypy"))
print("in __all__:", "ParamsDict" in airflow.sdk.__all__)
print("in the stub:", "ParamsDict" in Path(airflow.sdk.__file__).with_suffix(".pyi").read_text())
PYTHON
"$folder/venv/bin/python" top.py
if "$folder/venv/bin/mypy" --follow-imports silent top.py > checked.txt; then
    echo "the behaviour has changed: mypy accepts the import" >&2
    exit 1
fi
cat checked.txt
grep -q 'has no attribute "ParamsDict"' checked.txt
"$folder/venv/bin/mypy" --follow-imports silent own.py
