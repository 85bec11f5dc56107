"""Base class of triggers that run an engine in a thread of the triggerer."""

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

from storeside.operators.errors import is_final, may_pass_soon

# Airflow 3.3 fails a task that resumes before its executor has reported the end of the worker that deferred it
# (scheduler_job_runner.py, "finished with state success, but the task instance's state attribute is running").
SETTLE_SECONDS = 2.0
# Seconds before each further attempt in the trigger, which costs less than a retry of the task. After these attempts
# the task is retried.
DELAYS = (2.0, 5.0, 10.0)


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a new daemon thread and wait for its result.

    The event loop's executor has few threads, so triggers that take hours would block all others. Its threads also
    keep a triggerer alive that has received a signal to end.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()
    here = contextvars.copy_context()

    def tell(outcome: Any, *, failed: bool) -> None:
        if not result.done():  # a cancelled trigger needs no result
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


async def goes_on_elsewhere(trigger: BaseTrigger) -> bool:
    """Return whether the task of a killed trigger still waits, because another triggerer has taken it over.

    Airflow 3.3 calls `on_kill` not only after an action of a user, but also in a triggerer that stalled for 30 s and
    then finds that its triggers belong to another one (triggerer_job_runner.py, `update_triggers`).
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if (task := trigger.task_instance) is None:  # in a worker, after the timeout of the deferral
        return False
    index = -1 if task.map_index is None else task.map_index
    states = await in_thread(
        partial(
            RuntimeTaskInstance.get_task_states,
            dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=index,
        )
    )  # fmt: skip
    name = task.task_id if index < 0 else f"{task.task_id}_{index}"
    waits = bool(states.get(task.run_id, {}).get(name) == "deferred")
    if waits:
        trigger.log.info("another triggerer has taken this task over, so its work continues")
    return waits


class EngineTrigger(BaseTrigger):
    """Runs an engine in a thread while another system does the work; fires once with the report or an error.

    When a user kills or clears the deferred task, the trigger cancels the engine. Airflow recreates the trigger from
    `arguments`, which must be JSON values.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arguments = arguments
        self._engine: Any = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self.arguments

    async def engine(self) -> Any:
        """Return the engine with clients for its connections. It has the methods `cancel` and `leave`."""
        raise NotImplementedError

    def work(self, engine: Any) -> Any:
        """Run the engine, in a thread, and return its report, a dataclass."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Run the engine until it ends; if the triggerer ends earlier, another triggerer takes over.

        If a retry may help, the trigger tries again after each of `DELAYS`; after that the task is retried.
        """
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
                if delay is None or not may_pass_soon(e):
                    self.log.exception("the engine failed")
                    yield TriggerEvent({"error": str(e) or repr(e), "again": not is_final(e)})
                    return
                self.log.warning("trying again in %g s: %s", delay, e)
                await asyncio.sleep(delay)
            else:
                yield TriggerEvent({"report": asdict(report)})
                return

    async def on_kill(self) -> None:
        """Cancel the engine, because a user killed or cleared the task or set its state."""
        if await goes_on_elsewhere(self):
            return
        self.log.info("stopping, because the task was killed, cleared or marked")
        await in_thread((self._engine or await self.engine()).cancel)
