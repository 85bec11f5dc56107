"""Processes batches of messages in lanes: while one batch is loaded, another one is looked up, loaded or settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from contextvars import copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storeside.events.deliveries import Delivery
    from storeside.events.intake import Intake

# Batches that a run processes at the same time.
LANES = 2


def in_lanes(intake: Intake, finish: Callable[[int, Sequence[Delivery]], None], give_up: Callable[[], None]) -> None:
    """Call `finish` with a lane and the messages of each batch; a lane has one batch at a time.

    The first error of a lane ends the intake. It is raised when the other lanes have finished their batches. An error
    in this thread, such as the end of its process, calls `give_up`, which must make the lanes end soon.
    """
    busy: dict[Future[None], int] = {}
    errors: list[BaseException] = []

    def until(count: int) -> None:
        """Wait until at most `count` lanes are busy. Raises the error of a lane that has ended."""
        while len(busy) > count:
            for ended in wait(busy, return_when=FIRST_COMPLETED).done:
                del busy[ended]
                if (error := ended.exception()) is not None:
                    errors.append(error)
                    raise error

    with closing(intake.batches()) as batches, ThreadPoolExecutor(LANES, thread_name_prefix="lane") as threads:
        try:
            while (deliveries := next(batches, None)) is not None:
                if not deliveries:
                    until(0)
                    continue
                lane = min(set(range(LANES)) - set(busy.values()))
                future = threads.submit(copy_context().run, finish, lane, deliveries)  # log lines belong to the task
                busy[future] = lane
                future.add_done_callback(lambda done: intake.close() if done.exception() else None)
                until(LANES - 1)
            until(0)
        except BaseException as e:
            if e not in errors:
                give_up()
            raise
