"""What pods may run: the lines that come with each image, and those that the owner of the stack has listed.

A line names variables and a command: ``SUFFIX= python -m my_package.server --port 8000``. In the owner's file an
image comes first. Every word is a pattern with ``*``, and stands for one argument. A line without a command allows
the image's own command.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

# Set by AIStore, and by Storeside for every transformer. All other variables of a pod must be in a line:
# LD_PRELOAD, PYTHONPATH and the like would change what an allowed command runs.
COMMON = (
    "AIS_TARGET_URL", "direct_put", "STORESIDE_SPEC", "STORESIDE_SOURCE", "OBJECT_TIMEOUT", "ETL_DIRECT_FQN",
    "NUM_WORKERS", "WORKER_MEMORY_LIMIT", "MAX_BODY", "AIS_DIRECT_PUT_RETRIES", "SIDECAR_URL", "AIS_NODES",
    "AIS_ETL_PROOF", "TRANSFORM_VARIABLES",
)  # fmt: skip
_VARIABLE = re.compile(r"[\w*]+=")


class NotAllowedError(Exception):
    """A pod asks for something that no line allows, or the owner's file cannot be read."""


@dataclass(frozen=True)
class Line:
    """One allowed command with its variables, as patterns."""

    variables: tuple[str, ...]
    command: tuple[str, ...]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Line:
        """Read the words of a line, after its image."""
        count = next((n for n, word in enumerate(words) if not _VARIABLE.fullmatch(word)), len(words))
        return cls(tuple(word[:-1] for word in words[:count]), tuple(words[count:]))

    def permits(self, command: Sequence[str], variables: Collection[str]) -> bool:
        """Tell whether every argument of the command and every variable matches."""
        known = (*COMMON, *self.variables)
        return (
            len(command) == len(self.command)
            and all(map(fnmatchcase, command, self.command))
            and all(any(fnmatchcase(name, pattern) for pattern in known) for name in variables)
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
    raise NotAllowedError(f"the pod runner does not start this; to allow it add this line to {owners}: {wanted}")


def listed(path: Path) -> Iterator[tuple[str, Line]]:
    """Yield the lines of the owner's file with their images; none if there is no such file.

    Raises:
        NotAllowedError: another user can write the file, or a line cannot be read.
    """
    try:
        with path.open() as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid not in (0, os.getuid()) or facts.st_mode & 0o022:
                raise NotAllowedError(f"{path}: another user can write it: chmod 600 it, and make it your own")
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
