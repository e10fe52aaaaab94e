"""What acts while a dm_control data set is recorded: chance, a planner of growing skill, or the expert."""

from __future__ import annotations

from typing import Literal

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.dmc import DMCTask
from counterpoint.envs.dmc_planner import Planner, PlannerConfig, planner_config
from counterpoint.envs.recording import Recording

__all__ = ["CAMERA_KEY", "Actor", "Kind", "record_dmc", "skill"]

Kind = Literal["random", "exploratory", "expert"]
CAMERA_KEY = "camera"
"""What every data set calls its pictures, whichever of the model's cameras took them, so that data sets combine."""


def skill(number: int) -> float:
    """How far an exploratory episode's behaviour has come, 0 to 1: evenly spread over any number of episodes.

    0, 1/2, 1/4, 3/4, 1/8, ... (van der Corput's sequence), so that recording more leaves what was recorded as it is.
    """
    digits = f"{number:b}"[::-1]
    return int(digits, 2) / 2 ** len(digits) if number else 0.0


class Actor:
    """Acts in one episode.

    - random: every action dimension from U(-1, 1), as for the paper's Figure 7.
    - exploratory: Premier-TACO samples the replay buffer of a DrQ-v2 agent. Here a planner stands in whose skill s
      goes from 0 to 1 over the episodes: it draws 2 + s (samples - 2) plans a round, and Gaussian noise is added whose
      standard deviation goes from `noise_first` to `noise_last`, as DrQ-v2's does.
    - expert: the planner in full, with noise of standard deviation `noise`.

    Args:
        task: The task.
        kind: How to act.
        number: Of the episode, which decides its skill.
        planner: The expert's settings; the task's own by default.
        noise: Of the expert.
        noise_first: Of an unskilled exploratory episode.
        noise_last: Of a skilled one.
    """

    def __init__(
        self,
        task: DMCTask,
        kind: Kind,
        number: int,
        *,
        planner: PlannerConfig | None = None,
        noise: float = 0.0,
        noise_first: float = 1.0,
        noise_last: float = 0.1,
    ) -> None:
        self._actions = task.action_dim
        self._planner: Planner | None = None
        self._noise = noise
        if kind == "random":
            return
        config = planner or planner_config(task.task.name)
        if kind == "exploratory":
            far = skill(number)
            samples = round(2 + far * (config.samples - 2))
            config = config.model_copy(update={"samples": samples})
            self._noise = noise_first + far * (noise_last - noise_first)
        self._planner = Planner(task, config)

    def reset(self, seed: int) -> None:
        """Begin an episode; the task has been reset."""
        self._rng = np.random.default_rng([seed, 1])
        if self._planner is not None:
            self._planner.reset(seed)

    def act(self) -> Array:
        """float32 [A] in [-1, 1]."""
        if self._planner is None:
            return self._rng.uniform(-1, 1, self._actions).astype(np.float32)
        action = self._planner.act()
        if self._noise > 0:
            action = action + self._noise * self._rng.standard_normal(self._actions)
        return np.clip(action, -1, 1).astype(np.float32)

    def close(self) -> None:
        """Free the planner."""
        if self._planner is not None:
            self._planner.close()


def record_dmc(task: DMCTask, actor: Actor, seed: int, *, steps: int) -> Recording:
    """One episode.

    Args:
        task: The simulation.
        actor: What acts.
        seed: Of the episode's beginning and the actor's chance.
        steps: Actions.

    Returns:
        `steps` frames, actions float32 [T, A], states float32 [T, P] (all the suite lets a policy observe) and
        rewards float32 [T]; without success, which the suite does not know.
    """
    task.reset(seed)
    actor.reset(seed)
    frames: list[Array] = []
    states: list[Array] = []
    actions: list[Array] = []
    rewards: list[float] = []
    for _ in range(steps):
        frames.append(task.draw())
        states.append(task.state())
        action = actor.act()
        outcome = task.step(action)
        actions.append(action)
        rewards.append(outcome.reward)
        if outcome.ended:
            break
    return Recording(
        frames={CAMERA_KEY: np.stack(frames)},
        actions=np.stack(actions),
        state=np.stack(states),
        success=None,
        rewards=np.array(rewards, np.float32),
    )
