"""A small encoder, and a few optimiser steps on one batch."""

from __future__ import annotations

from typing import Any

import torch

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.objectives.steps import StepObjective
from tests.objectives.steps import step_batch

__all__ = ["SIZE", "fitted", "small_encoder", "two_spaces"]

SIZE = 24


def small_encoder(*, stack: int = 2, seed: int = 0) -> ObservationEncoder:
    """Centred, since embeddings of images around x / 255 - 0.5 begin almost equal, and learn late."""
    torch.manual_seed(seed)
    config = ObservationConfig(size=SIZE, stack=stack, embed_dim=16, width=8, centre=True)
    encoder = ObservationEncoder(config)
    encoder.centre_on(step_batch(Spec.steps((0,), 0), batch=32, size=SIZE)["frames"].flatten(0, 2))
    return encoder


def two_spaces(objective: StepObjective, *, batch: int = 8, seed: int = 0) -> dict[str, Any]:
    """A batch whose odd rows have two action dimensions of three."""
    made = step_batch(objective.sampling(), batch=batch, size=SIZE, action_dim=3, seed=seed)
    made["action_mask"][1::2, 2] = False
    made["actions"] *= made["action_mask"][:, None]
    return made


def fitted(
    objective: StepObjective, batch: dict[str, Any], *, steps: int, lr: float = 3e-3
) -> tuple[list[dict[str, float]], set[str]]:
    """Metrics of every step, the loss among them, and the names of the parameters that changed."""
    before = {name: value.detach().clone() for name, value in objective.named_parameters()}
    optimizer = torch.optim.Adam([p for p in objective.parameters() if p.requires_grad], lr=lr)
    history = []
    for _ in range(steps):
        output = objective(batch)
        optimizer.zero_grad()
        torch.autograd.backward([output.loss])
        optimizer.step()
        objective.after_step()
        scalars = {"loss": output.loss.detach()} | output.metrics
        history.append({name: float(value) for name, value in scalars.items()})
    changed = {name for name, value in objective.named_parameters() if not torch.equal(value, before[name])}
    return history, changed
