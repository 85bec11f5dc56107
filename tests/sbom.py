"""``make sbom``: a software bill of materials (CycloneDX) of each image, from its lock file, into ``dist/sbom``.

It lists the Python packages with their hashes, and the libraries inside the wheels that are installed here in the
same version. The image of AIStore also has Go modules: their bill is read from the built binaries by
``go version -m``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from storeside.stack.building import nodes
from storeside.stack.building.go import find
from storeside.stack.settings import CHECKOUT, default_folder
from tests import wheels

IMAGES = CHECKOUT / "include" / "storeside" / "stack" / "images"
# The locks from which each target of the Dockerfile installs its packages.
LOCKS = {
    "airflow": (IMAGES / "airflow.lock",),
    "transformer": (IMAGES / "transformer.lock",),
    "aistore": (IMAGES / "transformer.lock", IMAGES / "aistore.lock"),
    "s3": (IMAGES / "s3.lock",),
    "hsds": (IMAGES.parent / "servers" / "hsds_requirements.txt",),
}
TOOL = "cyclonedx-bom==7.5.0"


def bill(uv: str, lock: Path) -> dict[str, Any]:
    """Return the bill of a lock file. Raises ValueError if it cannot be made."""
    command = [uv, "tool", "run", "--quiet", "--from", TOOL, "cyclonedx-py", "requirements", str(lock)]
    done = subprocess.run([*command, "--output-format", "JSON"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{lock.name}: {' '.join(done.stderr.split())[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def modules(listing: str) -> list[dict[str, str]]:
    """Return the Go modules of a binary as components, from the output of ``go version -m``."""
    found = []
    for line in listing.splitlines():
        words = line.split()
        if words[:1] in (["dep"], ["mod"]) and len(words) >= 3:
            purl = f"pkg:golang/{words[1]}@{words[2]}"
            found.append({"type": "library", "name": words[1], "version": words[2], "purl": purl, "bom-ref": purl})
    return found


def merged(bills: list[dict[str, Any]], more: list[dict[str, str]], image: str) -> dict[str, Any]:
    """Return one bill of an image; a component that several bills have is listed once."""
    components = {item.get("purl") or item["bom-ref"]: item for one in bills for item in one["components"]}
    components |= {item["bom-ref"]: item for item in more}
    first = {name: value for name, value in bills[0].items() if name not in ("dependencies", "serialNumber")}
    root = {"type": "container", "name": f"storeside/{image}", "bom-ref": f"storeside/{image}"}
    return {
        **first,
        "metadata": {**first.get("metadata", {}), "component": root},
        "components": [*components.values()],
    }


def go_modules(image: str) -> list[dict[str, str]]:
    """Return the Go modules of an image: those of AIStore's binaries where they have been built."""
    if image != "aistore":
        return []
    binary = nodes.build(default_folder() / "cache", print)
    go = find(binary.parents[1], "the list of modules", print)
    done = subprocess.run([go, "version", "-m", str(binary)], capture_output=True, text=True, check=True)
    return modules(done.stdout)


def main(uv: str) -> int:
    """Write all bills; return the exit status."""
    folder = CHECKOUT / "dist" / "sbom"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for image, locks in LOCKS.items():
            bills = [bill(uv, lock) for lock in locks]
            packages = {item["name"]: item["version"] for one in bills for item in one["components"]}
            found = merged(bills, go_modules(image) + wheels.libraries(packages), image)
            path = folder / f"{image}.cdx.json"
            path.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{path.relative_to(CHECKOUT)}: {len(found['components'])} components")
    except (ValueError, OSError, subprocess.CalledProcessError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
