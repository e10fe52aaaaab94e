from __future__ import annotations

import math

import pytest
import torch

from counterpoint.agents.extraction import advantage_weight
from counterpoint.agents.iql import IQL, IQLConfig, expectile_loss
from counterpoint.data.episode import Spaces
from tests.agents.baseline_batches import IMAGE, SMALL, STATE, acted, assert_learns, batch_of
from tests.reference import goal_baselines as reference


def make(seed: int = 0, spaces: Spaces = STATE, **changes: object) -> IQL:
    return IQL(IQLConfig.model_validate({"hidden": SMALL} | changes), spaces, seed=seed)


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.9])
def test_the_expectile_loss_equals_the_loop(expectile: float) -> None:
    gap = torch.randn(60, dtype=torch.float64)
    expected = reference.expectile_loss(gap.tolist(), expectile)
    assert expectile_loss(gap, expectile).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_the_expectile_of_a_half_is_the_mean_and_higher_ones_lie_higher() -> None:
    values = torch.tensor([0.0, 1.0, 2.0, 7.0], dtype=torch.float64)

    def minimiser(expectile: float) -> float:
        grid = torch.linspace(0, 7, 7001, dtype=torch.float64)
        losses = torch.stack([expectile_loss(values - each, expectile) for each in grid])
        return grid[losses.argmin()].item()

    assert minimiser(0.5) == pytest.approx(2.5, abs=1e-3)
    assert 2.5 < minimiser(0.9) < minimiser(0.99) < 7


def test_weights_equal_the_loop_and_stop_at_the_largest() -> None:
    advantage = torch.tensor([-1.0, 0.0, 0.3, 5.0, 1e4], dtype=torch.float64, requires_grad=True)
    found = advantage_weight(advantage, 10, 100)
    expected = reference.advantage_weights(advantage.tolist()[:4], 10, 100)
    assert found.tolist()[:4] == pytest.approx(expected)
    assert found[-1] == 100
    assert not found.requires_grad


def test_the_losses_equal_their_equations() -> None:
    agent, batch = make(discount=0.9, reward_shift=-1.0, temperature=2.0), batch_of(STATE, 10)
    found = agent.losses(batch)
    with torch.no_grad():
        best = agent.target_critic(batch["observation"], batch["goal"], batch["action"])[..., 0].T.tolist()
        twins = agent.critic(batch["observation"], batch["goal"], batch["action"])[..., 0].T.tolist()
        value = agent.value_network(batch["observation"], batch["goal"])[0, :, 0].tolist()
        following = agent.value_network(batch["next_observation"], batch["goal"])[0, :, 0].tolist()
        loc, scale = agent.actor.head(agent.actor.encode.situation(batch["observation"], batch["goal"]))
    gaps = [min(q) - v for q, v in zip(best, value, strict=True)]
    assert found["value/loss"].item() == pytest.approx(reference.expectile_loss(gaps, 0.9), rel=1e-4)
    critic = actor = 0.0
    weights = reference.advantage_weights(gaps, 2.0, 100)
    for row in range(10):
        goes_on = 0.0 if batch["terminated"][row] else 1.0
        target = batch["reward"][row].item() - 1 + 0.9 * goes_on * following[row]
        critic += sum((q - target) ** 2 for q in twins[row]) / 20
        for m, s, a in zip(loc[row].tolist(), scale[row].tolist(), batch["action"][row].tolist(), strict=True):
            spread = s + 0.01
            density = math.exp(-((a - math.tanh(m)) ** 2) / (2 * spread**2))
            actor -= weights[row] * math.log(density / (spread * math.sqrt(2 * math.pi))) / 10
    assert found["loss"].item() == pytest.approx(critic, rel=1e-4)
    assert found["actor/loss"].item() == pytest.approx(actor, rel=1e-4)


@pytest.mark.parametrize("metric", ["loss", "value/loss", "actor/loss"])
def test_it_learns(metric: str) -> None:
    assert_learns(make(temperature=0.0), metric)


@pytest.mark.slow
def test_it_learns_from_images() -> None:
    assert_learns(make(spaces=IMAGE), steps=6)


def test_it_prefers_the_better_of_two_actions() -> None:
    # Half the data go right and are rewarded, half go left and are not.
    agent, batch = make(lr=1e-2, discount=0.5, tau=0.05), batch_of(STATE, 64)
    side = torch.where(torch.arange(64) % 2 == 0, 0.8, -0.8)
    batch["observation"] = batch["next_observation"] = torch.zeros(64, 5)
    batch["goal"] = torch.zeros(64, 2)
    batch["action"] = side[:, None].expand(64, 2)
    batch["reward"] = (side > 0).float()
    batch["terminated"] = torch.ones(64, dtype=torch.bool)
    for step in range(120):
        agent.update(batch, step)
    actions = acted(agent, batch["observation"][:1].numpy(), batch["goal"][:1].numpy(), explore=False)
    assert (actions > 0.5).all()
