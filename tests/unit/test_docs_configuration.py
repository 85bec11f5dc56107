"""docs/configuration.md names everything that the code reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from storeside.doctor import connections
from storeside.stack.servers.aistore import BACKEND
from storeside.stack.settings import CHECKOUT, SOURCES

PAGE = (CHECKOUT / "docs" / "configuration.md").read_text()
PACKAGES = (
    "operators", "aistore", "copying", "doctor", "events", "ledger", "measure", "quality", "speech", "transfer",
    "transform", "transformers",
)  # fmt: skip
CODE = [path for package in PACKAGES for path in sorted((SOURCES / "storeside" / package).resolve().rglob("*.py"))]
# Upper-case words that are no variables, and two of the system's own.
NO_VARIABLES = {"RAW_URI", "REMOTE_ADDR", "LD_LIBRARY_PATH", "SUPERVISOR_COMMS"}
VARIABLE = re.compile(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)+")


def constants(path: Path) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield every string of a file with the expression whose argument it is."""
    for node in ast.walk(ast.parse(path.read_text())):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str):
                yield child.value, node


def read_from_environment() -> set[str]:
    """Return names in files that mention an environment, except ClickHouse's names of errors."""
    return {
        text
        for path in CODE
        if re.search(r"\benv(ironment|iron)?\b", path.read_text())
        for text, _ in constants(path)
        if VARIABLE.fullmatch(text)
    } - NO_VARIABLES


def extras() -> set[str]:
    """Return the names that the code looks up in a connection's extras."""
    found = set()
    for path in CODE:
        for match in re.finditer(r"""extra(?:_dejson)?(?:\.get\(|\[)["'](\w+)["']""", path.read_text()):
            found.add(match[1])
    return found - {"payload"}  # an asset event's


def test_the_search_finds_what_is_there() -> None:
    assert {
        "OBJECT_TIMEOUT",
        "AUDIO_CODEC",
        "CLICKHOUSE_HOST",
        "SIDECAR_URL",
        "ETL_DIRECT_FQN",
    } <= read_from_environment()
    assert {"kube_config", "clickhouse_collection", "endpoint_url", "verify"} <= extras()


def test_every_variable_is_described() -> None:
    assert sorted(name for name in read_from_environment() if f"`{name}`" not in PAGE) == []
    assert [name for name in BACKEND if f"`{name}`" not in PAGE] == []


def test_every_extra_is_described() -> None:
    described = {name for line in re.findall(r"\| extra (.*?) \|", PAGE) for name in re.findall(r"`(\w+)`", line)}
    assert sorted(extras() - described) == []


def test_every_connection_is_described() -> None:
    users = [path for path in CODE if path.is_relative_to(CHECKOUT / "operators") or "doctor" in path.parts]
    ids = {text for path in users for text, _ in constants(path) if re.fullmatch(r"\w+_default", text)}
    assert set(connections.IDS.values()) <= ids
    assert [conn_id for conn_id in sorted(ids) if f"### `{conn_id}`" not in PAGE] == []
