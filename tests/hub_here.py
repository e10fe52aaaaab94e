"""The Hub in this process: data sets as in the Hub's cache, and an API that records uploads."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled, RevisionNotFoundError

from counterpoint import repositories

COMMIT, OTHER = "a" * 40, "b" * 40
ACCOUNT = {"name": "me", "orgs": [{"name": "lab"}], "auth": {"accessToken": {"role": "write"}}}


@dataclass
class CacheDouble:
    """Takes the place of `snapshot_download`; keeps the (name, revision) of every call."""

    root: Path
    revisions: dict[tuple[str, str | None], Path] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def add(self, name: str, folder: Path, *revisions: str, commit: str = COMMIT, root: Path | None = None) -> Path:
        """Put a folder into the cache, as links to files that are named after their content."""
        kept = (root or self.root) / f"datasets--{name.replace('/', '--')}"
        snapshot, blobs = kept / "snapshots" / commit, kept / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        for file in (one for one in folder.rglob("*") if one.is_file()):
            blob, link = blobs / hashlib.sha256(file.read_bytes()).hexdigest(), snapshot / file.relative_to(folder)
            blob.write_bytes(file.read_bytes())
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        self.revisions |= {(name, revision): snapshot for revision in (None, commit, *revisions)}
        return snapshot

    def __call__(self, name: str, *, repo_type: str, revision: str | None) -> str:
        assert repo_type == "dataset"
        self.asked.append((name, revision))
        if (name, revision) not in self.revisions:
            raise LocalEntryNotFoundError("Cannot find an appropriate cached snapshot folder")
        return str(self.revisions[name, revision])


def hub_cache(monkeypatch: pytest.MonkeyPatch, root: Path) -> CacheDouble:
    """Let ids of data sets be found in a cache at `root`."""
    double = CacheDouble(root)
    monkeypatch.setattr("huggingface_hub.snapshot_download", double)
    monkeypatch.setattr("counterpoint.provenance._downloads", {})
    repositories._downloaded.cache_clear()
    return double


@dataclass
class ApiDouble:
    """Takes the place of `HfApi`.

    Attributes:
        files: The files by their paths in each repository, as `KIND:OWNER/NAME`.
        tags: The tags, by repository.
        account: The answer to `whoami`; `None` for a Hub that cannot be reached.
        full: True to refuse every upload.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    account: dict[str, Any] | None = field(default_factory=lambda: ACCOUNT)
    full: bool = False

    def whoami(self) -> dict[str, Any]:
        if self.account is None:
            raise OfflineModeIsEnabled("offline mode is enabled")
        return self.account

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool | None, exist_ok: bool) -> None:
        self.files.setdefault(f"{repo_type}:{repo_id}", {})

    def upload_file(self, *, path_or_fileobj: Path, path_in_repo: str, **about: Any) -> _Commit:
        return self._take({path_in_repo: path_or_fileobj.read_bytes()}, **about)

    def upload_folder(self, *, folder_path: Path, **about: Any) -> _Commit:
        files = [file for file in folder_path.rglob("*") if file.is_file()]
        return self._take({file.relative_to(folder_path).as_posix(): file.read_bytes() for file in files}, **about)

    def delete_tag(self, repo_id: str, *, tag: str, repo_type: str) -> None:
        if tag not in self.tags.get(repo_id, []):
            error = RevisionNotFoundError.__new__(RevisionNotFoundError)
            raise error
        self.tags[repo_id].remove(tag)

    def create_tag(self, repo_id: str, *, tag: str, repo_type: str, revision: str | None) -> None:
        self.tags.setdefault(repo_id, []).append(tag)

    def _take(self, files: dict[str, bytes], *, repo_id: str, repo_type: str, **_: Any) -> _Commit:
        if self.full:
            raise OSError("the storage is full\nRequest ID: 1")
        self.files[f"{repo_type}:{repo_id}"] |= files
        return _Commit(f"https://hub/{repo_id}/commit/1")


@dataclass
class _Commit:
    commit_url: str


def hub_api(monkeypatch: pytest.MonkeyPatch) -> ApiDouble:
    """Let uploads go to a double of the Hub's API."""
    double = ApiDouble()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda token=None: double)
    return double
