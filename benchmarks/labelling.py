"""Frames per second of `counterpoint label`, compared with inference of one frame at a time, on one machine in one run.

    python benchmarks/labelling.py --data DATA [--encoder convnet] [--rounds 3] [--out FILE]

Every round measures, one after the other and each in a fresh process, the time to compute the rewards of all frames,
after the data set was opened and the model loaded:

- decoding alone: only decoding, in one thread; this is an upper bound of the frames per processor second.
- one by one: frames are decoded in order and encoded one at a time, in one thread (two threads wait for each other, and
  are far slower on a busy machine); the rewards of an episode are computed at its end. This case and decoding run on
  `--some` episodes, because their time per frame does not depend on the number of episodes.
- label: the command `label` on `--episodes` (all by default), with torch's default number of threads, in one process
  (the default) and in two. The start of the two processes is included.

Encoders have random weights, on which speed does not depend. `convnet` is the demo's encoder (64 px), `efficientnet` is
EfficientNet-Lite0 at 224 px. Rates are given per second of wall-clock time and per second of processor time of all
processes and threads. The latter is valid on a busy machine too, on which more processes do not help. Ratios are
computed within a round.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from collection import Measured, measured
from counterpoint.blocks import BlockFiles, Engine, Work, blocks_of, work_through
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.formats import open_dataset
from counterpoint.rewards import RewardModel
from counterpoint.rewards.calibration import calibrate
from counterpoint.rewards.labeller import Labeller, Labelling
from measuring import parser, write

ENCODERS = {
    "convnet": EncoderConfig(image_size=64, embed_dim=128),
    "efficientnet": EncoderConfig(image="timm", image_model="tf_efficientnet_lite0", freeze_image=True, embed_dim=256),
}


def make_model(data: Path, encoder: str, folder: Path) -> None:
    torch.manual_seed(0)
    made = DualEncoder(ENCODERS[encoder])
    store = open_dataset(data)
    with contextlib.redirect_stderr(None):
        found = calibrate(RewardModel(made), SubsetStore(store, range(10)))
    made.config = made.config.model_copy(update={"calibration": found})
    made.save_pretrained(folder)


def some_of(store: EpisodeStore, episodes: int) -> Sequence[int]:
    return range(len(store.episodes))[:: max(1, len(store.episodes) // episodes)]


def decoding(data: Path, model: Path, episodes: int) -> Measured:
    store = open_dataset(data)
    lengths = {number: store.episodes[number].length for number in some_of(store, episodes)}
    return measured(lambda: sum(len(store.frames(at, np.arange(length))) for at, length in lengths.items()))


def one_by_one(data: Path, model: Path, episodes: int) -> Measured:
    torch.set_num_threads(1)
    rewards, store = RewardModel.from_pretrained(model), open_dataset(data)
    form = rewards.check_calibration().form
    rewards.encoder.encode_text(["warm up"])

    def run() -> int:
        frames = 0
        for number in some_of(store, episodes):
            parts, info = [], store.episodes[number]
            with torch.no_grad():
                text = rewards.encoder.encode_text([info.instruction]).double().numpy()
                for step in range(info.length):
                    frame = torch.from_numpy(store.frames(number, np.array([step])))
                    parts.append(rewards.encoder.encode_image(frame).double().numpy())
            rewards.score(form, np.concatenate(parts), text)
            frames += info.length
        return frames

    return measured(run)


def labelled(data: Path, model: Path, episodes: int, processes: int) -> Measured:
    store = open_dataset(data)
    chosen = SubsetStore(store, some_of(store, episodes))
    texts = tuple(info.instruction for info in chosen.episodes)
    job = Labelling(data, str(model), store.cameras[:1], texts, None, "cpu")
    labeller = Labeller(job, chosen)
    with tempfile.TemporaryDirectory() as folder:
        files = BlockFiles(Path(folder), ".npy", blocks_of(chosen.lengths))
        opener = partial(opened, job, labeller.targets, episodes)
        engine = Engine(workers=processes)
        return measured(lambda: work_through(files, labeller.work, opener, engine, title="Labelling"))


def opened(job: Labelling, targets: Any, episodes: int) -> Work:
    store = open_dataset(job.data)
    return Labeller(job, SubsetStore(store, some_of(store, episodes)), targets).work


def in_fresh_process(function: Callable[..., Measured], *arguments: object) -> Measured:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    options = parser(3)
    options.add_argument("--data", type=Path, required=True, help="a data set, such as the demo's")
    options.add_argument("--encoder", choices=list(ENCODERS), default="convnet")
    options.add_argument("--episodes", type=int, default=10**6)
    options.add_argument("--some", type=int, default=20)
    chosen = options.parse_args()
    rounds: list[dict[str, Measured]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(chosen.data, chosen.encoder, model)
        for _ in range(chosen.rounds):
            one = {
                "decoding alone": in_fresh_process(decoding, chosen.data, model, chosen.some),
                "one by one": in_fresh_process(one_by_one, chosen.data, model, chosen.some),
            }
            one |= {
                f"label, {n} process{'es' * (n > 1)}": in_fresh_process(
                    labelled, chosen.data, model, chosen.episodes, n
                )
                for n in (1, 2)
            }
            rounds.append(one)
    parts: dict[str, dict[str, list[float]]] = {}
    for part in rounds[0]:
        values = {key: [one[part][key] for one in rounds] for key in ("frames_per_s", "frames_per_cpu_s")}
        for key in tuple(values):
            values[f"{key}_over_one_by_one"] = [one[part][key] / one["one by one"][key] for one in rounds]
        parts[part] = {key: [round(f(v), 2) for f in (min, median, max)] for key, v in values.items()}
    rows = [
        [
            chosen.encoder,
            part,
            *(f"{one[key][1]:.0f} ({one[key][0]:.0f} to {one[key][2]:.0f})" for key in ("frames_per_s",)),
            f"{one['frames_per_s_over_one_by_one'][1]:.1f}x",
            f"{one['frames_per_cpu_s_over_one_by_one'][1]:.1f}x",
        ]
        for part, one in parts.items()
    ]
    head = ["encoder", "path", "frames a second", "speed / one by one's", "speed per processor second / one by one's"]
    found = {
        "encoder": chosen.encoder,
        "threads": torch.get_num_threads(),
        "frames": rounds[0]["label, 1 process"]["frames"],
        "n": chosen.rounds,
    }
    found |= {"interval": "lowest, median, highest of the rounds", "load_at_end": os.getloadavg()}
    found |= {
        "summary": parts,
        "rounds": rounds,
        "tables": {f"labelling_{chosen.encoder}": {"head": head, "rows": rows}},
    }
    write(f"labelling_{chosen.encoder}", found, chosen.out)


if __name__ == "__main__":
    main()
