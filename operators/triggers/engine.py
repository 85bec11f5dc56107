"""Following an engine from the triggerer, while the work is done elsewhere."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

# Airflow 3.3 fails a task that runs again before its executor has said that the deferring worker is gone
# (scheduler_job_runner.py, "finished with state success, but the task instance's state attribute is running").
SETTLE_SECONDS = 2.0
# Seconds before it is tried again here, where that costs less than a retry of the task, which comes after these.
DELAYS = (2.0, 5.0, 10.0)


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Wait for a function in a thread of its own.

    The loop's executor has few threads, which triggers that take hours would keep from all others; and its threads
    keep a triggerer alive that is told to end.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()
    here = contextvars.copy_context()

    def tell(outcome: Any, *, failed: bool) -> None:
        if not result.done():  # cancelled meanwhile
            (result.set_exception if failed else result.set_result)(outcome)

    def work() -> None:
        try:
            outcome, failed = here.run(function, *arguments), False
        except BaseException as e:
            outcome, failed = e, True
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(partial(tell, outcome, failed=failed))

    threading.Thread(target=work, daemon=True).start()
    return await result


class EngineTrigger(BaseTrigger):
    """Drives an engine in a thread: it sends statements and waits for them. Fires once, with its report or an error.

    A user who kills or clears the deferred task cancels the engine. `arguments` make the trigger again.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arguments = arguments
        self._engine: Any = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self.arguments

    async def engine(self) -> Any:
        """Return what has `cancel` and `leave`, with its connections resolved."""
        raise NotImplementedError

    def work(self, engine: Any) -> Any:
        """Do the work in a thread and return the report, a dataclass."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Run the engine to its end; when the triggerer ends before, another one takes over.

        What a retry may help is tried again here some times, and then left to the retries of the task.
        """
        from include.transfer.errors import TransferError, TransientError, TriedOutError

        await asyncio.sleep(SETTLE_SECONDS)
        for delay in (*DELAYS, None):
            try:
                self._engine = await self.engine()
                report = await in_thread(self.work, self._engine)
            except asyncio.CancelledError:
                if self._engine is not None:
                    self._engine.leave()
                raise
            except Exception as e:
                final = isinstance(e, TransferError) and not isinstance(e, TransientError)
                if delay is None or final or isinstance(e, TriedOutError):
                    self.log.exception("it ended early")
                    yield TriggerEvent({"error": str(e) or repr(e), "again": not final})
                    return
                self.log.warning("going on in %g s: %s", delay, e)
                await asyncio.sleep(delay)
            else:
                yield TriggerEvent({"report": asdict(report)})
                return

    async def on_kill(self) -> None:
        """Cancel: the task was killed, cleared or marked by a user."""
        self.log.info("stopping")
        await in_thread((self._engine or await self.engine()).cancel)
