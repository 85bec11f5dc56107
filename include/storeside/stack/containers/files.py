"""Files of AIStore's container that other containers may read.

The container of the transformers mounts the volume of AIStore read-only, as another user of the same group. The group
may read the objects and the pod runner's files, and nothing else. ClickHouse mounts a volume that has its token only.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.sax.saxutils import escape

from storeside.stack import authn
from storeside.stack.podrunner import component as podrunner
from storeside.stack.servers import aistore
from storeside.stack.settings import Stack

# In ClickHouse's container: /etc/clickhouse-server/aistore. ClickHouse reloads the file after a change.
TOKENS = Path("/var/lib/tokens")
# Elements of that file: the token for `s3()`, and for `url()` the value of the header Authorization with it.
COLLECTION_TOKEN, COLLECTION_HEADER = "aistore_token", "aistore_authorization"
# The certificate of the authority, and in the containers of servers their own certificate and key.
CERTIFICATES = Path("/etc/storeside/tls")
# The pod runner writes logs and records of processes to its own container.
_PODS_STATE = Path("/tmp/pods")  # noqa: S108 - the container's own file system in memory
# In such a folder the group may open what it knows by name.
PASSED = 0o710
_CLOSED, _OPEN_FOLDER, _OPEN_FILE = 0o700, 0o750, 0o640


def of_pods(stack: Stack) -> dict[str, Path]:
    """Return the fields in which the configuration of the pod runner differs from the embedded one's."""
    # All pods share the container's files, so there is no token that reads objects.
    no_token = podrunner.folder(stack) / "gatherer.token"
    return {"state": _PODS_STATE, "pod_token": _pod_token(stack), "gatherer_token": no_token}


def write_tokens(stack: Stack, tokens: Path = TOKENS) -> None:
    """Write the tokens of the transformers and of ClickHouse to the files that their containers read."""
    _replace(_pod_token(stack), authn.token(stack, "transformer"), _OPEN_FILE)
    token = escape(authn.token(stack, "clickhouse"))
    values = {COLLECTION_TOKEN: token, COLLECTION_HEADER: f"Bearer {token}"}
    elements = "".join(f"<{name}>{value}</{name}>" for name, value in values.items())
    text = f"<clickhouse>{elements}</clickhouse>\n"
    _replace(tokens / "aistore.xml", text, 0o644)


def share(stack: Stack) -> None:
    """Let the group read objects and the pod runner's files, and close everything else below the state folder."""
    for name in ("run", "logs"):
        (stack.state / name).chmod(_CLOSED)
    _open(podrunner.folder(stack))
    if podrunner.allowed(stack).exists():
        podrunner.allowed(stack).chmod(_OPEN_FILE)
    data = aistore.data_folder(stack)
    data.mkdir(parents=True, exist_ok=True)
    if data.stat().st_mode & 0o777 != _OPEN_FOLDER:  # new, or of a version whose transformers ran as AIStore's user
        _open(data)
    aistore.folder(stack).chmod(PASSED)
    stack.state.chmod(PASSED)


def _open(top: Path) -> None:
    """Let the group read everything below a folder, and at last the folder itself."""
    for folder, _, files in os.walk(top, topdown=False):
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(_OPEN_FILE)
        Path(folder).chmod(_OPEN_FOLDER)


def _pod_token(stack: Stack) -> Path:
    return podrunner.folder(stack) / "pod.token"


def _replace(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
