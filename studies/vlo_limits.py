"""Numerical test of AcTOL's Definition 4.1: for which delta can similarities of frames and text have the property?

    python -m studies.vlo_limits --out runs/vlo_limits

The definition asks for gaps above 1/delta, 0 < delta < 1, between the scores of a nearer and a farther frame, and for
differences within delta between equally distant frames. Scores are differences of cosines divided by a temperature. The
T cosines of a video with evenly spaced frames are free parameters in [-1, 1]. Adam minimises L_VLO from several random
starts, and the best result is used.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from counterpoint.config import FrozenConfig
from counterpoint.objectives.actol import neighbours, ordering_losses, pair_scores, vlo_lower_bound
from studies.harness import Study, Tree, Trial, kept, main, markdown, number


class VloLimitsConfig(FrozenConfig):
    """Settings of the videos and of the minimisation.

    Attributes:
        frames: Number of frames T of each video.
        temperatures: Temperatures that divide the scores; 1 as in the definition, 0.01 as in the authors' code.
        starts: Number of random starts.
        steps: Number of gradient steps.
        processes: Number of trials that run in parallel.
    """

    frames: tuple[int, ...] = (3, 5, 10)
    temperatures: tuple[float, ...] = (1.0, 0.1, 0.01)
    starts: PositiveInt = 24
    steps: PositiveInt = 1500
    processes: PositiveInt = 1


def vlo_limits_study(config: VloLimitsConfig, out: Path) -> Tree:
    """Minimise L_VLO at every length and temperature and write `vlo_limits.json` and `results.parquet`."""
    study = Study("limits of the ordering loss", out, config)
    trials = [
        Trial(f"{T}-{tau:g}", partial(measure, config, T, tau), about={"frames": T, "temperature": tau})
        for T in config.frames
        for tau in config.temperatures
    ]
    study.run(trials, config.processes)
    return study.finish("vlo_limits", {"rows": study.rows()})


def measure(config: VloLimitsConfig, T: int, temperature: float) -> Tree:
    """Return the result of the best start for one length and temperature."""
    similarity, excess = minimised(T, temperature, config.starts, config.steps)
    gap, tie = property_of(similarity, temperature)
    return {"excess": excess, "gap": gap, "tie": tie, "greatest_gap": greatest_gap(T, temperature)}


def minimised(T: int, temperature: float, starts: int, steps: int, seed: int = 0) -> tuple[Tensor, float]:
    """Return the cosines [T] with the smallest L_VLO, and by how much this loss exceeds its lower bound."""
    times = torch.arange(T).expand(starts, T)
    near, bound = neighbours(times), float(vlo_lower_bound(times[:1]))
    free = torch.randn(starts, T, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.Adam([free], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = torch.zeros(starts)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = ordering_losses(pair_scores(free.sin(), near, temperature=temperature), near)
        torch.autograd.backward(losses.sum())
        optimizer.step()
        schedule.step()
    best = int(losses.argmin())
    return free.detach()[best].sin(), float(losses[best].detach()) - bound


def property_of(similarity: Tensor, temperature: float) -> tuple[float, float]:
    """Return the smallest gap of scores between a nearer and a farther frame, and the largest difference at a tie.

    The definition holds for delta if the gap is above 1/delta and the difference below delta.
    """
    values = similarity.numpy() / temperature
    T = len(values)
    distance = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
    score = -np.abs(np.subtract.outer(values, values))
    gaps, ties = [], [0.0]
    for i in range(T):
        for j in range(T):
            for k in range(T):
                if i not in (j, k) and distance[i, j] < distance[i, k]:
                    gaps.append(score[i, j] - score[i, k])
                elif i not in (j, k) and distance[i, j] == distance[i, k]:
                    ties.append(abs(score[i, j] - score[i, k]))
    return float(min(gaps)), float(max(ties))


def greatest_gap(T: int, temperature: float) -> float:
    """Return the largest gap that cosines of T evenly spaced frames can keep everywhere: 2 / ((T - 1) temperature).

    With gaps of g, the last frame as anchor gives |s_T - s_1| >= |s_T - s_2| + g, so |s_1 - s_2| >= g by the triangle
    inequality. The first frame as anchor gives |s_1 - s_T| >= |s_1 - s_2| + (T - 2) g. Hence
    (T - 1) g <= |s_1 - s_T| <= 2 / temperature. A steady rise from -1 to 1 reaches this bound.
    """
    return 2 / ((T - 1) * temperature)


def table() -> str:
    """Return the table that compares L_VLO's minimum with Definition 4.1."""
    head = [
        "frames",
        "temperature",
        "L_VLO minus its bound L*",
        "smallest gap between nearer and farther frames",
        "largest possible gap",
        "largest difference at equal distance",
        "Definition 4.1 holds",
    ]
    rows = []
    for row in sorted(kept("vlo_limits")["rows"], key=lambda row: (row["frames"], -row["temperature"])):
        holds = "yes" if row["gap"] > 1 and max(1 / row["gap"], row["tie"]) < 1 else "no"
        numbers = [number(round(row[key], 3) + 0.0, 3) for key in ("excess", "gap", "greatest_gap", "tie")]
        rows.append([str(row["frames"]), f"{row['temperature']:g}", *numbers, holds])
    return markdown(head, rows)


if __name__ == "__main__":
    main("vlo_limits")
