"""Servers that receive messages of notifiers: a webhook over HTTP, and mail over SMTP."""

from __future__ import annotations

import email
import email.policy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer, StreamRequestHandler, ThreadingTCPServer
from typing import Any

from storeside.stack.settings import HOST


class Receiver:
    """The messages that a server has received; while `status` is an error, the server refuses them."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.status = 200
        self.port = 0

    def taken(self) -> list[Any]:
        """Return the messages since the last call."""
        found, self.messages = self.messages, []
        return found


@contextmanager
def webhook() -> Iterator[Receiver]:
    """Receive JSON bodies of POST requests."""
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/json"
            if received.status == 200:
                received.messages.append(json.loads(body))
            self.send_response(received.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(ThreadingHTTPServer((HOST, 0), Handler), received):
        yield received


@contextmanager
def mailbox() -> Iterator[Receiver]:
    """Receive mails as `EmailMessage`, by the commands of RFC 5321 that smtplib sends."""
    received = Receiver()

    class Handler(StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self) -> None:
            self.say("220 ready")
            while command := self.rfile.readline().decode().strip().upper():
                if command.startswith("DATA"):
                    self.say("354 go on")
                    lines = []
                    while (line := self.rfile.readline()) != b".\r\n":
                        lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
                    received.messages.append(email.message_from_bytes(b"".join(lines), policy=email.policy.default))
                if command.startswith("QUIT"):
                    self.say("221 bye")
                    return
                self.say("250 ok" if received.status == 200 else "451 try later")

    with _serving(ThreadingTCPServer((HOST, 0), Handler), received):
        yield received


def html_of(mail: EmailMessage) -> str:
    """Return the HTML part of a mail."""
    part = mail.get_body(("html",))
    assert part is not None
    return str(part.get_content())


@contextmanager
def _serving(server: Any, received: Receiver) -> Iterator[BaseServer]:
    server.daemon_threads = True
    received.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
