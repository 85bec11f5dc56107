"""An SQS server with one long queue of S3 events; the embedded queue's time per delete grows with its length.

The server implements only the requests of a consumer. It generates messages when they are received and discards them
when they are deleted; a message whose lease ends is delivered again. ``python -m tests.benchmarks.queue_server
--count N --objects N`` prints the endpoint: message `n` states that object ``n % objects`` of the bucket was created.
With ``--answer-ms`` each answer takes this number of milliseconds, like the answers of a queue in a cloud.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from storeside.stack.settings import HOST
from tests.benchmarks.serving import serving

NAME, DEAD = "burst", "burst-dlq"
ACCOUNT = "000000000000"


def url(endpoint: str) -> str:
    """Return the queue's URL at an endpoint."""
    return f"{endpoint}/{ACCOUNT}/{NAME}"


def key(number: int) -> str:
    """Return the key of an object."""
    return f"{number:06}.csv"


def body(bucket: str, name: str) -> str:
    """Return the event of an object's creation as S3 sends it."""
    item = {"key": name, "size": 40, "eTag": _md5(name)}
    record = {
        "eventVersion": "2.1", "eventName": "ObjectCreated:Put", "eventTime": "2026-01-01T00:00:00.000Z",
        "s3": {"bucket": {"name": bucket}, "object": item},
    }  # fmt: skip
    return json.dumps({"Records": [record]})


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class Messages:
    """The messages of the queue, by their numbers."""

    def __init__(self, count: int, objects: int, bucket: str) -> None:
        self.objects, self.bucket = objects, bucket
        self.dead = 0
        self._visible = deque((number, 1) for number in range(count))
        self._held: dict[str, tuple[int, int, float]] = {}  # by receipt handle: number, receives, end of the lease
        self._lock = threading.Lock()

    def receive(self, most: int, seconds: float) -> list[dict[str, Any]]:
        """Hold up to `most` messages for so long and return them."""
        now = time.monotonic()
        with self._lock:
            if not self._visible:
                for handle in [handle for handle, (_, _, end) in self._held.items() if end < now]:
                    number, receives, _ = self._held.pop(handle)
                    self._visible.append((number, receives + 1))
            taken = [self._visible.popleft() for _ in range(min(most, len(self._visible)))]
            for number, receives in taken:
                self._held[f"{number}-{receives}"] = (number, receives, now + seconds)
        return [self._message(number, receives) for number, receives in taken]

    def _message(self, number: int, receives: int) -> dict[str, Any]:
        text = body(self.bucket, key(number % self.objects))
        return {
            "MessageId": f"message-{number}",
            "ReceiptHandle": f"{number}-{receives}",
            "MD5OfBody": _md5(text),
            "Body": text,
            "Attributes": {"SentTimestamp": "1767225600000", "ApproximateReceiveCount": str(receives)},
        }

    def extend(self, handle: str, seconds: float) -> bool:
        """Hold a message for so long from now on; False when it is not held."""
        with self._lock:
            if handle not in self._held:
                return False
            number, receives, _ = self._held[handle]
            self._held[handle] = (number, receives, time.monotonic() + seconds)
        return True

    def delete(self, handle: str) -> bool:
        """Forget a message; False when it is not held."""
        with self._lock:
            return self._held.pop(handle, None) is not None

    def counts(self) -> dict[str, str]:
        """Return the attributes of the queue."""
        with self._lock:
            return {
                "ApproximateNumberOfMessages": str(len(self._visible)),
                "ApproximateNumberOfMessagesNotVisible": str(len(self._held)),
                "ApproximateNumberOfMessagesDelayed": "0",
                "RedrivePolicy": json.dumps(
                    {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:{DEAD}", "maxReceiveCount": "50"}
                ),
            }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    messages: Messages
    answer_seconds = 0.0

    def do_POST(self) -> None:
        action = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        answer = json.dumps(getattr(self, f"_{action}", self._unknown)(asked)).encode()
        time.sleep(self.answer_seconds)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.wfile.flush()

    def _unknown(self, asked: dict[str, Any]) -> dict[str, Any]:
        raise LookupError(f"no consumer asks for this: {self.headers.get('X-Amz-Target')}")

    def _GetQueueUrl(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"QueueUrl": f"http://{self.headers['Host']}/{ACCOUNT}/{asked['QueueName']}"}

    def _GetQueueAttributes(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"Attributes": self.messages.counts()}

    def _ReceiveMessage(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"Messages": self.messages.receive(asked.get("MaxNumberOfMessages", 1), asked["VisibilityTimeout"])}

    def _DeleteMessageBatch(self, asked: dict[str, Any]) -> dict[str, Any]:
        return _batch((entry["Id"], self.messages.delete(entry["ReceiptHandle"])) for entry in asked["Entries"])

    def _ChangeMessageVisibilityBatch(self, asked: dict[str, Any]) -> dict[str, Any]:
        return _batch(
            (entry["Id"], self.messages.extend(entry["ReceiptHandle"], entry["VisibilityTimeout"]))
            for entry in asked["Entries"]
        )

    def _SendMessage(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.messages.dead += 1
        return {"MessageId": f"dead-{self.messages.dead}"}

    def log_message(self, format: str, *args: object) -> None:
        pass


def _batch(done: Iterator[tuple[str, bool]]) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {"Successful": [], "Failed": []}
    for name, good in done:
        failed = {"Id": name, "SenderFault": True, "Code": "ReceiptHandleIsInvalid"}
        found["Successful" if good else "Failed"].append({"Id": name} if good else failed)
    return found


@contextmanager
def serve(count: int, objects: int, bucket: str, answer_ms: float = 0) -> Iterator[str]:
    """Serve from a new process; yields the endpoint."""
    given = ("--count", count, "--objects", objects, "--bucket", bucket, "--answer-ms", answer_ms)
    with serving("tests.benchmarks.queue_server", *given) as endpoint:
        yield endpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="messages (default: %(default)s)")
    parser.add_argument("--objects", type=int, default=5000, help="that they are about (default: %(default)s)")
    parser.add_argument("--bucket", default="drain", help="default: %(default)s")
    parser.add_argument("--answer-ms", type=float, default=0, help="milliseconds of an answer (default: %(default)s)")
    given = parser.parse_args()
    messages = Messages(given.count, given.objects, given.bucket)
    handler = type("Handler", (_Handler,), {"messages": messages, "answer_seconds": given.answer_ms / 1000})
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        print(f"http://{HOST}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
