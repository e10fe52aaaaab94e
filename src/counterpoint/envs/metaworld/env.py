"""Meta-World v3 as `CameraEnv`s with their scripted experts.

`corner2` is where the literature has it, at [0.75, 0.075, 0.7] (Seo et al. 2022, arXiv 2206.14244; v3 moved it,
Metaworld#559). Cameras that are upside down in the model are turned by 180 degrees about their axis, so that images
are upright and not mirrored, as LeRobot shows them.
"""

from __future__ import annotations

import warnings
from typing import Any, Unpack

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import MujocoEnv, Options
from counterpoint.envs.metaworld.instructions import INSTRUCTIONS, resolve_tasks
from counterpoint.envs.rendering import import_mujoco
from counterpoint.errors import MissingExtraError, require

CAMERAS = ("corner2", "corner", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
PACKAGES = ("metaworld", "mujoco", "gymnasium", "numpy")
"""Packages whose versions decide states and pixels."""
CONTROL_HZ = 80.0
"""Control steps a second: five simulation steps of 2.5 ms each."""
HORIZON = 500
"""Meta-World's own limit on control steps an episode."""
STATE_DIMS = 4
"""The first numbers of an observation are the robot's own: hand x, y, z in metres, gripper opening."""

_CORNER2 = (0.75, 0.075, 0.7)


class MetaWorldEnv(MujocoEnv):
    """A Meta-World task. Its reward is Meta-World's, 0 to 10 a control step; success is being solved at this moment.

    An action is four numbers: displacement of the hand (in centimetres of its target's motion) and gripper effort.

    Args:
        task: A name of `INSTRUCTIONS`; `-v3` may be left away.
        repeat: Control steps an action lasts; rewards are summed, and solved at any of them is solved.
        **options: See `Options`; `corner2` of `CAMERAS` and 112 pixels by default. Steps are control steps: 200 by
            default, as in Premier-TACO's data (Appendix C), 500 at most. The last action is shorter where `repeat`
            does not divide them, as in recorded data.

    Attributes:
        task: Meta-World's name of the task.
        raw: Meta-World's observation, float64 [39]: hand position (3, metres), gripper opening (1, 0 closed to 1
            open), objects (14), the same 18 numbers one step before, goal (3).

    Raises:
        BadInputError: When task or camera is unknown, or size, repeat or steps cannot be had.
        MissingExtraError: When Meta-World is not installed.
    """

    usual_size = 112
    canary = "drawer-open-v3"
    raw: Array

    def __init__(self, task: str, *, repeat: int = 1, **options: Unpack[Options]) -> None:
        chosen = options.pop("steps", None)
        steps = 200 if chosen is None else chosen
        (self.task,) = resolve_tasks([task])
        require(repeat >= 1, "repeat", repeat, "1 or more", "2 halves the rate")
        require(1 <= steps <= HORIZON, "steps", steps, f"1 to {HORIZON}", "leave it out for 200, as in the paper")
        self._repeat, self._control_steps = repeat, steps
        super().__init__(
            f"metaworld/{self.task.removesuffix('-v3')}",
            INSTRUCTIONS[self.task],
            action_dim=4,
            state_dim=STATE_DIMS,
            control_hz=CONTROL_HZ / repeat,
            horizon=-(-steps // repeat),
            usual=CAMERAS[:1],
            known=CAMERAS,
            **options,
        )
        mujoco = import_mujoco()
        simulations, policies = _import_metaworld()
        # This seed only spares numpy's global generator; reset(seed) sets the scene.
        self._simulation = simulations[f"{self.task}-goal-observable"](seed=0)
        self._simulation.seeded_rand_vec, self._simulation._freeze_rand_vec = True, False
        self._policy = policies[self.task]()
        _correct_cameras(mujoco, self._simulation.model)

    def state(self) -> Array:
        """Return hand position in metres and gripper opening: float32 [4]."""
        return self.raw[:STATE_DIMS].astype(np.float32)

    def expert(self) -> Array:
        """Return the scripted expert's action, clipped to [-1, 1]: float32 [4]."""
        with warnings.catch_warnings():  # about asking for more than the simulator allows
            warnings.simplefilter("ignore", UserWarning)
            action = self._policy.get_action(self.raw)
        return np.asarray(action).clip(-1.0, 1.0).astype(np.float32)

    def _begin(self, seed: int) -> None:
        self._simulation.seed(seed)
        self.raw, self._left = self._simulation.reset()[0], self._control_steps

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        total, success = 0.0, False
        lasts = min(self._repeat, self._left)
        self._left -= lasts
        for _ in range(lasts):
            self.raw, reward, _, _, info = self._simulation.step(action)
            total, success = total + float(reward), success or bool(info["success"])
        return total, success, False

    def _scene(self) -> tuple[Any, Any]:
        return self._simulation.model, self._simulation.data


def _import_metaworld() -> tuple[Any, Any]:
    try:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
        from metaworld.policies import ENV_POLICY_MAP
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "metaworld", "sim") from None
    return ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE, ENV_POLICY_MAP


def _correct_cameras(mujoco: Any, model: Any) -> None:
    """Put corner2 where the literature has it, and turn what is upside down in the world."""
    model.camera("corner2").pos[:] = _CORNER2
    for number in range(model.ncam):
        up = model.cam_mat0[number].reshape(3, 3)[2, 1]
        if model.cam_bodyid[number] == 0 and up < 0:
            turned = np.empty(4)
            mujoco.mju_mulQuat(turned, model.cam_quat[number], np.array([0.0, 0.0, 0.0, 1.0]))
            model.cam_quat[number] = turned
