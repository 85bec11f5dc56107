"""Gives an Airflow process its own loopback address, as if it ran on a separate machine.

``python -m storeside.stack.supervision.own_address worker …`` runs ``airflow worker …``, whose server of logs listens
at the address in `VARIABLE`. Airflow's servers of logs otherwise listen on all interfaces of the machine.
With the setting ``hostname_callable = storeside.stack.supervision.own_address.of_this_process``, Airflow records this
address as the host of tasks and triggers, and asks it for their logs.
"""

from __future__ import annotations

import os
import runpy
import sys

VARIABLE = "STORESIDE_ADDRESS"


def of_this_process() -> str:
    """Return the address of this process. Raises KeyError outside the stack's Airflow processes."""
    return os.environ[VARIABLE]


def main(*arguments: str) -> None:
    """Run an `airflow` command in this process."""
    import uvicorn

    # `serve_logs` has no setting for it: it calls uvicorn.run(host="") in a child process that is a fork of this one.
    run = uvicorn.run
    uvicorn.run = lambda *given, **options: run(*given, **{**options, "host": of_this_process()})
    sys.argv = ["airflow", *arguments]
    runpy.run_module("airflow", run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
