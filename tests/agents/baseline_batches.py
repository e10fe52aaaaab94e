"""Synthetic batches and small agents for the tests of the baselines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.agents.base import Agent
from counterpoint.data.episode import Spaces
from counterpoint.data.transitions import Transitions
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import NonFiniteError
from counterpoint.training.run import load_checkpoint, save_checkpoint

STATE = Spaces(observation=(5,), goal=(2,), action=2, success_distance=0.5)
WHOLE = Spaces(observation=(4,), goal=(4,), action=2, success_distance=0.5)
IMAGE = Spaces(observation=(64, 64, 3), goal=(64, 64, 3), action=2)
CHOICE = Spaces(observation=(5,), goal=(2,), action=3, discrete=True)
SMALL = (32, 32)


def batch_of(spaces: Spaces, B: int = 32, seed: int = 0, K: int = 0) -> dict[str, Tensor]:
    """Transitions s' = s + 0.1 a (in the first coordinates), goals near and far; every key an agent may read."""
    generator = torch.Generator().manual_seed(seed)

    def seen(shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 3:
            return torch.randint(0, 256, (B, *shape), generator=generator, dtype=torch.uint8)
        return torch.randn(B, *shape, generator=generator)

    if spaces.discrete:
        action = torch.randint(0, spaces.action, (B,), generator=generator)
    else:
        action = torch.rand(B, spaces.action, generator=generator) * 2 - 1
    observation = seen(spaces.observation)
    following = seen(spaces.observation)
    if len(spaces.observation) == 1 and not spaces.discrete:
        following = observation.clone()
        following[:, : spaces.action] += 0.1 * action
    states = len(spaces.goal) == 1
    next_goal = following[:, : spaces.goal[0]] if states else following
    future = next_goal + 0.1 * seen(spaces.goal) if states else seen(spaces.goal)
    batch = {
        "observation": observation,
        "action": action,
        "next_observation": following,
        "next_goal": next_goal,
        "goal": seen(spaces.goal),
        "future_goal": future,
        "random_goal": seen(spaces.goal),
        "reward": torch.randint(0, 2, (B,), generator=generator).float(),
        "terminated": torch.rand(B, generator=generator) < 0.2,
    }
    reached = torch.rand(B, generator=generator) < 0.2
    batch |= {name: seen(spaces.goal) for name in ("value_goal", "actor_goal", "subgoal", "target_goal")}
    batch |= {"value.reached": reached, "target": seen(spaces.observation)}
    if K:
        length = torch.randint(1, K + 1, (B,), generator=generator)
        batch |= {
            "sequence_observation": torch.randn(B, K, *spaces.observation, generator=generator),
            "sequence_action": torch.rand(B, K, spaces.action, generator=generator) * 2 - 1,
            "sequence_return": torch.rand(B, K, generator=generator),
            "sequence_step": torch.arange(K).repeat(B, 1),
            "sequence_valid": torch.arange(K) >= K - length[:, None],
        }
    return batch


def parameters(agent: Agent) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": value.clone()
        for name, module in agent.modules.items()
        for key, value in module.state_dict().items()
    }


def situations(spaces: Spaces, N: int = 6, seed: int = 3) -> tuple[NDArray[Any], NDArray[Any]]:
    batch = batch_of(spaces, N, seed)
    return batch["observation"].numpy(), batch["goal"].numpy()


def acted(agent: Agent, observation: NDArray[Any], goal: NDArray[Any], *, explore: bool) -> NDArray[Any]:
    """The agent's actions in as many rows as there are situations."""
    situation = {"observation": observation, "desired_goal": goal}
    return agent.act(situation, rows=range(len(observation)), explore=explore)


def context(agent: Agent) -> int:
    """K of the sequences that an agent reads."""
    index = agent.sampling().index
    return index.sequence if isinstance(index, Transitions) else 0


