"""Frames per second of `train`, and the time of its parts.

    python benchmarks/training.py                                                  on a CPU, minutes
    python benchmarks/training.py --device cuda --batch 256 --precision bf16 --compile --workers 8

The data are JPEGs of 456 x 256 pixels in EPIC-KITCHENS' layout, two frames a clip. Three tables:

- training: the recipe `decisionnce_t-demo` with its own encoder and with larger ones. Time is measured from the third
  step to the last; the store is built before. Forward includes preprocessing and the loss. On a GPU, the last column is
  the MFU: the share of the peak rate, which is measured by one product of two large matrices in the same precision. The
  operations of a frame are three times those that PyTorch counts in the forward pass.
- loader: batches without a model, in one process with one thread, per processor second.
- loop: the demo's recipe and the plain loop of DecisionNCE's authors, in turns. The plain loop is a `DataLoader` whose
  workers open, crop and resize two JPEGs per sample with Pillow. Encoder, loss, optimiser and number of workers (at
  least one) are the same; on a GPU, the authors' loop runs under fp16 autocast.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch.optim import Adam
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from counterpoint.agents.networks import product
from counterpoint.data.cache import cached
from counterpoint.data.episode import Array, Episode
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore, MemoryStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.weights import MINILM
from counterpoint.formats import open_dataset
from counterpoint.objectives.base import Objective
from counterpoint.objectives.decisionnce import DecisionNCEConfig, DecisionNCET
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.memory import MemoryConfig
from counterpoint.training.train import train
from measuring import in_turns, parser, write

TIMM = ("tf_efficientnet_lite0", "resnet50", "vit_base_patch16_224")
LABELS = {"demo": "demo, 64 px", TIMM[0]: "EfficientNet-Lite0", TIMM[1]: "ResNet-50", TIMM[2]: "ViT-B/16"}
PARTS = ("waiting", "forward", "backward", "optimiser")
Precision = Literal["no", "bf16", "fp16"]
WARM = 2
"""Number of steps before the time is measured."""


def write_jpegs(root: Path, videos: int = 12, frames: int = 60) -> Path:
    """Write EPIC-KITCHENS' layout: videos of one segment with drifting blurred noise, as JPEGs of about 25 kB."""
    rng = np.random.default_rng(0)
    rows = ["narration_id,participant_id,video_id,start_timestamp,start_frame,stop_frame,narration"]
    for number in range(videos):
        video = f"P01_{number:02d}"
        folder = root / "P01" / "rgb_frames" / video
        folder.mkdir(parents=True)
        scene = Image.fromarray(rng.integers(0, 255, (80, 130, 3), dtype=np.uint8)).resize((700, 430))
        for frame in range(1, frames + 1):
            scene.crop((frame, frame, 456 + frame, 256 + frame)).save(folder / f"frame_{frame:010d}.jpg", quality=90)
        rows.append(f"{video}_0,P01,{video},00:00:00.00,1,{frames},move object {number}")
    (root / "EPIC_100_train.csv").write_text("\n".join(rows) + "\n")
    infos = [f"P01_{number:02d},10.0,50.0,456x256" for number in range(videos)]
    (root / "EPIC_100_video_info.csv").write_text("\n".join(["video_id,duration,fps,resolution", *infos]) + "\n")
    return root


def clips(size: int, count: int = 64) -> MemoryStore:
    """Return short random episodes, each with an instruction of its own."""
    rng = np.random.default_rng(0)
    return MemoryStore(
        [
            Episode(
                frames={"camera": rng.integers(0, 255, (4, size, size, 3), dtype=np.uint8)},
                instruction=f"task {number}",
                timestamps=np.arange(4) / 10,
            )
            for number in range(count)
        ]
    )


def clip_step(
    encoder: EncoderConfig,
    batch: int,
    size: int = 64,
    *,
    memory: MemoryConfig | None = None,
    precision: Precision = "no",
    device: str = "cpu",
) -> Callable[[], Any]:
    """Return a training step of DecisionNCE-T on one batch that is on the device already."""
    objective = DecisionNCET(DualEncoder(encoder), DecisionNCEConfig())
    accelerator = accelerator_of(precision, device)
    learner = ObjectiveLearner(objective, OptimizerConfig(), total_steps=10**6, accelerator=accelerator, memory=memory)
    store, steps = clips(size), iter(range(10**6))
    one = Sampler(store, objective.sampling().bind(store), batch_size=batch, seed=0)[0]
    return lambda: learner.update(one, next(steps))


def settled() -> float:
    """Wait until the device has finished its work, and return the time."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a call, including the device's work."""
    began = settled()
    run()
    return settled() - began


