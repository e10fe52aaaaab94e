"""Which geoms of a robosuite model are the robot's, so that its segmentation gives the robot's mask.

robosuite behind the face of `ControlTask`: pictures, masks and an expert, for its tasks and two of ours.

The simulation is robosuite's: its models, its operational-space controller (OSC_POSE, gains and limits of each
robot's default configuration) at 20 Hz, its sparse reward and its own test of success. Three things differ, for
speed and so that a seed decides everything:

- Pictures come from `FastRenderer`, which draws the visual geoms as robosuite does.
- A reset moves the objects and leaves the model (robosuite's soft reset). Lift's cube, whose edges robosuite draws
  anew from 4.0 to 4.4 cm with every model, therefore keeps one size.
- Door keeps robosuite's default, a handle that has to be turned (`use_latch`).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from types import MappingProxyType
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.store import Cameras
from counterpoint.envs.base import Outcome
from counterpoint.envs.rendering import FastRenderer, import_mujoco, render_settings
from counterpoint.envs.robosuite.tasks import CONTROL_HZ, TASKS, resolve_robosuite, robosuite_name
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["CAMERAS", "MASK_PARTS", "RobosuiteTask", "check_parts", "describe_rendering", "robot_geoms", "versions"]


_PREFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"arm": ("robot",), "gripper": ("gripper",), "mount": ("fixed_mount",)}
)
"""A part -> how robosuite begins the names of its bodies, before the robot's number: `gripper0_right_leftfinger`."""

