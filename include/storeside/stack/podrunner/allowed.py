"""Commands that pods may run: the lines of each image's configuration, and the lines of the stack owner's file.

A line consists of variables and a command: ``SUFFIX= python -m my_package.server --port 8000``. In the owner's file
the line begins with the image. Every word is a pattern with ``*`` that matches one argument. A line without a command
allows the image's own command.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

# Variables that AIStore and Storeside set for every transformer. A line must list all other variables of a pod:
# LD_PRELOAD, PYTHONPATH and similar variables would change what an allowed command runs.
COMMON = (
    "AIS_TARGET_URL", "direct_put", "STORESIDE_SPEC", "STORESIDE_SOURCE", "OBJECT_TIMEOUT", "ETL_DIRECT_FQN",
    "NUM_WORKERS", "WORKER_MEMORY_LIMIT", "MAX_BODY", "AIS_DIRECT_PUT_RETRIES", "SIDECAR_URL", "AIS_NODES",
    "RESULTS_URL", "SEVERAL_RESULTS", "GIVEN_URL",
    "AIS_ETL_PROOF", "TRANSFORM_VARIABLES", "STORESIDE_KEPT_BY",
)  # fmt: skip
_VARIABLE = re.compile(r"[\w*]+=")


class NotAllowedError(Exception):
    """No line allows the pod's command or variables, or the owner's file cannot be parsed."""


@dataclass(frozen=True)
class Line:
    """One allowed command with its variables; all are patterns."""

    variables: tuple[str, ...]
    command: tuple[str, ...]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Line:
        """Parse the words of a line that follow its image."""
        count = next((n for n, word in enumerate(words) if not _VARIABLE.fullmatch(word)), len(words))
        return cls(tuple(word[:-1] for word in words[:count]), tuple(words[count:]))

    def permits(self, command: Sequence[str], variables: Collection[str]) -> bool:
        """Return whether every argument of the command and every variable matches."""
        patterns = (*COMMON, *self.variables)
        return (
            len(command) == len(self.command)
            and all(map(fnmatchcase, command, self.command))
            and all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in variables)
        )


def require(
    image: str, command: Sequence[str], variables: Collection[str], lines: Sequence[str], owners: Path
) -> None:
    """Check a pod against the lines of its image and the owner's file.

    Raises:
        NotAllowedError: no line permits the command with these variables, or the owner's file is unsafe.
    """
    if len(set(variables)) < len(variables):
        raise NotAllowedError("the pod sets a variable twice: AIStore sets AIS_TARGET_URL and direct_put itself")
    found = [Line.parse(shlex.split(line)) for line in lines]
    found += [line for pattern, line in listed(owners) if fnmatchcase(image, pattern)]
    if any(line.permits(command, variables) for line in found):
        return
    extra = [f"{name}=" for name in variables if name not in COMMON]
    wanted = " ".join([image, *extra, *map(shlex.quote, command)])
    raise NotAllowedError(f"the pod runner does not allow this pod; to allow it, add this line to {owners}: {wanted}")


def listed(path: Path) -> Iterator[tuple[str, Line]]:
    """Yield the image pattern and the line of each entry in the owner's file; nothing if the file does not exist.

    Raises:
        NotAllowedError: another user can write the file, or a line cannot be parsed.
    """
    try:
        with path.open() as file:
            facts = os.fstat(file.fileno())
            # The owner of the folder can replace the file anyway. Under Compose this is another user than the runner.
            owners = (0, os.getuid(), path.parent.stat().st_uid)
            if facts.st_uid not in owners or facts.st_mode & 0o022:
                raise NotAllowedError(f"{path}: another user can write it: own it yourself, and run chmod 600")
            text = file.read()
    except FileNotFoundError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise NotAllowedError(f"{path}, line {number}: {error}") from error
        if words:
            yield words[0], Line.parse(words[1:])
