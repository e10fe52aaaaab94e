"""A Hub on loopback: the endpoints that huggingface_hub uses to make repositories, upload and download."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_double"


class HubDouble(ThreadingHTTPServer):
    """Keeps repositories (`NAME/MODEL` -> file -> content), LFS objects by their sha256, and requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []

    def commit(self, repo: str) -> str:
        """Return a name of the repository's present content, as a commit has."""
        content = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.repos[repo].items())
        return hashlib.sha1(repr(content).encode()).hexdigest()


@contextmanager
def hub_double() -> Iterator[HubDouble]:
    """Serve an empty Hub."""
    with HubDouble() as hub:
        Thread(target=hub.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: HubDouble

    def do_POST(self) -> None:
        body = self._body()
        words = self._words()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer({"error": "Invalid credentials"}, 401)
        match words:
            case ["api", "repos", "create"]:
                given = json.loads(body)
                repo = f"{given['organization']}/{given['name']}"
                self.server.repos.setdefault(repo, {})
                self.server.private[repo] = given.get("visibility") == "private" or bool(given.get("private"))
                self._answer({"url": f"{self.server.url}/{repo}", "name": repo})
            case ["api", "validate-yaml"]:
                self._answer({"errors": [], "warnings": []})
            case ["api", "models", owner, name, "preupload", _] if f"{owner}/{name}" in self.server.repos:
                modes = {True: "lfs", False: "regular"}  # as the Hub's .gitattributes say
                files = [
                    {
                        "path": one["path"],
                        "uploadMode": modes[one["path"].endswith(".safetensors")],
                        "shouldIgnore": False,
                    }
                    for one in json.loads(body)["files"]
                ]
                self._answer({"files": files})
            case [_, _, "info", "lfs", "objects", "batch"]:
                objects = [
                    one | {"actions": {"upload": {"href": f"{self.server.url}/lfs/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                self._answer({"transfer": "basic", "objects": objects})
            case ["api", "models", owner, name, "commit", _]:
                kept = self.server.repos[f"{owner}/{name}"]
                for line in map(json.loads, body.decode().splitlines()):
                    value = line["value"]
                    if line["key"] == "file":
                        kept[value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "lfsFile":
                        kept[value["path"]] = self.server.objects[value["oid"]]
                commit = self.server.commit(f"{owner}/{name}")
                address = f"{self.server.url}/{owner}/{name}/commit/{commit}"
                self._answer({"commitUrl": address, "commitOid": commit, "success": True})
            case _:
                self._answer({"error": "not found"}, 404)

    def do_PUT(self) -> None:
        body = self._body()
        (_, oid) = self._words()
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.objects[oid] = body
        self._answer({})

    def do_HEAD(self) -> None:
        self._file(head=True)

    def do_GET(self) -> None:
        self._file(head=False)

    def _file(self, *, head: bool) -> None:
        owner, name, resolve, _, file = [*self._words(), "", "", "", "", ""][:5]
        content = self.server.repos.get(f"{owner}/{name}", {}).get(file)
        if resolve != "resolve" or content is None:
            known = f"{owner}/{name}" in self.server.repos
            code = "EntryNotFound" if known else "RepoNotFound"
            return self._answer({"error": code}, 404, {"X-Error-Code": code})
        commit = self.server.commit(f"{owner}/{name}")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        self._send(content, 200, headers, head)

    def _words(self) -> list[str]:
        path = self.path.partition("?")[0].strip("/")
        self.server.asked.append(f"{self.command} {path}")
        return path.split("/")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, tree: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(tree).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, content: bytes, status: int, headers: dict[str, str], head: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if not head and self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""
