"""Frames per second of `counterpoint label`, compared with inference of one frame at a time, on one machine in one run.

    python benchmarks/labelling.py --data DATA [--encoder NAME] [--device cuda] [--model RUN] [--rounds 3] [--out FILE]

Every round measures, one after the other and each in a fresh process, the time to compute the rewards of all frames,
after the data set was opened and the model loaded:

- decoding alone: only decoding, in one thread, and in one thread per core.
- network alone: preprocessing and the network on frames in memory, in one thread per core.
- one by one: frames are decoded in order and encoded one at a time, in one thread (two threads wait for each other, and
  are far slower on a busy machine); the rewards of an episode are computed at its end. This case and decoding run on
  `--some` episodes, because their time per frame does not depend on the number of episodes.
- label: the command `label` on `--episodes` (all by default), with torch's default number of threads, in one process
  (the default) and in two. The start of the two processes is included.

On a GPU (`--device cuda`), the network's parts run there, and `decoding alone` and `label` are also measured with
torchcodec, which decodes on the card. The MFU of the network alone is the share of the rate of one product of two
large matrices in the same precision, on all cores or on the card.

"bf16" computes convolutions and matrix products in bfloat16; it is compared with one by one in bfloat16. The share of
the bound is the speed of `label` divided by the speed at which a frame is decoded and embedded if the cores did nothing
else (1 / (1 / decoding + 1 / network), both on all cores). With `--model`, labels of a trained run's own data are
computed in both precisions, and the largest difference of progress is given.

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
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.flop_counter import FlopCounterMode

from collection import Measured, measured
from counterpoint.blocks import BlockFiles, Engine, Work, blocks_of, work_through
from counterpoint.data.store import EpisodeStore, frame_batches
from counterpoint.data.store_views import SubsetStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.embed import Precision, in_precision
from counterpoint.encoders.features import frames_at_once
from counterpoint.formats import open_dataset
from counterpoint.formats.torchcodec import VideoBackend, decoded_by
from counterpoint.rewards import RewardModel
from counterpoint.rewards.calibration import calibrate
from counterpoint.rewards.embedding import embed_frames
from counterpoint.rewards.label import label
from counterpoint.rewards.labeller import Labeller, Labelling, work_of
from measuring import parser, write
from training import peak

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


def decoding(
    data: Path, model: Path, episodes: int, threads: int = 1, backend: VideoBackend = "pyav", device: str = "cpu"
) -> Measured:
    store = open_dataset(data)
    numbers = some_of(store, episodes)

    def read(number: int) -> int:
        return len(store.frames(number, np.arange(store.episodes[number].length)))

    one = decoded_by(backend, device, read)

    def run() -> int:
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(one, numbers))

    return measured(run)


def network(data: Path, model: Path, episodes: int, precision: Precision, device: str = "cpu") -> Measured:
    threads = torch.get_num_threads() if device == "cpu" else 1
    torch.set_num_threads(1)
    encoder: Any = RewardModel.from_pretrained(model, device=device).encoder
    store = open_dataset(data)
    count, numbers = frames_at_once(encoder), some_of(store, episodes)
    batches = [batch.frames for batch in frame_batches(store, numbers, store.cameras[:1], count)]

    def share(number: int) -> int:
        own = batches[number::threads]
        with in_precision(device, precision):
            return sum(len(embed_frames(encoder, frames, count)) for frames in own)

    def run() -> int:
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(share, range(threads)))

    return measured(run)


def operations(model: Path) -> float:
    """Return the operations of the network per frame."""
    encoder: Any = RewardModel.from_pretrained(model).encoder
    size = encoder.config.image_size or 224
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        encoder.encode_image(torch.zeros(1, size, size, 3, dtype=torch.uint8))
    return float(counted.get_total_flops())


def one_by_one(data: Path, model: Path, episodes: int, precision: Precision = "no", device: str = "cpu") -> Measured:
    torch.set_num_threads(1)
    rewards, store = RewardModel.from_pretrained(model, device=device), open_dataset(data)
    form = rewards.check_calibration().form
    rewards.encoder.encode_text(["warm up"])

    def run() -> int:
        frames = 0
        for number in some_of(store, episodes):
            parts, info = [], store.episodes[number]
            with torch.no_grad(), in_precision(device, precision):
                text = rewards.encoder.encode_text([info.instruction]).double().cpu().numpy()
                for step in range(info.length):
                    frame = torch.from_numpy(store.frames(number, np.array([step]))).to(device)
                    parts.append(rewards.encoder.encode_image(frame).double().cpu().numpy())
            rewards.score(form, np.concatenate(parts), text)
            frames += info.length
        return frames

    return measured(run)


def labelled(
    data: Path,
    model: Path,
    episodes: int,
    processes: int,
    precision: Precision = "no",
    backend: VideoBackend = "pyav",
    device: str = "cpu",
) -> Measured:
    store = open_dataset(data)
    chosen = SubsetStore(store, some_of(store, episodes))
    texts = tuple(info.instruction for info in chosen.episodes)
    job = Labelling(
        data, str(model), store.cameras[:1], texts, None, device, precision=precision, video_backend=backend
    )
    labeller = Labeller(job, chosen)
    with tempfile.TemporaryDirectory() as folder:
        files = BlockFiles(Path(folder), ".npy", blocks_of(chosen.lengths))
        opener = partial(opened, job, labeller.targets, episodes)
        engine = Engine(workers=processes)
        work = work_of(labeller)
        return measured(lambda: work_through(files, work, opener, engine, title="Labelling", device=device))


def opened(job: Labelling, targets: Any, episodes: int) -> Work:
    store = open_dataset(job.data)
    return work_of(Labeller(job, SubsetStore(store, some_of(store, episodes)), targets))


def moved(data: Path, model: Path) -> float:
    """Return by how much bfloat16 moves the progress of a frame at most."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{precision}.parquet" for precision in ("no", "bf16")]
        for file in files:
            label(data, model=model, out=file, precision=file.stem, anyway=True)  # type: ignore[arg-type]
        one, two = (pq.read_table(file)["progress_sparse"].to_numpy() for file in files)
    return float(np.abs(one - two).max())


