"""Meta-World v3: simulate a task, ask its scripted expert, and draw it.

Drawing is apart from stepping, so that only pictures somebody wants are paid for.

Cameras: `corner2` stands where the literature has it, at [0.75, 0.075, 0.7] (Seo et al. 2022, arXiv
2206.14244; v3 moved it, Metaworld#559). Cameras that hang upside down in the model are turned by 180 degrees
about their axis, so that pictures are upright and not mirrored, as LeRobot shows them.

A Meta-World task as a gymnasium environment with pixels, in the form LeRobot's evaluation expects.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.store import Cameras
from counterpoint.envs.base import Outcome, draw_each, named_cameras
from counterpoint.envs.metaworld.instructions import INSTRUCTIONS, resolve_tasks
from counterpoint.envs.rendering import FastRenderer, import_mujoco, render_settings
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = [
    "CAMERAS",
    "CONTROL_HZ",
    "HORIZON",
    "STATE_DIMS",
    "MetaWorldControl",
    "MetaWorldEnv",
    "MetaWorldTask",
    "check_cameras",
    "check_size",
    "describe_rendering",
    "versions",
]


CAMERAS = ("corner2", "corner", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
CONTROL_HZ = 80.0
"""Actions a second: five simulation steps of 2.5 ms each."""
HORIZON = 500
"""Meta-World's own limit on steps an episode."""
STATE_DIMS = 4
"""The first numbers of an observation are the robot's own: hand x, y, z in metres, gripper opening."""

_CORNER2 = (0.75, 0.075, 0.7)
_SMALLEST = 16


