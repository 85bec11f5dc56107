"""A local user who can reach AIStore's control API tries to run any command as an ETL (finding 4)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from aistore.sdk.errors import AISError

from storeside.aistore.spec import CLASS_IMAGE, TRANSFORMER_IMAGE, transformer_command
from tests.support import unique

TRANSCODE = list(transformer_command("audio_transcode"))


def attempts(mark: Path) -> list[tuple[dict[str, Any], str]]:
    """Return runtimes of ETLs that would create `mark`, and what each is."""
    touch = f"open({str(mark)!r}, 'w')"
    folder = mark.parent / "code"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(touch)
    (folder / "mine.py").write_text(f"{touch}\ndef transform(source, name, arguments): return b''\n")
    serve = TRANSCODE[:3]

    def named(name: str, value: object) -> list[dict[str, str]]:
        return [{"name": name, "value": str(value)}]

    return [
        ({"image": TRANSFORMER_IMAGE, "command": ["python", "-c", touch]}, "a command"),
        ({"image": TRANSFORMER_IMAGE, "command": ["sh", "-c", f"touch {mark}"]}, "a shell"),
        ({"image": TRANSFORMER_IMAGE, "command": ["/usr/bin/touch", str(mark)]}, "a program"),
        ({"image": TRANSFORMER_IMAGE, "command": TRANSCODE, "env": named("PYTHONPATH", folder)}, "PYTHONPATH"),
        ({"image": TRANSFORMER_IMAGE, "command": TRANSCODE, "env": named("LD_PRELOAD", mark)}, "LD_PRELOAD"),
        ({"image": TRANSFORMER_IMAGE, "command": [*serve, "--transform", "mine:transform"]}, "another transform"),
        ({"image": "aistorage/runtime_python:3.11", "command": ["python", "-c", touch]}, "the image of classes"),
        ({"image": CLASS_IMAGE, "env": named("UVICORN_APP_DIR", folder)}, "uvicorn's folder"),
        ({"image": "nobody/unknown:1", "command": ["touch", str(mark)]}, "another image"),
    ]


@pytest.mark.parametrize("number", range(9))
def test_an_etl_runs_only_allowed_commands(aistore: Any, tmp_path: Path, number: int) -> None:
    mark = tmp_path / "ran"
    runtime, what = attempts(mark)[number]
    name = unique("evil")
    message = {"name": name, "communication": "hpush://", "init_timeout": "10s", "runtime": runtime}
    request = aistore.cluster().client.request
    try:
        with pytest.raises(AISError, match=r"ImageNotRunnable|does not allow this pod|has no command for the image"):
            request("put", path="etl", json=message, timeout=60)
        assert not mark.exists(), f"{what} was executed"
    finally:
        for path in (f"etl/{name}/stop", f"etl/{name}"):
            try:
                request("post" if path.endswith("stop") else "delete", path=path)
            except AISError:
                continue


SPEC = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{communication_type: "hpush://"}}
spec:
  containers:
    - name: server
      image: {image}
      ports: [{{name: default, containerPort: 8000}}]
      command: {command}
      workingDir: {folder}
      readinessProbe: {{httpGet: {{path: /health, port: default}}}}
"""


def test_a_pod_of_a_specification_cannot_choose_its_folder(aistore: Any, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "storeside").mkdir()
    (tmp_path / "storeside" / "__init__.py").write_text(f"open({str(mark)!r}, 'w')")
    name = unique("evil")
    spec = SPEC.format(name=name, image=TRANSFORMER_IMAGE, command=TRANSCODE, folder=tmp_path)
    message = {
        "name": name,
        "communication": "hpush://",
        "init_timeout": "10s",
        "spec": base64.b64encode(spec.encode()).decode(),
    }
    with pytest.raises(AISError):
        aistore.cluster().client.request("put", path="etl", json=message, timeout=60)
    assert not mark.exists()
