"""``python -m storeside.stack.podrunner --config file.json`` runs the pod runner until it is stopped."""

from __future__ import annotations

import argparse
from pathlib import Path

import uvicorn

from storeside.stack.podrunner.server import Api
from storeside.stack.podrunner.settings import Settings


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(prog="podrunner", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    serve(Settings.load(parser.parse_args().config))


def serve(settings: Settings) -> None:
    """Serve with these settings until the process is stopped."""
    uvicorn.run(
        Api(settings).app(),
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        loop="asyncio",
        http="h11",
        ws="none",
        log_level="warning",
        timeout_keep_alive=3600,  # longer than client-go keeps an idle connection
        timeout_graceful_shutdown=1,  # watches end only when their clients disconnect
    )


if __name__ == "__main__":
    main()