class Clock:
    """Seconds of a loop of `steps` steps, and of its parts.

    To time the parts, it waits for the device at the end of each part, which training does not do.
    """

    def __init__(self, steps: int, *, parts: bool = True) -> None:
        self._steps, self._apart = steps, parts
        self.spent: dict[str, float] = defaultdict(float)
        self.parts: dict[str, float] = {}
        self.began = self.ended = 0.0

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose seconds count as this part's."""

        @functools.wraps(call)
        def run(*args: Any, **more: Any) -> Any:
            began = self._now()
            found = call(*args, **more)
            self.spent[part] += self._now() - began
            return found

        return run

    def _now(self) -> float:
        return settled() if self._apart else time.perf_counter()

    def batches(self, plain: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return batches whose loading counts as waiting; start the clock, and stop it after the last batch."""

        def run(*args: Any) -> Iterator[Any]:
            began = self._now()
            for number, batch in enumerate(plain(*args)):
                if number == WARM:
                    self.spent.clear()
                    self.began = began = settled()
                if number == WARM + self._steps:
                    self.ended = settled()
                self.spent["waiting"] += self._now() - began
                self.parts = dict(self.spent)
                yield batch
                began = self._now()

        return run

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measure the training of the block."""
        calls = {"forward": (Objective, "forward"), "backward": (Accelerator, "backward")}
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(Sampler, "batches", self.batches(Sampler.batches)))
            for part, (owner, name) in {**calls, "optimiser": (Adam, "step")}.items():
                stack.enter_context(patch.object(owner, name, self.timed(part, getattr(owner, name))))
            yield


def settings(name: str, given: Any) -> dict[str, Any]:
    """Return the overrides of one encoder."""
    common = {
        "train.batch_size": given.batch, "train.workers": given.workers, "train.precision": given.precision,
        "train.eval_every": 0, "train.save_every": 10**6, "train.trackers": (), "compile": given.compile,
        "encoder.text_model": given.text_model,
    }  # fmt: skip
    if name == "demo":
        return common
    return common | {
        "encoder.image": "timm", "encoder.image_model": name, "encoder.image_size": given.size, "data.size": given.size,
    }  # fmt: skip


def through_train(name: str, data: Path, folder: Path, given: Any, steps: int, *, parts: bool = True) -> Clock:
    """Return the seconds of `steps` steps of a recipe through `train`, and those of their parts."""
    clock = Clock(steps, parts=parts)
    more = {"train.steps": steps + WARM + 1}
    with clock.running(), contextlib.redirect_stderr(None):
        out = folder / f"{name}-{time.monotonic_ns()}"
        train("decisionnce_t-demo", data, out, overrides=settings(name, given) | more, device=given.device)
    return clock


class Jpegs(Dataset[Any]):
    """Samples read as in the authors' code: a clip's first and last frame, cropped alike and resized by Pillow."""

    def __init__(self, root: Path, size: int) -> None:
        self.folders = sorted((root / "P01" / "rgb_frames").iterdir())
        self.ends = [sorted(folder.iterdir()) for folder in self.folders]
        self.size = size

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, number: int) -> tuple[Array, int]:
        episode, rng = number % len(self.folders), np.random.default_rng(number)
        side = int(256 * rng.uniform(0.5, 1))
        left, top = int(rng.integers(456 - side + 1)), int(rng.integers(256 - side + 1))
        images = []
        for path in (self.ends[episode][0], self.ends[episode][-1]):
            with Image.open(path) as image:
                box = (left, top, left + side, top + side)
                images.append(np.asarray(image.convert("RGB").crop(box).resize((self.size, self.size))))
        return np.stack(images), episode


def plain_loop(data: Path, size: int, given: Any, steps: int) -> Clock:
    """Return the seconds of `steps` steps of the authors' loop with the demo's encoder."""
    clock, device = Clock(steps, parts=given.device == "cpu"), given.device
    encoder = EncoderConfig(image="convnet", image_size=size, text_model=given.text_model, embed_dim=128)
    objective = DecisionNCET(DualEncoder(encoder), DecisionNCEConfig(temperature=0.1)).to(device)
    optimizer = torch.optim.Adam([p for p in objective.parameters() if p.requires_grad], lr=1e-3)
    scaler = torch.amp.GradScaler(enabled=device != "cpu")
    loader = DataLoader(Jpegs(data, size), batch_size=given.batch, num_workers=given.workers)
    for frames, episode in clock.batches(islice)(iter(loader), steps + WARM + 1):
        episode = episode.to(device)
        batch = {
            "frames": frames.to(device), "instruction": [f"move object {int(one)}" for one in episode],
            "instruction_id": episode, "sample": episode, "episode": episode,
            "clip.valid": torch.ones(frames.shape[:2], dtype=torch.bool, device=device),
            "clip.indices": torch.tensor([[0, 59]], device=device).expand(len(frames), 2),
        }  # fmt: skip
        with torch.autocast(device, dtype=torch.float16, enabled=device != "cpu"):
            loss = objective(batch).loss
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return clock


def rate(clock: Clock, batch: int, steps: int) -> float:
    """Return frames per second."""
    return 2 * batch * steps / (clock.ended - clock.began)


def peak(device: str, precision: str) -> float:
    """Return the operations per second of one large matrix product, by the fastest library that the processor has."""
    side = 8192 if device != "cpu" else 2048
    kind = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    fastest: float = min(in_turns(30, {"product": lambda: product(a[None], b[None])}, seconds)["product"])
    return 2 * side**3 / fastest


