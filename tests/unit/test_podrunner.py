from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import requests

from storeside.aistore import etl
from storeside.aistore.spec import CLASS_IMAGE, TRANSFORMER_IMAGE, transformer_command
from storeside.stack.podrunner import component
from storeside.stack.podrunner.allowed import NotAllowedError, require
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.podrunner.kube_protobuf import MAGIC, MESSAGES, parse_body
from storeside.stack.podrunner.pods import _at_port, quantity
from storeside.stack.podrunner.settings import Image, Settings
from storeside.stack.settings import Stack
from storeside.transformers.audio.formats import AudioFormat
from tests.support import probe_spec, transcode_spec, until

# The request of a target of AIStore 5.0 (client-go 0.35.3) for etl.init(image, command=[...], MODE="x").
CAPTURED = (
    "azhzAAoJCgJ2MRIDUG9kEpwGCvoBChRlY2hvLWR1bXAtYWlzdGFyZ2V0MBIAGgAiACoAMgA4AEIAWgoKA2FwcBIDYWlzWiUKG2FwcC5r"
    "dWJlcm5ldGVzLmlvL2NvbXBvbmVudBIGc2VydmVyWh0KFmFwcC5rdWJlcm5ldGVzLmlvL25hbWUSA2V0bFovChdudmlkaWEuY29tL2Fp"
    "cy1ldGwtbmFtZRIUZWNoby1kdW1wLWFpc3RhcmdldDBaKAoXbnZpZGlhLmNvbS9haXMtZXRsLW5vZGUSDW5vZGUtdGFyZ2V0LTBaJwoZ"
    "bnZpZGlhLmNvbS9haXMtZXRsLXRhcmdldBIKYWlzdGFyZ2V0MBKHBAoxCgh2b2x1bWUtMBIlCiMKIS90bXAvc3NmaXgvcnVuL3N0YXRl"
    "L2Fpc3RvcmUvZGF0YRL9AgoJZWNoby1kdW1wEhJzdG9yZXNpZGUvZWNobzoxLjIaBnB5dGhvbhoCLW0aB3V2aWNvcm4aF2VjaG9fc2Vy"
    "dmVyOmZhc3RhcGlfYXBwGgYtLWhvc3QaBzAuMC4wLjAaBi0tcG9ydBoEODAwMCoAMhIKB2RlZmF1bHQQABjAPiIAKgA6CQoETU9ERRIB"
    "eDpMCg5BSVNfVEFSR0VUX1VSTBI6aHR0cDovLzEyNy4wLjAuMTo1MDE0Ny92MS9ldGwvX29iamVjdC9lY2hvLWR1bXAvTHRzbkVxUnZp"
    "QToSCgpkaXJlY3RfcHV0EgR0cnVlQgBKMwoIdm9sdW1lLTAQARohL3RtcC9zc2ZpeC9ydW4vc3RhdGUvYWlzdG9yZS9kYXRhIgAyAFoq"
    "Ch4SHAoHL2hlYWx0aBINCAEQABoHZGVmYXVsdBoAIgAQABgFIAooADAAagByBkFsd2F5c4ABAIgBAJABAKIBFUZhbGxiYWNrVG9Mb2dz"
    "T25FcnJvchoAMgBCAEoAUgBYAGAAaACCAQCKAQCSATUKMQovCi0KKwoWa3ViZXJuZXRlcy5pby9ob3N0bmFtZRICSW4aDW5vZGUtdGFy"
    "Z2V0LTAaAJoBAMIBABoTCgAaACIAKgAyAEoAWgByAIgBABoAIgA="
)
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if os.path.exists("broken") else 200)
        self.end_headers()
        self.wfile.write("\\n".join(f"{k}={v}" for k, v in os.environ.items()).encode())
    def log_message(self, *_): pass
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
names = (f"pod-{n}" for n in itertools.count())


# ---- reading bodies


