"""Where frames come to rest under L_BB as the AcTOL paper writes it, and under what its authors' code computes.

    python -m studies.actol_as_trained [--out studies/results/actol_as_trained.json] [--figure FILE.svg]

Embeddings are free parameters: of every video the first and the last frame are held where they are, the frames
between start at random and follow Adam on one form of the loss alone. Ten frames a video, sorted, drawn as in training.
Lengths are shares of the distance between a video's two ends, and means over videos.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoint.objectives import brownian_bridge_loss
from counterpoint.provenance import provenance
from studies.harness import RESULTS

Loss = Callable[[Tensor, Tensor], Tensor]
FORMS: dict[str, Loss] = {
    "Eq. 4": brownian_bridge_loss,
    "Eq. 4, log variance": partial(brownian_bridge_loss, form="log_variance"),
    "as trained (b46fa66)": partial(brownian_bridge_loss, form="variance_as_trained"),
    "as trained, log variance (1aa2a0c)": partial(brownian_bridge_loss, form="log_variance_as_trained"),
}


def settle(loss: Loss, ends: Tensor, start: Tensor, times: Tensor, steps: int) -> Tensor:
    """Frames [B, T, D] after descent on those between the ends."""
    inside = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([inside], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        frames = torch.cat([ends[:, :1], inside, ends[:, 1:]], 1)
        # Videos do not meet in the loss; the sum gives each the step it would take alone.
        torch.autograd.backward(loss(frames, times) * len(times))
        optimizer.step()
        schedule.step()
    return torch.cat([ends[:, :1], inside.detach(), ends[:, 1:]], 1)


def describe(frames: Tensor, times: Tensor) -> tuple[dict[str, float], Tensor]:
    """How far frames are from the line and from each other, and their places along it [B, T]."""
    first, last = frames[:, :1], frames[:, -1:]
    along = last - first
    length: Tensor = torch.linalg.vector_norm(along, dim=2)
    share = (times - times[:, :1]) / (times[:, -1:] - times[:, :1])
    place = ((frames - first) * along).sum(2) / length.square()

    def spread(points: Tensor) -> Tensor:
        """Mean distance of two of the frames inside."""
        inside = points[:, 1:-1]
        M = inside.shape[1]
        total: Tensor = torch.cdist(inside, inside).sum((1, 2))
        return total / (M * (M - 1) * length[:, 0])

    line = first + share[..., None] * along
    off: Tensor = (frames - line).norm(dim=2)[:, 1:-1] / length
    figures = {
        "distance_from_the_line": float(off.mean()),
        "distance_between_frames": float(spread(frames).mean()),
        "distance_between_frames_on_the_line": float(spread(line).mean()),
    }
    return {name: round(value, 5) for name, value in figures.items()}, place


def plot(places: dict[str, Tensor], times: Tensor, path: Path) -> None:
    """One video: place along the line over time."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "actol_as_trained"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
    for (name, place), marker in zip(places.items(), ("o", "x", "s", "+"), strict=True):
        axes.plot(times[0], place[0], marker=marker, label=name, linewidth=1, markersize=5)
    axes.set_xlabel("frame number")
    axes.set_ylabel("place between first (0) and last (1)")
    axes.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Settle frames under every form and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=RESULTS / "actol_as_trained.json")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    B, T, D = 64, 10, 16
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(B, 90, generator=generator).argsort(1)[:, :T].sort(1).values
    ends = torch.randn(B, 2, D, generator=generator)
    start = torch.randn(B, T - 2, D, generator=generator)
    forms: dict[str, Any] = {}
    places = {}
    for name, loss in FORMS.items():
        frames = settle(loss, ends, start, times, arguments.steps)
        forms[name], places[name] = describe(frames, times)
    result = {
        "command": f"python -m studies.actol_as_trained --steps {arguments.steps}",
        "B": B,
        "T": T,
        "D": D,
        "seed": 0,
        "forms": forms,
        "provenance": provenance(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print("| form | from the line | between frames | between frames, on the line |\n|---|---|---|---|")
    for name, figures in forms.items():
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in figures.values()) + " |")
    if arguments.figure:
        plot(places, times, arguments.figure)


if __name__ == "__main__":
    main()
