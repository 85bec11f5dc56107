"""Finds the regular expressions of the product, and measures how their cost grows with the worst texts.

A pattern is read as a sequence of fixed parts and repetitions. A text is expensive if it fits
the beginning of the pattern many times, or fits two repetitions at once, and does not fit the end. So the texts
repeat runs of the pattern's parts.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import FrameType
from typing import Any

from storeside.stack.settings import CHECKOUT

FOLDERS = ("include/storeside", "operators", "plugins")
_FUNCTIONS = ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
SMALL, MIDDLE, LARGE = 2 << 10, 8 << 10, 64 << 10  # characters of a text
MOST_GROWTH = 24  # of the CPU time for a text that is eight times as long: linear growth is 8, quadratic growth 64
_ENOUGH = 0.03  # CPU seconds that are measured well; a linear expression needs less for any of the texts
_SECONDS = 1.0  # CPU seconds after which a text counts as too expensive
_SLOWEST = 6
_MOST_REPEATED = 10
_ANY = " a0A_-.,:;/=\"'`\\()[]{}<>@#\n\t"
_MOST_TEXTS = 400
_MOST_WAYS = 60


@dataclass(frozen=True)
class Found:
    """A call of `re` in the source: its place, the code of its pattern, and the ways in which it is applied."""

    file: str
    code: str
    patterns: tuple[re.Pattern[Any], ...] = field(compare=False)
    ways: frozenset[str] = field(compare=False)


class Unlisted(Exception):
    """A pattern is made at run time, and no example of it is known."""


def sources() -> Iterator[Path]:
    """Yield the modules of the product; links lead to other folders of it."""
    for folder in FOLDERS:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            if path.resolve() == path:
                yield path


def collect(examples: Mapping[tuple[str, str], list[re.Pattern[Any]]]) -> list[Found]:
    """Return all patterns of the product; `examples` has those that are made at run time, by file and code.

    Raises Unlisted for a pattern that is made at run time and has no example, or for an example without a pattern.
    """
    trees = {path: ast.parse(path.read_text()) for path in sources()}
    used = _applied(trees)
    found, seen = [], set()
    for path, tree in trees.items():
        file = str(path.relative_to(CHECKOUT))
        names = {id(node.value): t.id for node in ast.walk(tree) if isinstance(node, ast.Assign)
                 for t in node.targets if isinstance(t, ast.Name)}  # fmt: skip
        for call in _calls(tree):
            code = ast.unparse(call.args[0])
            if (made := _constant(path, call)) is None:
                if (file, code) not in examples:
                    raise Unlisted(f"{file}:{call.lineno}: re.{_function(call)}({code}, …)")
                seen.add((file, code))
                made = examples[file, code]
            way = _function(call)
            name = names.get(id(call), "")
            ways = used.get((file, name), set()) | (used.get(("", name), set()) if name[:1] != "_" else set())
            ways = ways or {"search"} if way == "compile" else {way}
            found.append(Found(file, code, tuple(made), frozenset(ways - {"compile"})))
    if stale := set(examples) - seen:
        raise Unlisted(f"examples without a pattern: {stale}")
    return found


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _function(node) and node.args:
            yield node


def _function(call: ast.Call) -> str:
    """Return the name of the function of `re` that is called; empty for other calls."""
    what = call.func
    if not (isinstance(what, ast.Attribute) and isinstance(what.value, ast.Name) and what.value.id == "re"):
        return ""
    return what.attr if what.attr in _FUNCTIONS else ""


def _applied(trees: Mapping[Path, ast.AST]) -> dict[tuple[str, str], set[str]]:
    """Return the methods that are called on each name, by file, and under "" for all files."""
    found: dict[tuple[str, str], set[str]] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _FUNCTIONS:
                for file in (str(path.relative_to(CHECKOUT)), ""):
                    found.setdefault((file, node.value.id), set()).add(node.attr)
    return found


def _constant(path: Path, call: ast.Call) -> list[re.Pattern[Any]] | None:
    """Return the pattern of a call if the module's names determine it."""
    place = path.relative_to(CHECKOUT / "include" if "include" in path.relative_to(CHECKOUT).parts else CHECKOUT)
    parts = place.with_suffix("").parts
    module = ".".join(parts if parts[0] == "storeside" else ("storeside", *parts)).removesuffix(".__init__")
    flags = [k.value for k in call.keywords if k.arg == "flags"]
    place_of_flags = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(_function(call), 2)
    flags += call.args[place_of_flags : place_of_flags + 1]
    try:
        names = vars(importlib.import_module(module))
        pattern, flag = (eval(ast.unparse(node), names) for node in (call.args[0], *(flags or [ast.Constant(0)])))  # noqa: S307
    except NameError:
        return None
    return [re.compile(pattern, flag)]


