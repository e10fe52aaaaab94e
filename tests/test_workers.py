from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from counterpoint.errors import BadInputError
from counterpoint.workers import in_worker, worker_pool

UNGUARDED = """
from pathlib import Path
from counterpoint.workers import in_worker
print(in_worker(Path.exists, Path("script.py")))
"""


def test_a_pool_watches_all_its_workers_from_the_start() -> None:
    before = set(multiprocessing.active_children())
    with worker_pool(2) as pool:
        pool.submit(os.getpid).result()
        assert len(set(multiprocessing.active_children()) - before) == 2
    assert not set(multiprocessing.active_children()) - before
    with pytest.raises(BadInputError, match="a worker process that died"), worker_pool(2, os._exit, 1) as pool:
        pool.submit(os.getpid).result()


def _doubled(values: np.ndarray) -> np.ndarray:
    print("what a function prints is no part of its answer")
    return 2 * values


def _raise_lookup(path: Path) -> None:
    raise LookupError(path.name)


def test_a_worker_returns_and_raises_as_the_function_does() -> None:
    large = np.arange(2**20)  # more than a pipe holds, there and back
    np.testing.assert_array_equal(in_worker(_doubled, large), 2 * large)
    with pytest.raises(BadInputError, match=r"nothing\.mp4: found nothing"):
        in_worker(_refuse, Path("nothing.mp4"))
    with pytest.raises(LookupError, match=r"video\.mp4"):
        in_worker(_raise_lookup, Path("video.mp4"))


def _refuse(path: Path) -> None:
    raise BadInputError(path, "nothing", "a video", "look for it")


def test_a_worker_may_die_or_hang() -> None:
    with pytest.raises(BadInputError, match=r"exit code 3.*expected readable media"):
        in_worker(os._exit, 3)
    with pytest.raises(BadInputError, match=r"exit code -11\); expected a disk with room\. Hint: free some space"):
        in_worker(_crash, expected="a disk with room", hint="free some space")
    with pytest.raises(BadInputError, match=r"no answer after 0\.5 s"):
        in_worker(time.sleep, 60, timeout=0.5)


def _crash() -> None:
    os.kill(os.getpid(), 11)


def test_a_script_without_a_guard_starts_a_worker(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert ran.stdout == "True\n"


class Arriving:
    """Leaves a sign when it has come to a worker."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> tuple[object, ...]:
        return _arrive, (self.sign,)


def _arrive(sign: Path) -> Path:
    sign.touch()
    return sign


def test_a_worker_s_time_begins_when_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign, there, communicate = tmp_path / "sign", list[bool](), subprocess.Popen.communicate

    def look(self: subprocess.Popen[bytes], *arguments: object, **more: object) -> tuple[bytes, bytes]:
        there.append(sign.exists())
        return communicate(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "communicate", look)
    assert in_worker(str, Arriving(sign)) == str(sign)
    assert there == [True]