def encode(kind: str, **fields: Any) -> bytes:
    """Encode a body in client-go's form."""
    raw = MESSAGES[kind](**fields).SerializeToString()
    meta = MESSAGES["TypeMeta"](apiVersion="v1", kind=kind)
    return MAGIC + MESSAGES["Unknown"](typeMeta=meta, raw=raw).SerializeToString()


def test_body_captured_from_aistore() -> None:
    pod = parse_body(base64.b64decode(CAPTURED))
    assert (pod["kind"], pod["metadata"]["name"]) == ("Pod", "echo-dump-aistarget0")
    assert pod["metadata"]["labels"]["nvidia.com/ais-etl-target"] == "aistarget0"
    container = pod["spec"]["containers"][0]
    assert container["image"] == "storeside/echo:1.2"
    assert container["command"][:3] == ["python", "-m", "uvicorn"]
    assert container["ports"] == [{"name": "default", "hostPort": 0, "containerPort": 8000, "protocol": ""}]
    assert {"name": "direct_put", "value": "true"} in container["env"]
    assert container["readinessProbe"]["periodSeconds"] == 10
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["port"] == "default"


def test_body_round_trip_of_maps_quantities_and_negative_numbers() -> None:
    container = {
        "name": "c",
        "resources": {"limits": {"memory": {"string": "64Mi"}}},
        "readinessProbe": {"handler": {"httpGet": {"port": {"type": 0, "intVal": 8000}}}, "periodSeconds": -1},
    }
    body = encode("Pod", metadata={"name": "a", "labels": {"k": "ü"}}, spec={"containers": [container]})
    assert parse_body(body) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "labels": {"k": "ü"}},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "resources": {"limits": {"memory": "64Mi"}},
                    "readinessProbe": {"periodSeconds": -1, "httpGet": {"port": 8000}},
                }
            ]
        },
    }


@pytest.mark.parametrize("body", [b"", b"[]", b"{", MAGIC + b"\xff\xff", MAGIC, b"\x00"])
def test_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_body(body)


# ---- small parts


@pytest.mark.parametrize(
    ("text", "value"),
    [("64Mi", 64 << 20), ("1G", 10**9), ("128974848", 128974848), ("1e3", 1000), ("0.5Gi", 1 << 29)],
)
def test_quantity(text: str, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "-1", "64MB", "lots", "1Mi "])
def test_quantity_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        quantity(text)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("serve --host 0.0.0.0 --port 8000 --rate 8000", "serve --host 127.0.0.1 --port 4711 --rate 8000"),
        ("serve --port=8000 --limit=80001", "serve --port=4711 --limit=80001"),
        ("gunicorn -b 0.0.0.0:8000", "gunicorn -b 127.0.0.1:4711"),
        ("serve --bind :8000", "serve --bind :4711"),
    ],
)
def test_command_is_moved_to_its_port(given: str, wanted: str) -> None:
    assert _at_port(given.split(), 8000, 4711, "127.0.0.1") == wanted.split()


def test_command_in_a_shell_is_moved_to_its_port() -> None:
    assert _at_port(["sh", "-c", "exec serve --host 0.0.0.0 --port 8000"], 8000, 4711, "127.0.0.1") == [
        "sh",
        "-c",
        "exec serve --host 127.0.0.1 --port 4711",
    ]


@pytest.mark.parametrize("name", ["a/b", "a/b:1", "a/b:latest", "a/b@sha256:00", "docker.io/a/b:1"])
def test_image_is_found_whatever_its_tag(tmp_path: Path, name: str) -> None:
    image = Image(("true",))
    settings = Settings(1, "ais", "t", "", "", tmp_path, sys.executable, {"a/b": image}, tmp_path, tmp_path, tmp_path)
    assert settings.image(name) is image
    assert settings.image(f"x{name}") is None


# ---- what pods may run

