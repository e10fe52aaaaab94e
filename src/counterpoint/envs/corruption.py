"""The stochastic variant of an environment: observations are now and then another situation's.

TD InfoNCE (section 4.1) has "observations ... corrupted with probability 0.1" and does not say by what. Read here
as: each observation, the first of an episode included, is replaced with that probability by one drawn uniformly
from a pool of observations that this environment has shown. The achieved goal is part of what an agent sees of
itself, and is replaced together with it; the desired goal is not. Reward, success and distance are of the true
state.

The pool is filled before the first episode, with uniformly random actions and fixed seeds. It is therefore the same
in every process, during training and evaluation, and after a run was resumed; no policy changes it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

__all__ = ["CorruptedObservations"]

_REPLACED = ("observation", "achieved_goal")
_POOL_SEED = 2**30
_POOL_EPISODES, _POOL_STEPS = 20, 50

Observation = dict[str, NDArray[Any]]


class CorruptedObservations(gymnasium.Wrapper[Observation, Any, Observation, Any]):
    """Replaces observations by others that were seen. `info["corrupted"]` says when.

    Args:
        env: A goal environment.
        probability: Of replacing an observation.
    """

    def __init__(self, env: gymnasium.Env[Observation, Any], probability: float) -> None:
        super().__init__(env)
        self.probability = probability
        self.pool: list[Observation] = []
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `seed` decides the corruption too."""
        if not self.pool:
            self.pool = self._explore()
        if seed is not None:
            self._rng = np.random.default_rng([seed, 2])
        observation, info = self.env.reset(seed=seed, options=options)
        return self._corrupt(observation, info)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._corrupt(observation, info)
        return observation, float(reward), terminated, truncated, info

    def _corrupt(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        # Both numbers are drawn each time, so that one step's fate does not shift those after it.
        replaced, which = self._rng.random() < self.probability, self._rng.integers(len(self.pool))
        info["corrupted"] = bool(replaced)
        return ({**observation, **self.pool[which]} if replaced else observation), info

    def _explore(self) -> list[Observation]:
        """What random actions show."""
        rng = np.random.default_rng(_POOL_SEED)
        space = self.env.action_space
        pool = []
        for episode in range(_POOL_EPISODES):
            observation, _ = self.env.reset(seed=_POOL_SEED + episode)
            for _ in range(_POOL_STEPS):
                pool.append({key: observation[key] for key in _REPLACED})
                if isinstance(space, gymnasium.spaces.Discrete):
                    action: Any = int(rng.integers(space.n))
                else:
                    action = rng.uniform(-1, 1, space.shape or ()).astype(np.float32)
                observation, _, terminated, truncated, _ = self.env.step(action)
                if terminated or truncated:
                    break
        return pool
