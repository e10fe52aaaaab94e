"""Every baseline, trained on recorded episodes of a point that moves by its action, moves it to new goals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.agents import make_agent
from counterpoint.agents.base import Agent
from counterpoint.data.episode import GoalEpisode, Spaces
from counterpoint.data.replay import ReplayBuffer
from tests.agents.baseline_batches import acted
from tests.data.sampling import sampler

pytestmark = pytest.mark.release

Values = NDArray[np.float32]
NEAR = 0.15
# A third coordinate is noise, so that goals are not whole states.
SPACES = Spaces(observation=(3,), goal=(2,), action=2, success_distance=NEAR)
HIDDEN = {"hidden": [64, 64]}
SETTINGS: dict[str, dict[str, Any]] = {
    "gcbc": HIDDEN | {"lr": 1e-3, "discount": 0.8},
    "ddpg_her": HIDDEN | {"discount": 0.95},
    "qrl": HIDDEN
    | {
        "latent": 32,
        "projector": 64,
        "components": 8,
        "component_width": 8,
        "critic_lr": 1e-3,
        "actor_lr": 1e-3,
        "entropy": False,
    },
    "td3_bc": HIDDEN | {"discount": 0.95},
    "iql": HIDDEN | {"discount": 0.95, "expectile": 0.7},
    "decision_transformer": {
        "context": 5,
        "width": 32,
        "layers": 2,
        "warmup": 100,
        "lr": 1e-3,
        "target_return": 12.0,
        "return_scale": 10.0,
    },
}
RELABELS = {"gcbc", "ddpg_her", "qrl"}
"""These learn from random actions; the others need episodes that reach what they were commanded to."""


def episodes(
    rng: np.random.Generator, count: int, steps: int, policy: Callable[[Values, Values], Values]
) -> tuple[Values, Values, Values]:
    """Observations [N, T + 1, 3], actions [N, T, 2] and goals [N, 2]."""
    place, goal = rng.uniform(-1, 1, (2, count, 2)).astype(np.float32)

    def seen() -> Values:
        return np.concatenate([place, 0.1 * rng.normal(size=(count, 1))], axis=1).astype(np.float32)

    observations, actions = [seen()], []
    for _ in range(steps):
        actions.append(policy(observations[-1], goal).astype(np.float32))
        place = np.clip(place + 0.2 * actions[-1], -1, 1).astype(np.float32)
        observations.append(seen())
    return np.stack(observations, axis=1), np.stack(actions, axis=1), goal


def recorded(directed: bool) -> ReplayBuffer:
    rng = np.random.default_rng(0)

    def policy(observation: Values, goal: Values) -> Values:
        noise = rng.uniform(-1, 1, goal.shape).astype(np.float32)
        towards = (goal - observation[:, :2]) / 0.2 + noise
        return np.clip(towards, -1, 1) if directed else noise

    buffer = ReplayBuffer(SPACES, capacity=10_000)
    observations, actions, goals = episodes(rng, 500, 20, policy)
    for seen, done, goal in zip(observations, actions, goals, strict=True):
        reached = np.linalg.norm(seen[1:, :2] - goal, axis=1) < NEAR
        buffer.append(GoalEpisode(seen, seen[:, :2], goal, done, reached.astype(np.float32)))
    return buffer


def success(agent: Agent) -> float:
    agent.reset(range(100))
    rng = np.random.default_rng(1)
    seen, _, goal = episodes(rng, 100, 15, lambda *situation: acted(agent, *situation, explore=False))
    return float((np.linalg.norm(seen[:, -1, :2] - goal, axis=1) < NEAR).mean())


@pytest.mark.parametrize("name", list(SETTINGS))
def test_it_reaches_new_goals(name: str) -> None:
    agent = make_agent({"name": name} | SETTINGS[name], SPACES)
    serve = sampler(recorded(name not in RELABELS), agent.sampling(), batch_size=128, seed=0)
    assert success(agent) < 0.2
    for step in range(3000 if name == "ddpg_her" else 1000):
        agent.update(serve[step], step)
    assert success(agent) > 0.8
