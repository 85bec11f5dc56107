"""OCI Object Storage's native API, as far as Storeside uses it: real HTTP, real signatures, in memory.

Written from https://docs.oracle.com/iaas/api/#/en/objectstorage/20160918/ and, for the signatures, from
https://docs.oracle.com/iaas/Content/API/Concepts/signingrequests.htm.

    python -m tests.oci_double PORT PUBLIC_KEY_FILE [BUCKET ...]

With OCI_DOUBLE_TLS=PORT:FILE in the environment it also serves HTTPS; the file has a private key and certificates.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import ssl
import sys
import threading
import uuid
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from storeside.stack.settings import HOST, free_ports
from storeside.stack.supervision.probes import listens
from tests.support import until

NAMESPACE = "storeside"
KEY_ID = "ocid1.tenancy.oc1..test/ocid1.user.oc1..test/20:3b:97:13:55:1c:5b:0d:d3:37:d8:50:4e:c5:3a:34"
CLOCK_SKEW_SECONDS = 300
_SIGNATURE = re.compile(r'(\w+)="([^"]*)"')
_MOST_PARTS = 10_000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Stored:
    """An object, or a part of one."""

    body: bytes
    md5: str
    headers: dict[str, str] = field(default_factory=dict)
    etag: str = field(default_factory=lambda: str(uuid.uuid4()))
    created: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass
class Begun:
    """A multipart upload that is neither committed nor aborted."""

    bucket: str
    object: str
    headers: dict[str, str]
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    parts: dict[int, Stored] = field(default_factory=dict)


def refused(status: int, code: str, message: str) -> web.HTTPException:
    """Return an error in OCI's form."""
    kinds = {
        400: web.HTTPBadRequest, 401: web.HTTPUnauthorized, 404: web.HTTPNotFound, 409: web.HTTPConflict,
        412: web.HTTPPreconditionFailed, 416: web.HTTPRequestRangeNotSatisfiable, 429: web.HTTPTooManyRequests,
        500: web.HTTPInternalServerError, 503: web.HTTPServiceUnavailable,
    }  # fmt: skip
    text = web.json_response({"code": code, "message": message}).text
    if status == 416:
        return web.HTTPRequestRangeNotSatisfiable(text=text, content_type="application/json")
    return kinds[status](text=text, content_type="application/json")


def digest(body: bytes) -> str:
    """Return a body's MD5 in OCI's form."""
    return b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


