"""Small transformers for tests of the engine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from storeside.transformers.transformer import LeaveOut, ObjectError, Result, Source


def content(source: Source) -> bytes:
    return Path(source).read_bytes() if isinstance(source, str) else bytes(source)


def upper(source: Source, _name: str, arguments: str) -> bytes:
    data = content(source)
    if data.startswith(b"bad"):
        raise ObjectError("this object is bad")
    return data.upper() + arguments.encode() + os.environ.get("SUFFIX", "").encode()


def sieve(source: Source, _name: str, _arguments: str) -> bytes | LeaveOut:
    """Leave out contents that are shorter than ``LEAST`` bytes, and those with a wish to be left out."""
    data = content(source)
    if data.startswith(b"bad"):
        raise ObjectError("this object is bad")
    if data.startswith(b"leave me out"):
        raise LeaveOut("it wishes so")
    least = int(os.environ.get("LEAST", "3"))
    return data.upper() if len(data) >= least else LeaveOut(f"shorter than {least} bytes")


def words(source: Source, _name: str, _arguments: str) -> Iterator[Result]:
    """Yield what the content says: ``name=text`` for each result, or ``fail``, ``leave`` or ``die`` at that place.

    With ``WITHOUT``, results of that name are not made.
    """
    for word in content(source).decode().split():
        verb, equals, text = word.partition("=")
        if not equals:
            raise {"fail": ObjectError, "leave": LeaveOut, "die": OSError}[verb](f"it says {verb}")
        if verb != os.environ.get("WITHOUT"):
            yield Result(verb, text.encode(), {"letters": len(text)})


def wrap(source: Source, _name: str, _arguments: str) -> bytes:
    return json.dumps({"content": content(source).decode()}).encode()


def slow(source: Source, _name: str, _arguments: str) -> bytes:
    time.sleep(float(os.environ["SECONDS"]))  # the work of a slow transform
    return content(source)


def deadly(source: Source, name: str, _arguments: str) -> bytes:
    """Crash the process on some objects: always, or the first time only."""
    mark = Path(os.environ["MARKS"], name.replace("/", "-"))
    if "dies" in name and ("always" in name or not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return content(source)


deadly.needs = ("files",)  # type: ignore[attr-defined]


def obedient(source: Source, _name: str, _arguments: str) -> bytes:
    """Do what the content says: sleep, or crash the process unless a file exists, which the first crash makes."""
    verb, _, argument = content(source).decode().partition(" ")
    if verb == "sleep":
        time.sleep(float(argument))  # the work of a slow transform
    if verb == "die" and not Path(argument).exists():
        Path(argument).parent.joinpath("once").touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return verb.encode()


obedient.needs = ("files",)  # type: ignore[attr-defined]


def echo(source: Source, _name: str, _arguments: str) -> bytes:
    return content(source)
