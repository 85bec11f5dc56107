"""Loads small objects for `tests.benchmarks.small`: a process of one checkout, which answers each line with its cost.

It imports nothing of the tests, and finds the engine where this checkout or an older one has it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

# The ClickHouse setting with a label of the process, in ``system.query_log``.
LABEL = "log_comment"


def _engine(name: str, *modules: str) -> Any:
    """Return a name of the first module that this checkout has."""
    for module in modules[:-1]:
        try:
            return getattr(importlib.import_module(f"storeside.transfer.{module}"), name)
        except (ImportError, AttributeError):
            continue
    return getattr(importlib.import_module(f"storeside.transfer.{modules[-1]}"), name)


def main() -> None:
    """Answer each line of the standard input, a list of the arguments of loads, with the list of their costs."""
    transfer = _engine("Transfer", "run.engine", "engine")
    request, source = _engine("Request", "request.request", "request"), _engine("Source", "request.source", "source")
    clickhouse = _engine("clickhouse", "cli", "__main__")()
    clickhouse.set_client_setting(LABEL, sys.argv[1])
    s3 = _engine("aws", "cli", "__main__")("s3")

    def load(bucket: str, key: str, table: str, loader: str) -> dict[str, Any]:
        """Load one object in a separate run; return the rows, and the seconds and CPU seconds of this process."""
        place = source(bucket, key, "storeside_s3", s3.meta.endpoint_url)
        began, cpu = time.monotonic(), time.process_time()
        run = transfer(request(place, table, "csv", loader=loader), clickhouse, s3, f"small/{table}/{key}")
        report = run.run(run.prepare())
        return {"rows": report.rows, "seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}

    for line in sys.stdin:
        print(json.dumps([load(*one) for one in json.loads(line)]), flush=True)


if __name__ == "__main__":
    main()
