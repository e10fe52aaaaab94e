"""A goal-reaching environment without a simulator, in any of the forms that make trouble."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Slider(gymnasium.Env[dict[str, Any], Any]):
    """A point on a line that actions in [0, 10] push by as much to the right; past `end` the episode is over."""

    def __init__(
        self,
        *,
        actions: spaces.Space[Any] | None = None,
        breaks: bool = False,
        end: float = np.inf,
        goal: tuple[int, ...] = (1,),
        judges: bool = True,
    ) -> None:
        box = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(-np.inf, np.inf, (2,), np.float64),
                "achieved_goal": box,
                "desired_goal": spaces.Box(-np.inf, np.inf, goal, np.float64),
            }
        )
        self.action_space = spaces.Box(0.0, 10.0, (1,), np.float32) if actions is None else actions
        self.breaks, self.end, self.judges = breaks, end, judges

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal = 0.0, 12.0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.at += float(np.asarray(action).sum())
        return self._seen(), -7.0, self.at > self.end, False, {"is_success": self.at > 5.0} if self.judges else {}

    def _seen(self) -> dict[str, Any]:
        at = np.nan if self.breaks and self.at > 0 else self.at
        return {
            "observation": np.array([at, 1.0]),
            "achieved_goal": np.array([at]),
            "desired_goal": np.array([self.goal]),
        }
