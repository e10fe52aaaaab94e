"""A Meta-World task as a gymnasium environment with pixels, in the form LeRobot's evaluation expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.metaworld import CONTROL_HZ, HORIZON, STATE_DIMS, MetaWorldTask
from counterpoint.errors import MissingExtraError

try:
    import gymnasium
    from gymnasium import spaces
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

__all__ = ["MetaWorldEnv"]


class MetaWorldEnv(gymnasium.Env[dict[str, Any], Array]):
    """Pixels and proprioception in, hand motion out, `info["is_success"]` at every step.

    Observations are `{"pixels": {camera: uint8 [size, size, 3]}, "agent_pos": float64 [4]}` (hand position in
    metres, gripper opening). Actions are float32 [4] in [-1, 1]. The reward is Meta-World's. An episode is
    cut off after `max_episode_steps`; success does not end it.

    Args:
        task: A task's name; `-v3` may be left away.
        cameras: Which cameras to show; the first is what `render` returns.
        size: Height and width of the pictures, in pixels.
        max_episode_steps: Steps until the episode is cut off, at most 500.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": int(CONTROL_HZ)}  # noqa: RUF012 (gymnasium's own type)
    render_mode = "rgb_array"

    def __init__(
        self,
        task: str,
        *,
        cameras: Sequence[str] = ("corner2",),
        size: int = 112,
        max_episode_steps: int = HORIZON,
    ) -> None:
        self._simulation = MetaWorldTask(task, cameras=cameras, size=size)
        self.task = self._simulation.task
        self.task_description = self._simulation.instruction
        self._max_episode_steps = min(max_episode_steps, HORIZON)
        self._steps = 0
        picture = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Dict(dict.fromkeys(self._simulation.cameras, picture)),
                "agent_pos": spaces.Box(-np.inf, np.inf, (STATE_DIMS,), np.float64),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Place the objects by `seed`, or anew at random."""
        super().reset(seed=seed)
        self._steps = 0
        scene = int(self.np_random.integers(2**31)) if seed is None else seed
        self._raw = self._simulation.reset(scene)
        return self._observation(), {"is_success": False}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Act for 1/80 s."""
        self._raw, reward, solved = self._simulation.step(action)
        self._steps += 1
        cut_off = self._steps >= self._max_episode_steps
        return self._observation(), reward, False, cut_off, {"is_success": solved}

    def expert_action(self) -> Array:
        """What the scripted expert would do now: float32 [4]."""
        return self._simulation.expert(self._raw)

    def render(self) -> Array:
        """The scene from the first camera: uint8 [size, size, 3]."""
        return self._simulation.draw()[self._simulation.cameras[0]]

    def close(self) -> None:
        """Free the graphics context."""
        self._simulation.close()

    def _observation(self) -> dict[str, Any]:
        return {"pixels": self._simulation.draw(), "agent_pos": self._raw[:STATE_DIMS].copy()}
