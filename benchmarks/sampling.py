"""Samples per second of batches of clips, transitions and replay, on one thread, compared with another checkout.

    python benchmarks/sampling.py [--against CHECKOUT] [--rounds 20] [--out benchmarks/results/sampling.json]

Each checkout has a process of its own with the same data. The two take turns, with all data in the page cache. The
ratio of a case is the median over rounds of this checkout's speed divided by the other checkout's speed. By default,
this checkout is compared with itself, which shows the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from measuring import parser, write

Values = NDArray[Any]
Batches = tuple[Callable[[int], Any], int]
"""A function of the step, and the number of samples (for `store frames`, of frames) that one call returns."""

EPISODES, LENGTH, SIZE, SECONDS = 100, 100, 84, 0.3
TRIPLES = "anchor, positive and negative (Premier-TACO), B = 256"


def episode_store(folder: Path) -> Any:
    """Build the training store of random episodes."""
    from counterpoint.data.cache import cached
    from counterpoint.data.episode import Episode
    from counterpoint.data.store import MemoryStore

    rng, episodes = np.random.default_rng(0), []
    for number in range(EPISODES):
        frames = rng.integers(256, size=(LENGTH, SIZE, SIZE, 3), dtype=np.uint8)
        actions = rng.uniform(-1, 1, (LENGTH, 4)).astype(np.float32)
        episodes.append(Episode({"camera": frames}, f"task {number % 10}", np.arange(LENGTH) / 10, actions=actions))
    return cached(MemoryStore(episodes), size=SIZE, root=folder, progress=False)


def before(name: str) -> Any:
    """Return a class of a checkout that has three loaders."""
    homes = {"Loader": "loader", "NStepLoader": "nstep_loader", "NStepSpec": "nstep", "NearNegatives": "nstep"}
    homes |= {"Spec": "sampling", "Key": "sampling", "StartGoal": "clips", "GoalSpec": "goals", "Spaces": "goals"}
    package = f"data.{homes[name]}" if name in homes else "agents.replay"
    return getattr(import_module(f"counterpoint.{package}"), name)


def episode(shape: tuple[int, ...], rng: np.random.Generator) -> Values:
    """Return the 51 states of a random episode."""
    return rng.integers(256, size=(51, *shape), dtype=np.uint8) if len(shape) == 3 else rng.random((51, *shape))


def replay_buffer(shape: tuple[int, ...], episodes: int) -> Any:
    """Fill a replay buffer with episodes of 50 transitions."""
    rng, actions, settings = np.random.default_rng(1), np.zeros((50, 4)), {"capacity": episodes * 50, "shortest": 50}
    try:
        from counterpoint.data.episode import GoalEpisode, Spaces
        from counterpoint.data.replay import ReplayBuffer
    except ImportError:
        buffer = before("ReplayBuffer")(before("Spaces")(shape, shape, 4), goal_is_observation=True, **settings)
        for seen in (episode(shape, rng) for _ in range(episodes)):
            buffer.add_episode(seen, actions, seen, commanded=seen[0])
        return buffer
    spaces = Spaces(shape, shape, 4)
    ours = ReplayBuffer(spaces, capacity=episodes * 50, shortest=50, goal_is_observation=True)
    for seen in (episode(shape, rng) for _ in range(episodes)):
        ours.append(GoalEpisode(seen, seen, seen[0], actions, np.zeros(50)))
    return ours


def cases(folder: Path) -> dict[str, Batches]:
    """Return every case of the checkout that this process imports."""
    store = episode_store(folder)
    steps, count = np.arange(32), 32
    found: dict[str, Batches] = {"store frames": (lambda k: store.frames(k % EPISODES, steps), 32)}
    keys = {"observation", "action", "next_observation", "future_goal", "random_goal"}
    buffers = {"replay of states": replay_buffer((10,), 2000), "replay of images": replay_buffer((64, 64, 3), 60)}
    try:
        from counterpoint.data.anchors import NearNegatives
        from counterpoint.data.draws import StartGoal
        from counterpoint.data.sampler import Sampler
        from counterpoint.data.spec import Spec
    except ImportError:
        return found | cases_before(store, buffers, keys)

    def serve(source: Any, spec: Spec, count: int) -> Batches:
        return Sampler(source, spec.bind(source), batch_size=count, seed=0).__getitem__, count

    for count in (32, 256):
        found[f"clips, B = {count}"] = serve(store, Spec.clips(StartGoal()), count)
    triples = Spec.steps((0, 3), 3, NearNegatives(5), stack=3)
    found[TRIPLES] = serve(store, triples, 256)
    return found | {name: serve(buffer, Spec.transitions(keys), 256) for name, buffer in buffers.items()}


def cases_before(store: Any, buffers: dict[str, Any], keys: set[str]) -> dict[str, Batches]:
    """Return the cases of a checkout that has three loaders."""
    clips = before("Spec")({"clip": before("StartGoal")()}, {"frames": before("Key")("frames", "clip")})
    found: dict[str, Batches] = {
        f"clips, B = {count}": (before("Loader")(store, clips, batch_size=count, seed=0).__getitem__, count)
        for count in (32, 256)
    }
    triples = before("NStepSpec")((0, 3), 3, before("NearNegatives")(5), stack=3)
    found[TRIPLES] = before("NStepLoader")(store, triples, batch_size=256, seed=0).__getitem__, 256
    wanted = before("GoalSpec")(frozenset(keys))
    for name, buffer in buffers.items():
        found[name] = before("ReplaySource")(buffer, wanted, batch_size=256, seed=0).__getitem__, 256
    return found


def speed(batches: Batches, start: int) -> float:
    """Return the samples per second of a case."""
    get, count = batches
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        get(start + done)
        done += 1
    return done * count / (time.perf_counter() - began)


def serve() -> None:
    """Measure each case named on standard input, and print its speed."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        known = cases(Path(folder))
        for batches in known.values():
            speed(batches, 0)
        print(json.dumps(list(known)), flush=True)
        for number, line in enumerate(sys.stdin):
            print(speed(known[line.strip()], 1000 * number), flush=True)


