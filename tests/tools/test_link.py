"""The faults of the link that tests put between two servers."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from storeside.stack.settings import HOST
from tests.chaos.answers import AWS_ANSWERS, GATEWAY_ANSWERS, Answer
from tests.link import Link, linked
from tests.support import until

BODY = b"one,1\ntwo,2\nthree,3\nfour,4\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.flush_headers()
        time.sleep(0.05)  # the head arrives in two pieces
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def link() -> Iterator[Link]:
    server = ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with linked(server.server_address[1]) as found:
        until(lambda: _answers(found), 20, "link")
        yield found
    server.shutdown()
    server.server_close()


def _answers(link: Link) -> bool:
    try:
        with client(link) as connection:
            return get(connection)[0] == 200
    except OSError:
        return False


def client(link: Link) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection(HOST, link.port, timeout=20))


def get(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    connection.request("GET", "/")
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize(
    ("answer", "status", "word"),
    [
        (AWS_ANSWERS["503"], 503, b"<Code>SlowDown</Code>"),
        (AWS_ANSWERS["expired credentials"], 403, b"<Code>ExpiredToken</Code>"),
        (GATEWAY_ANSWERS["500"], 500, b"500 Internal Server Error"),
    ],
)
def test_a_request_is_answered_in_the_servers_place(link: Link, answer: Answer, status: int, word: bytes) -> None:
    with client(link) as connection:
        assert get(connection) == (200, BODY)  # the connection exists before the fault
        link.answer = answer
        found, body = get(connection)
        assert (found, word in body, link.met) == (status, True, 1)
        link.answer = None
        assert get(connection) == (200, BODY)  # over a new connection, as that answer closed the old one


def test_an_answer_to_sqs_is_json(link: Link) -> None:
    link.answer = AWS_ANSWERS["503"]
    with client(link) as connection:
        connection.request("POST", "/", b"{}", {"X-Amz-Target": "AmazonSQS.ReceiveMessage"})
        assert connection.getresponse().read().startswith(b'{"__type": "com.amazonaws.sqs#SlowDown"')


def test_a_body_ends_after_a_whole_line(link: Link) -> None:
    link.truncates = True
    with client(link) as connection:
        connection.request("GET", "/")
        with pytest.raises(http.client.IncompleteRead) as ended:
            connection.getresponse().read()
    assert ended.value.partial == b"one,1\ntwo,2\n"
    assert link.met == 1


def test_all_connections_break(link: Link) -> None:
    with client(link) as connection:
        assert get(connection) == (200, BODY)
        link.reset()
        until(lambda: not link.connections, 20, "end of all connections")
        with pytest.raises((OSError, http.client.HTTPException)):
            get(connection)