def in_fresh_process(function: Callable[..., Measured], *arguments: object, **options: object) -> Measured:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()


def main() -> None:
    options = parser(3)
    options.add_argument("--data", type=Path, required=True, help="a data set, such as the demo's")
    options.add_argument("--encoder", choices=list(ENCODERS), default="convnet")
    options.add_argument("--device", default="cpu")
    options.add_argument("--episodes", type=int, default=10**6)
    options.add_argument("--some", type=int, default=20)
    options.add_argument("--model", type=Path, help="a run that was trained on the data")
    chosen = options.parse_args()
    rounds: list[dict[str, Measured]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(chosen.data, chosen.encoder, model)
        each, cores = operations(model), torch.get_num_threads()
        peaks = {"": peak(chosen.device, "no"), ", bf16": peak(chosen.device, "bf16")}
        run = partial(in_fresh_process, data=chosen.data, model=model)
        some, there = {"episodes": chosen.some}, {"device": chosen.device}
        whole = {"episodes": chosen.episodes, "processes": 1, **there}
        parts: dict[str, Callable[[], Measured]] = {
            "decoding alone, 1 thread": partial(run, decoding, **some),
            "decoding alone": partial(run, decoding, **some, threads=cores),
            "network alone": partial(run, network, **some, precision="no", **there),
            "network alone, bf16": partial(run, network, **some, precision="bf16", **there),
            "one by one": partial(run, one_by_one, **some, **there),
            "one by one, bf16": partial(run, one_by_one, **some, precision="bf16", **there),
            "label": partial(run, labelled, **whole),
            "label, 2 processes": partial(run, labelled, **whole | {"processes": 2}),
            "label, bf16": partial(run, labelled, **whole, precision="bf16"),
        }
        if chosen.device != "cpu":
            card: dict[str, Any] = {"backend": "torchcodec", **there}
            parts |= {
                "decoding alone, torchcodec": partial(run, decoding, **some, threads=cores, **card),
                "label, torchcodec": partial(run, labelled, **whole, backend="torchcodec"),
                "label, torchcodec, bf16": partial(run, labelled, **whole, backend="torchcodec", precision="bf16"),
            }
        rounds = [{name: part() for name, part in parts.items()} for _ in range(chosen.rounds)]
    rows, speed = [], "frames_per_s"
    for part in rounds[0]:
        half = ", bf16" * part.endswith("bf16")
        rates = [one[part][speed] for one in rounds]
        loops = [one[part][speed] / one[f"one by one{half}"][speed] for one in rounds]
        decoder = "decoding alone" + ", torchcodec" * ("torchcodec" in part)
        alone = [[one[decoder][speed], one[f"network alone{half}"][speed]] for one in rounds]
        bounds = [rate * sum(1 / other for other in both) for rate, both in zip(rates, alone, strict=True)]
        slower = [rate / min(both) for rate, both in zip(rates, alone, strict=True)]
        shares = [f"{median(bounds):.0%}", f"{median(slower):.0%}"] if part.startswith("label") else ["", ""]
        spread = f"{median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
        mfu = f"{median(rates) * each / peaks[half]:.0%}" if part.startswith("network") else ""
        rows.append([part, spread, f"{median(loops):.1f}x", *shares, mfu])
    head = ["path", "frames a second", "speed / one by one's", "share of the bound", "speed / the slower part's alone"]
    head.append("MFU")
    name = f"labelling_{chosen.encoder}" + "_gpu" * (chosen.device != "cpu")
    found = {
        "encoder": chosen.encoder,
        "threads": torch.get_num_threads(),
        "frames": rounds[0]["label"]["frames"],
        "n": chosen.rounds,
        "interval": "lowest, median, highest of the rounds; ratios are medians of the ratios within a round",
        "load_at_end": os.getloadavg(),
        "rounds": rounds,
        "operations_per_frame": each,
        "peaks": peaks,
        "tables": {name: {"head": head, "rows": rows}},
    }
    if chosen.model is not None:
        found["bf16_moves_progress_by_at_most"] = {"value": moved(chosen.data, chosen.model)}
    write(name, found, chosen.out)


if __name__ == "__main__":
    main()
