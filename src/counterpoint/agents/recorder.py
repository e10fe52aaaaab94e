"""An episode on its way from an environment to the replay buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.agents.replay import ReplayBuffer
from counterpoint.envs.workers import Observations, Stepped

__all__ = ["Recorder"]


class Recorder:
    """One environment's part of a round: remembered a step at a time, stored when it is over.

    Args:
        observations: What all environments of the round showed at first.
        place: Which of them this one is.
    """

    def __init__(self, observations: Observations, place: int) -> None:
        self._place = place
        self.running, self.terminated = True, False
        self._seen = [observations["observation"][place].copy()]
        self._achieved = [observations["achieved_goal"][place].copy()]
        self._commanded = observations["desired_goal"][place].copy()
        self._actions: list[NDArray[Any]] = []
        self._rewards: list[float] = []

    def add(self, actions: NDArray[Any], stepped: Stepped) -> None:
        """Remember one step, unless the episode is over."""
        if not self.running:
            return
        place = self._place
        self._actions.append(np.asarray(actions[place]))
        self._rewards.append(float(stepped.reward[place]))
        self._seen.append(stepped.observations["observation"][place].copy())
        self._achieved.append(stepped.observations["achieved_goal"][place].copy())
        self.terminated = bool(stepped.terminated[place])
        self.running = not (self.terminated or stepped.truncated[place])

    def store(self, buffer: ReplayBuffer) -> None:
        """Put the whole episode into the buffer."""
        buffer.add_episode(
            np.stack(self._seen),
            np.stack(self._actions),
            np.stack(self._achieved),
            commanded=self._commanded,
            rewards=np.array(self._rewards, np.float32),
            terminated=self.terminated,
        )