def assert_learns(agent: Agent, metric: str = "loss", steps: int = 40) -> None:
    """Updates on one batch change every trained network and lower `metric`."""
    batch, before = batch_of(agent.spaces, K=context(agent)), parameters(agent)
    first = agent.evaluate(batch)[metric]
    for step in range(steps):
        metrics = agent.update(batch, step)
    assert all(value.dim() == 0 and not value.requires_grad for value in metrics.values())
    assert agent.evaluate(batch)[metric] < first
    after = parameters(agent)
    for name in agent.modules:
        keys = [key for key in before if key.startswith(f"{name}.")]
        assert any(not torch.equal(before[key], after[key]) for key in keys), name


def assert_losses_are_apart(agent: Agent, losses: Mapping[str, Tensor], keys: Mapping[str, str]) -> None:
    """The loss under `keys[name]` has a gradient in every parameter of the network `name`, and in no other."""
    for owner, key in keys.items():
        for name, module in agent.modules.items():
            trained = [each for each in module.parameters() if each.requires_grad]
            if not trained:
                continue
            found = torch.autograd.grad(losses[key], trained, retain_graph=True, allow_unused=True)
            assert all((each is not None) == (name == owner) for each in found), (key, name)


def assert_resumes(make: Any, folder: Path) -> None:
    """2N updates, acts between them, are N + save + load + N, to the bit."""
    spaces: Spaces = make(0).spaces

    def advance(agent: Agent, start: int) -> NDArray[Any]:
        for step in range(start, start + 3):
            agent.update(batch_of(spaces, seed=step, K=context(agent)), step)
            acted(agent, *situations(spaces), explore=True)
        return acted(agent, *situations(spaces), explore=True)

    whole, half, fresh = make(0), make(0), make(7)
    advance(whole, 0)
    expected = advance(whole, 3)
    advance(half, 0)
    fresh.load_state(load_checkpoint(save_checkpoint(folder, 3, half.state()))[1])
    np.testing.assert_array_equal(advance(fresh, 3), expected)
    for key, value in parameters(whole).items():
        assert torch.equal(parameters(fresh)[key], value), key


def assert_refuses(agent: Agent) -> None:
    """Not finite: parameters stay. Another agent's checkpoint, NaN, a wrong shape: one message each."""
    batch = batch_of(agent.spaces, K=context(agent))
    for key in ("action", "sequence_action", "observation", "sequence_observation", "reward"):
        if key in batch and batch[key].is_floating_point():
            batch[key] = batch[key] * torch.nan
    if agent.spaces.discrete:
        assert not batch["observation"].isfinite().any()
    before = parameters(agent)
    with pytest.raises(NonFiniteError):
        agent.update(batch, 0)
    assert all(torch.equal(before[key], value) for key, value in parameters(agent).items())
    state: Mapping[str, Any] = agent.state() | {"agent": "another"}
    with pytest.raises(BadInputError, match="another"):
        agent.load_state(dict(state))
    observation, goal = situations(agent.spaces)
    if observation.dtype != np.uint8:
        with pytest.raises(BadInputError, match="NaN"):
            acted(agent, observation * np.nan, goal, explore=False)
    with pytest.raises(BadInputError, match="shape"):
        acted(agent, observation[:, :1], goal, explore=False)


def assert_acts(agent: Agent) -> None:
    """Actions have the right shape and kind, the mode is deterministic, draws differ, evaluation draws nothing."""
    observation, goal = situations(agent.spaces)
    mode = acted(agent, observation, goal, explore=False)
    np.testing.assert_array_equal(acted(agent, observation, goal, explore=False), mode)
    batch = batch_of(agent.spaces, K=context(agent))
    before = agent.acts
    assert agent.evaluate(batch) == agent.evaluate(batch)
    assert agent.acts == before
    drawn = acted(agent, observation, goal, explore=True)
    if agent.spaces.discrete:
        assert drawn.shape == (6,)
        assert drawn.dtype == np.int64
        assert set(drawn) <= set(range(agent.spaces.action))
    else:
        assert drawn.shape == (6, agent.spaces.action)
        assert drawn.dtype == np.float32
        assert np.abs(drawn).max() <= 1
