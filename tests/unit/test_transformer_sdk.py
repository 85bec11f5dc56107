"""The transformers' own rules for pipelines and TLS are those of AIStore's SDK, which they do not import."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest import mock

import pytest
from aistore.sdk import const
from aistore.sdk.etl.webserver import utils
from aistore.sdk.session_manager import resolve_ssl_config
from hypothesis import example, given
from hypothesis import strategies as st

from storeside.transformers.contract import pipeline
from storeside.transformers.settings import Settings

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
# The SDK drops what follows a semicolon in the last part of a path; AIStore escapes semicolons in names.
PATH = st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters=";?#[]"), max_size=20)
QUERY = st.lists(st.tuples(st.sampled_from(["xid", "etl_args", "a b", "empty", ""]), TEXT), max_size=4)
HOST = st.sampled_from(["target:8081", "10.0.0.1", "[::1]:51080", "etl.ns.svc.cluster.local:8000", ""])
SCHEME = st.sampled_from(["http", "https"])


@st.composite
def addresses(draw: st.DrawFn) -> str:
    path = draw(st.just("") | PATH.map("/".__add__) | st.just("/ais%2F@%23%2Fbucket%2Fa%2Cb%3Bc"))
    query = draw(QUERY)
    return f"{draw(SCHEME)}://{draw(HOST)}{path}" + (f"?{utils.urlencode(query)}" if query else "")


@given(destination=addresses(), target=addresses(), name=TEXT | st.binary(max_size=20), arguments=TEXT)
@example("http://t:1/a?xid=1&etl_args=x&etl_args=y&empty=", "https://u:2/v1/etl/_object/e/secret", "b/ö @", "z")
@example("http://next:8000", "http://next:8000", b"bucket/\xff/%2F", "")
def test_a_result_is_put_where_the_sdk_puts_it(
    destination: str, target: str, name: str | bytes, arguments: str
) -> None:
    path = os.fsencode(name)
    expected = utils.compose_etl_direct_put_url(destination, target, path, arguments)
    assert pipeline.put_address(destination, target, path, arguments) == expected


@given(st.lists(PATH | TEXT, max_size=4).map(",".join) | st.text(", a\n", max_size=8))
@example("")
@example(" , ")
@example(" http://a ,http://b?x=1, http://c ")
def test_the_first_destination_is_that_of_the_sdk(destinations: str) -> None:
    try:
        expected = utils.parse_etl_pipeline(destinations)
    except ValueError:
        with pytest.raises(ValueError, match="destination is empty"):
            pipeline.first_of(destinations)
    else:
        assert pipeline.first_of(destinations) == expected


def test_a_semicolon_in_a_path_is_kept() -> None:
    assert pipeline.put_address("http://t/a;b/c;d", "http://u/secret", b"", "") == "http://t/secret/a;b/c;d"


def test_headers_have_the_names_of_the_sdk() -> None:
    assert pipeline.NODE_URL == const.HEADER_NODE_URL
    assert pipeline.DIRECT_PUT_LENGTH == const.HEADER_DIRECT_PUT_LENGTH


FLAG = st.sampled_from(["", "1", "t", "TRUE", " yes ", "on", "y", "0", "false", "2", "tru"])
FILE = st.sampled_from(["", "/f"])
VARIABLES = st.fixed_dictionaries(
    {},
    optional={
        const.AIS_SKIP_VERIFY_CRT: FLAG,
        const.AIS_SKIP_VERIFY: FLAG,
        const.AIS_CLIENT_CA: FILE,
        const.AIS_CLIENT_CRT: FILE,
        const.AIS_CLIENT_KEY: FILE,
    },
)


@given(VARIABLES)
def test_tls_is_configured_as_for_the_sdk(variables: dict[str, str]) -> None:
    with mock.patch.dict(os.environ, variables, clear=True):
        assert Settings.from_environment().tls == resolve_ssl_config()


@pytest.mark.parametrize("module", ["serve", "server.asgi", "shards.shard_pool", "workers.worker", "workers.preload"])
def test_servers_and_workers_start_without_the_sdk(module: str) -> None:
    code = f"import sys, storeside.transformers.{module}; print('aistore' in sys.modules, 'requests' in sys.modules)"
    environment = {**os.environ, "AIS_NODES": "target:8081", "STORESIDE_TRANSFORM": "audio_transcode"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout == "False False\n"
