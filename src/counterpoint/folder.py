"""A folder that one process writes and any process may read.

The writing process locks ("claims") the folder and writes its files ("parts") one by one; a later call can resume the
work.

FOLDER/.lock        held while a process writes; the operating system frees it however the process ends
FOLDER/NOTE         JSON: the format and all values that decide the content; a continued folder must have the same
FOLDER/SHA256SUMS   the journal: digest and name of each part, as `sha256sum --check SHA256SUMS` reads them

A part is written under a temporary name and then renamed; its journal line is written after it. A process that is
killed at any moment leaves only complete parts. At most one part has no line, and at most one line is torn. A part
without a line, or whose bytes do not match the digest in its line, is ignored and made again. A folder whose parts
belong together, such as a model or a checkpoint, is "sealed": all lines are written at once, after all parts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from counterpoint.errors import BadInputError, require
from counterpoint.files import flush, read_object, sha256_of, write_atomically

FORMAT = 3
"""Format version of runs, saved models and all claimed folders; release 0.1 wrote format 2, 1 or none."""
DIGESTS = "SHA256SUMS"
_LOCK = ".lock"
_LINE = re.compile(rb"([0-9a-f]{64})  (.+)")
_UNFINISHED = re.compile(r"\..+\.([0-9a-f]{12}|building-\w+)")


def claim(
    folder: Path,
    note: str,
    identity: Mapping[str, Any],
    *,
    what: str,
    does: str,
    hint: str = "choose another --out",
    begin: bool = True,
    discard: bool = False,
) -> IO[str]:
    """Claim a folder for this process, create it if absent, and remove half-written files of killed processes.

    Args:
        folder: The folder.
        note: Name of the file that holds the format and the identity.
        identity: JSON values that decide the content; another call can continue the folder only with the same values.
        what: Name of the content for messages, such as `embeddings`.
        does: The process's activity in the folder, as a verb for messages, such as `embeds`.
        hint: Advice to a caller whose identity differs.
        begin: If True, write the note of a new folder, which has to be empty; if False, the caller writes the note
            later.
        discard: Delete the content of a folder with another identity and begin anew, instead of raising an error.

    Returns:
        The open lock: closing it frees the folder.

    Raises:
        BadInputError: If another process has locked the folder, or the folder holds other content or files of another
            version.
    """
    path, expected = folder / note, "a new folder, or one to continue"
    require(folder.is_dir() or not folder.exists(), folder, "a file", "a folder", hint)
    fresh = not folder.exists() or all(at.name.startswith((_LOCK, f".{note}.")) for at in folder.iterdir())
    known = path.is_file() or fresh or not begin
    require(known, folder, f"files that are not {what}, without {note}", expected, "name another one")
    held = lock(folder / _LOCK, does)
    try:
        remove_unfinished(folder)
        if path.is_file():
            try:
                begun = read_object(path, f"the settings of {what}", hint)
                require_format(folder, begun.get("format"), what)
                require_same(folder, {key: begun.get(key) for key in identity}, identity, what, hint)
            except BadInputError:
                if not discard:
                    raise
                for old in folder.iterdir():
                    if old.name != _LOCK:
                        shutil.rmtree(old) if old.is_dir() else old.unlink()
        if begin and not path.is_file():
            write_atomically(path, json.dumps({"format": FORMAT, **identity}, indent=1) + "\n")
    except BaseException:
        held.close()
        raise
    return held


def lock(file: Path, does: str, *, wait: bool = False) -> IO[str]:
    """Lock a file for this process; the file is created if absent.

    Args:
        file: The file.
        does: The process's activity, as a verb for the message, such as `trains`.
        wait: Wait until the lock is free, instead of raising an error.

    Returns:
        The open lock; closing it frees the lock.

    Raises:
        BadInputError: If another process holds the lock.
    """
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        held = file.open("a+")
        try:
            fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            holder = held.read().strip() or "another"
            held.close()
            hint = "wait for it, stop it, or choose another --out"
            raise BadInputError(file.parent, f"a run that process {holder} {does}", "a free folder", hint) from None
        if file.exists() and os.path.samestat(os.fstat(held.fileno()), file.stat()):
            break
        held.close()  # the previous holder has removed the folder
    held.truncate(0)
    held.write(str(os.getpid()))
    held.flush()
    return held


def require_format(where: Path, found: object, what: str) -> None:
    """Raise an error if a format number shows that another version of this package wrote the files.

    Raises:
        BadInputError: If the formats differ; the hint says what to do.
    """
    of = "no format" if found is None else f"format {found}"
    hint = "make it again with this version, or use it with the one that wrote it: 0.1, for formats before 3"
    require(found == FORMAT, where, f"{what} of {of}, of another version", f"format {FORMAT}", hint)


def require_same(where: Path, then: Mapping[str, Any], now: Mapping[str, Any], what: str, hint: str) -> None:
    """Raise a `BadInputError` if two identities differ; the message names the first key at which they differ."""
    found = first_difference(then, json.loads(json.dumps(now)))
    if found is not None:
        key = found[0].removeprefix("identity.").removeprefix("recipe.")
        message = f"{what} with another [{key.partition('.')[0]}]: {key} = {found[1]!r}"
        raise BadInputError(where, message, f"{key} = {found[2]!r}", hint)


def first_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first dotted key at which two trees differ, and its two values; `None` if the trees are equal."""
    keys = sorted({**now, **then}, key=lambda key: key != "name")  # `name` first: it is the most informative
    for key in keys:
        old, new = then.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if inner := first_difference(old, new):
                return f"{key}.{inner[0]}", *inner[1:]
        elif old != new:
            return key, old, new
    return None


