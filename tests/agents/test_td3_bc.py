from __future__ import annotations

import pytest
import torch

from counterpoint.agents.td3_bc import TD3BC, TD3BCConfig, td_target
from counterpoint.data.episode import Spaces
from counterpoint.objectives.td3_bc_pretraining import smoothed_action, td3_bc_actor_loss
from tests.agents.baseline_batches import IMAGE, SMALL, STATE, assert_learns, batch_of, parameters
from tests.reference import goal_baselines as reference


def make(seed: int = 0, spaces: Spaces = STATE, **changes: object) -> TD3BC:
    return TD3BC(TD3BCConfig.model_validate({"hidden": SMALL} | changes), spaces, seed=seed)


def test_the_actor_loss_equals_the_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(9, generator=generator, dtype=torch.float64)
    action, data = torch.randn(2, 9, 3, generator=generator, dtype=torch.float64)
    expected = reference.td3_bc_actor_loss(value.tolist(), action.tolist(), data.tolist(), 2.5)
    assert td3_bc_actor_loss(value, action, data, alpha=2.5).item() == pytest.approx(expected, rel=1e-12)


def test_the_actor_loss_does_not_depend_on_the_scale_of_values() -> None:
    value, action = torch.randn(9), torch.randn(9, 2)
    losses = [td3_bc_actor_loss(scale * value, action, -action, alpha=2.5) for scale in (1.0, 1e3)]
    torch.testing.assert_close(*losses)
    assert td3_bc_actor_loss(torch.zeros(9), action, action, alpha=2.5) == 0


def test_the_target_ends_with_the_task() -> None:
    target = td_target(torch.tensor([1.0, 1.0]), torch.tensor([True, False]), torch.tensor([4.0, 4.0]), 0.5)
    assert target.tolist() == [1.0, 3.0]


def test_noise_and_action_are_clipped() -> None:
    noise = torch.tensor([[1.0], [-1.0], [100.0], [-100.0], [100.0]])
    action = torch.tensor([[0.0], [0.0], [0.0], [0.0], [0.9]])
    found = smoothed_action(action, noise, scale=0.2, limit=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.2], [-0.2], [0.5], [-0.5], [1.0]]))


def test_the_critic_loss_equals_its_equation() -> None:
    agent, batch = make(discount=0.9), batch_of(STATE, 12)
    noise = torch.randn(12, 2)
    with torch.no_grad():
        mode = torch.tanh(agent.target_actor(batch["next_observation"], batch["goal"])[0])
        action = (mode + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
        twins = agent.target_critic(batch["next_observation"], batch["goal"], action)[..., 0].T.tolist()
        values = agent.critic(batch["observation"], batch["goal"], batch["action"])[..., 0].T.tolist()
    total = 0.0
    for row in range(12):
        goes_on = 0.0 if batch["terminated"][row] else 1.0
        target = batch["reward"][row].item() + 0.9 * goes_on * min(twins[row])
        total += sum((value - target) ** 2 for value in values[row]) / 12
    assert agent.losses(batch | {"noise": noise})["loss"].item() == pytest.approx(total, rel=1e-5)


def test_the_policy_moves_at_every_second_step() -> None:
    agent, batch = make(), batch_of(STATE)
    before = parameters(agent)
    agent.update(batch, 0)
    after = parameters(agent)
    changed = {key.partition(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert changed == {"critic"}
    agent.update(batch, 1)
    after = parameters(agent)
    changed = {key.partition(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert changed == {"critic", "actor", "target_critic", "target_actor"}


@pytest.mark.slow
@pytest.mark.parametrize("spaces", [STATE, IMAGE], ids=["state", "image"])
def test_it_learns(spaces: Spaces) -> None:
    assert_learns(make(spaces=spaces), steps=6 if spaces is IMAGE else 40)


def test_with_little_weight_on_values_it_clones() -> None:
    assert_learns(make(alpha=1e-6, lr=3e-3), "actor/cloning", steps=60)
