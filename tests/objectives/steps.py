"""Transition batches of a square that moves as its actions say, in the keys and types that `Sampler` serves.

Also a small encoder for them, and the loop that trains an objective on them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.anchors import Anchors
from counterpoint.data.augment import Noise, ViewShape
from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.objectives.base import Features, LossOutput
from counterpoint.objectives.steps import StepObjective

__all__ = ["assert_ranks_agree", "small_encoder", "step_batch", "train"]

SIDE = 6  # of the square, in pixels
STRIDE = 3.0  # pixels an action of 1 moves it


def step_batch(spec: Spec, *, batch: int = 8, size: int = 32, action_dim: int = 3, seed: int = 0) -> dict[str, Any]:
    """A batch for `spec`: every row an episode of its own, actions uniform in [-1, 1].

    The first two action dimensions move the square right and down, walls stop it, any others do nothing. Rewards are
    its horizontal place in [0, 1]; the proprioception is both places. Rows alternate between two tasks, and all
    windows lie inside the episodes.
    """
    rng = np.random.default_rng(seed)
    index, stack = spec.index, spec.reads["frames"].stack
    assert isinstance(index, Anchors)
    window = index.near.window if index.near else 0
    # The anchor's number in a trajectory that holds every step any view could ask for.
    anchor = max(0, -min(index.offsets)) + stack - 1 + window
    length = anchor + index.reach + window + 1
    actions = rng.uniform(-1, 1, (batch, length, action_dim))
    places = _places(actions, size, rng)  # [B, length, 2]

    steps = np.tile(anchor + np.array(index.offsets), (batch, 1))  # [B, V_offsets]
    if index.near is not None:
        apart = np.array([d for d in range(-window, window + 1) if d])
        near = np.tile(apart, (batch, 1)) if index.near.every else rng.choice(apart, (batch, 1))
        steps = np.concatenate([steps, anchor + index.offsets[-1] + near], 1)
    stacked = steps[:, :, None] + np.arange(1 - stack, 1)
    row = np.arange(batch)
    views = steps.shape[1]
    taken = actions[:, anchor : anchor + index.actions]
    made: dict[str, Any] = {
        "frames": torch.from_numpy(_draw(places[row[:, None, None], stacked], size)),
        "frames_valid": torch.ones(batch, views, dtype=torch.bool),
        "actions": torch.from_numpy(taken.astype(np.float32)),
        "action_mask": torch.ones(batch, action_dim, dtype=torch.bool),
        "task": torch.from_numpy(row % 2),
        "instruction": [("push left", "push right")[number % 2] for number in row],
        "episode": torch.from_numpy(row),
        "step": torch.full((batch,), anchor),
        "sample": torch.from_numpy(row),
    }
    if spec.shift:
        made["shift"] = torch.from_numpy(rng.integers(0, 2 * spec.shift + 1, (batch, views, 2)))
    if index.near is not None:
        inside = torch.ones(batch, index.near.count, dtype=torch.bool)
        if index.near.exclude_anchor and index.near.every:
            inside = torch.from_numpy(near != -index.offsets[-1])
        made["near_valid"] = inside
    scaled = (places / (size - SIDE)).astype(np.float32)
    if "rewards" in spec.reads:
        made["rewards"] = torch.from_numpy(scaled[:, anchor : anchor + index.actions, 0])
    if "state" in spec.reads:
        made["state"] = torch.from_numpy(scaled[row[:, None], steps[:, : len(index.offsets)]])
    for key, transform in spec.transforms.items():
        if isinstance(transform, Noise):
            made[key] = torch.from_numpy(transform.draw(ViewShape(batch, views, 1, size, size), rng))
    return made


def small_encoder(
    *, size: int = 32, stack: int = 2, embed_dim: int = 32, centred: bool = False, seed: int = 0
) -> ObservationEncoder:
    """Four narrow convolutions; `centred` on a batch of these images."""
    torch.manual_seed(seed)
    config = ObservationConfig(size=size, stack=stack, embed_dim=embed_dim, width=8, centre=centred)
    encoder = ObservationEncoder(config)
    if centred:
        frames: Tensor = step_batch(Spec.steps((0,), 0, stack=1), batch=64, size=size, seed=99)["frames"]
        encoder.centre_on(frames.flatten(0, 2))
    return encoder


def train(
    objective: StepObjective, *, steps: int, batch: int = 32, lr: float = 1e-3, size: int = 32, batches: int = 8
) -> list[LossOutput]:
    """Adam steps over a few batches in turn; what every step gave."""
    made = [step_batch(objective.sampling(), batch=batch, size=size, seed=seed) for seed in range(batches)]
    parameters = [p for group in objective.param_groups().values() for p in group]
    optimizer = torch.optim.Adam(parameters, lr)
    outputs = []
    for step in range(steps):
        outputs.append(objective(made[step % batches]))
        optimizer.zero_grad()
        torch.autograd.backward([outputs[-1].loss])
        optimizer.step()
        objective.after_step()
    return outputs


def assert_ranks_agree(objective: StepObjective, batch: dict[str, Any]) -> None:
    """Rows of two halves encoded apart and gathered give the loss of the whole batch."""
    whole = objective(batch)
    half = len(batch["sample"]) // 2
    parts = [{name: value[rows] for name, value in batch.items()} for rows in (slice(half), slice(half, None))]
    encoded = [objective.encode(part).rows for part in parts]
    gathered = Features({name: torch.cat([rows[name] for rows in encoded]) for name in encoded[0]})
    apart = objective.loss(gathered, {name: v for name, v in batch.items() if isinstance(v, Tensor)})
    torch.testing.assert_close(apart.loss, whole.loss)


def _places(actions: NDArray[np.float64], size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Top left corners (x, y) of the square before each action: [B, length, 2]."""
    place = rng.uniform(0, size - SIDE, (len(actions), 2))
    places = []
    for action in actions.swapaxes(0, 1):
        places.append(place)
        place = np.clip(place + STRIDE * action[:, :2], 0, size - SIDE)
    return np.stack(places, 1)


def _draw(places: NDArray[np.float64], size: int) -> NDArray[np.uint8]:
    """Images of the square, orange on grey: [..., size, size, 3]."""
    pixel = np.arange(size)
    # [..., size]: how much of each column or row of pixels the square covers
    covered = np.clip(np.minimum(pixel + 1, places[..., None] + SIDE) - np.maximum(pixel, places[..., None]), 0, 1)
    square = (covered[..., 1, :, None] * covered[..., 0, None, :])[..., None]
    colour, ground = np.array([255.0, 128.0, 0.0]), np.array([60.0, 60.0, 60.0])
    image: NDArray[np.uint8] = (ground + square * (colour - ground)).astype(np.uint8)
    return image