def write_part(folder: Path, name: str, content: bytes) -> None:
    """Write a part and its journal line; any process may call this on behalf of the process that claimed the folder."""
    write_atomically(folder / name, content)
    append(folder, {name: hashlib.sha256(content).hexdigest()})


def append(folder: Path, digests: Mapping[str, str]) -> None:
    """Append journal lines for parts that are already on the disk.

    Args:
        folder: The folder.
        digests: The digest of each part, by the part's name.
    """
    lines = _lines(digests)
    descriptor = os.open(folder / DIGESTS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines  # so that a torn line damages no other line
        while lines:
            lines = lines[os.write(descriptor, lines) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal(folder: Path, names: Iterable[str]) -> None:
    """Flush these files to the disk, then write a journal that has exactly their lines."""
    digests = {}
    for name in sorted(names):
        flush(folder / name)
        digests[name] = sha256_of(folder / name)
    write_atomically(folder / DIGESTS, _lines(digests))


def digests_of(folder: Path) -> dict[str, str]:
    """Return the digest of every part in the journal, by name; torn or damaged lines are ignored."""
    return _parsed(folder)[0]


def mend(folder: Path) -> set[str]:
    """Check every part, reduce the journal to the sorted lines of undamaged parts, and return these parts' names."""
    noted = sorted(digests_of(folder).items())
    whole = {name: digest for name, digest in noted if (folder / name).is_file() and sha256_of(folder / name) == digest}
    content = _lines(whole)
    if (folder / DIGESTS).exists() and content != (folder / DIGESTS).read_bytes():
        write_atomically(folder / DIGESTS, content)
    return set(whole)


def check_part(folder: Path, name: str, hint: str, *, read: bytes | None = None) -> Path:
    """Check a part against its digest and return its path; if `read` is given, check these bytes instead of the file's.

    Raises:
        BadInputError: If the part is missing, has no digest, or does not match its digest.
    """
    path, journal = folder / name, folder / DIGESTS
    for file in (journal, path):
        require(file.is_file(), file, "no such file", f"a file, with its digest in {DIGESTS}", hint)
    digests, whole = _parsed(folder)
    require(whole and name in digests, journal, f"damaged lines, or no digest of {name}", "one a file", hint)
    found = sha256_of(path) if read is None else hashlib.sha256(read).hexdigest()
    require(found == digests[name], path, f"sha256 {found[:12]}", f"{digests[name][:12]}, as in {DIGESTS}", hint)
    return path


def read_part(folder: Path, name: str, hint: str) -> bytes:
    """Check a part against its digest and return its bytes; raises the errors of `check_part`."""
    content = (folder / name).read_bytes() if (folder / name).is_file() else b""
    check_part(folder, name, hint, read=content)
    return content


def _parsed(folder: Path) -> tuple[dict[str, str], bool]:
    """Return the journal's digests by name, and True if all lines of the journal are complete."""
    path = folder / DIGESTS
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    found = [_LINE.fullmatch(line) for line in lines[:-1]]
    digests = {match[2].decode(errors="replace"): match[1].decode() for match in found if match}
    return digests, all(found) and not lines[-1]


def _lines(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode()


def remove_unfinished(folder: Path) -> None:
    """Remove half-written files of killed processes from a folder that no other process writes to."""
    for path in list(folder.rglob(".*")):
        if _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
