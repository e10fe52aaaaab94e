"""Transitions sampled a second from a replay buffer, and the speed of gathering pictures beside copying memory.

    python benchmarks/replay.py [--rounds 300] [--out benchmarks/results/replay.json]

One thread, batches of 256. Figures are medians over rounds, in wall-clock and in processor time (the second holds on a
busy machine too).

States: a million transitions in episodes of 50 with FetchReach's sizes (observation 10, goal 3, action 4), every key of
a batch, under each rule for the tail; beside them, a batch that holds sequences of 20 steps too.

Pictures: 64x64x3 bytes, 40,000 of them, three pictures a transition (observation, next observation, random goal), in
memory and in a memory-mapped file. Beside them, in the same rounds, for the same number of bytes:
- block: `np.copyto` of one run of memory at a random place. The processor reads ahead; no gather can be as fast.
- rows: `np.copyto` of single pictures at random places, in a loop over them.
- ratio: bytes a second of sampling over those of each copy, the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
import torch

from counterpoint.data.draws import BATCH_KEYS, GoalSpec, Spaces, Tail
from counterpoint.data.replay import ReplayBuffer, batch_rng
from counterpoint.provenance import provenance

BATCH, EPISODE, TRANSITIONS, PICTURES = 256, 50, 1_000_000, 40_000
SHAPE = (64, 64, 3)


def seconds(run: Callable[[int], Any], number: int) -> tuple[float, float]:
    """Wall-clock and processor seconds of one run."""
    started, busy = time.perf_counter(), time.process_time()
    run(number)
    spent = time.process_time() - busy
    return time.perf_counter() - started, spent


def filled_with_states() -> ReplayBuffer:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(Spaces(observation=(10,), goal=(3,), action=4), capacity=TRANSITIONS, shortest=EPISODE)
    for _ in range(TRANSITIONS // EPISODE):
        states = rng.normal(size=(EPISODE + 1, 10)).astype(np.float32)
        actions = rng.uniform(-1, 1, (EPISODE, 4)).astype(np.float32)
        buffer.add_episode(states, actions, states[:, :3], commanded=states[0, :3])
    return buffer


def states(rounds: int) -> list[dict[str, Any]]:
    buffer = filled_with_states()
    cases = [(tail, 0) for tail in get_args(Tail)] + [("renormalise", 20)]
    found = []
    for tail, sequence in cases:
        spec = GoalSpec(frozenset(BATCH_KEYS), tail=tail, sequence=sequence)

        def run(number: int, spec: GoalSpec = spec) -> None:
            buffer.sample(BATCH, batch_rng(0, number), spec)

        times = [seconds(run, number) for number in range(rounds)]
        wall, processor = (median(column) for column in zip(*times, strict=True))
        found.append(
            {
                "tail": tail,
                "sequence": sequence,
                "transitions_per_second_wall": round(BATCH / wall),
                "transitions_per_second_processor": round(BATCH / processor),
            }
        )
    return found


def pictures(rounds: int, folder: Path | None) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    spaces = Spaces(observation=SHAPE, goal=SHAPE, action=4)
    buffer = ReplayBuffer(spaces, capacity=PICTURES, folder=folder, shortest=EPISODE, goal_is_observation=True)
    noise = rng.integers(256, size=(EPISODE + 1, *SHAPE), dtype=np.uint8)
    for number in range(PICTURES // EPISODE):
        seen = noise + np.uint8(number % 251)
        buffer.add_episode(seen, np.zeros((EPISODE, 4)), seen, commanded=seen[0])
    spec = GoalSpec(frozenset({"observation", "next_observation", "random_goal"}))
    source = rng.integers(256, size=(PICTURES, *SHAPE), dtype=np.uint8)
    target = np.zeros((3 * BATCH, *SHAPE), np.uint8)

    def sample(number: int) -> None:
        buffer.sample(BATCH, batch_rng(0, number), spec)

    def block(number: int) -> None:
        first = int(np.random.default_rng(number).integers(PICTURES - len(target)))
        np.copyto(target, source[first : first + len(target)])

    def single(number: int) -> None:
        places = np.random.default_rng(number).integers(PICTURES, size=len(target)).tolist()
        for place, row in enumerate(places):
            np.copyto(target[place], source[row])

    candidates = {"sample": sample, "block": block, "rows": single}
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name, run in candidates.items():
            wall[name].append(seconds(run, number)[0])

    def ratio(base: str) -> float:
        pairs = zip(wall[base], wall["sample"], strict=True)
        return round(median(copy / own for copy, own in pairs), 2)

    return {
        "where": "memory" if folder is None else "memory-mapped file",
        "gigabytes_per_second": {name: round(target.nbytes / median(times) / 1e9, 2) for name, times in wall.items()},
        "sample_over_block": ratio("block"),
        "sample_over_rows": ratio("rows"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "replay.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "command": f"python benchmarks/replay.py --rounds {arguments.rounds}",
            "threads": 1,
            "batch": BATCH,
            "states": {"transitions": TRANSITIONS, "episode": EPISODE, "cases": states(arguments.rounds)},
            "pictures": {
                "count": PICTURES,
                "shape": SHAPE,
                "cases": [pictures(arguments.rounds, where) for where in (None, Path(folder))],
            },
            "provenance": provenance(),
        }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("states", "pictures")}, indent=1))


if __name__ == "__main__":
    main()