class MetaWorldTask:
    """One task with randomly placed objects, its scripted expert and some cameras.

    The scene that follows `reset(seed)` depends on the seed alone. The graphics context is made by the first
    `draw`, in the process that calls it.

    Args:
        task: A name of `INSTRUCTIONS`; `-v3` may be left away.
        cameras: Which cameras `draw` uses, of `CAMERAS`.
        size: Height and width of the pictures, in pixels; at least 16.

    Raises:
        BadInputError: When the task or a camera is unknown or the size too small.
        MissingExtraError: When Meta-World is not installed.
    """

    def __init__(self, task: str, *, cameras: Sequence[str] = ("corner2",), size: int = 112) -> None:
        (self.task,) = resolve_tasks([task])
        self.cameras = check_cameras(cameras)
        self.size = check_size(size)
        self.instruction = INSTRUCTIONS[self.task]
        self._mujoco = import_mujoco()
        environments, policies = _import_metaworld()
        # This seed only spares numpy's global generator; reset(seed) sets the scene.
        self._env = environments[f"{self.task}-goal-observable"](seed=0)
        self._env.seeded_rand_vec, self._env._freeze_rand_vec = True, False
        self._policy = policies[self.task]()
        _mend_cameras(self._mujoco, self._env.model)
        self._renderer: FastRenderer | None = None

    def reset(self, seed: int) -> Array:
        """Place the objects anew.

        Returns:
            The observation, float64 [39]: hand position (3, metres), gripper opening (1, 0 closed to 1 open),
            objects (14), the same 18 numbers one step before, goal (3).
        """
        self._env.seed(int(seed))
        observation: Array = self._env.reset()[0]
        return observation

    def step(self, action: Array) -> tuple[Array, float, bool]:
        """Act for 1/80 s.

        Args:
            action: float [4] in [-1, 1]: hand displacement (in centimetres of the target's motion), gripper
                effort.

        Returns:
            The observation [39], Meta-World's reward (0 to 10), and whether the task is solved at this
            moment.
        """
        observation, reward, _, _, info = self._env.step(action)
        return observation, float(reward), bool(info["success"])

    def expert(self, observation: Array) -> Array:
        """The scripted expert's action, clipped to [-1, 1]: float32 [4]."""
        with warnings.catch_warnings():  # of asking for more than the simulator allows
            warnings.simplefilter("ignore", UserWarning)
            action = self._policy.get_action(observation)
        return np.asarray(action).clip(-1.0, 1.0).astype(np.float32)

    def draw(self) -> dict[str, Array]:
        """The scene as it stands: camera name -> uint8 [size, size, 3], RGB, upright."""
        renderer = self._rendering()
        return {camera: renderer.draw(camera) for camera in self.cameras}

    def close(self) -> None:
        """Free the graphics context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _rendering(self) -> FastRenderer:
        if self._renderer is None:
            self._renderer = FastRenderer(self._env.model, self._env.data, self.size)
        return self._renderer


def check_cameras(cameras: Sequence[str]) -> tuple[str, ...]:
    """Camera names without repeats.

    Raises:
        BadInputError: When one is unknown or there is none.
    """
    chosen = tuple(dict.fromkeys(cameras))
    unknown = [camera for camera in chosen if camera not in CAMERAS]
    if unknown or not chosen:
        raise BadInputError(
            "cameras", f"{unknown[0]!r}" if unknown else "none", f"some of {', '.join(CAMERAS)}", "choose from these"
        )
    return chosen


def check_size(size: int) -> int:
    """The size of pictures, if it can be drawn.

    Raises:
        BadInputError: When it is under 16 pixels.
    """
    if size < _SMALLEST:
        raise BadInputError("size", f"{size}", f"at least {_SMALLEST} pixels", "draw larger pictures")
    return size


def describe_rendering(cameras: Sequence[str] = ("corner2",), size: int = 112) -> dict[str, Any]:
    """What decides pixels, beside the scene: settings, camera poses, device, and a canary.

    The canary is the SHA-256 of one picture of one fixed scene, whatever the arguments. Where it differs
    between two machines or versions, so do pixels.

    Args:
        cameras: Cameras whose poses are told.
        size: Height and width of the pictures that are described.
    """
    scene = MetaWorldTask("drawer-open-v3", cameras=("corner2",), size=112)
    try:
        scene.reset(0)
        digest = hashlib.sha256(scene.draw()["corner2"].tobytes()).hexdigest()
        return {
            **render_settings(size),
            "device": scene._rendering().device,
            "camera_pose": {camera: _pose(scene._env.model.camera(camera)) for camera in cameras},
            "canary": {"task": scene.task, "seed": 0, "camera": "corner2", "size": 112, "sha256": digest},
        }
    finally:
        scene.close()


def versions() -> dict[str, str]:
    """Versions of what decides states and pixels."""
    return {name: metadata.version(name) for name in ("metaworld", "mujoco", "gymnasium", "numpy")}


def _import_metaworld() -> tuple[Any, Any]:
    try:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
        from metaworld.policies import ENV_POLICY_MAP
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "metaworld", "sim") from None
    return ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE, ENV_POLICY_MAP


def _mend_cameras(mujoco: Any, model: Any) -> None:
    """Put corner2 where the literature has it, and turn what hangs upside down in the world."""
    model.camera("corner2").pos[:] = _CORNER2
    for number in range(model.ncam):
        up = model.cam_mat0[number].reshape(3, 3)[2, 1]
        if model.cam_bodyid[number] == 0 and up < 0:
            turned = np.empty(4)
            mujoco.mju_mulQuat(turned, model.cam_quat[number], np.array([0.0, 0.0, 0.0, 1.0]))
            model.cam_quat[number] = turned


def _pose(view: Any) -> dict[str, list[float]]:
    return {"position": np.round(view.pos, 6).tolist(), "quaternion": np.round(view.quat, 6).tolist()}


try:
    import gymnasium
    from gymnasium import spaces
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None


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
        self, task: str, *, cameras: Sequence[str] = ("corner2",), size: int = 112, max_episode_steps: int = HORIZON
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


class MetaWorldControl:
    """A Meta-World task. Success is being solved at this moment; the reward is Meta-World's.

    Args:
        task: A task's name; `-v3` may be left away.
        camera: A camera of `metaworld.CAMERAS`, or several; `corner2` by default.
        size: Height and width of the pictures, in pixels.
        repeat: Control steps of 1/80 s that an action lasts.
        control_steps: Of an episode; 200 in Premier-TACO's data (Appendix C), 500 at most.
    """

    action_dim = 4
    state_dim = 4

    def __init__(
        self, task: str, *, camera: Cameras = None, size: int, repeat: int = 1, control_steps: int = 200
    ) -> None:
        if repeat < 1:
            raise BadInputError("repeat", f"{repeat}", "1 or more", "2 halves the rate")
        if not 1 <= control_steps <= HORIZON:
            raise BadInputError("steps", f"{control_steps}", f"1 to {HORIZON}", "take 200, as the paper")
        self._simulation = MetaWorldTask(task, cameras=named_cameras(camera, "corner2"), size=size)
        self._repeat, self._control_steps, self.horizon = repeat, control_steps, -(-control_steps // repeat)
        self.name = f"metaworld/{self._simulation.task.removesuffix('-v3')}"
        self.instruction = self._simulation.instruction

    def reset(self, seed: int) -> None:
        """Place the objects by `seed`."""
        self._observation, self._left = self._simulation.reset(seed), self._control_steps

    def draw(self) -> Array:
        """uint8 [size, size, 3], or [C, size, size, 3]."""
        return draw_each(self._simulation.draw().__getitem__, self._simulation.cameras)

    def state(self) -> Array:
        """Hand position in metres and gripper opening: float32 [4]."""
        return np.asarray(self._observation[: self.state_dim], np.float32)

    def step(self, action: Array) -> Outcome:
        """Act for `repeat` control steps; rewards are summed, and solved at any of them is solved.

        The last action of an episode is shorter where `repeat` does not divide its steps, as in recorded data.
        """
        total, success = 0.0, False
        lasts = min(self._repeat, self._left)
        self._left -= lasts
        for _ in range(lasts):
            self._observation, reward, solved = self._simulation.step(action)
            total, success = total + reward, success or solved
        return Outcome(total, success)

    def close(self) -> None:
        """Free the graphics context."""
        self._simulation.close()