RULES = ["SUFFIX= LEVEL_*= serve --transform my_*:count --port 8000", "serve --plain"]


def permitted(words: str, *variables: str, owners: Path = Path("/does/not/exist")) -> bool:
    try:
        require("a/b", words.split(), variables, RULES, owners)
    except NotAllowedError:
        return False
    return True


def test_commands_match_word_by_word() -> None:
    assert permitted("serve --transform my_words:count --port 8000")
    assert permitted("serve --transform my_words:count --port 8000", "SUFFIX", "LEVEL_TOP", "NUM_WORKERS")
    assert permitted("serve --plain")
    assert not permitted("serve --transform os:system --port 8000")
    assert not permitted("serve --transform my_words:count --port 8000 --verbose")
    assert not permitted("serve --transform my_words:count --port")
    assert not permitted("")


@pytest.mark.parametrize("variable", ["PATH", "PYTHONPATH", "LD_PRELOAD", "HOME", "LEVEL", "suffix"])
def test_variables_that_no_line_names_are_refused(variable: str) -> None:
    assert not permitted("serve --transform my_words:count --port 8000", "SUFFIX", variable)
    assert not permitted("serve --plain", variable)


def test_what_our_etls_ask_for_is_allowed() -> None:
    smap = SimpleNamespace(tmap={}, pmap={})
    client = SimpleNamespace(cluster=lambda: SimpleNamespace(get_info=lambda: smap))
    lines = IMAGES["storeside/transformer-*"]["allowed"]
    for spec in (transcode_spec(), probe_spec(), transcode_spec(AudioFormat(channels=2, loudness_lufs=-20.0))):
        runtime = spec.message()["runtime"]
        given = [*runtime["env"], *etl._of_the_cluster(client, spec)]  # type: ignore[arg-type]
        names = [entry["name"] for entry in given] + ["AIS_TARGET_URL", "direct_put", "AIS_ETL_PROOF"]
        require("storeside/transformer-audio", runtime["command"], names, lines, Path("/does/not/exist"))


def test_a_variable_given_twice_is_refused() -> None:
    with pytest.raises(NotAllowedError, match="sets a variable twice"):
        require("a/b", ["serve", "--plain"], ["AIS_TARGET_URL", "AIS_TARGET_URL"], RULES, Path("/does/not/exist"))


def test_the_owner_allows_more_with_the_line_that_the_error_names(tmp_path: Path) -> None:
    owners = tmp_path / "allowed.txt"
    command = ["python", "-m", "mine", "--name", "two words"]
    with pytest.raises(NotAllowedError, match="add this line to") as caught:
        require("a/b", command, ["MINE", "NUM_WORKERS"], RULES, owners)
    line = str(caught.value).partition(f"{owners}: ")[2]
    assert line == "a/b MINE= python -m mine --name 'two words'"
    owners.write_text(f"# ours\n\n{line}\n")
    owners.chmod(0o600)
    require("a/b", command, ["MINE"], RULES, owners)
    with pytest.raises(NotAllowedError):
        require("a/other", command, ["MINE"], RULES, owners)


@pytest.mark.parametrize(
    ("content", "mode", "words"), [("a/b x\n", 0o666, "another user"), ("a/b 'x\n", 0o600, "line 1")]
)
def test_an_owners_file_that_is_unsafe_or_unreadable_is_refused(
    tmp_path: Path, content: str, mode: int, words: str
) -> None:
    owners = tmp_path / "allowed.txt"
    owners.write_text(content)
    owners.chmod(mode)
    with pytest.raises(NotAllowedError, match=words):
        require("a/b", ["x"], [], RULES, owners)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_the_owners_file_may_belong_to_the_owner_of_its_folder(tmp_path: Path) -> None:
    owners = tmp_path / "allowed.txt"
    owners.write_text("a/b x\n")
    owners.chmod(0o644)
    os.chown(owners, 50000, 0)
    with pytest.raises(NotAllowedError, match="another user can write it"):
        require("a/b", ["x"], [], RULES, owners)
    os.chown(tmp_path, 50000, 0)
    require("a/b", ["x"], [], RULES, owners)


