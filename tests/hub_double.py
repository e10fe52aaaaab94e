"""A Hub on loopback: the endpoints that huggingface_hub uses to make repositories, upload and download."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

TOKEN = "hf_double"
OWNER = "someone"
Files = dict[str, bytes]


class HubDouble(ThreadingHTTPServer):
    """Keeps repositories, LFS objects by their sha256, and requests.

    A repository is a dict from file to content, `OWNER/NAME` for a model and `datasets/OWNER/NAME` for a data set.

    Attributes:
        role: The role of the token.
        full: True to refuse every commit.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, Files] = {}
        self.versions: dict[tuple[str, str], Files] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.private: dict[str, bool] = {}
        self.objects: Files = {}
        self.asked: list[str] = []
        self.role, self.full = "write", False

    def commit(self, repo: str) -> str:
        """Return a name of the repository's present content, as a commit has."""
        content = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.repos[repo].items())
        return hashlib.sha1(repr(content).encode()).hexdigest()

    def keep(self, repo: str, folder: Path, tag: str | None = None) -> str:
        """Replace a repository's content by a folder's, and return the commit."""
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        self.repos[repo] = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
        commit = self.note(repo)
        if tag is not None:
            self.tags.setdefault(repo, {})[tag] = commit
        return commit

    def note(self, repo: str) -> str:
        """Record the present content under its commit, and return the commit."""
        commit = self.commit(repo)
        self.versions[repo, commit] = dict(self.repos[repo])
        return commit

    def version(self, repo: str, revision: str) -> tuple[str, Files] | None:
        """Return the commit and the content of a branch, a tag or a commit; `None` if there is none."""
        commit = self.tags.get(repo, {}).get(revision, revision)
        if commit == "main" and repo in self.repos:
            commit = self.note(repo)
        files = self.versions.get((repo, commit))
        return None if files is None else (commit, files)


@contextmanager
def hub_double() -> Iterator[HubDouble]:
    """Serve an empty Hub."""
    with HubDouble() as hub:
        Thread(target=hub.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()


def client(program: str, url: str, folder: Path, token: str = TOKEN, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, whose huggingface_hub speaks to the double."""
    settings = {"HF_ENDPOINT": url, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    settings |= {"HF_HOME": str(folder / "hub"), "PYTHONPATH": os.pathsep.join(sys.path)}
    settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **more}
    run = [sys.executable, "-c", program]
    return subprocess.run(run, env=os.environ | settings, cwd=folder, capture_output=True, text=True, timeout=300)


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
                kind = "datasets/" if given.get("type") == "dataset" else ""
                repo = f"{kind}{given['organization']}/{given['name']}"
                self.server.repos.setdefault(repo, {})
                self.server.private[repo] = given.get("visibility") == "private" or bool(given.get("private"))
                self._answer({"url": f"{self.server.url}/{repo}", "name": repo})
            case ["api", "validate-yaml"]:
                self._answer({"errors": [], "warnings": []})
            case ["api", kind, owner, name, "preupload", _] if _named(kind, owner, name) in self.server.repos:
                modes = {True: "lfs", False: "regular"}  # as the Hub's .gitattributes say
                files = [
                    {
                        "path": one["path"],
                        "uploadMode": modes[one["path"].endswith((".safetensors", ".parquet", ".mp4"))],
                        "shouldIgnore": False,
                    }
                    for one in json.loads(body)["files"]
                ]
                self._answer({"files": files})
            case [*_, "info", "lfs", "objects", "batch"]:
                objects = [
                    one | {"actions": {"upload": {"href": f"{self.server.url}/lfs/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                self._answer({"transfer": "basic", "objects": objects})
            case ["api", _, _, _, "commit", _] if self.server.full:
                self._answer({"error": "the storage is full"}, 403)
            case ["api", kind, owner, name, "commit", _]:
                repo = _named(kind, owner, name)
                kept = self.server.repos[repo]
                for line in map(json.loads, body.decode().splitlines()):
                    value = line["value"]
                    if line["key"] == "file":
                        kept[value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "lfsFile":
                        kept[value["path"]] = self.server.objects[value["oid"]]
                commit = self.server.note(repo)
                address = f"{self.server.url}/{repo}/commit/{commit}"
                self._answer({"commitUrl": address, "commitOid": commit, "success": True})
            case ["api", kind, owner, name, "tag", revision]:
                repo, tag = _named(kind, owner, name), json.loads(body)["tag"]
                found = self.server.version(repo, revision)
                if found is None or tag in self.server.tags.setdefault(repo, {}):
                    return self._answer({"error": "no such revision, or a tag of that name"}, 409)
                self.server.tags[repo][tag] = found[0]
                self._answer({})
            case _:
                self._answer({"error": "not found"}, 404)

    def do_PUT(self) -> None:
        body = self._body()
        (_, oid) = self._words()
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.objects[oid] = body
        self._answer({})

    def do_DELETE(self) -> None:
        (_, kind, owner, name, _, tag) = self._words()
        if self.server.tags.get(_named(kind, owner, name), {}).pop(tag, None) is None:
            return self._missing("RevisionNotFound")
        self._answer({})

    def do_HEAD(self) -> None:
        self._file(self._words(), head=True)

    def do_GET(self) -> None:
        match words := self._words():
            case ["api", "whoami-v2"]:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    return self._answer({"error": "Invalid credentials"}, 401)
                token = {"type": "access_token", "accessToken": {"displayName": "double", "role": self.server.role}}
                self._answer({"type": "user", "name": OWNER, "orgs": [{"name": "lab"}], "auth": token})
            case ["api", kind, owner, name, "revision", revision]:
                found = self._version(_named(kind, owner, name), revision)
                if found is not None:
                    self._answer({"id": f"{owner}/{name}", "sha": found[0]})
            case ["api", kind, owner, name, "tree", revision]:
                found = self._version(_named(kind, owner, name), revision)
                if found is not None:
                    files = [
                        {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                        for path, data in found[1].items()
                    ]
                    self._send(json.dumps(files).encode(), 200, {"Content-Type": "application/json"})
            case _:
                self._file(words, head=False)

    def _version(self, repo: str, revision: str) -> tuple[str, Files] | None:
        found = self.server.version(repo, revision)
        if found is None:
            self._missing("RevisionNotFound" if repo in self.server.repos else "RepoNotFound")
        return found

    def _file(self, words: list[str], *, head: bool) -> None:
        kind, words = ("datasets", words[1:]) if words[0] == "datasets" else ("models", words)
        owner, name, resolve, revision, *file = [*words, "", "", "", ""]
        repo = _named(kind, owner, name)
        found = self.server.version(repo, revision)
        content = None if found is None else found[1].get("/".join(file).rstrip("/"))
        if resolve != "resolve" or content is None:
            return self._missing("EntryNotFound" if repo in self.server.repos else "RepoNotFound")
        assert found is not None
        headers = {"X-Repo-Commit": found[0], "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        self._send(content, 200, headers, head)

    def _words(self) -> list[str]:
        path = self.path.partition("?")[0].strip("/")
        self.server.asked.append(f"{self.command} {path}")
        return [unquote(word) for word in path.split("/")]

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _missing(self, code: str) -> None:
        self._answer({"error": code}, 404, {"X-Error-Code": code})

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


def _named(kind: str, owner: str, name: str) -> str:
    return f"datasets/{owner}/{name}" if kind == "datasets" else f"{owner}/{name}"
