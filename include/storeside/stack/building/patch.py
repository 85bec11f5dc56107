"""One change to AIStore's source, and the environment variables that changed code reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from storeside.stack.settings import StackError

MODULE = "github.com/NVIDIA/aistore"
CLIENT_GO = "k8s.io/client-go"
SERVICE_ACCOUNT_VARIABLE = "STORESIDE_SERVICEACCOUNT"
LOOPBACK_VARIABLE = "STORESIDE_LOOPBACK"
AUTHN_HOST_VARIABLE = "STORESIDE_AUTHN_HOST"
SEED_VARIABLE = "STORESIDE_NODE_SEED"


@dataclass(frozen=True)
class Patch:
    """Exact replacements in one file of a module; they apply only to the file content with this SHA-256."""

    module: str
    file: str
    sha256: str
    replacements: tuple[tuple[str, str], ...]

    def apply(self, tree: Path) -> None:
        """Change the file below `tree`. Raises StackError if the file has another content than the expected one."""
        path = tree / self.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StackError(f"cannot patch {self.module}: {error}") from error
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise StackError(
                f"{self.module}/{self.file} has SHA-256 {found} instead of {self.sha256}: not built; "
                "clear the Go module cache ('go clean -modcache') and try again"
            )
        text = content.decode()
        for old, new in self.replacements:
            if text.count(old) != 1:
                raise StackError(f"{self.module}/{self.file} does not contain the text to replace exactly once")
            text = text.replace(old, new)
        path.write_text(text)
