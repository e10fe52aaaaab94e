"""Meta-World v3 as `CameraEnv`s with their scripted experts.

Camera `corner2` is at its position in the literature, [0.75, 0.075, 0.7] (Seo et al. 2022, arXiv 2206.14244); v3 moved
this camera (Metaworld#559). Cameras that are upside down in the model are turned by 180 degrees about their viewing
axis, so that images are upright and not mirrored, as in LeRobot.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import MujocoEnv, Options
from counterpoint.envs.rendering import import_mujoco
from counterpoint.errors import import_extra, require, require_known

INSTRUCTIONS = {
    "assembly-v3": "put the ring on the peg",
    "basketball-v3": "put the ball in the basket",
    "bin-picking-v3": "move the block from one bin to the other",
    "box-close-v3": "put the lid on the box",
    "button-press-topdown-v3": "press the button from above",
    "button-press-topdown-wall-v3": "press the button behind the wall from above",
    "button-press-v3": "press the button",
    "button-press-wall-v3": "reach around the wall and press the button",
    "coffee-button-v3": "start the coffee machine",
    "coffee-pull-v3": "take the mug away from the coffee machine",
    "coffee-push-v3": "put the mug under the coffee machine",
    "dial-turn-v3": "turn the dial",
    "disassemble-v3": "take the ring off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door",
    "drawer-close-v3": "close the drawer",
    "drawer-open-v3": "open the drawer",
    "faucet-close-v3": "turn off the faucet",
    "faucet-open-v3": "turn on the faucet",
    "hammer-v3": "hammer in the nail",
    "hand-insert-v3": "put the gripper into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up",
    "peg-insert-side-v3": "insert the peg into the hole in the side of the box",
    "peg-unplug-side-v3": "unplug the peg",
    "pick-out-of-hole-v3": "take the puck out of the hole",
    "pick-place-v3": "pick up the puck and hold it at the goal",
    "pick-place-wall-v3": "pick up the puck and carry it over the wall to the goal",
    "plate-slide-back-side-v3": "slide the plate sideways out of the net",
    "plate-slide-back-v3": "slide the plate back out of the net",
    "plate-slide-side-v3": "slide the plate sideways into the net",
    "plate-slide-v3": "slide the plate into the net",
    "push-back-v3": "pull the puck back to the goal",
    "push-v3": "push the puck to the goal",
    "push-wall-v3": "push the puck around the wall to the goal",
    "reach-v3": "move the gripper to the goal",
    "reach-wall-v3": "move the gripper over the wall to the goal",
    "shelf-place-v3": "place the block on the shelf",
    "soccer-v3": "kick the ball into the goal",
    "stick-pull-v3": "pull the thermos with the stick",
    "stick-push-v3": "push the thermos with the stick",
    "sweep-into-v3": "sweep the block into the hole",
    "sweep-v3": "sweep the block off the table",
    "window-close-v3": "close the window",
    "window-open-v3": "open the window",
}
"""Task -> the task in words; left, right, forward and back are as seen by the arm, which reaches over the table."""

DEFAULT_TASKS = (
    "assembly-v3",
    "basketball-v3",
    "button-press-topdown-v3",
    "coffee-push-v3",
    "dial-turn-v3",
    "door-close-v3",
    "drawer-open-v3",
    "faucet-open-v3",
    "hammer-v3",
    "handle-press-side-v3",
    "lever-pull-v3",
    "plate-slide-v3",
    "shelf-place-v3",
    "stick-push-v3",
    "window-open-v3",
)
"""Fifteen tasks whose scenes look different, and which the scripted experts solve in about 30 to 110 steps."""

_NAMED = {"default": DEFAULT_TASKS, "all": tuple(INSTRUCTIONS)}


def resolve_tasks(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tasks that the given names stand for, each task once and with its `-v3`, which names may omit.

    The name `default` stands for `DEFAULT_TASKS`, and `all` for all fifty tasks.

    Raises:
        BadInputError: If a name is unknown or no name is given.
    """
    tasks: dict[str, None] = {}
    for name in names:
        full = name if name in _NAMED or name.endswith("-v3") else f"{name}-v3"
        if full not in _NAMED:
            require_known(full, INSTRUCTIONS, "tasks", f"{name!r}", "default, all, or some of {}")
        tasks.update(dict.fromkeys(_NAMED.get(full, (full,))))
    require(tasks, "tasks", "none", "at least one", "name a task, or say default")
    return tuple(tasks)


