from __future__ import annotations

import errno
import gc
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch

from counterpoint.errors import (
    BadInputError,
    MissingExtraError,
    import_extra,
    importing,
    refused_by_the_system,
    require_extras,
    require_known,
    suggestion,
    usable_device,
)


def test_one_sentence_says_what_where_expected_and_mend() -> None:
    error = BadInputError("a.toml", "x", "y", "write y")
    assert str(error) == "a.toml: found x; expected y. Hint: write y"
    assert isinstance(error, ValueError)


def test_it_crosses_process_borders() -> None:
    error = BadInputError(Path("a.toml"), "x", "y", "write y")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.where) == (str(error), "a.toml")


def test_a_missing_extra_names_its_installation() -> None:
    assert str(MissingExtraError("mujoco", "sim")).endswith("in the clone, pip install -e '.[sim]'")


def test_an_unknown_name_is_met_with_those_of_like_spelling_first() -> None:
    require_known("reach", ["push", "reach"], "task")
    with pytest.raises(BadInputError) as refused:
        require_known("raech", ["push", "hammer", "reach"], "task", expected="all, or one of {}")
    error = refused.value
    assert (error.where, error.found) == ("task", "'raech'")
    assert error.expected.startswith("all, or one of reach, ")
    assert {"push", "hammer"} < {*error.expected.replace(",", "").split()}
    assert error.hint == suggestion("raech", ["push", "reach"]) == "did you mean 'reach'?"
    with pytest.raises(BadInputError, match=r"expected one of push, reach\. Hint: choose one of these"):
        require_known("zzz", ["push", "reach"], "task")


def test_of_many_names_the_nearest_alone_are_listed() -> None:
    names = [f"name-{number}" for number in range(100)]
    with pytest.raises(BadInputError) as refused:
        require_known("nme-57", names, "name")
    assert refused.value.expected.startswith("one of name-57, ")
    assert refused.value.expected.endswith(", ...")
    assert refused.value.expected.count(",") < 5
    with pytest.raises(BadInputError, match=r"expected one of name-0, name-1, name-2, \.\.\."):
        require_known("zzz", names, "name")


def test_extras_are_checked_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extras({"json": "report"})
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"jinja2 is not installed.*\[report\]"):
        require_extras({"json": "report", "jinja2": "report"})


@pytest.mark.parametrize("frozen", [0, 5])
def test_imports_are_not_searched_for_garbage(frozen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert calls == ["freeze"] * (frozen > 0)
    assert import_extra("gc", "sim") is gc
    assert len(calls) == (frozen > 0)  # what is imported already is not frozen again: that takes long in a loop


@pytest.mark.parametrize(
    ("device", "count", "used"),
    [(None, 0, "cpu"), (None, 1, "cuda"), ("cpu", 1, "cpu"), ("cuda", 1, "cuda"), ("cuda:1", 2, "cuda:1")],
)
def test_a_device_of_this_machine(device: str | None, count: int, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert usable_device(device) == used


@pytest.mark.parametrize(("device", "count"), [("cuda", 0), ("cuda:1", 1), ("cuda:x", 1), ("meta", 0), ("tpu", 1)])
def test_a_device_that_is_not_there_is_refused(device: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(BadInputError, match=f"--device: found '{device}'; expected cpu"):
        usable_device(device)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "runs/a: found no permission for it"),
        (errno.EROFS, "runs/a: found a file system that cannot be written to"),
        (errno.ENOTDIR, "runs/a: found a file where a folder must be"),
        (errno.ENAMETOOLONG, "runs/a: found a name that is too long"),
        (errno.ENOSPC, "runs/a: found no space left"),
    ],
)
def test_a_refusal_of_the_system_is_bad_input(number: int, said: str) -> None:
    refused = refused_by_the_system(OSError(number, os.strerror(number), "runs/a"))
    assert refused is not None
    assert str(refused).startswith(said)


def test_a_full_disk_has_no_name() -> None:
    refused = refused_by_the_system(OSError(errno.ENOSPC, "full"))
    assert refused is not None
    assert refused.where == "the disk"


def test_the_target_of_a_move_is_named() -> None:
    error = OSError(errno.EACCES, "no", "runs/.a.partial", None, "runs/a")
    refused = refused_by_the_system(error)
    assert refused is not None
    assert refused.where == "runs/a"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("could not create a primitive"),
        RuntimeError("Could not allocate memory"),
        ImportError("av/stream.abi3.so: failed to map segment from shared object"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=str,
)
def test_too_little_memory_is_told_whichever_library_says_so(error: Exception) -> None:
    refused = refused_by_the_system(error)
    assert refused is not None
    assert refused.where == "memory"


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.EMFILE, errno.EIO])
def test_other_failures_keep_their_traceback(number: int) -> None:
    assert refused_by_the_system(OSError(number, "?", "a")) is None
