"""Behind an HTTP proxy the stack is reached directly."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
import requests

from storeside.stack import cli
from storeside.stack.settings import Stack
from storeside.stack.supervision.proxies import direct

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"no_proxy": "", "NO_PROXY": "corp.example, 10.0.0.1"}, "corp.example,10.0.0.1,127.0.0.1,localhost"),
        ({"no_proxy": "a.example", "NO_PROXY": "b.example"}, "a.example,b.example,127.0.0.1,localhost"),
        ({"no_proxy": "localhost,127.0.0.1"}, "localhost,127.0.0.1"),
        ({"NO_PROXY": "*"}, "*"),
    ],
)
def test_loopback_is_added_to_what_is_exempt(given: dict[str, str], wanted: str) -> None:
    assert direct(given) == {"no_proxy": wanted, "NO_PROXY": wanted} == direct(direct(given))


@pytest.fixture
def behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, PROXY)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "corp.example")


@pytest.mark.usefixtures("behind_a_proxy")
def test_every_command_goes_to_the_stack_directly(tmp_path: Path) -> None:
    assert requests.utils.get_environ_proxies("http://127.0.0.1:1/") != {}
    assert cli.main(["--folder", str(tmp_path), "down"]) == 0
    for host in ("127.0.0.1", "localhost", "corp.example"):
        assert requests.utils.get_environ_proxies(f"http://{host}:1/") == {}
        assert urllib.request.proxy_bypass(host)
    assert requests.utils.get_environ_proxies("http://example.org/")["http"] == PROXY


@pytest.mark.usefixtures("behind_a_proxy")
def test_clients_are_told_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Stack.create(tmp_path, 1).save()
    assert cli.main(["--folder", str(tmp_path), "env"]) == 0
    lines = capsys.readouterr().out
    assert re.findall("^export (?:no_proxy|NO_PROXY)=", lines, re.MULTILINE)
    done = subprocess.run(
        ["/bin/sh", "-c", f'{lines}\necho "$no_proxy $NO_PROXY"'], check=True, capture_output=True, text=True
    )
    assert done.stdout == "corp.example,127.0.0.1,localhost corp.example,127.0.0.1,localhost\n"
