"""The frames that minimise L_BB as the AcTOL paper writes it, and as its authors' code computes it.

    python -m studies.actol_as_trained --out runs/actol_as_trained

Embeddings are free parameters. The first and the last frame of every video stay fixed; the frames between them start at
random and are optimised by Adam on one form of the loss, without other terms. A video has ten sorted frames, sampled as
in training. Lengths are shares of the distance between a video's two ends, and means over videos. The figure shows the
first video.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from counterpoint.config import FrozenConfig
from counterpoint.objectives import brownian_bridge_loss
from studies.harness import Study, Tree, Trial, main
from studies.plots import COLOURS, legend, panels, plain, save

Loss = Callable[[Tensor, Tensor], Tensor]
FORMS: dict[str, Loss] = {
    "Eq. 4": brownian_bridge_loss,
    "Eq. 4, log variance": partial(brownian_bridge_loss, form="log_variance"),
    "as trained (b46fa66)": partial(brownian_bridge_loss, form="variance_as_trained"),
    "as trained, log variance (1aa2a0c)": partial(brownian_bridge_loss, form="log_variance_as_trained"),
}


class ActolAsTrainedConfig(FrozenConfig):
    """Settings of the free embeddings and their optimisation.

    Attributes:
        videos: Number of videos, B.
        frames: Number of frames per video, T.
        dimension: Dimension of the embeddings, D.
        steps: Number of gradient steps.
        seed: Random seed of times and embeddings.
        processes: Number of trials that run in parallel.
    """

    videos: PositiveInt = 64
    frames: PositiveInt = 10
    dimension: PositiveInt = 16
    steps: PositiveInt = 1500
    seed: int = 0
    processes: PositiveInt = 1


def actol_as_trained_study(config: ActolAsTrainedConfig, out: Path) -> Tree:
    """Optimise frames under every form and write `actol_as_trained.json`, `.svg` and `results.parquet`."""
    study = Study("AcTOL's bridge as trained", out, config)
    trials = [Trial(f"{n}", partial(measure, config, form), about={"form": form}) for n, form in enumerate(FORMS)]
    study.run(trials, config.processes)
    rows = study.rows()
    save(figure(rows), out / "actol_as_trained.svg")
    return study.finish("actol_as_trained", {"forms": rows})


def measure(config: ActolAsTrainedConfig, form: str) -> Tree:
    """Optimise frames under one form of the loss, and measure where they end."""
    B, T, D = config.videos, config.frames, config.dimension
    generator = torch.Generator().manual_seed(config.seed)
    times = torch.rand(B, 90, generator=generator).argsort(1)[:, :T].sort(1).values
    ends = torch.randn(B, 2, D, generator=generator)
    start = torch.randn(B, T - 2, D, generator=generator)
    found, location = describe(settle(FORMS[form], ends, start, times, config.steps), times)
    return {**found, "times": times[0].tolist(), "locations": location[0].tolist()}


def settle(loss: Loss, ends: Tensor, start: Tensor, times: Tensor, steps: int) -> Tensor:
    """Return frames [B, T, D] after optimising the frames between the ends."""
    inside = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([inside], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        frames = torch.cat([ends[:, :1], inside, ends[:, 1:]], 1)
        # The loss does not combine videos, so the sum gives each video the same step as if it were the only one.
        torch.autograd.backward(loss(frames, times) * len(times))
        optimizer.step()
        schedule.step()
    return torch.cat([ends[:, :1], inside.detach(), ends[:, 1:]], 1)


def describe(frames: Tensor, times: Tensor) -> tuple[dict[str, float], Tensor]:
    """Return the distances of frames from the line and from each other, and their locations along it [B, T]."""
    first, last = frames[:, :1], frames[:, -1:]
    along = last - first
    length: Tensor = torch.linalg.vector_norm(along, dim=2)
    share = (times - times[:, :1]) / (times[:, -1:] - times[:, :1])
    location = ((frames - first) * along).sum(2) / length.square()

    def spread(points: Tensor) -> Tensor:
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
    return {name: round(value, 5) for name, value in figures.items()}, location


def figure(rows: list[Tree]) -> Any:
    """Plot one video: the location along the line over time."""
    plotted, made = panels(1, 1, 4.6, 3.6)
    for row, marker, colour in zip(rows, "oxs+", COLOURS, strict=False):
        made[0][0].plot(row["times"], row["locations"], marker=marker, label=row["form"], color=colour, linewidth=1)
    plain(made[0][0], x="frame number", y="location between first (0) and last (1)")
    legend(plotted, made[0][0], 2)
    return plotted


if __name__ == "__main__":
    main("actol_as_trained")
