"""Batches of a point that moves in a square, and small agents for them: what tests of contrastive agents share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from counterpoint.agents.c_learning import CLearning, CLearningConfig
from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.agents.contrastive_rl import (
    ContrastiveRLConfig,
    ContrastiveRLInfoNCE,
    ContrastiveRLInfoNCEConfig,
    ContrastiveRLNCE,
)
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.data.episode import Spaces

__all__ = ["AGENTS", "IMAGES", "STATES", "point_batch", "small_agent"]

STATES = Spaces(observation=(2,), goal=(2,), action=2)
IMAGES = Spaces(observation=(64, 64, 3), goal=(64, 64, 3), action=2)
AGENTS = {
    "td_infonce": (TDInfoNCE, TDInfoNCEConfig),
    "contrastive_rl": (ContrastiveRLInfoNCE, ContrastiveRLInfoNCEConfig),
    "contrastive_rl_nce": (ContrastiveRLNCE, ContrastiveRLConfig),
    "c_learning": (CLearning, CLearningConfig),
}


def small_agent(
    name: str, spaces: Spaces = STATES, *, seed: int = 0, device: str = "cpu", **settings: Any
) -> ContrastiveAgent:
    kind, config = AGENTS[name]
    return kind(config(**{"hidden": (32, 32), **settings}), spaces, seed=seed, device=device)


def point_batch(seed: int, spaces: Spaces = STATES, *, rows: int = 32) -> dict[str, Tensor]:
    """The point steps by its action (or left, right, down, up); a future is a few random steps on."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator) * 2 - 1

    here = uniform(rows, 2)
    if spaces.discrete:
        action = torch.randint(4, (rows,), generator=generator)
        move = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])[action]
    else:
        action = move = uniform(rows, 2)
    there = here + 0.2 * move
    places = {
        "observation": here,
        "next_observation": there,
        "next_goal": there,
        "future_goal": there + 0.2 * uniform(rows, 2),
        "random_goal": uniform(rows, 2),
    }
    if len(spaces.observation) == 3:
        places = {key: _images(place) for key, place in places.items()}
    return {**places, "action": action}


def _images(places: Tensor) -> Tensor:
    """Black squares of 64 x 64 with a bright spot at each location."""
    axis = torch.linspace(-1.4, 1.4, 64)
    gap = (axis[None, :] - places[:, :1])[:, None, :] ** 2 + (axis[None, :] - places[:, 1:])[:, :, None] ** 2
    spot = (255 * torch.exp(-gap / 0.02)).to(torch.uint8)
    return spot[..., None].repeat(1, 1, 1, 3)
