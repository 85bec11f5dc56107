"""AIStore's own specification file of an ETL (``ais etl init -f``), read into the fields of an `EtlSpec`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storeside.aistore.errors import AIStoreInputError

# The fields of AIStore 5.0 (ext/etl/api.go, ETLSpecMsg), and `argument`, which only older versions read: AIStore 5.0
# always passes the path of the object's file.
_FIELDS = frozenset(
    {
        *("name", "runtime", "communication", "argument", "env", "init_timeout", "obj_timeout"),
        *("support_direct_put", "resources"),
    }
)
_RUNTIME = frozenset({"image", "command", "env"})
# What AIStore's documentation gives as defaults (docs/cli/etl.md).
_COMMUNICATION, _INIT_TIMEOUT, OBJECT_TIMEOUT = "hpush", "5m", "45s"
# Go's notation for durations (time.ParseDuration).
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(?<![\d.])(\d++(?:\.\d*+)?|\.\d++)(ns|us|µs|ms|h|m|s)")
# The SDK's variable with which a server hands paths of files to `transform`, and the values that it takes for true.
_DIRECT_FQN, _TRUE = "ETL_DIRECT_FQN", ("true", "1", "yes", "y", "on")


def read(path: Path, name: str = "") -> dict[str, Any]:
    """Return the fields of an `EtlSpec` for the ETL of a file, or for the ETL `name` of a file with several.

    Raises AIStoreInputError with the file, the field and the remedy.
    """
    import yaml

    try:
        found = [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise AIStoreInputError(f"{path}: it cannot be read: {' '.join(str(e).split())}") from e
    if any(not isinstance(document, Mapping) for document in found):
        raise AIStoreInputError(f"{path}: each document of the file must be a mapping with the fields of an ETL")
    names = [str(document.get("name", "")) for document in found]
    chosen = [document for document in found if not name or document.get("name") == name]
    if len(chosen) != 1:
        has = f"has {len(found)} ETLs, {', '.join(names)}" if found else "is empty"
        raise AIStoreInputError(f"{path} {has}: name one of them as etl_name")
    try:
        return _spec(chosen[0])
    except AIStoreInputError as e:
        raise AIStoreInputError(f"{path}: {e}") from e


def _spec(fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("kind") == "Pod":
        raise AIStoreInputError(
            "it is a Pod of Kubernetes, which AIStore 5.1 does not take any more: write a runtime specification with"
            " name and runtime.image, or start the ETL with `ais etl init` and use EtlSpec.existing"
        )
    _require_known(fields, _FIELDS, "")
    runtime = fields.get("runtime")
    if not isinstance(runtime, Mapping):
        raise AIStoreInputError("the mapping 'runtime' is missing: add it with the image")
    _require_known(runtime, _RUNTIME, "runtime.")
    environment = {**_environment(fields, "env"), **_environment(runtime, "runtime.env")}
    if _text(fields, "argument", "") not in ("", "fqn"):
        raise AIStoreInputError(f"argument {fields['argument']!r}: write fqn or leave it empty")
    file_access = environment.pop(_DIRECT_FQN, "").lower() in _TRUE
    name = _text(fields, "name")
    return {
        "label": name,
        "image": _text(runtime, "image"),
        "command": _command(runtime.get("command") or ()),
        "environment": environment,
        "communication": _text(fields, "communication", _COMMUNICATION).removesuffix("://"),
        "direct_put": _flag(fields, "support_direct_put"),
        "file_access": file_access,
        "init_timeout": seconds(_text(fields, "init_timeout", _INIT_TIMEOUT), "init_timeout"),
        "object_timeout": seconds(_text(fields, "obj_timeout", OBJECT_TIMEOUT), "obj_timeout"),
        "resources": _resources(fields.get("resources") or {}),
        "etl_name": name,
    }


def seconds(text: str, field: str) -> int:
    """Return a duration in Go's notation, such as ``1m30s``, in whole seconds, rounded up.

    Raises AIStoreInputError with the name of the `field`.
    """
    if not text or _PART.sub("", text):
        raise AIStoreInputError(f"{field} {text!r} is not a duration such as 45s or 5m")
    return math.ceil(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)))


def _require_known(fields: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    if unknown := sorted(str(field) for field in fields.keys() - known):
        raise AIStoreInputError(f"unknown field {where}{unknown[0]}: AIStore knows {', '.join(sorted(known))}")


def _text(fields: Mapping[str, Any], field: str, default: str | None = None) -> str:
    value = fields.get(field, default)
    if not isinstance(value, str) or (default is None and not value):
        raise AIStoreInputError(f"{field} must be a text, not {value!r}")
    return value or default or ""


def _flag(fields: Mapping[str, Any], field: str) -> bool:
    value = fields.get(field, False)
    if not isinstance(value, bool):
        raise AIStoreInputError(f"{field} must be true or false, not {value!r}")
    return value


def _command(words: Any) -> tuple[str, ...]:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise AIStoreInputError(
            f'runtime.command must be a list of texts, such as ["python", "server.py"]: {words!r}'
        )
    return tuple(words)


def _environment(fields: Mapping[str, Any], where: str) -> dict[str, str]:
    variables = {}
    for entry in fields.get("env") or ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise AIStoreInputError(f"{where} must be a list of variables with name and value: {entry!r}")
        if entry.keys() - {"name", "value"}:
            raise AIStoreInputError(
                f"{where}: the variable {entry['name']} has no plain value; start such an ETL with `ais etl init` and"
                " use EtlSpec.existing"
            )
        value = entry.get("value", "")
        variables[entry["name"]] = str(value).lower() if isinstance(value, bool) else str(value)
    return variables


def _resources(fields: Any) -> dict[str, dict[str, str]]:
    if not isinstance(fields, Mapping) or fields.keys() - {"requests", "limits"}:
        raise AIStoreInputError(f"resources must have requests and limits only: {fields!r}")
    return {kind: {str(name): str(amount) for name, amount in fields[kind].items()} for kind in fields}
