"""Pretraining throughput of large image towers: frames a second, and the share of the processor's peak (MFU).

    python benchmarks/pretraining.py --device cuda --batch 256 --rounds 20     on a graphics card, minutes
    python benchmarks/pretraining.py --batch 2 --size 64 --rounds 2            the same code on a CPU

A step is DecisionNCE-T on clips of two frames, whole: preprocessing, forward, backward and Adam, on one batch that lies
on the device. Its operations are PyTorch's own count. The peak is measured too, as one product of two large matrices
in the same precision, so that MFU needs no table of devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from counterpoint.data.episode import Episode
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import MemoryStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.objectives.decisionnce import DecisionNCEConfig, DecisionNCET
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from measuring import in_turns, parser, write

TOWERS = {"ResNet-50": "resnet50", "ViT-B/16": "vit_base_patch16_224"}
Precision = Literal["no", "bf16"]


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


def training(
    model: str, batch: int, size: int, device: str, precision: Precision, *, compiled: bool
) -> Callable[[], Any]:
    """Return one training step."""
    config = EncoderConfig(image="timm", image_model=model, image_size=size, embed_dim=256)
    objective = DecisionNCET(DualEncoder(config), DecisionNCEConfig())
    if compiled:
        objective.encoder.image.compile()
    learner = ObjectiveLearner(
        objective, OptimizerConfig(), total_steps=10**6, accelerator=accelerator_of(precision, device)
    )
    store, steps = clips(size), iter(range(10**6))
    one = Sampler(store, objective.sampling().bind(store), batch_size=batch, seed=0)[0]
    return lambda: learner.update(one, next(steps))


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a call, the device's included."""
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak(device: str, precision: Precision) -> float:
    """Return the operations a second of one large product of matrices."""
    side = 8192 if device != "cpu" else 2048
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    fastest: float = min(in_turns(5, {"product": lambda: a @ b}, seconds)["product"])
    return 2 * side**3 / fastest


def main() -> None:
    """Time every tower and write the result file."""
    options = parser(20)
    options.add_argument("--device", default="cpu")
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--size", type=int, default=224)
    options.add_argument("--compile", action="store_true", help="time the compiled towers too")
    given = options.parse_args()
    torch.manual_seed(0)
    precisions: tuple[Precision, ...] = ("no", "bf16")
    peaks = {precision: peak(given.device, precision) for precision in precisions}
    cases, rows = [], []
    for name, model in TOWERS.items():
        for precision in precisions:
            cases += [(name, model, precision, compiled) for compiled in (False, *([True] if given.compile else []))]
    for name, model, precision, compiled in cases:
        step = training(model, given.batch, given.size, given.device, precision, compiled=compiled)
        with FlopCounterMode(display=False) as counted:
            step()
        each = median(in_turns(given.rounds, {"step": step}, seconds)["step"])
        rate = 2 * given.batch / each
        mfu = counted.get_total_flops() / each / peaks[precision]
        label = f"{name}, {'float32' if precision == 'no' else precision}{', compiled' if compiled else ''}"
        rows.append([label, f"{rate:,.0f}", f"{1e3 * each:,.0f}", f"{100 * mfu:.0f} %"])
        print(*rows[-1], flush=True)
    head = ["tower and precision", "frames a second", "ms a step", "of the measured peak (MFU)"]
    about = {"device": given.device, "batch": given.batch, "size": given.size, "n": given.rounds, "peaks": peaks}
    write("pretraining", {**about, "tables": {"pretraining": {"head": head, "rows": rows}}}, given.out)


if __name__ == "__main__":
    main()
