"""Templates, and the formatting of numbers, times and names in them."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from storeside import __version__
from storeside.pages import downloads
from storeside.plugins.pages.instances import instance

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
# Characters that reverse text or are invisible: an object's name may contain them, but must not look like another.
_INVISIBLE = {
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x206A),
    0xFEFF,
}
# Ids that Airflow writes: the kind of the run, its time, and sometimes a random end.
_RUN = re.compile(r"[a-z_]+?__(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:\+\d\d:\d\d|Z))(?:_\w+)?\Z")
_CODE = Markup("<code>{}</code>")
_SHOWN = {code: f"\\u{code:04x}" for code in _INVISIBLE} | {9: "\\t", 10: "\\n", 13: "\\r"}


def name(text: str) -> str:
    """Write the name of an object, with invisible characters escaped."""
    return text.translate(_SHOWN)


def shortened(text: str) -> str:
    """Write a name in one line of a phone; the end tells objects of one folder apart."""
    return text if len(text) <= 42 else f"{text[:8]}…{text[-33:]}"


def prose(text: str) -> Markup:
    """Write a reason or a message; text between backticks becomes code, so that the page shows no backticks."""
    parts = name(text).split("`")
    return Markup("").join(_CODE.format(part) if n % 2 else part for n, part in enumerate(parts))


def size(count: float) -> str:
    """Write a number of bytes."""
    unit = min(int(math.log(count, 1000)), len(_UNITS) - 1) if count >= 1 else 0
    if round(count / 1000**unit, 1) >= 1000 and unit < len(_UNITS) - 1:  # 999,999 bytes are 1.0 MB
        unit += 1
    return f"{count / 1000**unit:.{0 if unit == 0 else 1}f} {_UNITS[unit]}"


def number(value: float) -> str:
    """Write a number with its significant digits, and never with an exponent."""
    if not math.isfinite(value):
        return "unknown"
    if 0 < abs(value) < 0.001:
        return "< 0.001" if value > 0 else "> -0.001"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def span(seconds: float) -> str:
    """Write a length of time."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return "{} min {} s".format(*divmod(round(seconds), 60))
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def hours(value: float) -> str:
    """Write a length of audio, in hours if it has one."""
    if value >= 1:
        return f"{value:,.0f} h" if value >= 100 else f"{value:.1f} h"
    return f"{60 * value:.1f} min" if value >= 1 / 60 else f"{3600 * value:.0f} s"


def utc(seconds: float) -> str:
    """Write a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def moment(seconds: float) -> Markup:
    """Write a time. The page's script shows it in the time zone that the user chose in Airflow."""
    text = '<time datetime="{}Z" data-at="{}">{} UTC</time>'
    at = utc(seconds)
    return Markup(text).format(at.replace(" ", "T"), f"{seconds:.0f}", at)  # noqa: S704 (its parts are escaped)


def run_name(text: str) -> Markup:
    """Write the id of a run: the date and time that Airflow wrote into it, with the whole id on hover."""
    found = _RUN.match(text)
    at = _time(found[1]) if found else None
    if at is None:
        return escape(name(text))
    return Markup('<span class="run" title="{}">{}</span>').format(name(text), moment(int(at)))


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def ago(seconds: float) -> str:
    """Write how long ago a time is."""
    return f"{span(max(time.time() - seconds, 0))} ago"


def query(**values: Any) -> str:
    """Write the query of a link, without empty values."""
    return urlencode({key: value for key, value in values.items() if value not in ("", None)})


_environment = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_environment.filters |= {
    "name": name,
    "size": size,
    "number": number,
    "hours": hours,
    "span": span,
    "moment": moment,
    "ago": ago,
    "utc": utc,
}
_environment.filters |= {"instance": instance, "prose": prose, "run_name": run_name, "shortened": shortened}
_environment.globals |= {"query": query, "most_lines": downloads.MOST, "version": __version__}


def render(request: Request, template: str, code: int = 200, **values: Any) -> HTMLResponse:
    """Return a page. `base` is the path of the pages, `airflow` that of Airflow itself."""
    base = request.scope["root_path"]
    text = _environment.get_template(template).render(
        base=base, airflow=base.rpartition("/")[0], path=request.scope["path"].removeprefix(base).strip("/"), **values
    )
    return HTMLResponse(text, status_code=code)
