"""OGBench's environments (Park et al., ICLR 2025) as goal environments: `ogbench:pointmaze-medium-v0`.

A goal is a whole observation, as there. An episode is one of the environment's five tasks, a start and a goal in the
maze with noise, drawn uniformly by the episode's seed. It ends when the goal is reached: within a quarter of a cell in
`pointmaze`, so that success at some step is success at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from counterpoint.data.draws import sample_rng

PREFIX = "ogbench"
"""The package, which stands before the colon of an environment's name."""


class OGBenchGoals(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """An OGBench environment with observations `observation`, `achieved_goal` and `desired_goal`.

    OGBench draws tasks and noise from NumPy's global generator. Here they follow from the seed of `reset`, and that
    generator is left as it was.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        each = env.observation_space
        self.observation_space = spaces.Dict(observation=each, achieved_goal=each, desired_goal=each)
        self._rng, self._goal = np.random.default_rng(), np.empty(0)
        written = Path(getattr(env.unwrapped, "fullpath", ""))
        if written.parent == Path(tempfile.gettempdir()):
            written.unlink(missing_ok=True)  # the maze's model, which it leaves behind

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: of the task `options["task_id"]`, from 1 on, or of one that the seed chooses."""
        if seed is not None:
            self._rng = sample_rng(seed, 0, "task")
        task = int(self._rng.integers(self.unwrapped.num_tasks)) + 1  # type: ignore[attr-defined]
        noise, posture = map(int, self._rng.integers(2**31, size=2))
        before = np.random.get_state()
        np.random.seed(noise)
        self.env.action_space.seed(posture)  # of the random steps before a goal is observed
        try:
            seen, info = self.env.reset(seed=seed, options={"task_id": task, **(options or {})})
        finally:
            np.random.set_state(before)
        self._goal = np.asarray(info.pop("goal"))
        return self._observe(seen), {**info, "is_success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        judged = {**info, "is_success": bool(info["success"])}
        return self._observe(seen), float(reward), bool(terminated), bool(truncated), judged

    def _observe(self, seen: Any) -> dict[str, Any]:
        return {"observation": seen, "achieved_goal": seen, "desired_goal": self._goal}
