"""A stand-in of the hub for its own library: files in Git or in storage, listings, tokens, commits, faults."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What is served (``owner/name/path``), what goes wrong next, and which requests came."""

    files: dict[str, bytes]
    large: bool = True
    token: str | None = None
    faults: list[str] = field(default_factory=list)
    gets: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, range, authorization
    commits: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)  # path, operations
    address: str = ""
    storage: str = ""

    def checksum(self, content: bytes) -> str:
        if self.large:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.close_connection = True
        path = unquote(urlsplit(self.path).path)
        if self.command == "GET":
            self.hub.gets.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
        if path.startswith("/storage/"):
            return self.content(self.hub.files[path.removeprefix("/storage/")])
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.answer(401, {"X-Error-Message": "Invalid username or password."})
        if path.startswith("/api/datasets/"):
            return self.listing(path.removeprefix("/api/datasets/").partition("/tree/")[0])
        repository, _, rest = path.removeprefix("/datasets/").partition("/resolve/main/")
        key = f"{repository}/{rest}"
        if key not in self.hub.files:
            return self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        content = self.hub.files[key]
        if not self.hub.large:
            return self.content(content)
        linked = {"X-Linked-Etag": f'"{self.hub.checksum(content)}"', "X-Linked-Size": str(len(content))}
        return self.answer(302, {**linked, "X-Repo-Commit": COMMIT, "Location": f"{self.hub.storage}/storage/{key}"})

    def listing(self, repository: str) -> None:
        names = [name.removeprefix(f"{repository}/") for name in self.hub.files if name.startswith(f"{repository}/")]
        if not names:
            return self.answer(404, {"X-Error-Code": "RepoNotFound"})
        return self.json([{"type": "file", "path": name, "size": 1, "oid": COMMIT} for name in names])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.close_connection = True
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.answer(401)
        if self.path.startswith("/api/repos/create"):
            asked = json.loads(body)
            return self.json({"url": f"{self.hub.address}/datasets/{asked['organization']}/{asked['name']}"})
        if "/preupload/" in self.path:
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return self.json({"files": files})
        if "/commit/" in self.path:
            self.hub.commits.append((self.path, [json.loads(line) for line in body.splitlines() if line.strip()]))
            repository = self.path.removeprefix("/api/").partition("/commit/")[0]
            url = f"{self.hub.address}/{repository}/commit/0123456789abcdef"
            done = {"success": True, "commitOid": "0123456789abcdef", "commitUrl": url, "hookOutput": ""}
            pull = (
                {"pullRequestUrl": f"{self.hub.address}/{repository}/discussions/1"} if "create_pr" in self.path else {}
            )
            return self.json({**done, **pull})
        return self.answer(404)

    def json(self, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def content(self, content: bytes) -> None:
        start = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
        body = content[start:]
        fault = self.hub.faults.pop(0) if self.hub.faults and self.command == "GET" else ""
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{self.hub.checksum(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)

    def answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": "0", "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve from two addresses: the hub's and its storage's."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in servers:
        server.hub = hub  # type: ignore[attr-defined]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    hub.address, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
