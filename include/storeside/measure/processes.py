"""Programs that a measurement starts on its own machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence


def tied(command: Sequence[str]) -> list[str]:
    """Return a command whose process the kernel kills when its parent ends, if `setpriv` of util-linux exists."""
    return [*(["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []), *command]