CAMERAS = ("corner2", "corner", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
CONTROL_HZ = 80.0
"""Control steps per second: each is five simulation steps of 2.5 ms."""
HORIZON = 500
"""Meta-World's limit on control steps per episode."""
STATE_DIMS, RAW_DIMS = 4, 39
"""Sizes of the state and of Meta-World's observation, which begins with the state.

The state is hand x, y, z in metres, and gripper opening.
"""

_CORNER2 = (0.75, 0.075, 0.7)


class MetaWorldEnv(MujocoEnv):
    """A Meta-World task with Meta-World's reward, 0 to 10 per control step.

    Success means that the task is solved at the current step. An action is four numbers: displacement of the hand's
    target along x, y, z in centimetres, and gripper effort.

    Args:
        task: A name of `INSTRUCTIONS`; `-v3` may be omitted.
        repeat: Number of control steps per action. Rewards are summed; a task solved at any of these steps counts as
            solved.
        **options: See `Options`; by default the camera is `corner2` and images have 112 pixels. `steps` counts control
            steps: by default 200, as in Premier-TACO's data (Appendix C), at most 500. The last action is shorter if
            `repeat` does not divide `steps`, as in recorded data.

    Attributes:
        task: Meta-World's name of the task.
        raw: Meta-World's observation, float64 [39]: hand position (3, metres), gripper opening (1, 0 closed to 1
            open), objects (14), the same 18 numbers one step earlier, goal (3).
    """

    packages = ("metaworld", "mujoco", "gymnasium", "numpy")
    usual_size = 112
    canary = "drawer-open-v3"
    raw: Array

    def __init__(self, task: str, *, repeat: int = 1, **options: Unpack[Options]) -> None:
        chosen = options.pop("steps", None)
        steps = 200 if chosen is None else chosen
        short = task.removesuffix("-v3")
        require_known(short, [name.removesuffix("-v3") for name in INSTRUCTIONS], f"metaworld/{task}", "no such task")
        self.task = f"{short}-v3"
        require(repeat >= 1, "repeat", repeat, "1 or more", "2 halves the rate")
        require(1 <= steps <= HORIZON, "steps", steps, f"1 to {HORIZON}", "leave it out for 200, as in the paper")
        self._repeat, self._control_steps = repeat, steps
        super().__init__(
            f"metaworld/{self.task.removesuffix('-v3')}",
            INSTRUCTIONS[self.task],
            action_dim=4,
            state_dim=STATE_DIMS,
            environment_dim=RAW_DIMS - STATE_DIMS,
            control_hz=CONTROL_HZ / repeat,
            horizon=-(-steps // repeat),
            usual=CAMERAS[:1],
            known=CAMERAS,
            **options,
        )
        mujoco = import_mujoco()
        simulations = import_extra("metaworld.env_dict", "sim").ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
        # This seed only avoids the use of numpy's global generator; reset(seed) determines the scene.
        self._simulation = simulations[f"{self.task}-goal-observable"](seed=0)
        self._simulation.seeded_rand_vec, self._simulation._freeze_rand_vec = True, False
        self._policy = import_extra("metaworld.policies", "sim").ENV_POLICY_MAP[self.task]()
        correct_cameras(mujoco, self._simulation.model)

    def state(self) -> Array:
        """Return hand position in metres and gripper opening: float32 [4]."""
        return self.raw[:STATE_DIMS].astype(np.float32)

    def environment_state(self) -> Array:
        """Return objects (14), hand, gripper and objects of the previous step (18), and goal (3): float32 [35]."""
        return self.raw[STATE_DIMS:].astype(np.float32)

    def expert(self) -> Array:
        """Return the scripted expert's action, clipped to [-1, 1]: float32 [4]."""
        with warnings.catch_warnings():  # about actions beyond the simulator's limits
            warnings.simplefilter("ignore", UserWarning)
            action = self._policy.get_action(self.raw)
        return np.asarray(action).clip(-1.0, 1.0).astype(np.float32)

    def _begin(self, seed: int) -> None:
        self._simulation.seed(seed)
        self.raw, self._left = self._simulation.reset()[0], self._control_steps
        # Meta-World moves bodies of the scene last; without this call the first image shows their previous positions.
        import_mujoco().mj_kinematics(*self._scene())

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


def correct_cameras(mujoco: Any, model: Any) -> None:
    """Move corner2 to its position in the literature, and turn the world's cameras that are upside down."""
    model.camera("corner2").pos[:] = _CORNER2
    for number in range(model.ncam):
        up = model.cam_mat0[number].reshape(3, 3)[2, 1]
        if model.cam_bodyid[number] == 0 and up < 0:
            turned = np.empty(4)
            mujoco.mju_mulQuat(turned, model.cam_quat[number], np.array([0.0, 0.0, 0.0, 1.0]))
            model.cam_quat[number] = turned
