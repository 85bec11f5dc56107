"""Runs ministack, the embedded S3 and SQS, so that a kill loses at most the last seconds of changes to the queues.

ministack writes objects to disk at once, but writes queues and bucket settings only when it ends cleanly. This
launcher writes them every second as well, and creates the stack's buckets and queues as soon as the server answers.
Queues of tens of thousands of messages are written less often, because the server does not answer meanwhile.

It also finds a queue by its whole URL. When the server has another address than before, such as another port, the
launcher gives the saved queues this address, with their messages.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from storeside.stack.servers.s3 import AUTHORITY_VARIABLE, configure
from storeside.stack.servers.s3_guard import guarded
from storeside.stack.settings import HOST
from storeside.stack.supervision.probes import answers

SAVE_SECONDS = 1.0
# The most that saving may take of the server's time.
_SAVE_SHARE = 0.2


def main() -> None:
    """Serve until SIGTERM; `storeside.stack.servers.s3.components` sets the environment."""
    from ministack import app as ministack  # type: ignore[import-untyped]

    _move_queues()
    names = {HOST, "localhost", os.environ.get("MINISTACK_HOST", HOST)}
    ministack.app = guarded(ministack.app, names)
    threading.Thread(target=_configure, daemon=True).start()
    sys.argv = ["ministack"]
    ministack.main()


def _move_queues() -> None:
    """Give the saved queues URLs with the server's present scheme, host and port.

    Otherwise `_configure` would create empty queues of the same names beside them. Where an earlier version did so,
    the newest of the queues with one name gets the messages of all.
    """
    from ministack.core import persistence  # type: ignore[import-untyped]
    from ministack.services import sqs  # type: ignore[import-untyped]

    state = persistence.load_state("sqs")
    if not state:
        return
    moved: dict[tuple[str, str, str], dict[str, Any]] = {}
    for key, queue in state["queues"].all_items():
        account, region, name, _ = sqs._queue_scope_from_record(key, queue)
        url = sqs._queue_url_for_account(account, name)
        earlier = moved.get((account, region, url), {"messages": []})
        moved[account, region, url] = {**queue, "url": url, "messages": earlier["messages"] + queue["messages"]}
    queues = type(state["queues"])()
    for (account, region, url), queue in moved.items():
        queues.set_scoped(account, region, url, queue)
    text = _saved("sqs", {**state, "queues": queues})
    _write(Path(persistence.STATE_DIR) / "sqs.json", text)


def _configure() -> None:
    """Create buckets, queues and notifications, and save changes from then on; end the process if that fails."""
    authority = Path(os.environ[AUTHORITY_VARIABLE]) if AUTHORITY_VARIABLE in os.environ else None
    url = f"{'https' if authority else 'http'}://{HOST}:{os.environ['GATEWAY_PORT']}"
    while not answers(f"{url}/_ministack/health", authority=authority):
        time.sleep(0.05)
    # Earlier, before the server has loaded the saved state, it would replace this state with an empty one.
    threading.Thread(target=_save_regularly, daemon=True).start()
    try:
        configure(url, os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], authority)
    except Exception as error:
        print(f"cannot create buckets and queues: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _save_regularly() -> None:
    """Write the state of each used service to disk whenever it has changed.

    ministack's own `save_state` takes five times as long for a long queue, and the server does not answer meanwhile:
    its `json.dump` does not use the C encoder.
    """
    from ministack.core import persistence

    saved: dict[str, str] = {}
    took = 0.0
    while True:
        time.sleep(max(SAVE_SECONDS, took / _SAVE_SHARE - took))
        start = time.thread_time()
        for name in ("s3", "sqs"):
            service = sys.modules.get(f"ministack.services.{name}")
            if service is None or not hasattr(service, "get_state"):  # not used yet, or still being imported
                continue
            try:
                state = service.get_state()
            except RuntimeError:  # the state changed during the copy: try again in the next round
                continue
            text = _saved(name, state)
            if saved.get(name) != text:
                _write(Path(persistence.STATE_DIR) / f"{name}.json", text)
                saved[name] = text
        took = time.thread_time() - start


def _saved(service: str, state: dict[str, Any]) -> str:
    """Return the content of the file with the state of a service."""
    from ministack.core import persistence

    content = {"__ministack_format__": persistence._state_format_version(service), "payload": state}
    return json.dumps(content, default=persistence._json_default)


def _write(file: Path, text: str) -> None:
    """Replace a file in one step; print the error if that fails."""
    new = file.with_suffix(".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        new.replace(file)
    except OSError as error:
        print(f"cannot save {file}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
