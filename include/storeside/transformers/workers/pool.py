"""A pool of worker processes: each object goes to an idle worker, and no worker can harm another.

The process that reads requests does not transform. A worker that dies or takes too long fails its object and is
replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from storeside.transformers.contract.failures import Facts, Failure, LeftOut
from storeside.transformers.contract.job import Job
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data

from .flow import Flow
from .stream_sender import NEXT, PIECE
from .worker_process import BrokenTransformError, WorkerDiedError, WorkerProcess

# Objects per worker that wait in the queue; beyond them, senders wait.
_WAITING = 4


@dataclass(frozen=True)
class Delivered:
    """The result was stored by direct put; `size` is in bytes. `facts` are those of its object, if there are any."""

    size: int
    facts: Facts | None = None


@dataclass(frozen=True)
class Content:
    """The result, or the content that a later ETL of the pipeline returned; of a member also its sidecar.

    `facts` are those of its object, if there are any.
    """

    data: bytes | memoryview
    sidecar: bytes = b""
    facts: Facts | None = None


@dataclass(frozen=True)
class Streamed:
    """The result while it is made. An error of the iterator must end the connection within the answer."""

    pieces: Iterator[bytes]


Whole: TypeAlias = Delivered | Content | Streamed | LeftOut | Failure
Outcome: TypeAlias = Whole | Flow


@dataclass(frozen=True)
class _Task:
    job: Job
    content: int | Data
    outcome: asyncio.Future[Outcome]


class Pool:
    """Worker processes that run one transform; all methods belong to the event loop of `run`."""

    def __init__(self, transform: str, settings: Settings) -> None:
        self._transform = transform
        self._settings = settings
        self._tasks: asyncio.Queue[_Task] = asyncio.Queue(_WAITING * settings.workers)
        self._ready = asyncio.Event()
        self._workers: dict[int, WorkerProcess] = {}
        self.mime_type = ""
        # Whether the transformer is a stream, whose outcomes may be `Flow` and whose objects may come through pipes.
        self.streams = False

    @property
    def processes(self) -> list[int]:
        """The process ids of the running workers."""
        return [worker.pid for worker in self._workers.values() if worker.alive]

    async def run(self) -> None:
        """Keep the workers running until cancelled. Raises BrokenTransformError if no worker can start."""
        places = [asyncio.create_task(self._keep(n)) for n in range(self._settings.workers)]
        try:
            await asyncio.gather(*places)
        finally:
            for place in places:
                place.cancel()
            for worker in self._workers.values():
                worker.close()

    async def ready(self) -> None:
        """Wait until the first worker is ready."""
        await self._ready.wait()

    async def submit(self, job: Job, content: int | Data = b"") -> asyncio.Future[Outcome]:
        """Queue an object and return a future of its outcome; waits while the queue is full.

        An object is not transformed if its future is cancelled before a worker takes it; that of a stream also ends
        then if a worker has taken it. The content of a stream may come through a pipe, whose descriptor is given.
        """
        task = _Task(job, content, asyncio.get_running_loop().create_future())
        await self._tasks.put(task)
        return task.outcome

    async def _keep(self, place: int) -> None:
        task: _Task | None = None
        while True:
            worker = self._workers[place] = WorkerProcess(self._transform, self._settings)
            self.mime_type = await worker.ready()
            self.streams = worker.streams
            self._ready.set()
            while worker.alive:
                task = task or await self._tasks.get()
                if task.outcome.cancelled():
                    task = None
                elif worker.alive:  # an idle worker may have died
                    task = await self._work(worker, task)

    async def _work(self, worker: WorkerProcess, task: _Task) -> _Task | None:
        """Pass a task to a worker; return the task if the worker had died before it received the task."""
        flow = Flow(task.job)
        if worker.streams:
            task.outcome.add_done_callback(lambda outcome: worker.kill() if outcome.cancelled() else None)
        try:
            async with asyncio.timeout(self._settings.object_timeout):
                outcome = await self._outcome(worker, task, flow)
        except TimeoutError:
            worker.kill()
            seconds = f"{self._settings.object_timeout:g}"
            outcome = task.job.failure(f"it took longer than {seconds} s (OBJECT_TIMEOUT) and was ended", final=False)
        except WorkerDiedError as e:
            outcome = task.job.failure(str(e), final=False)
        except ValueError as e:
            outcome = task.job.failure(str(e), final=True)
        except ConnectionError:
            worker.kill()
            return task
        except OSError as e:  # the node has no memory or descriptor for the content
            worker.kill()
            outcome = task.job.failure(f"its content cannot be passed to a worker: {e}", final=False)
        if not task.outcome.done():
            task.outcome.set_result(outcome)
        else:
            flow.end(outcome if isinstance(outcome, Failure) else None)
        return None

    async def _outcome(self, worker: WorkerProcess, task: _Task, flow: Flow) -> Outcome:
        """Pass a task to a worker and return its outcome, after the last piece if the result is a `flow`."""
        head, data = await worker.exchange(vars(task.job), task.content)
        if PIECE not in head:
            return _stated(task.job, head, data)
        if not task.outcome.done():
            task.outcome.set_result(flow)
        while PIECE in head:
            if not await flow.offer(data):
                worker.kill()
                return task.job.failure("the receiver of the result is gone", final=False)
            try:
                head, data = await worker.exchange({NEXT: True}, b"")
            except ConnectionError as e:
                raise WorkerDiedError(f"the worker process died: {e}") from e
        return flow if "streamed" in head else _stated(task.job, head, data)


def _stated(job: Job, head: dict[str, Any], data: Any) -> Outcome:
    """Return the outcome that the head of a worker's last answer states."""
    if "failed" in head:
        return job.failure(str(head["failed"]), bool(head["final"]))
    if "left_out" in head:
        return job.left_out(str(head["left_out"]), str(head.get("facts", "")))
    facts = job.measured(str(head["facts"])) if "facts" in head else None
    if "content" in head:
        return Content(data, str(head.get("sidecar", "")).encode("latin-1"), facts)
    return Delivered(int(head["delivered"]), facts)


__all__ = ["BrokenTransformError", "Content", "Delivered", "Flow", "Outcome", "Pool", "Whole"]
