from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from counterpoint.agents.gcbc import GCBC, GCBCConfig, gaussian_cloning_loss, gaussian_log_likelihood
from counterpoint.data.episode import Spaces
from tests.agents.baseline_batches import CHOICE, IMAGE, SMALL, STATE, acted, assert_learns, batch_of


def make(seed: int = 0, spaces: Spaces = STATE, lr: float = 3e-3) -> GCBC:
    return GCBC(GCBCConfig(hidden=SMALL, lr=lr), spaces, seed=seed)


def test_the_loss_equals_the_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    loc, action = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)
    scale = torch.rand(7, 3, generator=generator, dtype=torch.float64) + 0.1
    total = 0.0
    for m, s, a in zip(loc.tolist(), scale.tolist(), action.tolist(), strict=True):
        for mean, spread, value in zip(m, s, a, strict=True):
            density = math.exp(-((value - math.tanh(mean)) ** 2) / (2 * spread**2))
            total -= math.log(density / (spread * math.sqrt(2 * math.pi)))
    assert gaussian_cloning_loss(loc, scale, action).item() == pytest.approx(total / 7, rel=1e-12)


def test_actions_on_the_faces_of_the_box_have_a_finite_likelihood() -> None:
    loc, scale = torch.zeros(2, 1, requires_grad=True), torch.full((2, 1), 0.01)
    likelihood = gaussian_log_likelihood(loc, scale, torch.tensor([[1.0], [-1.0]]))
    torch.autograd.backward([likelihood.sum()])
    assert torch.isfinite(likelihood).all()
    assert loc.grad is not None
    assert torch.isfinite(loc.grad).all()


def test_the_likeliest_policy_has_the_mean_and_spread_of_the_data() -> None:
    actions = torch.tensor([[0.1], [0.3], [0.5], [0.9]], dtype=torch.float64)
    loc = torch.atanh(actions.mean()).requires_grad_()
    scale = actions.std(correction=0).requires_grad_()
    loss = gaussian_cloning_loss(loc.expand(4, 1), scale.expand(4, 1), actions)
    for gradient in torch.autograd.grad(loss, (loc, scale)):
        assert gradient.item() == pytest.approx(0, abs=1e-12)


def test_the_discrete_loss_is_cross_entropy() -> None:
    agent, batch = make(spaces=CHOICE), batch_of(CHOICE)
    logits = agent.actor.head(agent.actor.encode.situation(batch["observation"], batch["future_goal"]))
    total = 0.0
    for row, action in zip(logits.tolist(), batch["action"].tolist(), strict=True):
        total -= math.log(math.exp(row[action]) / sum(math.exp(value) for value in row))
    assert agent.evaluate(batch)["loss"] == pytest.approx(total / 32, rel=1e-5)


@pytest.mark.parametrize("spaces", [STATE, CHOICE, IMAGE], ids=["state", "discrete", "image"])
def test_it_learns(spaces: Spaces) -> None:
    few = spaces is IMAGE  # slow ones, with gentler steps
    assert_learns(make(spaces=spaces, lr=1e-3 if few else 3e-3), steps=8 if few else 40)


def test_it_clones_a_goal_seeking_rule() -> None:
    agent = make(lr=1e-2)
    for step in range(200):
        batch = batch_of(STATE, 64, seed=step)
        batch["action"] = torch.tanh(batch["future_goal"] - batch["observation"][:, :2])
        agent.update(batch, step)
    batch = batch_of(STATE, 64, seed=999)
    actions = acted(agent, batch["observation"].numpy(), batch["future_goal"].numpy(), explore=False)
    wanted = torch.tanh(batch["future_goal"] - batch["observation"][:, :2]).numpy()
    assert np.abs(actions - wanted).mean() < 0.1
