"""Transitions a second from the memory-mapped training store, on one core, and what they grow with.

    python benchmarks/nstep_loading.py [--quick] [--rounds 30] [--out benchmarks/results/nstep_loading.json]

A triple is one sample of Premier-TACO: anchor, positive and negative, each a stack of three 84x84 frames, with its
three actions. `NStepLoader` is asked for whole batches without worker processes; nothing is augmented. Figures are
medians over rounds, in wall-clock and in processor time (the second holds on a busy machine too).

- `batch`, `window`, `actions`, `episodes`: one setting changed, the others as in `base`.
- `every`: all 2W negatives of the window, triples counted as samples.
- `domains`: the same from a `MultiTaskStore` of two domains.
- `memory`: the same from episodes held in memory, which are read one after the other.
- `block_over_this`: how many times as fast `np.copyto` of one run of memory of as many bytes is, in processor time. The
  processor reads ahead there; no gather can be as fast.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from counterpoint.data.cache import CachedStore, cached
from counterpoint.data.episode import Episode
from counterpoint.data.sampler import NStepLoader
from counterpoint.data.spec import NearNegatives, NStepSpec
from counterpoint.data.store import EpisodeStore, MemoryStore, MultiTaskStore
from counterpoint.provenance import provenance

SIZE, LENGTH, BATCH, WINDOW, ACTIONS = 84, 200, 256, 5, 3


def memory(episodes: int) -> MemoryStore:
    """Episodes of noise that share one piece of memory, each at a place of its own in it."""
    rng = np.random.default_rng(0)
    noise = rng.integers(256, size=(2 * LENGTH, SIZE, SIZE, 3), dtype=np.uint8)
    actions = rng.uniform(-1, 1, (LENGTH, 4)).astype(np.float32)
    times = np.arange(LENGTH) / 10
    return MemoryStore(
        [
            Episode({"front": noise[e % LENGTH : e % LENGTH + LENGTH]}, f"task {e % 10}", times, actions)
            for e in range(episodes)
        ]
    )


def spec(actions: int = ACTIONS, window: int = WINDOW, every: bool = False) -> NStepSpec:
    return NStepSpec((0, actions), actions, NearNegatives(window, every=every))


def block_copy(bytes_: int, source: np.ndarray[Any, Any], rng: np.random.Generator) -> float:
    """Processor seconds for as many bytes from one place, in pieces no longer than half the source."""
    target = np.empty(min(bytes_, source.nbytes // 2), np.uint8)
    target[:] = 0
    flat = source.reshape(-1)
    started = time.process_time()
    for _ in range(max(1, bytes_ // len(target))):
        first = int(rng.integers(len(flat) - len(target)))
        np.copyto(target, flat[first : first + len(target)])
    return (time.process_time() - started) * bytes_ / (max(1, bytes_ // len(target)) * len(target))


def measure(store: EpisodeStore, rounds: int, source: Any, batch: int = BATCH, **settings: Any) -> dict[str, Any]:
    loader = NStepLoader(store, spec(**settings), batch_size=batch, seed=0)
    rng = np.random.default_rng(1)
    wall, processor, ratios = [], [], []
    for number in range(rounds + 3):
        started, busy = time.perf_counter(), time.process_time()
        made = loader[number]
        spent = time.perf_counter() - started, time.process_time() - busy
        size = made["frames"].numel()
        del made  # its memory serves the next one
        if number >= 3:
            wall.append(spent[0])
            processor.append(spent[1])
            ratios.append(spent[1] / block_copy(size, source, rng))
    return {
        "triples_per_second_wall": round(batch / median(wall)),
        "triples_per_second_processor": round(batch / median(processor)),
        "gigabytes_per_second": round(size / median(wall) / 1e9, 2),
        "block_over_this": round(median(ratios), 2),
    }


def run(rounds: int, counts: list[int], folder: Path) -> dict[str, Any]:
    stores: dict[int, CachedStore] = {
        count: cached(memory(count), size=SIZE, root=folder, progress=False) for count in counts
    }
    base = stores[counts[1]]
    base.verify()
    source = np.random.default_rng(0).integers(256, size=2**29, dtype=np.uint8)

    def case(store: EpisodeStore = base, **settings: Any) -> dict[str, Any]:
        return measure(store, rounds, source, **settings)

    return {
        "base": case(),
        "batch": {str(batch): case(batch=batch) for batch in (64, 1024, 4096)},
        "window": {str(window): case(window=window) for window in (1, 3, 9)},
        "every": {str(window): case(window=window, every=True) for window in (1, 5)},
        "actions": {str(actions): case(actions=actions) for actions in (1, 10)},
        "episodes": {str(count): case(store) for count, store in stores.items() if store is not base},
        "domains": case(MultiTaskStore([base, base], ["one", "two"])),
        "memory": case(memory(counts[1])),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller stores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "nstep_loading.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds, counts = (5, [10, 40, 80]) if arguments.quick else (arguments.rounds, [25, 100, 400])
    with tempfile.TemporaryDirectory() as folder:
        cases = run(rounds, counts, Path(folder))
    result = {
        "command": f"python benchmarks/nstep_loading.py{' --quick' if arguments.quick else ''} --rounds {rounds}",
        "threads": 1,
        "base": {
            "batch": BATCH,
            "window": WINDOW,
            "actions": ACTIONS,
            "episodes": counts[1],
            "length": LENGTH,
            "frames": [3, SIZE, SIZE, 3],
        },
        "cases": cases,
        "provenance": provenance(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main()
