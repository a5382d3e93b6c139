"""A registry of one image on this machine: enough of the distribution API for `docker pull NAME@sha256:…`.

A daemon takes a registry on 127.0.0.1 without TLS.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def serving(layer: bytes) -> Iterator[tuple[str, str]]:
    """`HOST:PORT/slime` and the digest of its only manifest, for a root file system as a tar."""
    packed = gzip.compress(layer, 1, mtime=0)
    rootfs = {"type": "layers", "diff_ids": [digest(layer)]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    parts = {
        kind: {"mediaType": kind, "size": len(c), "digest": digest(c)}
        for kind, c in ((CONFIG, config), (LAYER, packed))
    }
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": parts[CONFIG], "layers": [parts[LAYER]]}
    ).encode()
    content = {digest(config): config, digest(packed): packed, digest(manifest): manifest, "latest": manifest}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"{}" if self.path == "/v2/" else content.get(self.path.rpartition("/")[2])
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            if "/manifests/" in self.path:
                self.send_header("Content-Type", MANIFEST)
                self.send_header("Docker-Content-Digest", digest(manifest))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}/slime", digest(manifest)
    finally:
        server.shutdown()
        server.server_close()