# Texts.


@dataclass(frozen=True)
class Piece:
    """A part of a pattern: some texts that fit it, and whether it may be repeated without a limit."""

    texts: tuple[str, ...]
    repeats: bool = False


def texts_for(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield beginning, repeated text and end of texts that may be expensive for a pattern."""
    seen: set[tuple[str, str, str]] = set()
    parsed = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    interesting = _characters(parsed)
    for way in itertools.islice(_ways(list(parsed), interesting), _MOST_WAYS):
        for text in _expensive(way):
            if text not in seen and len(seen) < _MOST_TEXTS and text[1]:
                seen.add(text)
                yield text


def _expensive(way: list[Piece]) -> Iterator[tuple[str, str, str]]:
    """Yield texts that repeat one piece, or a run of pieces from a piece that repeats to another."""
    at = [n for n, piece in enumerate(way) if piece.repeats]
    firsts = [piece.texts[0] for piece in way]
    for place, text in ((m, text) for m in at for text in way[m].texts[:_MOST_REPEATED]):
        for end in ("\0", "\n\0"):
            yield "".join(firsts[:place]), text, end
    bounds = sorted({0, *at, *(n + 1 for n in at), len(way)})
    for i, j in sorted(itertools.combinations(bounds, 2), key=lambda run: (run[0], -run[1])):
        for texts in (firsts, [piece.texts[-1] for piece in way]):
            run = "".join(texts[i:j])
            yield "".join(firsts[:i]), run, "\0"
            if j == len(way):
                yield "".join(firsts[:i]), run[:-1], ""


def _ways(items: list[Any], chars: str) -> Iterator[list[Piece]]:
    """Yield sequences of pieces: one for each choice of alternatives."""
    if not items:
        yield []
        return
    for first in _of(items[0], chars):
        for rest in itertools.islice(_ways(items[1:], chars), _MOST_WAYS):
            yield [*first, *rest]


def _of(item: Any, chars: str) -> Iterator[list[Piece]]:
    kind, value = item
    if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
        yield [Piece(_single(item, chars))]
    elif kind is op.SUBPATTERN:
        yield from _ways(list(value[-1]), chars)
    elif kind is op.ATOMIC_GROUP:
        yield from _ways(list(value), chars)
    elif kind is op.BRANCH:
        for branch in value[1]:
            yield from _ways(list(branch), chars)
    elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        yield from _repeated(value, chars)
    elif kind is op.ASSERT and value[0] > 0:
        yield []
        yield from _ways(list(value[1]), chars)
    else:
        yield []


def _repeated(value: Any, chars: str) -> Iterator[list[Piece]]:
    least, most, body = value
    ways = list(itertools.islice(_ways(list(body), chars), _MOST_WAYS))
    taken = itertools.zip_longest(*map(_texts, ways))  # some of each alternative
    texts = tuple(dict.fromkeys(text for some in taken for text in some if text is not None))
    if most is op.MAXREPEAT or most > 100:
        yield [Piece(texts or ("",), repeats=True)]
    else:
        yield [Piece(tuple(t * max(least, 1) for t in texts) or ("",))]
        if not least:
            yield []


def _texts(way: list[Piece]) -> Iterator[str]:
    for n in range(max((len(piece.texts) for piece in way), default=0)):
        yield "".join(piece.texts[min(n, len(piece.texts) - 1)] for piece in way)


def _single(item: Any, chars: str) -> tuple[str, ...]:
    kind, value = item
    if kind is op.LITERAL:
        return (chr(value),)
    sequence = parser.SubPattern(parser.State(), [item])
    fits = re._compiler.compile(sequence)  # type: ignore[attr-defined]
    return tuple(c for c in chars if fits.fullmatch(c)) or ("\xe9",)


def _characters(parsed: Any) -> str:
    """Return characters that a pattern names, and some of each kind, without repetitions."""
    return "".join(dict.fromkeys([*itertools.islice(_named(parsed), 12), *_ANY]))


def _named(node: Any) -> Iterator[str]:
    """Yield the characters that a pattern names."""
    for item in node if isinstance(node, (list, tuple, parser.SubPattern)) else ():
        if isinstance(item, tuple) and item[:1] and item[0] in (op.LITERAL, op.NOT_LITERAL):
            yield chr(item[1])
        elif isinstance(item, tuple) and item[:1] == (op.RANGE,):
            yield chr(item[1][0])
        else:
            yield from _named(item)


# Measurement.


class TooLong(Exception):
    """A call takes more CPU time than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block after these CPU seconds of this process; expressions check for signals."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def seconds_of(call: Callable[[], object], least: float = 0.0) -> float:
    """Return the CPU seconds of a call: the mean of the calls that together take `least`; raises TooLong.

    Some systems count CPU time in steps of 4 ms.
    """
    start, count = time.process_time(), 0
    while not count or time.process_time() - start < least:
        with limited(_SECONDS):
            call()
        count += 1
    return (time.process_time() - start) / count


def grows_too_fast(call: Callable[[int], Callable[[], object]]) -> str:
    """Return how the CPU time grows if it grows faster than linearly; else an empty text.

    `call` makes a call with a text of a given number of characters.
    """
    for size in (MIDDLE, LARGE):
        try:
            if seconds_of(call(size)) > _ENOUGH:
                before, now = (seconds_of(call(n), least=3 * _ENOUGH) for n in (size // 8, size))
                if now > MOST_GROWTH * before:
                    return f"{size // 8} characters take {before:.5f} s, {size} take {now:.5f} s"
        except TooLong:
            return f"{size} characters take over {_SECONDS:.0f} s"
    return ""


def superlinear(pattern: re.Pattern[Any], ways: frozenset[str]) -> str:
    """Return a text for which a pattern's CPU time grows too fast, with the figures; empty if there is none.

    Only the texts that are the slowest at first are measured.
    """
    slow: list[tuple[float, tuple[str, str, str], str]] = []
    for parts, way in itertools.product(texts_for(pattern), sorted(ways)):
        call = _application(pattern, way, parts)(SMALL)
        try:
            with limited(_SECONDS):
                slow.append((min(_elapsed(call), _elapsed(call)), parts, way))
        except TooLong:
            return f"{parts} with {way}: {SMALL} characters take over {_SECONDS:.0f} s"
    for _, parts, way in sorted(slow, reverse=True)[:_SLOWEST]:
        if found := grows_too_fast(_application(pattern, way, parts)):
            return f"{parts} with {way}: {found}"
    return ""


def _elapsed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _application(
    pattern: re.Pattern[Any], way: str, parts: tuple[str, str, str]
) -> Callable[[int], Callable[[], object]]:
    def call(size: int) -> Callable[[], object]:
        head, repeated, end = parts
        text: Any = head + repeated * (size // len(repeated) + 1) + end
        if isinstance(pattern.pattern, bytes):
            text = text.encode("utf-8", "replace")
        if way in ("match", "fullmatch", "search"):
            return lambda: getattr(pattern, way)(text)
        return lambda: sum(1 for _ in pattern.finditer(text))

    return call
