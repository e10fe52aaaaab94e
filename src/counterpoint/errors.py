"""The error for bad input, which has four parts: its location, what was found, what was expected, and a hint."""

from __future__ import annotations

import difflib
import errno
import gc
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class BadInputError(ValueError):
    """An input that the library cannot accept, described in one message.

    The command line prints the message and exits with code 2; from Python it is a `ValueError`.

    Args:
        where: The file, key or argument at fault.
        found: The value that was found.
        expected: The values that are accepted.
        hint: An action that would solve the problem.
    """

    def __init__(self, where: str | Path, found: str, expected: str, hint: str) -> None:
        self.where, self.found, self.expected, self.hint = str(where), found, expected, hint
        super().__init__(str(self))

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}; expected {self.expected}. Hint: {self.hint}"

    def __reduce__(self) -> tuple[type[BadInputError], tuple[str, ...]]:
        """Pickle the four parts, so that the error crosses process borders."""
        return BadInputError, (self.where, self.found, self.expected, self.hint)


def require(ok: object, where: str | Path, found: object, expected: str, hint: str) -> None:
    """Raise a `BadInputError` unless `ok` is true; the other arguments are those of the class."""
    if not ok:
        raise BadInputError(where, str(found), expected, hint)


def suggestion(word: object, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the name whose spelling is nearest to a word; empty if no name is near."""
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def require_known(
    name: object,
    known: Iterable[str],
    where: str | Path,
    found: str = "",
    expected: str = "one of {}",
    hint: str = "choose one of these",
) -> None:
    """Raise a `BadInputError` unless a name that a user typed is one of the known names.

    Args:
        name: The name.
        known: The names that are accepted.
        where: The argument at fault.
        found: The value that was found; by default the name.
        expected: The values that are accepted; `{}` stands for the list of known names. Names with similar spelling
            come first. If there are more than 60 names, only those are listed.
        hint: An action that would solve the problem; shown only if no known name has a similar spelling.
    """
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=3)
        shown = [*near, *(one for one in names if one not in near)]
        if len(shown) > MOST_LISTED:
            shown = [*(near or shown[:3]), "..."]
        listed = ", ".join(shown) or "none"
        raise BadInputError(where, found or repr(name), expected.format(listed), suggestion(name, names) or hint)


MOST_LISTED = 60


@contextmanager
def relocated(before: str, less: str = "") -> Iterator[None]:
    """Change the location of each `BadInputError` of the `with` block: add prefix `before`, remove suffix `less`."""
    try:
        yield
    except BadInputError as error:
        where = f"{before}{error.where}".removesuffix(less)
        raise BadInputError(where, error.found, error.expected, error.hint) from error


class MissingExtraError(ImportError):
    """An error for an absent optional dependency; the message names the extra that installs it.

    Args:
        package: The package that could not be imported.
        extra: The extra of `counterpoint` that installs it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Hint: in the clone, pip install -e '.[{extra}]'")


@contextmanager
def importing() -> Iterator[None]:
    """Switch garbage collection off while modules are imported, when it takes a fifth of the time and frees nothing.

    In a process that has frozen its objects, as the command line does, the modules' objects are frozen too: later
    collections leave them out.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count():
            gc.freeze()
        if enabled:
            gc.enable()


def import_extra(module: str, extra: str) -> Any:
    """Return an optional module, imported now.

    Raises:
        MissingExtraError: If the module is not installed.
    """
    try:
        with nullcontext() if module in sys.modules else importing():
            return import_module(module)
    except ImportError:
        raise MissingExtraError(module.partition(".")[0], extra) from None


def require_extras(needed: Mapping[str, str]) -> None:
    """Raise a `MissingExtraError` unless all modules that a command needs are installed.

    Args:
        needed: The modules, each with the extra that installs it.
    """
    for module, extra in needed.items():
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)


def usable_device(device: str | None) -> str:
    """Return `device` if this machine has it; `None` gives `cuda` if there is a GPU, otherwise `cpu`.

    Raises:
        BadInputError: If the machine does not have the device.
    """
    import torch

    count = torch.cuda.device_count()
    if device is None:
        return "cuda" if count else "cpu"
    try:
        place = torch.device(device)
        has = {"cpu": True, "cuda": (place.index or 0) < count, "mps": torch.backends.mps.is_available()}
        there = has.get(place.type, False)
    except RuntimeError:  # not the name of a device
        there = False
    expected = f"cpu, or cuda:N with N below {count}" if count else "cpu, since there is no GPU"
    require(there, "--device", repr(device), expected, "leave it out")
    return device


def refused_by_the_system(error: Exception) -> BadInputError | None:
    """Return a `BadInputError` for missing permission, a full disk or too little memory; `None` for other errors."""
    number = getattr(error, "errno", None)
    if re.search(FULL_DISK, str(error)):  # libraries such as safetensors and HDF5 report it only in the message
        number = errno.ENOSPC
    if isinstance(error, MemoryError) or number == errno.ENOMEM or re.search(NO_MEMORY, str(error)):
        hint = "use fewer workers or smaller batches, or free some, then run the same command again"
        return BadInputError("memory", "too little of it", "enough for the data and the model", hint)
    if number not in REFUSALS:
        return None
    found, hint = REFUSALS[number]
    where = getattr(error, "filename2", None) or getattr(error, "filename", None) or "the disk"
    return BadInputError(str(where), found, "a file or folder that can be used", hint)


class Terminated(SystemExit):
    """Raised when SIGTERM ends the process; the exit code is 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


CONTINUES = "run the same command again to continue"


@contextmanager
def one_message(again: str = CONTINUES) -> Iterator[None]:
    """End the process with one message and an exit code: 2 for the user's errors, 130 for SIGINT, 143 for SIGTERM.

    Args:
        again: The message printed after a signal.
    """

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends the process at once
        raise Terminated

    def speak(arguments: threading.ExceptHookArgs) -> None:
        error = arguments.exc_value  # for example of an experiment tracker's thread; the main thread raises it too
        if not isinstance(error, Exception) or refused_by_the_system(error) is None:
            spoken(arguments)

    spoken, threading.excepthook, before = threading.excepthook, speak, None
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except Exception as error:
        message = error if isinstance(error, BadInputError | MissingExtraError) else refused_by_the_system(error)
        if message is None:
            raise
        print(f"counterpoint: {message}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"counterpoint: interrupted; {again}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except Terminated:
        print(f"counterpoint: terminated; {again}", file=sys.stderr)
        raise
    finally:
        threading.excepthook = spoken
        if before is not None:
            signal.signal(signal.SIGTERM, before)


FULL_DISK = r"No space left on device|os error 28\b|errno = 28\b|Errno 28\b"


NO_MEMORY = (
    r"can't allocate memory|[Cc]annot allocate memory|[Cc]ould not allocate memory|bad_alloc|out of memory"
    r"|could not create a (primitive|memory object)|can't start new thread"
    r"|failed to map segment from shared object"
)

REFUSALS = {
    errno.EACCES: ("no permission for it", "give permission, or name another place"),
    errno.EPERM: ("no permission for it", "give permission, or name another place"),
    errno.EROFS: ("a file system that cannot be written to", "name another place"),
    errno.ENOTDIR: ("a file where a folder must be", "name another place, or move the file"),
    errno.EEXIST: ("something of that name already there", "name another place, or move it"),
    errno.ENOTEMPTY: ("something of that name already there", "name another place, or move it"),
    errno.EISDIR: ("a folder where a file must be", "name a file"),
    errno.ENAMETOOLONG: ("a name that is too long for this file system", "choose a shorter one"),
    errno.ENOSPC: ("no space left", "free some, then run the same command again"),
    errno.EDQUOT: ("a quota that is used up", "free some space, then run the same command again"),
}
"""The system's error number -> description of the problem, and what the user can do about it."""