def test_a_runner_at_another_host_gets_a_certificate_for_it_once(tmp_path: Path) -> None:
    stack = Stack.create(tmp_path, targets=1)

    def files(host: str) -> list[bytes]:
        config = component.write(stack, {}, host, state=tmp_path / "elsewhere")
        assert json.loads(config.read_text())["host"] == host
        assert json.loads(config.read_text())["state"] == str(tmp_path / "elsewhere")
        assert f"https://{host}:" in component.kube_config(stack).read_text()
        return [path.read_bytes() for path in sorted(component.service_account(stack).iterdir())]

    embedded, compose = files("127.0.0.1"), files("transformers")
    assert compose == files("transformers")
    assert not set(embedded) & set(compose) - {b"ais"}


# ---- the running runner


class Runner:
    """A pod runner with its client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = Stack.create(folder, targets=1)
        images = {
            "test/server": {
                "command": ["{python}", "-c", SERVER, "{host}", "{port}"],
                "cwd": str(folder),
                "allowed": ["GIVEN="],
            },
            "test/python": {
                "command": ["{python}", "-c", "raise SystemExit('no command')"],
                "env": {"AT": "{port}"},
                "allowed": ["python -c *"],
            },
            "test/absent": {"command": ["/does/not/exist"], "allowed": [""]},
            **IMAGES,
        }
        (self.component,) = component.components(self.stack, images)
        account = component.service_account(self.stack)
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = str(account / "ca.crt")
        self.session.headers["Authorization"] = f"Bearer {(account / 'token').read_text()}"
        self.pods = f"{self.stack.url('podrunner')}/api/v1/namespaces/ais/pods"
        self.services = self.pods.replace("/pods", "/services")
        self.start()

    def start(self) -> None:
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.process = subprocess.Popen(
            self.component.command, cwd=self.component.directory, env=environment | {"RUNNER_SECRET": "hidden"}
        )
        wait_for(self.component.healthy)

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(15)

    def run(self, image: str, *command: str, **fields: Any) -> str:
        name = next(names)
        container = {"name": "c", "image": image, "command": list(command), "ports": [{"containerPort": 8000}]}
        container["readinessProbe"] = {"handler": {"httpGet": {"path": "/"}}, "periodSeconds": 1}
        service = encode("Service", metadata={"name": name}, spec={"ports": [{"port": 8000}]})
        assert self.session.post(self.services, service).status_code == 201
        body = encode("Pod", metadata={"name": name}, spec={"containers": [container | fields]})
        answer = self.session.post(self.pods, body)
        assert answer.status_code == 201, answer.text
        return name

    def python(self, code: str, **fields: Any) -> str:
        return self.run("test/python:1", "python", "-c", code, **fields)

    def get(self, name: str) -> dict[str, Any]:
        pod: dict[str, Any] = self.session.get(f"{self.pods}/{name}").json()
        return pod

    def ready(self, name: str) -> bool:
        conditions = self.get(name)["status"].get("conditions", [])
        return {"type": "Ready", "status": "True"}.items() <= next(
            (c.items() for c in conditions if c["type"] == "Ready"), {}.items()
        )

    def port(self, name: str) -> int:
        return int(self.session.get(f"{self.services}/{name}").json()["spec"]["ports"][0]["nodePort"])

    def end(self, name: str) -> dict[str, Any]:
        """Wait for the end of a pod and return its state."""
        wait_for(lambda: "terminated" in self.state(name))
        terminated: dict[str, Any] = self.state(name)["terminated"]
        return terminated

    def state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = self.get(name)["status"]["containerStatuses"][0]["state"]
        return state


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until(condition, seconds, "change of the pod", 0.05)


@contextmanager
def started(folder: Path) -> Iterator[Runner]:
    runner = Runner(folder)
    try:
        yield runner
    finally:
        if runner.process.poll() is None:
            runner.stop()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with started(tmp_path_factory.mktemp("podrunner")) as running:
        yield running


def test_nobody_gets_in_without_the_token(runner: Runner) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
        answer = runner.session.get(runner.pods, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["reason"] == "Unauthorized"


def test_secrets_are_readable_by_their_owner_alone(runner: Runner) -> None:
    home = component.folder(runner.stack)
    for path in (component.service_account(runner.stack) / "token", home / "server.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (component.service_account(runner.stack) / "token").read_text() not in (home / "config.json").read_text()


def test_token_and_certificate_survive_a_second_call(runner: Runner) -> None:
    before = [path.read_bytes() for path in sorted(component.service_account(runner.stack).iterdir())]
    component.components(runner.stack, {})
    assert before == [path.read_bytes() for path in sorted(component.service_account(runner.stack).iterdir())]


def test_pod_of_the_target_has_volumes(runner: Runner) -> None:
    spec = runner.get("ais-target-0")["spec"]
    assert spec["containers"][0]["volumeMounts"][0]["name"] == spec["volumes"][0]["name"]
    assert runner.session.delete(f"{runner.pods}/ais-target-0").status_code == 403


def test_pod_becomes_ready_at_its_service_with_a_clean_environment(runner: Runner) -> None:
    name = runner.run("test/server:1", env=[{"name": "GIVEN", "value": "yes"}])
    wait_for(lambda: runner.ready(name))
    text = runner.session.get(f"http://127.0.0.1:{runner.port(name)}/").text
    variables = dict(line.split("=", 1) for line in text.splitlines())
    assert variables["GIVEN"] == "yes"
    assert set(variables) - {"LC_CTYPE"} <= {"PATH", "HOME", "LANG", "HOSTNAME", "AIS_MOUNTS", "GIVEN"}


def test_probe_that_fails_later_makes_the_pod_unready_and_back(runner: Runner) -> None:
    name = runner.run("test/server")
    wait_for(lambda: runner.ready(name))
    broken = runner.folder / "broken"
    broken.touch()
    try:
        wait_for(lambda: not runner.ready(name))
        assert "running" in runner.state(name)
    finally:
        broken.unlink()
    wait_for(lambda: runner.ready(name))


def test_crash_is_reported_with_code_and_log(runner: Runner) -> None:
    name = runner.python("import sys; print('x' * 5000, flush=True); sys.exit('no module named foo')")
    end = runner.end(name)
    assert (end["exitCode"], end["reason"]) == (1, "Error")
    assert end["message"].endswith("no module named foo\n")
    assert len(end["message"]) <= 2048
    assert runner.get(name)["status"]["phase"] == "Failed"
    assert "no module named foo" in runner.session.get(f"{runner.pods}/{name}/log").text


def test_signal_and_success_are_told_apart(runner: Runner) -> None:
    killed = runner.end(runner.python("import os; os.kill(os.getpid(), 11)"))
    assert (killed["exitCode"], killed["reason"]) == (139, "Error")
    assert runner.end(runner.python("pass"))["reason"] == "Completed"


def test_unknown_image_fails_at_once_and_names_the_known_ones(runner: Runner) -> None:
    end = runner.end(runner.run("nobody/unknown:3", "python", "-c", "pass"))
    assert end["exitCode"] != 0
    assert "nobody/unknown:3" in end["message"]
    assert "test/server" in end["message"]


@pytest.mark.parametrize(
    ("image", "command", "fields"),
    [
        ("test/server", ("python", "-c", "pass"), {}),
        ("test/server", (), {"env": [{"name": "PYTHONPATH", "value": "/opt"}]}),
        ("test/server", (), {"workingDir": "/opt"}),
        ("test/server", (), {"args": ["more"]}),
        (CLASS_IMAGE, (), {"env": [{"name": "ETL_CLASS_PAYLOAD", "value": "gASVAAAA"}]}),
        (CLASS_IMAGE, (), {}),
        (TRANSFORMER_IMAGE, (*transformer_command("audio_transcode")[:3], "--transform", "os:abort"), {}),
        (TRANSFORMER_IMAGE, transformer_command("os:abort"), {}),
    ],
)
def test_only_allowed_commands_run(
    runner: Runner, image: str, command: tuple[str, ...], fields: dict[str, Any]
) -> None:
    end = runner.end(runner.run(image, *command, **fields))
    assert (end["exitCode"], end["reason"]) == (128, "ImageNotRunnable"), end


@pytest.mark.parametrize("of", ["limits", "requests"])
def test_a_device_is_refused_with_the_reason(runner: Runner, of: str) -> None:
    end = runner.end(
        runner.run("test/server", resources={of: {"nvidia.com/gpu": {"string": "1"}, "cpu": {"string": "1"}}})
    )
    assert end["exitCode"] == 128
    assert "has no nvidia.com/gpu: leave it out here" in end["message"]


def test_program_that_cannot_be_started(runner: Runner) -> None:
    end = runner.end(runner.run("test/absent"))
    assert (end["exitCode"], end["reason"]) == (127, "ContainerCannotRun")
    assert "/does/not/exist" in end["message"]


def test_memory_limit_counts_children(runner: Runner) -> None:
    child = "import time; held = bytearray(120 << 20); time.sleep(60)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    limits = {"limits": {"memory": {"string": "100Mi"}}}
    end = runner.end(runner.python(code, resources=limits))
    assert (end["exitCode"], end["reason"]) == (137, "OOMKilled")
    assert "100 MiB" in end["message"]


def test_limits_hold_after_a_user_deleted_the_logs(runner: Runner) -> None:
    code = "import time; print('ready', flush=True); time.sleep({}); held = bytearray(120 << 20); time.sleep(60)"
    names = [
        runner.python(code.format(seconds), resources={"limits": {"memory": {"string": "100Mi"}}})
        for seconds in (3, 60)
    ]
    logs = [component.folder(runner.stack) / "logs" / f"{name}.log" for name in names]
    wait_for(lambda: all(log.exists() for log in logs))
    for log in logs:
        log.unlink()
    end = runner.end(names[0])
    assert (end["exitCode"], end["reason"]) == (137, "OOMKilled")
    assert runner.session.delete(f"{runner.pods}/{names[1]}").ok


def test_memory_below_the_limit_is_left_alone(runner: Runner) -> None:
    name = runner.python("import time; time.sleep(60)", resources={"limits": {"memory": {"string": "1Gi"}}})
    code = "import time; held = bytearray(120 << 20); time.sleep(60)"
    end = runner.end(runner.python(code, resources={"limits": {"memory": {"string": "100Mi"}}}))
    assert end["reason"] == "OOMKilled", "the runner has looked at the memory of its pods"
    assert "running" in runner.state(name)


def test_deleting_ends_the_whole_tree(runner: Runner) -> None:
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    name = runner.python(code)
    log = f"{runner.pods}/{name}/log"
    wait_for(lambda: runner.session.get(log).text.strip().isdigit())
    child = int(runner.session.get(log).text)
    assert runner.session.delete(f"{runner.pods}/{name}").status_code == 200
    assert not alive(child)
    assert runner.session.get(f"{runner.pods}/{name}").json()["reason"] == "NotFound"
    assert runner.session.delete(f"{runner.pods}/{name}").status_code == 404
    listed = runner.session.get(runner.pods, params={"fieldSelector": f"metadata.name={name}"})
    assert listed.json()["items"] == []


def test_a_name_is_taken_once(runner: Runner) -> None:
    name = runner.python("import time; time.sleep(60)")
    body = encode("Pod", metadata={"name": name}, spec={"containers": [{"name": "c"}]})
    answer = runner.session.post(runner.pods, body)
    assert (answer.status_code, answer.json()["reason"]) == (409, "AlreadyExists")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "-a"])
def test_names_that_are_none_are_refused(runner: Runner, name: str) -> None:
    body = encode("Pod", metadata={"name": name}, spec={"containers": [{"name": "c"}]})
    assert runner.session.post(runner.pods, body).status_code == 422


def test_malformed_bodies_are_refused(runner: Runner) -> None:
    assert runner.session.post(runner.pods, MAGIC + b"\xff\xff").status_code == 400


def test_watch_reports_changes_and_does_not_end(runner: Runner) -> None:
    name = next(names)
    query = {"watch": "true", "fieldSelector": f"metadata.name={name}"}
    with runner.session.get(runner.pods, params=query, stream=True, timeout=(5, 3)) as watch:
        container = {"name": "c", "image": "test/python", "command": ["python", "-c", "exit(3)"]}
        body = encode("Pod", metadata={"name": name}, spec={"containers": [container]})
        assert requests_elsewhere(runner, body) == 201
        events: list[dict[str, Any]] = []
        lines = map(json.loads, watch.iter_lines(chunk_size=1))
        with pytest.raises(requests.ConnectionError, match="timed out"):
            events.extend(lines)
    assert [event["type"] for event in events] == ["ADDED", *["MODIFIED"] * (len(events) - 1)]
    assert events[-1]["object"]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def requests_elsewhere(runner: Runner, body: bytes) -> int:
    verify = str(runner.session.verify)
    return requests.post(runner.pods, body, headers=runner.session.headers, verify=verify, timeout=5).status_code


def test_metrics(runner: Runner) -> None:
    name = runner.python("while True: pass")
    base = runner.stack.url("podrunner") + "/apis/metrics.k8s.io/v1beta1"
    assert runner.session.get(f"{base}/pods").json()["kind"] == "PodMetricsList"
    usage = runner.session.get(f"{base}/namespaces/default/pods/{name}").json()["containers"][0]["usage"]
    runner.session.delete(f"{runner.pods}/{name}")
    assert int(usage["cpu"].removesuffix("n")) > 50_000_000
    assert int(usage["memory"].removesuffix("Ki")) > 1000
    assert runner.session.get(f"{base}/namespaces/default/pods/absent").status_code == 404


# ---- the end of the runner


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def tree_of(runner: Runner) -> tuple[int, int]:
    """Start a pod with a child, and return the ids of both."""
    child = "subprocess.Popen(['sleep', '60']).pid"
    code = f"import os, subprocess, time; print(os.getpid(), {child}, flush=True); time.sleep(60)"
    log = f"{runner.pods}/{runner.python(code)}/log"
    wait_for(lambda: len(runner.session.get(log).text.split()) == 2)
    leader, child = runner.session.get(log).text.split()
    return int(leader), int(child)


def test_pods_end_with_the_runner(tmp_path: Path) -> None:
    with started(tmp_path) as runner:
        pids = tree_of(runner)
        runner.stop()
        assert not any(alive(pid) for pid in pids)


def test_pods_end_with_a_killed_runner_and_its_successor_cleans_up(tmp_path: Path) -> None:
    with started(tmp_path) as runner:
        leader, child = tree_of(runner)
        bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
        runner.stop(signal.SIGKILL)
        wait_for(lambda: not alive(leader))
        # an id that another process got meanwhile
        running = component.folder(runner.stack) / "running"
        (running / str(bystander.pid)).write_text(json.dumps({"started": time.time(), "hostname": "pod"}))
        runner.start()
        try:
            assert not alive(child)
            assert bystander.poll() is None
            assert not list(running.iterdir())
        finally:
            bystander.kill()
            bystander.wait()
