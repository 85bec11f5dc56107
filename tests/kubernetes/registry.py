"""A registry from which images can be pulled: ``python -m tests.kubernetes.registry FOLDER PORT``."""

from __future__ import annotations

import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_NAME = r"[a-z0-9][a-z0-9._/-]*"


class Registry(BaseHTTPRequestHandler):
    """Serves manifests and blobs of the folder that `images` writes."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        """Answer with a manifest or a blob, or 404."""
        path = self.path.partition("?")[0]
        if path.rstrip("/") == "/v2":
            self._answer(200, b"{}", "application/json")
        elif found := re.fullmatch(rf"/v2/({_NAME})/manifests/([\w.-]+)", path):
            self._manifest(self.folder / "manifests" / found[1] / found[2])
        elif found := re.fullmatch(rf"/v2/{_NAME}/(manifests|blobs)/sha256:([0-9a-f]{{64}})", path):
            kind = MANIFEST if found[1] == "manifests" else "application/octet-stream"
            self._blob(self.folder / "blobs" / found[2], kind)
        else:
            self._missing()

    do_HEAD = do_GET

    def _manifest(self, pointer: Path) -> None:
        if ".." in pointer.parts or not pointer.is_file():
            self._missing()
        else:
            self._blob(self.folder / "blobs" / pointer.read_text(), MANIFEST)

    def _blob(self, path: Path, kind: str) -> None:
        if not path.is_file():
            self._missing()
            return
        self._head(200, path.stat().st_size, kind, f"sha256:{path.name}")
        if self.command == "GET":
            with path.open("rb") as blob:
                while block := blob.read(1 << 20):
                    self.wfile.write(block)

    def _missing(self) -> None:
        self._answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}', "application/json")

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self._head(code, len(body), kind)
        if self.command == "GET":
            self.wfile.write(body)

    def _head(self, code: int, size: int, kind: str, digest: str = "") -> None:
        self.send_response(code)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()


if __name__ == "__main__":
    Registry.folder = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Registry).serve_forever()
