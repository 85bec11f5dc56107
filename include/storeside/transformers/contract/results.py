"""Several results of one object: their names, and the list in which a server announces them.

The results of ``calls/a.wav`` are stored in the folder ``calls/a/``, and ``calls/a.jsonl`` lists them: one line of
JSON each. The server stores a list without versions first, then the results, and then the list with the version of
each stored result. So a list that a killed server left names all results that the server may have stored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storeside.transformers.transformer import utf8

from .names import unfit

# The URL that a result's name follows; `EtlSpec.storing_results` sets it.
RESULTS_URL = "RESULTS_URL"
EXTENSION = ".jsonl"
# Bytes of a list. A job reads lists of many objects at once.
LARGEST_LIST = 8 << 20
_RESERVED = ("object", "stored", "bytes", "version")


@dataclass(frozen=True)
class Announced:
    """One line of a list: a result's name at the destination, without the job's prefix, and its size in bytes.

    `version` is AIStore's counter and checksum of the stored result; empty before it is stored.
    """

    stored: str
    size: int
    version: str = ""


def folder_of(name: str) -> str:
    """Return the folder for the results of the object `name`, without the slash at its end."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.rpartition(".")[0]


def list_of(name: str) -> str:
    """Return the name of the list of the results of the object `name`."""
    return folder_of(name) + EXTENSION


def unfit_object(name: str, destination: str) -> str | None:
    """Return why an object cannot have several results if its own result is named `destination`; None if it can."""
    last = name.rpartition("/")[2]
    stem, dot, extension = last.rpartition(".")
    if not (stem and dot):
        return "it has no extension, or nothing before it, so its results have no folder: rename it"
    if destination.endswith(list_of(name)):
        return None
    return (
        "it has several results, whose list is an object of JSON Lines: set its extension with"
        f" extensions={{{extension!r}: 'jsonl'}}"
    )


def unfit_name(name: str, others: Collection[str]) -> str | None:
    """Return why a result cannot have this name beside the `others` of its object; None if it can."""
    if "/" in name or name.endswith(EXTENSION):
        return f"write a name without a slash, and without {EXTENSION}, which is the extension of lists"
    if reason := unfit(name):
        return reason
    return "another result of the object has this name" if name in others else None


def unfit_facts(facts: Any) -> str | None:
    """Return why facts cannot be fields of a line; None if they can."""
    if not isinstance(facts, dict):
        return "they are not one JSON object"
    taken = [field for field in _RESERVED if field in facts]
    return f"the list has its own field {taken[0]!r}" if taken else None


def line(name: str, announced: Announced, facts: Mapping[str, Any]) -> bytes:
    """Return the line of a result of the object `name`."""
    fields: dict[str, Any] = {"object": utf8(name), "stored": utf8(announced.stored), "bytes": announced.size}
    if announced.version:
        fields["version"] = announced.version
    return json.dumps({**fields, **facts}, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def announced_in(content: bytes, name: str) -> Iterator[Announced]:
    """Yield the results that a list announces for the object `name`; skip lines that are not of its server.

    A result outside the folder of the object's results does not belong to it, whatever the list states.
    """
    folder = utf8(folder_of(name)) + "/"
    for text in content.splitlines():
        try:
            fields = json.loads(text)
            found = Announced(fields["stored"], int(fields["bytes"]), fields.get("version", ""))
            is_own = fields["object"] == utf8(name) and found.stored.startswith(folder)
            if is_own and isinstance(found.version, str) and not unfit_name(found.stored[len(folder) :], ()):
                yield found
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
