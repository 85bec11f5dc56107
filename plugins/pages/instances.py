"""Task instances as `storeside.runs` names them: ``task``, and ``task[index]`` for a mapped task."""

from __future__ import annotations

import re
from typing import NamedTuple

_MAPPED = re.compile(r"(.+)\[(\d+)\]")


class Instance(NamedTuple):
    """A task instance of a run, as Airflow keys it; an unmapped task has the index -1."""

    task: str
    map_index: int = -1


def instance(task_id: str) -> Instance:
    """Parse the name of a task instance. Task ids contain no brackets."""
    mapped = _MAPPED.fullmatch(task_id)
    return Instance(mapped[1], int(mapped[2])) if mapped else Instance(task_id)