MASK_PARTS = tuple(_PREFIXES)
"""The arm with its links and hand, the gripper with its fingers, and the pedestal that the arm stands on."""


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Parts without repeats.

    Raises:
        BadInputError: When one is unknown or there is none.
    """
    chosen = tuple(dict.fromkeys(parts))
    unknown = [part for part in chosen if part not in MASK_PARTS]
    if unknown or not chosen:
        raise BadInputError(
            "mask_parts",
            f"{unknown[0]!r}" if unknown else "none",
            f"some of {', '.join(MASK_PARTS)}",
            "choose from these",
        )
    return chosen


def robot_geoms(model: Any, parts: Sequence[str]) -> Array:
    """Which geoms belong to parts of the robot: bool [G + 1], the last, that of no geom, False.

    Args:
        model: A `mujoco.MjModel` of robosuite's, with G geoms.
        parts: Some of `MASK_PARTS`.

    Raises:
        BadInputError: When a part is unknown or there is none.
    """
    wanted = {prefix for part in check_parts(parts) for prefix in _PREFIXES[part]}
    names = (model.body(number).name for number in range(model.nbody))
    owned = np.array([_before_digit(name) in wanted for name in names])
    return np.append(owned[model.geom_bodyid], False)


def _before_digit(name: str) -> str:
    """`gripper` of `gripper0_right_leftfinger`; nothing where no digit follows."""
    found = re.match(r"([a-z_]+)\d", name)
    return found[1] if found else ""


CAMERAS = ("agentview", "robot0_eye_in_hand")
"""The usual ones: a third person's and the wrist's."""

_COLLISION = (0,)  # group of the geoms that collide, which robosuite does not draw
_ROUNDING = 1e-4  # beyond [-1, 1]
_SMALLEST = 16


class RobosuiteTask:
    """One task with one robot. What follows `reset(seed)` depends on the seed and the actions alone.

    An action is seven numbers in [-1, 1]: displacement of the hand along x, y, z of the robot's base (1 is 5 cm from
    where it is), rotation about them (1 is 0.5 rad), and the gripper (above 0 closes, below opens).

    The state is nine numbers for every robot: position of the grip site in the world in metres (3), the hand's
    quaternion x, y, z, w (4), and the two joints that the gripper's motors drive (2): finger travel in metres for
    Panda, knuckle angles in radians for the Robotiq grippers of Kinova3 and IIWA, whose other four joints follow.

    Args:
        task: A key of `TASKS`, such as `Lift`; a robot may follow, as in `Lift-IIWA`.
        robot: `Panda`, `Kinova3` or `IIWA`.
        cameras: One camera of the model or several; `CAMERAS` by default.
        size: Height and width of the pictures, in pixels; at least 16.
        horizon: Steps of an episode; Table 4 of ICon by default.
        mask_parts: What of the robot its mask holds, of `MASK_PARTS`.

    Raises:
        BadInputError: When task, robot, a camera or a part is unknown, or a size or length too small.
        MissingExtraError: When robosuite is not installed.
    """

    action_dim = 7
    state_dim = 9

    def __init__(
        self,
        task: str,
        *,
        robot: str | None = None,
        cameras: Cameras = None,
        size: int = 84,
        horizon: int | None = None,
        mask_parts: Sequence[str] = MASK_PARTS,
    ) -> None:
        self.task, self.robot = resolve_robosuite(task, robot)
        self.mask_parts = check_parts(mask_parts)
        if size < _SMALLEST:
            raise BadInputError("size", f"{size}", f"{_SMALLEST} pixels or more", "draw larger pictures")
        if horizon is not None and horizon < 1:
            raise BadInputError("steps", f"{horizon}", "1 or more", "ask for some steps")
        spec = TASKS[self.task]
        self.name, self.instruction = robosuite_name(self.task, self.robot), spec.instruction
        self.horizon, self.size = horizon or spec.horizon, size
        self.env = _make(spec.environment, spec.module, self.robot)
        self.cameras = _check_cameras(self.env.sim.model.camera_names, cameras)
        arm = self.env.robots[0]
        motors = arm._ref_joint_gripper_actuator_indexes[arm.arms[0]]
        joints = self.env.sim.model._model.actuator_trnid[motors, 0]
        self._fingers = self.env.sim.model._model.jnt_qposadr[joints]
        module, _, name = spec.expert.partition(":")
        self._expert = getattr(import_module(module), name)(self.env)
        self._masked = robot_geoms(self.env.sim.model._model, self.mask_parts)
        self._renderer: FastRenderer | None = None
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Place the objects and the arm by `seed`."""
        with _seeded(seed):
            self._observation = self.env.reset()
        self._expert.reset()
        self._advised: Array | None = None

    def draw(self) -> Array:
        """uint8 [size, size, 3], or [C, size, size, 3]: RGB, upright."""
        pictures = [self._rendering().draw(camera) for camera in self.cameras]
        return np.stack(pictures) if len(pictures) > 1 else pictures[0]

    def draw_masks(self) -> Array:
        """Where the pictures show the robot's `mask_parts`: bool [C, size, size], also of one camera."""
        return np.stack([self._masked[self._rendering().segment(camera)] for camera in self.cameras])

    def state(self) -> Array:
        """Proprioception as the class tells it: float32 [9]."""
        hand = (self._observation["robot0_eef_pos"], self._observation["robot0_eef_quat"])
        return np.concatenate([*hand, self.env.sim.data.qpos[self._fingers]]).astype(np.float32)

    def step(self, action: Array) -> Outcome:
        """Act for 1/20 s. What the simulator raises is passed on; the next `reset` begins anew.

        Raises:
            BadInputError: When the action has not seven finite numbers in [-1, 1].
        """
        checked = _check_action(action, self.name)
        self._advised = None
        self._observation, reward, _, _ = self.env.step(checked)
        return Outcome(float(reward), bool(self.env._check_success()))

    def expert(self) -> Array:
        """The scripted expert's next action, from the simulator's own state: float32 [7].

        It follows the episode, so ask it before every step; asked again before the next one, it says the same.
        """
        if self._advised is None:
            self._advised = np.asarray(self._expert.act(), np.float32).clip(-1.0, 1.0)
        return self._advised.copy()

    def close(self) -> None:
        """Free the graphics context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _rendering(self) -> FastRenderer:
        """The renderer, made by the first picture in the process that asks for it."""
        if self._renderer is None:
            sim = self.env.sim
            self._renderer = FastRenderer(sim.model._model, sim.data._data, self.size, hidden=_COLLISION)
        return self._renderer


def describe_rendering(
    task: str = "Lift", *, robot: str | None = None, cameras: Cameras = None, size: int = 84
) -> dict[str, Any]:
    """What decides pixels, beside the scene: settings, camera poses, device, and a canary.

    The canary is the SHA-256 of one picture of one fixed scene, whatever the arguments. Where it differs between two
    machines or versions, so do pixels.

    Args:
        task: Whose cameras are told.
        robot: Which robot's.
        cameras: Which of them; each pose is that in the camera's own body, which is the hand for the wrist's.
        size: Height and width of the pictures that are described.
    """
    described, canary = RobosuiteTask(task, robot=robot, cameras=cameras), RobosuiteTask("Lift")
    model = described.env.sim.model._model
    try:
        canary.reset(0)
        digest = hashlib.sha256(canary.draw()[0].tobytes()).hexdigest()
        return {
            **render_settings(size),
            "hidden_groups": list(_COLLISION),
            "device": canary._rendering().device,
            "camera_pose": {name: _pose(model.camera(name)) for name in described.cameras},
            "canary": {
                "task": canary.name,
                "seed": 0,
                "camera": canary.cameras[0],
                "size": canary.size,
                "sha256": digest,
            },
        }
    finally:
        canary.close()


def versions() -> dict[str, str]:
    """Versions of what decides states and pixels."""
    return {name: metadata.version(name) for name in ("robosuite", "mujoco", "numpy")}


def _make(environment: str, module: str | None, robot: str) -> Any:
    """The environment, without robosuite's remarks on private settings and optional packages."""
    import_mujoco()
    with _quiet():
        try:
            import robosuite
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "robosuite", "robosuite") from None
        if module is not None:
            import_module(module)
        from robosuite.controllers import load_composite_controller_config

        with _seeded(0):  # robosuite draws sizes of objects while it makes them
            return robosuite.make(
                environment,
                robots=robot,
                controller_configs=load_composite_controller_config(robot=robot),
                control_freq=CONTROL_HZ,
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                renderer="mujoco",  # the other one imports a viewer
                ignore_done=True,
                hard_reset=False,
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what robosuite logs below an error."""
    logger = logging.getLogger("robosuite_logs")

    def errors(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger.addFilter(errors)
    try:
        yield
    finally:
        logger.removeFilter(errors)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """numpy's global generator, from which robosuite draws, set to `seed` and put back afterwards."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)


def _check_cameras(known: Sequence[str], cameras: Cameras) -> tuple[str, ...]:
    names = (cameras,) if isinstance(cameras, str) else tuple(cameras or CAMERAS)
    for name in names:
        if name not in known:
            raise BadInputError("camera", repr(name), f"one of {', '.join(known)}", "choose from these")
    return names


def _check_action(action: Array, where: str) -> Array:
    """The action as robosuite takes it: float64 [7] in [-1, 1]."""
    checked = np.asarray(action, np.float64)
    if checked.shape != (RobosuiteTask.action_dim,):
        raise BadInputError(
            f"{where}: action",
            f"shape {checked.shape}",
            f"({RobosuiteTask.action_dim},): hand displacement, rotation, gripper",
            "act with a policy that was trained on this suite",
        )
    if not np.isfinite(checked).all() or np.abs(checked).max() > 1.0 + _ROUNDING:
        raise BadInputError(
            f"{where}: action",
            np.array2string(checked, precision=3),
            "finite numbers in [-1, 1]",
            "clip actions, or undo their normalisation",
        )
    return checked.clip(-1.0, 1.0)


def _pose(view: Any) -> dict[str, list[float]]:
    return {"position": np.round(view.pos, 6).tolist(), "quaternion": np.round(view.quat, 6).tolist()}