class Double:
    """The server. `faults` makes it answer the next requests whose method and path match with an error."""

    def __init__(self, public_key: rsa.RSAPublicKey) -> None:
        self.public_key = public_key
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.begun: dict[str, Begun] = {}
        self.faults: list[tuple[str, str, int, str]] = []
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[web.Request], None] = lambda request: None
        self.app = web.Application(middlewares=[self._guard], client_max_size=1 << 31)
        route = self.app.router.add_route
        root = "/n/{namespace}/b/{bucket}"
        route("GET", "/n", self.get_namespace)
        route("GET", "/n/{namespace}/b", self.list_buckets)
        route("HEAD", root, self.head_bucket)
        route("GET", root + "/o", self.list_objects)
        route("PUT", root + "/o/{object:.+}", self.put_object)
        route("GET", root + "/o/{object:.+}", self.get_object)
        route("HEAD", root + "/o/{object:.+}", self.get_object)
        route("DELETE", root + "/o/{object:.+}", self.delete_object)
        route("GET", root + "/u", self.list_uploads)
        route("POST", root + "/u", self.create_upload)
        route("PUT", root + "/u/{object:.+}", self.put_part)
        route("POST", root + "/u/{object:.+}", self.commit)
        route("DELETE", root + "/u/{object:.+}", self.abort)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        body = await request.read()
        self._verify(request, body)
        for fault in self.faults:
            method, path, status, code = fault
            if request.method == method and re.search(path, request.path):
                self.faults.remove(fault)
                raise refused(status, code, "as the test asked for")
        self.before(request)
        if request.match_info.get("namespace", NAMESPACE) != NAMESPACE:
            raise refused(404, "NamespaceNotFound", f"no namespace {request.match_info['namespace']}")
        if request.match_info.get("bucket", next(iter(self.buckets), "")) not in self.buckets:
            raise refused(404, "BucketNotFound", f"no bucket {request.match_info.get('bucket')}")
        answer = await handler(request)
        answer.headers["opc-request-id"] = uuid.uuid4().hex
        return answer

    def _verify(self, request: web.Request, body: bytes) -> None:
        """Check the signature of a request, its date, and the content that it covers."""
        scheme, _, rest = request.headers.get("authorization", "").partition(" ")
        given = dict(_SIGNATURE.findall(rest))
        if scheme != "Signature" or given.get("keyId") != KEY_ID or given.get("algorithm") != "rsa-sha256":
            raise refused(
                401, "NotAuthenticated", "the required information to complete authentication was not given"
            )
        signed = given["headers"].split()
        needed = {"date", "(request-target)", "host"}
        if request.method == "POST":  # the bodies of PUT are covered by their checksums
            needed |= {"content-length", "content-type", "x-content-sha256"}
            sha256 = b64encode(hashlib.sha256(body).digest()).decode()
            if request.headers.get("x-content-sha256") != sha256:
                raise refused(401, "NotAuthenticated", "the body is not the one that was signed")
        if needed - set(signed):
            raise refused(401, "NotAuthenticated", f"not signed: {sorted(needed - set(signed))}")
        lines = [
            f"(request-target): {request.method.lower()} {request.raw_path}"
            if name == "(request-target)"
            else f"{name}: {request.headers[name]}"
            for name in signed
        ]
        date = datetime.strptime(request.headers["date"], "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
        try:
            self.public_key.verify(
                b64decode(given["signature"]), "\n".join(lines).encode(), padding.PKCS1v15(), hashes.SHA256()
            )
        except InvalidSignature:
            raise refused(401, "NotAuthenticated", "the signature does not fit") from None
        if abs((datetime.now(UTC) - date).total_seconds()) > CLOCK_SKEW_SECONDS:
            raise refused(401, "NotAuthenticated", "the date is too far from the server's")

    async def get_namespace(self, request: web.Request) -> web.Response:
        return web.json_response(NAMESPACE)

    async def list_buckets(self, request: web.Request) -> web.Response:
        return web.json_response([{"namespace": NAMESPACE, "name": name} for name in sorted(self.buckets)])

    async def head_bucket(self, request: web.Request) -> web.Response:
        return web.Response(headers={"etag": request.match_info["bucket"]})

    async def list_objects(self, request: web.Request) -> web.Response:
        objects, prefix = self.buckets[request.match_info["bucket"]], request.query.get("prefix", "")
        limit = int(request.query.get("limit", 1000))
        names = [n for n in sorted(objects) if n.startswith(prefix) and n >= request.query.get("start", "")]
        wanted = request.query.get("fields", "name").split(",")
        found = []
        for name in names[:limit]:
            entry = {
                "name": name,
                "size": len(objects[name].body),
                "md5": objects[name].md5,
                "etag": objects[name].etag,
                "timeModified": objects[name].created.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            }
            found.append({key: value for key, value in entry.items() if key in wanted})
        more = {"nextStartWith": names[limit]} if len(names) > limit else {}
        return web.json_response({"objects": found, "prefixes": [], **more})

    async def put_object(self, request: web.Request) -> web.Response:
        objects, name = self.buckets[request.match_info["bucket"]], request.match_info["object"]
        self._conditions(request, objects.get(name))
        stored = await self._stored(request)
        stored.headers = _kept(request.headers)
        objects[name] = stored
        return web.Response(headers={"etag": stored.etag, "opc-content-md5": stored.md5})

    async def get_object(self, request: web.Request) -> web.Response:
        stored = self.buckets[request.match_info["bucket"]].get(request.match_info["object"])
        if stored is None:
            raise refused(404, "ObjectNotFound", "the object was not found")
        self._conditions(request, stored)
        md5 = "opc-multipart-md5" if "-" in stored.md5 else "content-md5"
        headers = {**stored.headers, "etag": stored.etag, md5: stored.md5, "accept-ranges": "bytes"}
        body, status = stored.body, 200
        if span := re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", "")):
            start, end = int(span[1]), min(int(span[2]), len(body) - 1)
            if start >= len(body):
                raise refused(416, "InvalidRange", "the range starts after the object's end")
            headers["content-range"] = f"bytes {start}-{end}/{len(body)}"
            body, status = body[start : end + 1], 206
        if request.method == "HEAD":
            return web.Response(headers={**headers, "content-length": str(len(body))})
        return web.Response(body=body, status=status, headers=headers)

    async def delete_object(self, request: web.Request) -> web.Response:
        if self.buckets[request.match_info["bucket"]].pop(request.match_info["object"], None) is None:
            raise refused(404, "ObjectNotFound", "the object was not found")
        return web.Response(status=204)

    async def list_uploads(self, request: web.Request) -> web.Response:
        page, limit = int(request.query.get("page", 0)), int(request.query.get("limit", 1000))
        found = [
            {"namespace": NAMESPACE, "bucket": b.bucket, "object": b.object, "uploadId": id,
             "timeCreated": b.created.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
            for id, b in self.begun.items() if b.bucket == request.match_info["bucket"]
        ]  # fmt: skip
        more = {"opc-next-page": str(page + limit)} if len(found) > page + limit else {}
        return web.json_response(found[page : page + limit], headers=more)

    async def create_upload(self, request: web.Request) -> web.Response:
        asked = await request.json()
        headers = {**asked.get("metadata", {})}
        if asked.get("contentType"):
            headers["content-type"] = asked["contentType"]
        id = str(uuid.uuid4())
        self.begun[id] = begun = Begun(request.match_info["bucket"], asked["object"], headers)
        return web.json_response(
            {"namespace": NAMESPACE, "bucket": begun.bucket, "object": begun.object, "uploadId": id,
             "timeCreated": begun.created.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        )  # fmt: skip

    def _upload(self, request: web.Request) -> Begun:
        begun = self.begun.get(request.query["uploadId"])
        if begun is None or begun.object != request.match_info["object"]:
            raise refused(404, "NoSuchUpload", "the upload was not found")
        return begun

    async def put_part(self, request: web.Request) -> web.Response:
        begun, number = self._upload(request), int(request.query["uploadPartNum"])
        if not 1 <= number <= _MOST_PARTS:
            raise refused(400, "InvalidUploadPart", f"part numbers are 1 to {_MOST_PARTS}")
        begun.parts[number] = stored = await self._stored(request)
        return web.Response(headers={"etag": stored.etag, "opc-content-md5": stored.md5})

    async def commit(self, request: web.Request) -> web.Response:
        begun, asked = self._upload(request), await request.json()
        objects = self.buckets[begun.bucket]
        self._conditions(request, objects.get(begun.object))
        numbers = [part["partNum"] for part in asked["partsToCommit"]]
        if not numbers or len(set(numbers)) != len(numbers):
            raise refused(400, "InvalidUploadPart", "no part, or one part twice")
        excluded = set(asked.get("partsToExclude") or ())
        if set(begun.parts) - set(numbers) - excluded:
            raise refused(400, "InvalidUploadPart", "every part has to be committed or excluded")
        for part in asked["partsToCommit"]:
            if part["partNum"] not in begun.parts or begun.parts[part["partNum"]].etag != part["etag"]:
                raise refused(400, "InvalidUploadPart", f"part {part['partNum']} is not there with this ETag")
        parts = [begun.parts[number] for number in sorted(numbers)]
        md5 = f"{digest(b''.join(b64decode(part.md5) for part in parts))}-{len(parts)}"
        objects[begun.object] = stored = Stored(b"".join(part.body for part in parts), md5, begun.headers)
        del self.begun[request.query["uploadId"]]
        return web.Response(headers={"etag": stored.etag, "opc-multipart-md5": md5})

    async def abort(self, request: web.Request) -> web.Response:
        self._upload(request)
        del self.begun[request.query["uploadId"]]
        return web.Response(status=204)

    async def _stored(self, request: web.Request) -> Stored:
        body = await request.read()
        md5 = digest(body)
        if request.headers.get("content-md5", md5) != md5:
            raise refused(400, "UnmatchedContentMD5", "the body is not the one of the header's MD5")
        return Stored(body, md5)

    @staticmethod
    def _conditions(request: web.Request, stored: Stored | None) -> None:
        wanted = request.headers.get("if-match")
        if wanted is not None and (stored is None or wanted not in ("*", stored.etag)):
            raise refused(412, "IfMatchFailed", "the object has another ETag")
        if request.headers.get("if-none-match") == "*" and stored is not None:
            raise refused(412, "IfNoneMatchFailed", "the object is there")

    async def serve(self, port: int, tls: str = "") -> None:
        """Listen until cancelled. `tls` is another port, for HTTPS, and a file: see the module."""
        runner = web.AppRunner(self.app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port).start()
            if tls:
                other, _, certificate = tls.partition(":")
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(certificate)
                await web.TCPSite(runner, HOST, int(other), ssl_context=context).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


def _kept(headers: Any) -> dict[str, str]:
    return {
        name.lower(): value
        for name, value in headers.items()
        if name.lower().startswith("opc-meta-") or name.lower() == "content-type"
    }


def new_key() -> tuple[rsa.RSAPublicKey, str]:
    """Return a new key: the public half, and the private one as PEM."""
    private = rsa.generate_private_key(65537, 2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.public_key(), pem.decode()


def config(private_key: str) -> dict[str, str]:
    """Return the SDK's configuration for the double's only user."""
    tenancy, user, fingerprint = KEY_ID.split("/")
    return {
        "tenancy": tenancy, "user": user, "fingerprint": fingerprint, "region": "eu-frankfurt-1",
        "key_content": private_key,
    }  # fmt: skip


@contextmanager
def served(*buckets: str) -> Iterator[tuple[Double, int, dict[str, str]]]:
    """Run a double in a thread; yield it, its port and the configuration of its user."""
    public, private = new_key()
    double = Double(public)
    double.buckets = {bucket: {} for bucket in buckets}
    (port,) = free_ports(1)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(double.serve(port))

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: listens(HOST, port), 30, "port of the double", 0.01)
    try:
        yield double, port, config(private)
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(5)


if __name__ == "__main__":
    listen, key_file, *names = sys.argv[1:]
    key = serialization.load_pem_public_key(Path(key_file).read_bytes())
    assert isinstance(key, rsa.RSAPublicKey)
    server = Double(key)
    server.buckets = {name: {} for name in names}
    asyncio.run(server.serve(int(listen), os.environ.get("OCI_DOUBLE_TLS", "")))
