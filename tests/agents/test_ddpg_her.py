from __future__ import annotations

import numpy as np
import pytest
import torch

from counterpoint.agents.ddpg_her import (
    DDPGHER,
    DDPGHERConfig,
    RunningMoments,
    clipped_target,
    hindsight_goals,
    hindsight_reward,
)
from counterpoint.data.episode import Spaces
from tests.agents.baseline_batches import IMAGE, SMALL, STATE, acted, assert_learns, batch_of, parameters
from tests.reference import goal_baselines as reference


def make(seed: int = 0, spaces: Spaces = STATE, **changes: object) -> DDPGHER:
    return DDPGHER(DDPGHERConfig.model_validate({"hidden": SMALL} | changes), spaces, seed=seed)


def test_reward_and_target_equal_the_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    reached, wanted = torch.randn(2, 40, 2, generator=generator, dtype=torch.float64)
    reward = hindsight_reward(reached, wanted, 1.0)
    assert reward.tolist() == reference.hindsight_rewards(reached.tolist(), wanted.tolist(), 1.0)
    assert set(reward.tolist()) == {0.0, -1.0}
    value = torch.randn(40, generator=generator).double() * 20 - 5
    expected = reference.clipped_targets(reward.tolist(), value.tolist(), 0.9)
    assert clipped_target(reward, value, 0.9).tolist() == pytest.approx(expected)


def test_the_border_of_success_counts_as_success() -> None:
    assert hindsight_reward(torch.tensor([[0.0], [0.0]]), torch.tensor([[0.5], [0.6]]), 0.5).tolist() == [0, -1]


def test_images_are_reached_when_equal() -> None:
    image = torch.full((1, 4, 4, 3), 255, dtype=torch.uint8)
    other = image.clone()
    other[0, 0, 0, 0] = 254
    assert hindsight_reward(image, image, 0.0).tolist() == [0]
    assert hindsight_reward(image, other, 0.0).tolist() == [-1]


def test_the_stated_share_of_goals_is_relabelled() -> None:
    agent, batch = make(), batch_of(STATE, 20_000)
    relabelled = agent.noise(20_000, agent.generator("update", 0))["relabelled"]
    assert relabelled.float().mean().item() == pytest.approx(0.8, abs=0.015)
    goals = hindsight_goals(batch["goal"], batch["future_goal"], relabelled)
    for row in range(50):
        source = batch["future_goal"] if relabelled[row] else batch["goal"]
        assert torch.equal(goals[row], source[row])


def test_the_losses_equal_their_equations() -> None:
    agent, batch = make(discount=0.9), batch_of(STATE, 16)
    relabelled = torch.arange(16) % 2 == 0
    found = agent.losses(batch | {"relabelled": relabelled})
    goals = hindsight_goals(batch["goal"], batch["future_goal"], relabelled)
    rewards = reference.hindsight_rewards(batch["next_goal"].tolist(), goals.tolist(), 0.5)
    following = batch["next_observation"]
    with torch.no_grad():
        next_action = torch.tanh(agent.target_actor(following, goals)[0])
        next_value = agent.target_critic(following, goals, next_action)[0, :, 0].tolist()
        value = agent.critic(batch["observation"], goals, batch["action"])[0, :, 0].tolist()
        before = agent.actor(batch["observation"], goals)[0]
        reached = agent.critic(batch["observation"], goals, torch.tanh(before))[0, :, 0].tolist()
    target = reference.clipped_targets(rewards, next_value, 0.9)
    squares = [(v - y) ** 2 for v, y in zip(value, target, strict=True)]
    assert found["loss"].item() == pytest.approx(sum(squares) / 16, rel=1e-5)
    penalty = sum(u**2 for row in before.tolist() for u in row) / 32
    assert found["actor/loss"].item() == pytest.approx(-sum(reached) / 16 + penalty, rel=1e-5)


def test_moments_are_those_of_all_rows() -> None:
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([2.0, 0.5, 1e-4]) + 1.3
    moments = RunningMoments(3)
    assert torch.equal(moments(rows), rows.clamp(-5, 5))
    for start, stop in ((0, 10), (10, 11), (11, 60)):
        moments.add(rows[start:stop])
    assert moments.count == 60
    torch.testing.assert_close(moments.mean, rows.mean(0))
    torch.testing.assert_close(moments.variance, rows.var(0, correction=0), rtol=1e-4, atol=1e-7)
    deviation = torch.tensor([*rows.std(0, correction=0)[:2], 0.01])
    torch.testing.assert_close(moments(rows), (rows - rows.mean(0)) / deviation, rtol=1e-4, atol=1e-4)
    assert moments(torch.full((1, 3), 1e6)).tolist() == [[5.0, 5.0, 5.0]]


def test_an_update_counts_the_states_and_the_goals_that_it_learns_from() -> None:
    agent, batch = make(), batch_of(STATE, 64)
    relabelled = agent.noise(64, agent.generator("update", 0))["relabelled"]
    agent.update(batch, 0)
    torch.testing.assert_close(agent.moments["observation"].mean, batch["observation"].mean(0))
    goals = hindsight_goals(batch["goal"], batch["future_goal"], relabelled)
    torch.testing.assert_close(agent.moments["goal"].mean, goals.mean(0))


def test_scaled_and_moved_states_do_not_change_what_is_learned() -> None:
    batch, moved = batch_of(STATE, 64), {}
    for key, value in batch.items():
        moved[key] = value * 4 + 3 if key.endswith("observation") else value
    plain, other = make(), make()
    plain.moments["observation"].add(batch["observation"])
    other.moments["observation"].add(moved["observation"])
    for step in range(3):
        first, second = plain.update(batch, step), other.update(moved, step)
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-3, atol=1e-4)


def test_targets_follow_at_the_stated_rate() -> None:
    agent = make(tau=0.25)
    before = parameters(agent)
    agent.update(batch_of(STATE), 0)
    after = parameters(agent)
    for owner in ("actor", "critic"):
        for key in (key for key in before if key.startswith(f"{owner}.")):
            expected = 0.75 * before[f"target_{key}"] + 0.25 * after[key]
            torch.testing.assert_close(after[f"target_{key}"], expected)


@pytest.mark.slow
def test_values_count_the_steps_to_the_goal() -> None:
    # Goal reached at once, always: Q -> 0; never: Q -> -1 / (1 - gamma).
    batch = batch_of(STATE, 64)
    never = batch | {"goal": batch["goal"] + 100, "future_goal": batch["goal"] + 100}
    always = batch | {"goal": batch["next_goal"], "future_goal": batch["next_goal"]}
    for case, value in ((always, 0.0), (never, -2.0)):
        agent = make(discount=0.5, tau=0.1, critic_lr=3e-3)
        for step in range(250):
            agent.update(case, step)
        assert agent.evaluate(case)["critic/value"] == pytest.approx(value, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("spaces", [STATE, IMAGE], ids=["state", "image"])
def test_it_learns(spaces: Spaces) -> None:
    assert_learns(make(spaces=spaces), steps=6 if spaces is IMAGE else 40)


def test_it_explores_as_much_as_it_says() -> None:
    agent = make(exploration_noise=0.0)
    observation, goal = np.zeros((4000, 5), np.float32), np.zeros((4000, 2), np.float32)
    mode = acted(agent, observation, goal, explore=False)
    drawn = acted(agent, observation, goal, explore=True)
    changed = (drawn != mode).any(axis=1)
    assert changed.mean() == pytest.approx(0.3, abs=0.03)
    assert drawn[changed].std() == pytest.approx(1 / np.sqrt(3), abs=0.03)
