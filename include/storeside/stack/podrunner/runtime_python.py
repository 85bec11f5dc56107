"""Replaces the image ``aistorage/runtime_python``: serves the class that the SDK's ``init_class`` sent.

Start it with ``python -m uvicorn storeside.stack.podrunner.runtime_python:app``.
"""

from __future__ import annotations

import base64
import logging
import os
import pickle
import sys
from typing import Any


def load_app() -> Any:
    """Return the ASGI application of the class in the environment; exit with a message if it cannot run."""
    from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer

    for variable in ("PACKAGES", "OS_PACKAGES"):
        if os.environ.get(variable):
            sys.exit(f"{variable} is not supported: the class runs in the stack's environment, install them there")
    payload = os.environ.get("ETL_CLASS_PAYLOAD", "")
    if not payload:
        sys.exit("ETL_CLASS_PAYLOAD is missing: start this image with the SDK's init_class()")
    server_class = pickle.loads(base64.b64decode(payload))  # noqa: S301 - its purpose is to run the user's code
    if not issubclass(server_class, FastAPIServer):
        sys.exit(f"{server_class.__name__} is not a FastAPIServer, the only supported kind of server")
    app = server_class(port=0).app
    # At the level that the SDK sets, it logs the address of each result, which contains the ETL's secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if os.environ.get("AIS_ETL_PROOF") != "true":
        return app
    from storeside.transformers.server.guard import Guard
    from storeside.transformers.server.sender import Senders
    from storeside.transformers.settings import Settings

    return Guard(app, Senders(Settings.from_environment()))


def __getattr__(name: str) -> Any:
    if name == "app":
        return load_app()
    raise AttributeError(name)
