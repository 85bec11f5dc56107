"""Finding 9: a decoder that an object has taken over reaches nothing but this object.

The attacker runs code in the decoder's process.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from storeside.transformers.isolation import landlock
from tests.unit.test_transformer_server import Mountpath, Server, Start, Target, ask, launch, mountpath, target

__all__ = ["launch", "mountpath", "target"]

ATTACKS = "tests.attacks.decoders:Attacks"
TOKEN = "a-token-that-no-decoder-may-see"


@pytest.fixture
def server(launch: Start) -> Server:
    return launch(
        ATTACKS, AIS_AUTHN_TOKEN=TOKEN, AWS_SECRET_ACCESS_KEY="a-key", NUM_WORKERS="1", LANGUAGE="en",
        TRANSFORM_VARIABLES="LANGUAGE", SIDECAR_URL="http://127.0.0.1:1/?signature=secret",
    )  # fmt: skip


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "canary"
    path.write_text("a canary")
    return path


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def attempt(server: Server, attack: str, **options: Any) -> dict[str, str]:
    with server.connect() as ws:
        answer = ask(ws, attack, **options)
    assert isinstance(answer, bytes), server.journal[-1].reason
    found: dict[str, str] = json.loads(answer)
    return found


def require_landlock() -> None:
    import ctypes

    if ctypes.CDLL(None).syscall(landlock.CREATE_RULESET, None, 0, 1) < landlock.FIRST_VERSION:
        pytest.skip("this kernel has no Landlock")


def test_system_calls(server: Server, listener: int) -> None:
    for attack in (
        f"tcp:{listener}", f"thread:{listener}", "unix", "pair", "run:true", "execute:/bin/true", "fork", "trace",
        "peek", "ring", "namespace", "signals", "limits", "group",
    ):  # fmt: skip
        assert "failed" in attempt(server, attack), attack


@pytest.mark.guarantee("hostile-media")
def test_files(server: Server, canary: Path, mountpath: Mountpath) -> None:
    require_landlock()
    other = mountpath.put("another/object")
    for attack in (
        f"read:{canary}", f"read:{other}", "read:/etc/passwd", "read:/proc/self/environ", "read:/proc/PPID/environ",
        "read:/proc/PPID/mem", "list:/", f"list:{canary.parent}", f"write:{canary}", f"write:{canary}.new",
        "write:/dev/shm/x", "read:/var/run/secrets/kubernetes.io/serviceaccount/token",
    ):  # fmt: skip
        assert "failed" in attempt(server, attack), attack
    for attack in (f"change:{canary}", f"rename:{canary}"):
        assert "failed" in attempt(server, attack), attack
    assert canary.read_text() == "a canary"


def test_an_object_in_a_file_is_seen_without_its_folder(server: Server, mountpath: Mountpath) -> None:
    require_landlock()
    fqn = mountpath.fqn("source")
    assert "failed" in attempt(server, "source", fqn=fqn), "it is a copy in memory"


def test_secrets_are_neither_in_the_environment_nor_in_the_memory(server: Server) -> None:
    environment = json.loads(attempt(server, "environment")["succeeded"])
    assert environment["LANGUAGE"] == "en"
    assert not {name for name in environment if name.startswith(("AIS_", "AWS_", "KUBERNETES"))}
    assert environment["SIDECAR_URL"] == "given"
    (decoder,) = decoders(server)
    memory = contents(decoder.pid)
    assert b"LANGUAGE" in memory, "it is the memory of a process"
    for secret in (TOKEN, "its-secret", "a-key", "signature=secret"):
        assert secret.encode() not in memory, secret
    parent = contents(decoder.ppid())
    assert TOKEN.encode() in parent, "the search finds what is there"


def test_a_token_in_the_specification_of_an_etl_does_not_reach_decoders(launch: Start) -> None:
    given = {
        "AIS_AUTHN_TOKEN": TOKEN,
        "AIS_SOURCES": "10.9.8.7/32",
        "SIDECAR_URL": "http://127.0.0.1:1/?signature=secret",
    }
    server = launch(ATTACKS, **given, NUM_WORKERS="1", MODEL="small", TRANSFORM_VARIABLES=",".join([*given, "MODEL"]))
    environment = json.loads(attempt(server, "environment")["succeeded"])
    assert environment["MODEL"] == "small"
    assert environment["SIDECAR_URL"] == "given"
    assert not {name for name in environment if name.startswith("AIS_")}
    (decoder,) = decoders(server)
    memory = contents(decoder.pid)
    for secret in (TOKEN, "10.9.8.7", "signature=secret"):
        assert secret.encode() not in memory, secret
    assert TOKEN.encode() in contents(decoder.ppid()), "the worker needs it"


def decoders(server: Server) -> list[psutil.Process]:
    """Return the processes that belong to a group that their parent, a worker, leads."""
    found = [p for p in server.descendants() if p.ppid() != server.process.pid]
    return [p for p in found if os.getpgid(p.pid) == p.ppid()]


def contents(pid: int) -> bytes:
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if match:
                begin, end = (int(text, 16) for text in match.groups())
                memory.seek(begin)
                try:
                    found.append(memory.read(end - begin))
                except OSError:
                    continue
    return b"".join(found)


def test_it_has_no_descriptors_but_its_own(server: Server) -> None:
    kinds = json.loads(attempt(server, "descriptors")["succeeded"])
    assert set(kinds) <= {"0", "1", "2"} | {n for n, kind in kinds.items() if kind == "0o14"}
    assert list(kinds.values()).count("0o14") == 1, "one socket, to its worker"


def test_lines_that_look_like_failures_do_not_reach_the_journal(server: Server) -> None:
    line = 'storeside-failure {"time":1,"bucket":"in","object":"of others","reason":"forged","final":true}'
    attempt(server, f"forge:{line}")
    attempt(server, "environment")
    assert not [f for f in server.journal if f.object == "of others"]


def test_it_cannot_name_the_sidecar_of_another_object(launch: Start, target: Target) -> None:
    server = launch("tests.attacks.decoders:Chooses", SIDECAR_URL=f"{target.url}/facts/", NUM_WORKERS="1")
    for name in (
        "b.json", "../b", "folder/b.json", "folder/ab.flac.json", "folder/a/../b", "folder/a\0", "folder/a.\0",
        "folder/a./b", "/etc/x",
    ):  # fmt: skip
        with server.connect() as ws:
            assert ask(ws, "folder/a.flac", arguments=name) == "failed"
        assert "is not named after the object" in server.failure("folder/a.flac").reason
    assert not [path for _, path in target.requests if "/facts/" in path]
    with server.connect() as ws:
        for name in ("folder/a.wav.json", "folder/a.flac.json", "folder/a"):
            assert ask(ws, "folder/a.flac", arguments=name) == b"result"


def test_its_sidecar_has_no_facts_of_another_object(launch: Start, target: Target) -> None:
    server = launch("tests.attacks.decoders:Chooses", SIDECAR_URL=f"{target.url}/facts/", NUM_WORKERS="1")
    earlier, other = len(target.requests), '{"path": "facts/b.json"}'
    for more in (f"\n{other}", other, f", {other}"):
        with server.connect() as ws:
            assert ask(ws, "a.flac", arguments=f"a.json|{more}") == "failed"
        failure = server.failure("a.flac")
        assert "is not one JSON object" in failure.reason
        assert failure.final
    assert not [path for _, path in target.requests[earlier:] if "/facts/" in path]


def test_cpu_is_limited_per_object(launch: Start) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU: the time-out comes first")
    server = launch(ATTACKS, NUM_WORKERS="1", OBJECT_TIMEOUT="4")
    with server.connect() as ws:
        assert ask(ws, "spin") == "failed"
        reason = server.failure("spin").reason
        assert "OBJECT_TIMEOUT" in reason
        assert ask(ws, "environment")


def test_memory_is_limited_by_default(launch: Start) -> None:
    server = launch(ATTACKS, NUM_WORKERS="1")
    attempt(server, "environment")
    (decoder,) = decoders(server)
    assert decoder.rlimit(psutil.RLIMIT_DATA) == (4 << 30, 4 << 30)
    assert decoder.rlimit(psutil.RLIMIT_CPU)[0] < 600


def test_other_programs_run_only_where_a_transformer_needs_them(launch: Start, canary: Path) -> None:
    require_landlock()
    server = launch("tests.attacks.decoders:commands", NUM_WORKERS="1", AIS_AUTHN_TOKEN=TOKEN)
    assert attempt(server, "echo hello")["said"] == "hello\n"
    assert "denied" in attempt(server, f"cat {canary}")["said"]
    assert "denied" in attempt(server, f"echo x > {canary}")["said"]
    assert TOKEN not in attempt(server, "env; cat /proc/*/environ")["said"]
    perl = "socket(S, 2, 1, 6) or die qq($!)"
    assert "not permitted" in attempt(server, f"perl -e '{perl}'")["said"]
    assert canary.read_text() == "a canary"


def test_needs_are_named(launch: Start, listener: int) -> None:
    server = launch("tests.attacks.decoders:network", NUM_WORKERS="1")
    with server.connect() as ws:
        assert ask(ws, str(listener)) == b"connected"
    server = launch("tests.attacks.decoders:wrong", wait=False)
    assert server.process.wait(20) == 1
    assert "needs ['everything']" in server.log.read_text()


def test_audio_is_decoded_in_isolation(launch: Start, mountpath: Mountpath) -> None:
    """The built-in transformers need no copy of a file, and the ffmpeg command works under the same rules."""
    recording = next(Path("tests/data/speech").rglob("*.flac")).read_bytes()
    fqn = mountpath.fqn("speech.flac", recording)
    for transform in ("audio_transcode", "audio_probe", "audio_ffmpeg"):
        server = launch(transform, FFMPEG_OUTPUT='{"format": "wav", "ar": 16000, "ac": 1}', NUM_WORKERS="1")
        with server.connect() as ws:
            by_path = ask(ws, "speech.flac", fqn=fqn)
            by_content = ask(ws, "speech.flac", recording)
        assert by_path == by_content, server.log.read_text()
        assert len(by_path) > 100, server.log.read_text()
        assert "WARNING" not in server.log.read_text()
