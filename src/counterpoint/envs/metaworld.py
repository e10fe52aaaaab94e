"""Meta-World v3: simulate a task, ask its scripted expert, and draw it.

Drawing is apart from stepping, so that only pictures somebody wants are paid for.

Cameras: `corner2` stands where the literature has it, at [0.75, 0.075, 0.7] (Seo et al. 2022, arXiv
2206.14244; v3 moved it, Metaworld#559). Cameras that hang upside down in the model are turned by 180 degrees
about their axis, so that pictures are upright and not mirrored, as LeRobot shows them.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.metaworld_instructions import INSTRUCTIONS, resolve_tasks
from counterpoint.envs.rendering import FastRenderer, import_mujoco, render_settings
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = [
    "CAMERAS",
    "CONTROL_HZ",
    "HORIZON",
    "STATE_DIMS",
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
            "cameras",
            found=f"{unknown[0]!r}" if unknown else "none",
            expected=f"some of {', '.join(CAMERAS)}",
            mend="choose from these",
        )
    return chosen


def check_size(size: int) -> int:
    """The size of pictures, if it can be drawn.

    Raises:
        BadInputError: When it is under 16 pixels.
    """
    if size < _SMALLEST:
        raise BadInputError(
            "size", found=f"{size}", expected=f"at least {_SMALLEST} pixels", mend="draw larger pictures"
        )
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
