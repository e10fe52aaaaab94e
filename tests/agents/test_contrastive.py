"""Tests of all contrastive agents: learning, resuming, refusing, images and discrete actions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.agents.contrastive import ContrastiveAgent, log_ratio
from counterpoint.agents.networks import CategoricalActor
from counterpoint.data.episode import Spaces
from counterpoint.data.transitions import Transitions
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import NonFiniteError
from counterpoint.training.run import load_checkpoint, save_checkpoint
from tests.agents.baseline_batches import acted
from tests.agents.point_world import AGENTS, IMAGES, STATES, point_batch, small_agent
from tests.marks import quick

DISCRETE = Spaces(observation=(2,), goal=(2,), action=4, discrete=True)
every_agent = pytest.mark.parametrize("name", AGENTS)


def parameters(agent: ContrastiveAgent) -> dict[str, Tensor]:
    return {
        f"{part}.{name}": value.detach().clone()
        for part, module in agent.modules.items()
        for name, value in module.state_dict().items()
    }


def test_the_ratio_of_densities_is_that_of_a_plain_loop_and_ignores_a_function_of_the_situation() -> None:
    generator = torch.Generator().manual_seed(0)
    phi, psi, others = (torch.randn(2, rows, 3, generator=generator) for rows in (4, 4, 5))
    found = log_ratio(phi, psi, others)
    for i in range(4):
        own = min(float(phi[twin, i] @ psi[twin, i]) for twin in range(2))
        rest = [min(float(phi[twin, i] @ others[twin, j]) for twin in range(2)) for j in range(5)]
        assert found[i].item() == pytest.approx(own - math.log(sum(map(math.exp, rest)) / 5), abs=1e-5)
    free = torch.randn(4, 1, generator=generator).expand(2, 4, 1)  # c(s, a), with 1 as the last element of psi
    shifted = (torch.cat([phi, free], dim=-1), *(functional.pad(one, (0, 1), value=1.0) for one in (psi, others)))
    torch.testing.assert_close(log_ratio(*shifted), found)


def train(agent: ContrastiveAgent, steps: range, spaces: Spaces = STATES, rows: int = 32) -> None:
    for step in steps:
        agent.update(point_batch(step, spaces, rows=rows), step)


@pytest.mark.parametrize("name", quick(["td_infonce", "contrastive_rl"], AGENTS))
def test_training_changes_every_parameter_and_lowers_the_critic_loss(name: str) -> None:
    agent = small_agent(name, critic_lr=3e-3, discount=0.5, temperature=0.2)
    held_out = point_batch(10**6, rows=64)
    before, loss = parameters(agent), agent.evaluate(held_out)["critic/loss"]
    train(agent, range(150), rows=64)
    after = parameters(agent)
    assert agent.evaluate(held_out)["critic/loss"] < loss - 0.05
    assert all(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.slow
@every_agent
def test_the_actor_learns_to_reach_under_a_critic_that_stands_still(name: str) -> None:
    agent = small_agent(name, critic_lr=3e-3, discount=0.5, temperature=0.2)
    train(agent, range(100), rows=64)
    held_out = point_batch(10**6, rows=64)
    before = agent.evaluate(held_out)["actor/loss"]
    for group in agent.optimizers["critic"].param_groups:
        group["lr"] = 0.0
    for group in agent.optimizers["actor"].param_groups:
        group["lr"] = 3e-3
    critic = parameters(agent)["critic.phi.weights.0"]
    train(agent, range(100, 160), rows=64)
    assert torch.equal(critic, parameters(agent)["critic.phi.weights.0"])
    assert agent.evaluate(held_out)["actor/loss"] < before


@every_agent
def test_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole, first, second = (small_agent(name, seed=seed) for seed in (3, 3, 99))
    train(whole, range(6))
    train(first, range(3))
    save_checkpoint(tmp_path, 3, first.state())
    _, state = load_checkpoint(tmp_path / "step-00000003")
    second.load_state(state)
    train(second, range(3, 6))
    one, other = parameters(whole), parameters(second)
    assert all(torch.equal(one[key], other[key]) for key in one)
    seen = np.zeros((3, 2), np.float32)
    np.testing.assert_array_equal(acted(whole, seen, seen, explore=True), acted(second, seen, seen, explore=True))


@every_agent
def test_refuses_the_checkpoint_of_another_agent(name: str) -> None:
    other = next(key for key in AGENTS if key != name)
    with pytest.raises(BadInputError, match=other):
        small_agent(name).load_state(small_agent(other).state())


@every_agent
def test_a_loss_that_is_not_finite_leaves_parameters_alone(name: str) -> None:
    agent = small_agent(name)
    train(agent, range(2))
    before = parameters(agent)
    batch = point_batch(7)
    batch["observation"][3, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=name):
        agent.update(batch, 2)
    after = parameters(agent)
    assert all(torch.equal(before[key], after[key]) for key in before)


@every_agent
def test_evaluation_changes_nothing(name: str) -> None:
    agent = small_agent(name)
    batch = point_batch(0)
    before = parameters(agent)
    assert agent.evaluate(batch) == agent.evaluate(batch)
    assert all(torch.equal(before[key], value) for key, value in parameters(agent).items())


@every_agent
@pytest.mark.parametrize("goals", ["random", "future", "half"])
def test_asks_for_the_keys_it_reads_and_no_others(name: str, goals: str) -> None:
    agent = small_agent(name, actor_goals=goals, tail="clip", discount=0.9)
    wanted = agent.sampling()
    batch = {key: value for key, value in point_batch(0).items() if key in wanted.reads}
    metrics = agent.update(batch, 0)
    assert {"loss", "critic/loss", "actor/loss", "categorical_accuracy", "logits_pos", "logits_neg"} == set(metrics)
    assert all(value.shape == () and not value.requires_grad for value in metrics.values())
    assert wanted.index == Transitions(discount=0.9, tail="clip")
    for key in wanted.reads:
        with pytest.raises(KeyError, match=key):
            agent.update({other: value for other, value in batch.items() if other != key}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["td_infonce"], AGENTS))
def test_bfloat16_products_keep_float32_parameters_and_nearly_the_losses(name: str) -> None:
    settings: dict[str, Any] = {"critic_lr": 3e-3, "discount": 0.5, "temperature": 0.2}
    exact, half = small_agent(name, **settings), small_agent(name, bf16=True, **settings)
    batch = point_batch(0)
    for key, value in exact.evaluate(batch).items():
        if key.endswith("loss"):
            assert half.evaluate(batch)[key] == pytest.approx(value, rel=2e-2, abs=2e-2)
    before, loss = parameters(half), half.evaluate(batch)["critic/loss"]
    for step in range(60):
        half.update(batch, step)
    assert half.evaluate(batch)["critic/loss"] < loss
    assert all(value.dtype == torch.float32 for value in parameters(half).values())
    assert all(not torch.equal(before[key], value) for key, value in parameters(half).items())


@every_agent
def test_actions_lie_in_the_box_and_only_exploring_draws(name: str) -> None:
    agent = small_agent(name)
    seen, goal = np.random.default_rng(0).normal(size=(2, 50, 2)).astype(np.float32)
    drawn = [acted(agent, seen, goal, explore=True) for _ in range(2)]
    modes = [acted(agent, seen, goal, explore=False) for _ in range(2)]
    assert not np.array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(modes[0], modes[1])
    for action in (*drawn, *modes):
        assert action.shape == (50, 2)
        assert action.dtype == np.float32
        assert np.abs(action).max() <= 1


@pytest.mark.slow
@every_agent
def test_discrete_actions(name: str) -> None:
    agent = small_agent(name, DISCRETE, critic_lr=3e-3, discount=0.5, temperature=0.2)
    before, held_out = parameters(agent), point_batch(10**6, DISCRETE, rows=64)
    loss = agent.evaluate(held_out)["critic/loss"]
    train(agent, range(100), DISCRETE, rows=64)
    assert agent.evaluate(held_out)["critic/loss"] < loss
    assert all(not torch.equal(before[key], value) for key, value in parameters(agent).items())
    action = acted(agent, np.zeros((5, 2), np.float32), np.ones((5, 2), np.float32), explore=True)
    assert action.dtype == np.int64
    assert action.shape == (5,)
    assert set(action.tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["td_infonce", "contrastive_rl"])
def test_discrete_actor_loss_is_the_expectation_over_actions(name: str) -> None:
    agent = small_agent(name, DISCRETE, actor_goals="random", behaviour_cloning=0.3)
    batch = point_batch(0, DISCRETE, rows=6)
    state, goal = batch["observation"], batch["random_goal"]
    psi = agent.critic.encode_futures(goal).detach()
    assert isinstance(agent.actor, CategoricalActor)
    policy = agent.actor(torch.cat([state, goal], 1)).detach().exp()
    expected = 0.0
    for i in range(6):
        for a in range(4):
            one_hot = torch.eye(4)[a][None]
            parts = [state[i : i + 1], one_hot] + ([goal[i : i + 1]] if agent.goal_conditioned else [])
            logits = torch.einsum("tid,tjd->ijt", agent.critic.encode_actions(*parts).detach(), psi)[0].amin(-1)
            badness = logits.logsumexp(0) - logits[i] if name == "td_infonce" else -logits[i]
            expected += 0.7 * float(policy[i, a]) * float(badness) / 6
        expected -= 0.3 * float(policy[i, batch["action"][i]].log()) / 6
    found = agent.actor_loss(agent.features(batch), batch, {})
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


@every_agent
def test_images(name: str) -> None:
    agent = small_agent(name, IMAGES, discount=0.5)
    before = parameters(agent)
    assert len(agent.critic.encode.trunks) == 1
    train(agent, range(2), IMAGES, rows=8)
    assert all(not torch.equal(before[key], value) for key, value in parameters(agent).items())
    seen = point_batch(0, IMAGES, rows=3)["observation"].numpy()
    assert acted(agent, seen, seen, explore=False).shape == (3, 2)
    for module in agent.modules.values():  # fused optimisers read gradients in the memory order of parameters
        assert all(p.grad is None or p.grad.stride() == p.stride() for p in module.parameters())


def test_the_actor_does_not_train_the_trunk_and_the_critic_does() -> None:
    agent = small_agent("td_infonce", IMAGES)
    batch = point_batch(0, IMAGES, rows=4)
    batch |= {"next_noise": torch.zeros(4, 2), "actor_noise": torch.zeros(4, 2)}
    features = agent.features(batch)
    critic, _, known = agent.critic_loss(features, batch)
    trunk = list(agent.critic.encode.parameters())
    actor = agent.actor_loss(features, batch, known)
    assert all(g is None for g in torch.autograd.grad(actor, trunk, allow_unused=True, retain_graph=True))
    assert all(bool(g.abs().sum() > 0) for g in torch.autograd.grad(critic, trunk))


def test_images_of_states_with_goals_as_numbers() -> None:
    spaces = Spaces(observation=(64, 64, 3), goal=(2,), action=2)
    agent = small_agent("td_infonce", spaces)
    batch = point_batch(0, IMAGES, rows=4) | {
        key: value for key, value in point_batch(0, rows=4).items() if key.endswith("goal")
    }
    metrics = agent.update(batch, 0)
    assert bool(torch.isfinite(metrics["loss"]))


@every_agent
def test_the_seed_decides_everything(name: str) -> None:
    agents = [small_agent(name, seed=seed) for seed in (1, 1, 2)]
    for agent in agents:
        train(agent, range(2))
    one, same, other = map(parameters, agents)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["actor.body.weights.0"], other["actor.body.weights.0"])


@pytest.mark.slow
def test_td_infonce_learns_to_steer_a_point_to_its_goal() -> None:
    agent = small_agent("td_infonce", hidden=(64, 64), discount=0.9, actor_lr=2e-3, critic_lr=2e-3)
    draws = np.random.default_rng(0)
    start, goal = draws.uniform(-0.9, 0.9, (2, 200, 2)).astype(np.float32)

    def distance_left() -> float:
        place = start
        for _ in range(12):
            place = place + 0.2 * acted(agent, place, goal, explore=False)
        return float(np.linalg.norm(place - goal, axis=1).mean())

    untrained = distance_left()
    train(agent, range(200), rows=64)
    assert distance_left() < min(0.4, untrained / 2)
