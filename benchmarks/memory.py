"""Peak memory and time of a training step with gradient caching (`memory.chunk`) and recomputed activations.

    OMP_NUM_THREADS=1 python benchmarks/memory.py --rounds 3

A step is DecisionNCE-T on clips of two frames: preprocessing, forward, backward and Adam. Each case runs in a separate
process. Memory is the peak of the process minus its memory before the first step, when parameters, batch and Adam's
moments exist already. Time is the median of the processor seconds of all steps but the first. Ratios are relative to
the plain step on the same batch.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from statistics import median
from typing import Any

import torch

from counterpoint.encoders.config import EncoderConfig
from counterpoint.training.memory import MemoryConfig
from measuring import parser, write
from training import clip_step

WAYS = {
    "plain": MemoryConfig(),
    "chunk": MemoryConfig(chunk=16),
    "recompute": MemoryConfig(recompute=True),
    "chunk, recompute": MemoryConfig(chunk=16, recompute=True),
}


def peak_mb() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one_case(model: str, size: int, batch: int, way: str, rounds: int) -> tuple[float, float]:
    """Return by how many MB a step's peak exceeds the memory before it, and the step's processor seconds."""
    torch.manual_seed(0)
    encoder = EncoderConfig(image="timm", image_model=model, image_size=size, embed_dim=256)
    step = clip_step(encoder, batch, size, memory=WAYS[way])
    before, seconds = peak_mb(), []
    for _ in range(rounds + 1):
        began = time.process_time()
        step()
        seconds.append(time.process_time() - began)
    return peak_mb() - before, median(seconds[1:])


def main() -> None:
    """Measure every batch and way, and write the result file."""
    options = parser(3)
    options.add_argument("--model", default="resnet50", help="a model of timm")
    options.add_argument("--size", type=int, default=64)
    options.add_argument("--batches", type=int, nargs="+", default=[16, 64, 256])
    given = options.parse_args()
    rows: list[list[Any]] = []
    for batch in given.batches:
        found = {}
        for way in WAYS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[way] = pool.apply(one_case, (given.model, given.size, batch, way, given.rounds))
            (memory, seconds), (usual, plain) = found[way], found["plain"]
            rows.append(
                [batch, way, f"{memory:,.0f}", f"{memory / usual:.2f}", f"{seconds:.2f}", f"{seconds / plain:.2f}"]
            )
            print(*rows[-1], flush=True)
    head = ["batch", "step", "peak, MB", "peak / plain's", "processor s", "processor s / plain's"]
    about = {"model": given.model, "size": given.size, "n": given.rounds}
    write("memory", {**about, "tables": {"memory": {"head": head, "rows": rows}}}, given.out)


if __name__ == "__main__":
    main()
