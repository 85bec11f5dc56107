"""Libraries inside the installed wheels, for the bills of ``make sbom``.

A wheel describes them in two ways: in included bills (``*.dist-info/sboms``, PEP 770), which list statically
linked libraries and Rust crates too, and by the names of shared libraries that auditwheel copied into ``*.libs``. The
version in such a name is that of the library's interface. A statically linked library without a bill is not found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import PurePath

Component = dict[str, str]
# libhdf5-9e18f0c6.so.320.0.0: auditwheel appends a hash to the name.
_SHARED = re.compile(r"(?P<name>.+?)(?:-[0-9a-f]{8})+\.so(?:\.(?P<version>[\d.]+))?")


def libraries(packages: Mapping[str, str]) -> list[Component]:
    """Return the libraries in the installed wheels of these packages (version by name), each once per wheel."""
    found: dict[str, Component] = {}
    for wheel in distributions():
        name = re.sub(r"[-_.]+", "-", wheel.name).lower()
        if packages.get(name) == wheel.version:
            for component in (*_described(wheel), *_shared(wheel)):
                reference = f"{name}@{wheel.version}#{component.get('purl') or component['name']}"
                found[reference] = {**component, "bom-ref": reference}
    return [found[reference] for reference in sorted(found)]


def _described(wheel: Distribution) -> Iterator[Component]:
    for file in wheel.files or ():
        if len(file.parts) > 2 and file.parts[-2] == "sboms" and file.suffix == ".json":
            for item in json.loads(file.read_text()).get("components", ()):
                if item.get("version") and not item.get("purl", "").startswith("pkg:pypi/"):
                    yield _component(item["name"], item["version"], wheel, item.get("purl", ""))


def _shared(wheel: Distribution) -> Iterator[Component]:
    for file in wheel.files or ():
        if PurePath(file).parent.name.endswith(".libs") and (match := _SHARED.fullmatch(file.name)):
            yield _component(match["name"], match["version"] or "unknown", wheel)


def _component(name: str, version: str, wheel: Distribution, purl: str = "") -> Component:
    component = {"type": "library", "name": name, "version": version}
    component["description"] = f"inside the wheel of {wheel.name} {wheel.version}"
    return component | ({"purl": purl} if purl else {})
