"""Time of the clip losses, forward and backward on one thread, beside plain loops and bare matrix products.

    python benchmarks/losses.py [--rounds 5] [--out benchmarks/results/losses.json]

Each round takes every candidate of a case in turn, on one set of random float32 inputs, and runs it twice; the second
run counts, so that none pays for how the one before it left the allocator. Loops and losses must first agree in value
and gradient. Figures are medians over rounds, in wall-clock and in processor milliseconds (the second holds on a busy
machine too); a ratio is the median of the rounds' ratios.

AcTOL, B = 128 videos, D = 1024: L_VLO + L_BB in the log form.
- fused: `actol_loss`. separate: `vlo_loss` + `brownian_bridge_log_loss`.
- loop: over videos and, inside one, over positives, each step a few tensor operations on all anchors of the video;
  a video is taken as `frames[b]`, as the authors write it.
- unbound loop: the same over `frames.unbind()`, whose backward pass does not make a tensor of all frames a video.

DecisionNCE, B = 1024 segments of two frames, D = 1024.
- two products: [B, D] x [D, B] twice, and the backward pass of both, which is four more. It is what similarities of
  first and last frames with all instructions take at least, when each is computed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.objectives import actol_loss, brownian_bridge_loss, decisionnce_p_loss, decisionnce_t_loss, vlo_loss
from counterpoint.provenance import provenance

TEMPERATURE, LAMBDA = 0.01, 1.0
Candidate = Callable[[], Any]


def loop_video(frames: Tensor, text: Tensor, times: Tensor) -> Tensor:
    """One video's loss: a loop over positives."""
    T = len(frames)
    similarity = functional.normalize(frames, dim=1) @ functional.normalize(text, dim=0)
    others = ~torch.eye(T, dtype=torch.bool)
    score = -(similarity[:, None] - similarity).abs()[others].view(T, T - 1) / TEMPERATURE
    distance = (times[:, None] - times).abs()[others].view(T, T - 1)
    greatest = score.max(dim=1, keepdim=True).values.detach()
    e = (score - greatest).exp()
    order = score.new_zeros(())
    for j in range(T - 1):
        negatives = (distance >= distance[:, j : j + 1]).to(score.dtype)
        denominator = (negatives * e).sum(1).log() + greatest[:, 0]
        order = order - (score[:, j] - denominator).sum()
    times = times.to(frames.dtype)
    share = ((times - times[0]) / (times[-1] - times[0]))[1:-1]
    variance = share * (times[-1] - times[1:-1])
    mean = frames[0] + share[:, None] * (frames[-1] - frames[0])
    gap = ((frames[1:-1] - mean) ** 2).sum(1) / (torch.log(1 + 2 * variance) + 1e-6)
    return order / (T * (T - 1)) + LAMBDA * gap.mean()


def loop(frames: Tensor, text: Tensor, times: Tensor) -> Tensor:
    return torch.stack([loop_video(frames[b], text[b], times[b]) for b in range(len(frames))]).mean()


def unbound_loop(frames: Tensor, text: Tensor, times: Tensor) -> Tensor:
    videos = zip(frames.unbind(), text.unbind(), times.unbind(), strict=True)
    return torch.stack([loop_video(*video) for video in videos]).mean()


def separate(frames: Tensor, text: Tensor, times: Tensor) -> Tensor:
    order = vlo_loss(frames, text, times, temperature=TEMPERATURE)
    return order + LAMBDA * brownian_bridge_loss(frames, times, form="log_variance")


def fused(frames: Tensor, text: Tensor, times: Tensor) -> Tensor:
    return actol_loss(frames, text, times, temperature=TEMPERATURE, bridge_weight=LAMBDA)


def passes(loss: Callable[..., Tensor], leaves: Iterable[Tensor], *constants: Tensor) -> Candidate:
    """Forward and backward through `loss`, with fresh gradients."""
    inputs = list(leaves)

    def run() -> Tensor:
        for leaf in inputs:
            leaf.grad = None
        value = loss(*inputs, *constants)
        torch.autograd.backward(value)
        return value

    return run


def agree(losses: Iterable[Callable[..., Tensor]], leaves: Iterable[Tensor], *constants: Tensor) -> None:
    """Refuse to compare what does not compute the same, in double precision."""
    inputs = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found = []
    for loss in losses:
        value = loss(*inputs, *constants)
        found.append((value.detach(), *torch.autograd.grad(value, inputs)))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-7, atol=1e-10)


def measure(candidates: dict[str, Candidate], rounds: int, base: str) -> dict[str, Any]:
    """Medians of every candidate, and of how many times as long `base` takes."""
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    processor: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            run()
            started, busy = time.perf_counter(), time.process_time()
            run()
            processor[name].append(1e3 * (time.process_time() - busy))
            wall[name].append(1e3 * (time.perf_counter() - started))

    def summary(name: str) -> dict[str, float]:
        ratios = [
            median(b / own for b, own in zip(times[base], times[name], strict=True)) for times in (wall, processor)
        ]
        return {
            "wall_ms": round(median(wall[name]), 2),
            "processor_ms": round(median(processor[name]), 2),
            f"{base}_over_this_wall": round(ratios[0], 2),
            f"{base}_over_this_processor": round(ratios[1], 2),
        }

    return {name: summary(name) for name in candidates}


def actol(T: int, rounds: int, B: int = 128, D: int = 1024) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(T)
    frames = torch.randn(B, T, D, generator=generator).requires_grad_()
    text = torch.randn(B, D, generator=generator).requires_grad_()
    times = torch.rand(B, 300, generator=generator).argsort(1)[:, :T].sort(1).values
    losses = {"fused": fused, "separate": separate, "loop": loop, "unbound_loop": unbound_loop}
    agree(losses.values(), (frames[:8], text[:8]), times[:8])
    candidates = {name: passes(loss, (frames, text), times) for name, loss in losses.items()}
    return {"case": "actol", "B": B, "T": T, "D": D, "times": measure(candidates, rounds, "loop")}


def decisionnce(rounds: int, B: int = 1024, D: int = 1024) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(B, 2, D, generator=generator).requires_grad_()
    text = torch.randn(B, D, generator=generator).requires_grad_()
    first, last, columns = (torch.randn(B, D, generator=generator).requires_grad_() for _ in range(3))
    ones = torch.ones(B, B)

    def two_products() -> None:
        first.grad = last.grad = columns.grad = None
        torch.autograd.backward([first @ columns.T, last @ columns.T], [ones, ones])

    candidates: dict[str, Candidate] = {
        "decisionnce_p": passes(decisionnce_p_loss, (frames, text)),
        "decisionnce_t": passes(decisionnce_t_loss, (frames, text)),
        "two_products": two_products,
    }
    for run in candidates.values():
        run()
    return {"case": "decisionnce", "B": B, "F": 2, "D": D, "times": measure(candidates, rounds, "two_products")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "losses.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [actol(T, arguments.rounds) for T in (10, 32, 64)] + [decisionnce(4 * arguments.rounds)]
    result = {
        "command": f"python benchmarks/losses.py --rounds {arguments.rounds}",
        "threads": 1,
        "rounds": {"actol": arguments.rounds, "decisionnce": 4 * arguments.rounds},
        "cases": cases,
        "provenance": provenance(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for case in cases:
        print(json.dumps(case, indent=1))


if __name__ == "__main__":
    main()