class Checkout:
    """A process that imports one checkout."""

    def __init__(self, root: Path) -> None:
        # Freed memory stays in the process; otherwise a ratio depends on which of the two gets pages from the system.
        kept = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
        env = dict(os.environ, PYTHONPATH=str(root / "src"), OMP_NUM_THREADS="1", **kept)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], stdin=pipe, stdout=pipe, env=env, text=True
        )
        self.cases: list[str] = json.loads(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def speed(self, case: str) -> float:
        """Measure one round."""
        assert self._process.stdin is not None
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Measure and write the result."""
    words = parser(20)
    words.add_argument("--against", type=Path, help="another checkout")
    words.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = words.parse_args()
    if arguments.serve:
        serve()
        return
    here = Path(__file__).parents[1]
    pairs: dict[str, list[tuple[float, float]]] = {}
    # The process that starts first may get slower memory, so each checkout starts first once.
    for first in (True, False):
        starts = [here, arguments.against or here][:: 1 if first else -1]
        own, other = [Checkout(root) for root in starts][:: 1 if first else -1]
        for case in own.cases:
            for number in range(arguments.rounds // 2):  # the first of a round may find another cache than the second
                theirs = other.speed(case) if number % 2 else 0.0
                mine = own.speed(case)
                pairs.setdefault(case, []).append((mine, theirs or other.speed(case)))
        for process in (own, other):
            process.close()
    result: dict[str, Any] = {"rounds": arguments.rounds, "against itself": arguments.against is None, "cases": {}}
    for case, found in pairs.items():
        half = len(found) // 2
        ratios = [median(mine / theirs for mine, theirs in part) for part in (found[:half], found[half:])]
        mine, theirs = (round(median(speeds)) for speeds in zip(*found, strict=True))
        ratio = round((ratios[0] * ratios[1]) ** 0.5, 3)
        result["cases"][case] = {"samples_a_second": mine, "against": theirs, "ratio": ratio}
    head = ["batches", "samples a second", "speed / the other's"]
    rows = [[case, f"{one['samples_a_second']:,}", str(one.get("ratio", ""))] for case, one in result["cases"].items()]
    result["tables"] = {"sampling": {"head": head, "rows": rows}}
    write("sampling", result, arguments.out)


if __name__ == "__main__":
    main()
