from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# One thread in every process that the tests start, as torchrun has: a kernel planned for more threads than a process
# later has waits for them without end.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from counterpoint import workers
from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.formats.hdf5 import opening
from counterpoint.formats.lerobot.writer import LeRobotWriter
from tests.data.reading import read_episode
from tests.forkserver import PRELOADED, fork_program, fork_worker
from tests.made_once import made_once

if shutil.which("nvidia-smi"):  # tests compare bits, which graphics cards do not promise
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", "0")  # robosuite looks for a number in either
os.environ["HF_HUB_OFFLINE"] = "1"  # an id that does not exist is refused at once, where there is no network too
# Help and tables look alike whatever terminal the tests are started from.
os.environ["COLUMNS"] = "80"
for name in ("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)

# A verdict must not hang on luck: by default, hypothesis counts an example that takes .2 s as a failure, however busy
# the machine is, and tries other examples every time. `pytest --hypothesis-profile=anew` searches for new ones.
settings.register_profile("anew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("anew"), derandomize=True)
settings.load_profile("steady")


def _seed(name: str) -> None:
    number = zlib.crc32(name.encode())
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)  # torch.manual_seed formats three stack traces where there is no GPU


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of a release as slow too, before `-m` selects."""
    for item in items:
        if item.get_closest_marker("release"):
            item.add_marker("slow")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Prepare what all tests share, once it is known which tests run."""
    if any(item.get_closest_marker("slow") for item in session.items):
        PRELOADED.append("sentence_transformers")  # of the quick tests, none forks a process that reads words
    gc.collect()
    gc.freeze()  # the collector would look at all imported modules again at every round


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Let a fixture without a generator of its own give the same numbers whichever test uses it first."""
    _seed(fixturedef.argname)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Let a test without a generator of its own get the same numbers whatever ran before it."""
    _seed(item.nodeid)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_precision() -> Iterator[None]:
    """Accelerate keeps one precision a process: what a test trained in is not what the next one trains in."""
    yield
    if "accelerate.state" in sys.modules:
        sys.modules["accelerate.state"].AcceleratorState._reset_state(True)


@pytest.fixture(autouse=True)
def _quick_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of `in_worker`, and those that look at HDF5 files, from the warm server.

    How they start by themselves is for `test_workers`, and one test of `hdf5/test_opening`.
    """
    looks = SimpleNamespace(run=fork_program, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(opening, "subprocess", looks)
    if request.path.name != "test_workers.py":
        quick = SimpleNamespace(Popen=fork_worker, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr(workers, "subprocess", quick)


@pytest.fixture
def store() -> MemoryStore:
    return moving_square_store()


def moving_square_store(episodes: int = 12, size: int = 24, seed: int = 0) -> MemoryStore:
    """Episodes in which a square of the instruction's colour crosses the image; lengths 8 to 15."""
    rng = np.random.default_rng(seed)
    colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
    made = []
    for number in range(episodes):
        name = list(colours)[number % 3]
        length = int(rng.integers(8, 16))
        frames = rng.integers(0, 40, (length, size, size, 3)).astype(np.uint8)
        for step in range(length):
            left = step * (size - 6) // max(1, length - 1)
            frames[step, 8:14, left : left + 6] = colours[name]
        made.append(
            Episode(
                frames={"front": frames},
                instruction=f"push the {name} block",
                timestamps=np.arange(length) / 10,
                actions=rng.normal(size=(length, 2)).astype(np.float32),
                state=rng.normal(size=(length, 3)).astype(np.float32),
                success=True,
            )
        )
    return MemoryStore(made)


@made_once
def write_robot_set(root: Path, episodes: int, size: int, splits: dict[str, str]) -> None:
    """The moving squares as a LeRobot data set."""
    store = moving_square_store(episodes, size)
    writer = LeRobotWriter(root, fps=10, cameras={"front": (size, size)}, action_dim=2, state_dim=3, robot_type="toy")
    for number in range(episodes):
        writer.add_episode(read_episode(store, number))
    writer.finalize(splits)
