"""Repositories of the Hugging Face Hub: their ids, the download of a data set, and uploads.

Models are downloaded file by file, by `counterpoint.encoders.hub`. `huggingface_hub` imports its parts when they are
used; they are not imported here, so that local data are read without them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import huggingface_hub

from counterpoint.errors import BadInputError, require
from counterpoint.provenance import note_download

_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def hub_errors() -> tuple[type[Exception], ...]:
    """Return the errors that huggingface_hub raises if the Hub cannot be reached, or refuses a request."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    # The base class of `HfHubHTTPError` is that of the errors of the HTTP library, which differs between Hub versions.
    of_http: Any = HfHubHTTPError.__mro__[1]
    return OSError, of_http, HFValidationError, EntryNotFoundError


def hub_id(source: str | Path) -> tuple[str, str | None] | None:
    """Return the name and the revision of a Hub id ORG/NAME or ORG/NAME@REVISION; `None` for a path.

    If there is a local folder ORG, the source is a path.
    """
    name, _, revision = str(source).partition("@")
    return None if _ID.fullmatch(name) is None or Path(name).parent.is_dir() else (name, revision or None)


def id_advice(source: str | Path, what: str) -> str:
    """Return the end of a hint for a path that does not exist and would be a Hub id without the local folder ORG."""
    name = str(source).partition("@")[0]
    folder = f"run the command in a folder that has no {Path(name).parent}/ in it"
    return f". For a {what} of the Hub, {folder}" if _ID.fullmatch(name) else ""


def first_words(error: BaseException) -> str:
    """Return the first line of an error's message; without a message, the error's name."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def data_folder(name: str, revision: str | None) -> Path:
    """Download a data set into the Hub's cache, and return its folder there, whose name is the commit.

    A process asks the Hub once. Files that are in the cache already are not downloaded again.

    Args:
        name: ORG/NAME.
        revision: A branch, a tag or a commit; `main` by default.

    Raises:
        BadInputError: If the Hub cannot be reached and the cache does not hold the data set, or the Hub does not have
            the data set or the revision.
    """
    try:
        folder = _downloaded(name, revision)
    except hub_errors() as error:
        found = f"no such path, and no data set of the Hub ({first_words(error)})"
        hint = "check the path or the id, and that the Hub can be reached; offline, paths and ids that were downloaded "
        hint += "before work"
        where = f"{name}@{revision}" if revision else name
        raise BadInputError(where, found, "a data set: a path, a URL or a Hub id", hint) from error
    note_download(f"datasets/{name}", folder.name)
    return folder


@cache
def _downloaded(name: str, revision: str | None) -> Path:
    return Path(str(huggingface_hub.snapshot_download(name, repo_type="dataset", revision=revision)))


def cached_content(file: Path) -> str | None:
    """Return the name of a file's content if the file is a link in the Hub's cache; `None` for any other file."""
    target = file.readlink() if file.is_symlink() else Path()
    return target.name if target.parent.name == "blobs" else None


def require_id(repo_id: str, where: str) -> None:
    """Raise a `BadInputError` unless a text is an id OWNER/NAME; `where` is the argument at fault."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not in `__all__`

    try:
        validate_repo_id(repo_id)
        good = "/" in repo_id
    except HFValidationError:
        good = False
    require(good, where, repr(repo_id), "OWNER/NAME", "name both, such as you/drawer")


def check_upload(repo_id: str, where: str, later: str) -> None:
    """Check before long work, as far as one request can, that this account may upload to a repository.

    Args:
        repo_id: OWNER/NAME.
        where: The argument that named it.
        later: How to upload without this argument, for a hint.

    Raises:
        BadInputError: If the id is malformed, the Hub cannot be reached or does not know the account, the token may
            only read, or the account is neither the owner nor a member of it.
    """
    require_id(repo_id, where)
    log_in = f"`hf auth login` with a token that may write; or leave {where} out, and upload later: {later}"
    try:
        account = huggingface_hub.HfApi().whoami()
    except hub_errors() as error:
        raise BadInputError(where, f"no account of the Hub ({first_words(error)})", "an account", log_in) from error
    role = account.get("auth", {}).get("accessToken", {}).get("role")
    require(role != "read", where, "a token that may only read", "a token that may write", log_in)
    owners = [account["name"], *(one["name"] for one in account.get("orgs", []))]
    # A fine-grained token may write where its account's list of organisations does not say so.
    good = role != "write" or repo_id.partition("/")[0] in owners
    require(good, where, repr(repo_id), f"an owner that this account may write to: {', '.join(owners)}", "choose one")


def upload(
    source: Path,
    repo_id: str,
    *,
    kind: Literal["model", "dataset"],
    message: str,
    hint: str,
    place: str | None = None,
    private: bool = False,
    token: str | None = None,
    revision: str | None = None,
    tag: str | None = None,
) -> str:
    """Upload a folder or a file, and return the address of the commit. The repository is created if necessary.

    Args:
        source: The folder, whose content is uploaded, or the file.
        repo_id: OWNER/NAME.
        kind: The kind of the repository.
        message: The commit's message.
        hint: The hint of an error.
        place: The path of a file in the repository; by default its name.
        private: Make a new repository private; by default the account's settings decide.
        token: A token with write access; by default the token of `hf auth login`.
        revision: The branch; `main` by default.
        tag: A tag for the commit, which is moved if it exists.

    Raises:
        BadInputError: If the Hub cannot be reached or refuses the upload.
    """
    from huggingface_hub.errors import RevisionNotFoundError

    options: dict[str, Any] = {"repo_id": repo_id, "repo_type": kind, "commit_message": message, "revision": revision}
    try:
        hub = huggingface_hub.HfApi(token=token)
        hub.create_repo(repo_id, repo_type=kind, private=private or None, exist_ok=True)
        if source.is_dir():
            done = hub.upload_folder(folder_path=source, **options)
        else:
            done = hub.upload_file(path_or_fileobj=source, path_in_repo=place or source.name, **options)
        if tag is not None:
            with suppress(RevisionNotFoundError):
                hub.delete_tag(repo_id, tag=tag, repo_type=kind)
            hub.create_tag(repo_id, tag=tag, repo_type=kind, revision=revision)
    except hub_errors() as error:
        found = f"an upload that failed ({first_words(error)})"
        raise BadInputError(repo_id, found, "a repository that this account may write to", hint) from error
    return str(done.commit_url)