def operations(name: str, given: Any) -> float:
    """Return the operations of a step per frame: three times those of the forward pass.

    The backward pass is not counted itself, because PyTorch's counter treats grouped convolutions in it as dense ones.
    """
    size = 64 if name == "demo" else given.size
    kind: dict[str, Any] = {"image": "convnet"} if name == "demo" else {"image": "timm", "image_model": name}
    encoder = DualEncoder(EncoderConfig(**kind, image_size=size, embed_dim=128))
    with FlopCounterMode(display=False) as counted:
        encoder.encode_image(torch.zeros(1, size, size, 3, dtype=torch.uint8))
    return float(3 * counted.get_total_flops())


def loader_rate(store: EpisodeStore, batch: int) -> float:
    """Return the frames per processor second of loading batches without a model."""
    objective = DecisionNCET(DualEncoder(EncoderConfig(image_size=64, embed_dim=8)), DecisionNCEConfig())
    sampler = Sampler(store, objective.sampling().bind(store), batch_size=batch, seed=0)
    sampler[0]
    began, count = time.process_time(), 0
    while time.process_time() - began < 3:
        count += 1
        sampler[count]
    return 2 * batch * count / (time.process_time() - began)


def main() -> None:
    """Measure, and write the result file."""
    options = parser(3)
    options.add_argument("--device", default="cpu")
    options.add_argument("--precision", choices=["no", "bf16", "fp16"], default="no")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--size", type=int, default=224, help="pixels of the encoders of timm")
    options.add_argument("--steps", type=int, default=60, help="steps of the demo's encoder; others run a tenth")
    options.add_argument("--workers", type=int, default=0, help="worker processes; the comparison takes one at least")
    options.add_argument("--text-model", default=MINILM, help="the sentence encoder, which computes each text once")
    options.add_argument("--compile", action="store_true", help="compile image towers")
    options.add_argument("--encoders", nargs="+", default=list(LABELS), choices=list(LABELS))
    given = options.parse_args()
    with_workers = argparse.Namespace(**{**vars(given), "workers": max(1, given.workers)})
    most = peak(given.device, given.precision) if given.device != "cpu" else None
    tables: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, patch.dict("os.environ", {"COUNTERPOINT_CACHE": f"{name}/cache"}):
        folder = Path(name)
        data = write_jpegs(folder / "epic")
        rows = []
        for encoder in given.encoders:
            steps = given.steps if encoder == "demo" else max(3, given.steps // 10)
            run = functools.partial(through_train, encoder, data, folder, given, steps)
            runs = [run(parts=most is None) for _ in range(given.rounds)]
            apart = runs if most is None else [run()]
            frames = median(rate(clock, given.batch, steps) for clock in runs)
            shares = [median(clock.parts[part] / (clock.ended - clock.began) for clock in apart) for part in PARTS]
            rows.append([LABELS[encoder], f"{frames:,.1f}"])
            rows[-1] += [f"{100 * share:.1f} %" for share in (*shares, max(0.0, 1 - sum(shares)))]
            if most is not None:
                rows[-1].append(f"{100 * frames * operations(encoder, given) / most:.0f} %")
            print(*rows[-1], flush=True)
        head = ["encoder", "frames a second", *PARTS, "rest", *(["MFU (share of the measured peak)"] if most else [])]
        tables["training"] = {"head": head, "rows": rows}
        source, rows = open_dataset(data), list[list[str]]()
        for size in (64, given.size):
            store = cached(source, size=size, progress=False)
            rows += [
                [str(size), str(batch), f"{loader_rate(store, batch):,.0f}"] for batch in (given.batch, 8 * given.batch)
            ]
        tables["loader"] = {"head": ["pixels", "batch", "frames a second and core"], "rows": rows}
        both = in_turns(
            given.rounds,
            {
                "library": lambda: through_train("demo", data, folder, with_workers, given.steps, parts=most is None),
                "plain loop": lambda: plain_loop(data, 64, with_workers, given.steps),
            },
            lambda run: run(),
        )
        rates = {name: [rate(clock, given.batch, given.steps) for clock in found] for name, found in both.items()}
        waits = {
            name: median(clock.parts["waiting"] / (clock.ended - clock.began) for clock in found)
            for name, found in both.items()
        }
        over = median(ours / theirs for ours, theirs in zip(rates["library"], rates["plain loop"], strict=True))
        rows = [
            [
                name,
                f"{median(found):,.0f}",
                f"{100 * waits[name]:.0f} %",
                f"{over:.2f}" if name == "library" else "1.00",
            ]
            for name, found in rates.items()
        ]
        tables["loop"] = {"head": ["loop", "frames a second", "waiting", "speed / the plain loop's"], "rows": rows}
    about = {key: value for key, value in vars(given).items() if key not in ("out", "rounds")}
    write("training", {**about, "n": given.rounds, "peak": most, "tables": tables}, given.out)


if __name__ == "__main__":
    main()
