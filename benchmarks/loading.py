"""Frames a second of random clips: our training store, our mp4 path, and LeRobot's own loader, on one data set.

    .venv-lerobot/bin/python benchmarks/loading.py [--data DIR]

Runs in the environment that `make interchange` builds. A clip is two random frames of a random episode with
their actions, state and instruction. The loaders take turns, round after round, on the same clips in one process
with one thread; every file is open and every page warm before the first round. LeRobot is asked through
`__getitem__`, once with each decoder that loads here (torchcodec needs FFmpeg's shared libraries); it returns
float pictures, channels first, where ours stay uint8.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from counterpoint.data.cache import cached
from counterpoint.data.episode import Array, Episode
from counterpoint.data.formats.lerobot.reader import LeRobotStore
from counterpoint.data.formats.lerobot.writer import LeRobotWriter
from counterpoint.data.store import EpisodeStore
from counterpoint.provenance import provenance

Clip = tuple[int, Array]
Read = Callable[[Clip], object]

EPISODES, LENGTH, SIZE, FPS = 60, 120, 112, 10
RESULT = Path(__file__).parent / "results" / "loading.json"


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="a LeRobot v3.0 folder; by default moving shapes are made")
    parser.add_argument("--clips", type=int, default=200, help="clips a round and loader")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = options.data or made(Path(folder) / "made")
        store = LeRobotStore(data)
        size = int(store.frames(0, np.arange(1)).shape[1])
        loaders: dict[str, Read] = {
            "training store": reader(cached(store, size=size, root=folder, progress=False)),
            "mp4": reader(store),
        }
        loaders |= {f"lerobot ({name})": read for name, read in lerobot_readers(data)}
        rates = measure(loaders, store, options.rounds, options.clips, options.seed)
    result = {
        "command": "python benchmarks/loading.py" + (" --data DIR" if options.data else ""),
        "data": {
            "source": "given" if options.data else "made",
            "episodes": len(store.episodes),
            "frames": sum(info.length for info in store.episodes),
            "cameras": len(store.cameras),
            "size": size,
        },
        "seed": options.seed,
        "rounds": options.rounds,
        "clips_a_round": options.clips,
        "frames_a_clip": 2,
        "frames_per_second": {name: spread(values) for name, values in rates.items()},
        "ratios": {
            f"{ours} / {theirs}": spread([a / b for a, b in zip(rates[ours], rates[theirs], strict=True)])
            for theirs in rates
            if theirs.startswith("lerobot")
            for ours in ("training store", "mp4")
        },
        **provenance(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({name: result[name] for name in ("frames_per_second", "ratios")}, indent=2))


def made(root: Path) -> Path:
    """Coloured blocks that move over a lit table: about as hard to encode as a simulator's pictures."""
    rng = np.random.default_rng(0)
    writer = LeRobotWriter(
        root, fps=FPS, cameras={"corner": (SIZE, SIZE)}, action_dim=4, state_dim=39, robot_type="made"
    )
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    for number in range(EPISODES):
        table = np.stack([150 + 40 * np.sin(rows / 30 + c) + 30 * columns / SIZE for c in range(3)], axis=-1)
        frames = np.repeat(table[None].astype(np.uint8), LENGTH, axis=0)
        for _ in range(5):
            path = np.cumsum(rng.normal(scale=1.5, size=(LENGTH, 2)), axis=0) + rng.uniform(20, 90, 2)
            colour, half = rng.integers(0, 256, 3), rng.integers(5, 14)
            for frame, (y, x) in zip(frames, path, strict=True):
                frame[(abs(rows - y) < half) & (abs(columns - x) < half)] = colour
        writer.add_episode(
            Episode(
                frames={"corner": frames},
                instruction=f"move block {number % 10}",
                timestamps=np.arange(LENGTH) / FPS,
                actions=rng.normal(size=(LENGTH, 4)).astype(np.float32),
                state=rng.normal(size=(LENGTH, 39)).astype(np.float32),
            )
        )
    writer.finalize()
    return root


def reader(store: EpisodeStore) -> Read:
    """A clip with what belongs to it, from one of our stores."""

    def read(clip: Clip) -> object:
        episode, steps = clip
        actions, state = store.actions(episode), store.state(episode)
        return (
            store.frames(episode, steps),
            None if actions is None else actions[steps],
            None if state is None else state[steps],
            store.episodes[episode].instruction,
        )

    return read


def lerobot_readers(root: Path) -> Iterator[tuple[str, Read]]:
    """The same clip from `lerobot`, with each of its decoders that loads on this machine."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    for backend in ("torchcodec", "pyav"):
        dataset = LeRobotDataset("made/loading", root=root, video_backend=backend)
        starts = [int(start) for start in dataset.meta.episodes["dataset_from_index"]]

        def read(clip: Clip, dataset: Any = dataset, starts: list[int] = starts) -> object:
            return [dataset[starts[clip[0]] + int(step)] for step in clip[1]]

        try:
            read((0, np.arange(2)))
        except (ImportError, OSError, RuntimeError) as error:
            print(f"lerobot's decoder {backend} does not load here: {type(error).__name__}")
        else:
            yield backend, read


def measure(
    loaders: dict[str, Read], store: EpisodeStore, rounds: int, clips: int, seed: int
) -> dict[str, list[float]]:
    """Frames a second of each loader in each round; round -1 warms up and does not count."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for turn in range(-1, rounds):
        rng = np.random.default_rng((seed, turn + 1))
        chosen = [draw(store, rng) for _ in range(clips)]
        if turn < 0:
            chosen += [(episode, np.arange(2)) for episode in range(len(store.episodes))]
        for name, read in loaders.items():
            start = time.perf_counter()
            for clip in chosen:
                read(clip)
            if turn >= 0:
                rates[name].append(2 * clips / (time.perf_counter() - start))
    return rates


def draw(store: EpisodeStore, rng: np.random.Generator) -> Clip:
    """Two distinct steps, in order, of a random episode."""
    episode = int(rng.integers(len(store.episodes)))
    return episode, np.sort(rng.choice(store.episodes[episode].length, 2, replace=False))


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": round(median(values), 2), "min": round(min(values), 2), "max": round(max(values), 2)}


if __name__ == "__main__":
    main()
