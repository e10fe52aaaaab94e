"""FrankaKitchen as in R3M, LIV, DecisionNCE and AcTOL: five tasks of 50 steps in a kitchen whose position varies.

The model, the arm's control and its pose are those of gymnasium-robotics. Joints, goals, thresholds and cameras are
those of the tasks' authors (RoboHive's FK1, R3M's `kitchen_*-v3`). They differ from gymnasium-robotics, where
`bottom burner` is knob 2 (the papers turn knob 1), `hinge cabinet` is the right door (the papers open the left door),
and the two cameras look at the counter.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Array, task_of
from counterpoint.envs.base import MujocoEnv, Options
from counterpoint.envs.kitchen.experts import HAND, KitchenExpert, Way
from counterpoint.envs.rendering import import_mujoco, import_robotics
from counterpoint.errors import require, require_known

POSE = (0.148388023, -1.76848573, 1.84390296, -2.47685760, 0.260252026, 0.712533105, 1.59515394, 0.04, 0.04)
"""The arm's initial pose (seven joints, two fingers), as in gymnasium-robotics but with open fingers."""


@dataclass(frozen=True, slots=True)
class KitchenTask:
    """A task: a joint of the kitchen that must be moved from 0 to a goal.

    Attributes:
        instruction: The task in words (DecisionNCE, Table 5; AcTOL, Table 4).
        joint: The joint's name in the model.
        site: The name of the MuJoCo site at the handle that the expert moves.
        goal: The goal in the joint's unit, radians or metres.
        ways: The ways in which the expert moves the handle, one after the other.
        pose: The arm's initial pose, seven joints in radians and two fingers in metres.
    """

    instruction: str
    joint: str
    site: str
    goal: float
    ways: tuple[Way, ...]
    pose: tuple[float, ...] = POSE


_PULL = Way(0.25, offset=(0.0, -0.02, -0.08), tilt=(0.36, 0.29, 0.0), until=0.35)
_PUSH = Way(
    0.62, offset=(0.07, 0.157, -0.155), tilt=(0.93, 0.17, 0.0), grasps=False, stiff=0.136, past=(0.215, 0.032, -0.155)
)
_AT_LEFT_DOOR = (-1.613, -1.156, 1.445, -1.04, -0.004, 1.533, 1.252, 0.04, 0.04)
TASKS = {
    "micro_open": KitchenTask("open microwave", "microwave", "microhandle_site", -1.25, (Way(0.2),)),
    "sdoor_open": KitchenTask(
        "slide cabinet",
        "slide_cabinet",
        "slide_site",
        0.44,
        (Way(0.15, offset=(-0.045, 0.0, -0.12), grasps=False, stiff=0.1),),
    ),
    # The arm cannot reach the handle of an open door, so it pulls first, then pushes from inside.
    "ldoor_open": KitchenTask(
        "open left door", "left_hinge_cabinet", "hinge_site1", -1.25, (_PULL, _PUSH), _AT_LEFT_DOOR
    ),
    "knob1_on": KitchenTask(
        "turn on stove",
        "knob_Joint_1",
        "knob1_site",
        -1.57,
        (Way(0.28, offset=(-0.004, 0.013, -0.012), tilt=(-0.15, 0.2, 0.3), turns=1.1, stiff=1.0),),
    ),
    "light_on": KitchenTask(
        "switch on light",
        "light_switch",
        "light_site",
        -0.7,
        (Way(0.3, offset=(0.04, 0.03, 0.0), grasps=False, stiff=0.1),),
    ),
}
"""Name of a task, the `*` in R3M's `kitchen_*-v3` -> task."""

CAMERAS = ("left", "right", "default")
"""The papers' two cameras (RoboHive's `left_cam` and `right_cam`), and gymnasium-robotics' free camera."""
CONTROL_HZ = 12.5
"""Actions per second: each action is forty simulation steps of 2 ms."""
HORIZON = 50
RETURN = 60
"""Further steps of an episode of play, in which the arm returns from where another task ended."""
LEAVE = 35
"""Number of steps in which the arm returns to `POSE` after a task is solved, where it leaves."""
NEAR = 0.15
"""A joint is at its goal if it is closer than this share of its range (RoboHive's `get_dof_proximity`)."""
HELD = 5
"""An episode succeeds after more steps than this with the joint at its goal (RoboHive's `evaluate_success`)."""
MOVED, SWUNG = 0.03, 0.05
"""Maximum random shift at a reset: of the kitchen along each axis, in metres, and of the arm's joints, in radians."""
STEPS = 40
"""Number of simulation steps per action."""
FASTEST = 2.0
"""Velocity of a joint (finger) for an action of 1, in radians (metres) per second."""
_LEAST = np.array([-2.9, -1.8, -2.9, -3.1, -2.9, 0.0, -2.9, 0.0, 0.0])
_MOST = np.array([2.9, 1.8, 2.9, 0.0, 2.9, 3.8, 2.9, 0.04, 0.04])
_VIEWS = {"left_cap": ("left", (-1.4, -0.75, 3.0)), "right_cap": ("right", (1.4, -0.75, 3.0))}


def resolve_kitchen(task: str) -> str:
    """Return a task's name; the papers' `kitchen_micro_open-v3` is `micro_open`.

    `micro_open+light_on` names two tasks, of which the second follows the first.

    Raises:
        BadInputError: If a task does not exist or is named twice.
    """
    parts = task.split("+")
    names = [part.removeprefix("kitchen_").removesuffix("-v3").replace("-", "_") for part in parts]
    for name, part in zip(names, parts, strict=True):
        require_known(name, TASKS, f"task {part!r}", "no such task of the kitchen")
    require(len(set(names)) == len(names), "task", task, "each task once", "leave the second out")
    return "+".join(names)


@cache
def kitchen_model() -> Any:
    """Return gymnasium-robotics' kitchen as a `mujoco.MjModel`, with `CAMERAS`; environments copy it.

    Raises:
        MissingExtraError: If gymnasium-robotics is not installed.
    """
    mujoco = import_mujoco()
    package = import_robotics()
    folder = Path(package.__file__).parent / "envs" / "assets" / "kitchen_franka" / "kitchen_assets"
    spec = mujoco.MjSpec.from_file(str(folder / "kitchen_env_model.xml"))
    for camera in spec.cameras:
        camera.name, camera.pos = _VIEWS[camera.name]
    about, up = np.deg2rad(70.0), np.deg2rad(-35.0)  # gymnasium-robotics' azimuth and elevation
    forward = np.array([np.cos(about) * np.cos(up), np.sin(about) * np.cos(up), np.sin(up)])
    right = np.array([np.sin(about), -np.cos(about), 0.0])
    turn = np.empty(4)
    mujoco.mju_mat2Quat(turn, np.stack([right, np.cross(right, forward), -forward], 1).ravel())
    spec.worldbody.add_camera(name="default", pos=np.array([-0.2, 0.5, 2.0]) - 2.2 * forward, quat=turn)
    return spec.compile()


def control(joints: Array, action: Array) -> Array:
    """Return the target positions of the motors: float64 [..., 9].

    Targets are the current positions, moved at the commanded velocities for the duration of one action, within limits.
    This is as in gymnasium-robotics' `FrankaRobot`, with its limits, but without its noise.

    Args:
        joints: Current positions of seven joints and two fingers, float64 [..., 9].
        action: float [..., 9] in [-1, 1].
    """
    return np.clip(joints + FASTEST * np.clip(action, -1.0, 1.0) / CONTROL_HZ, _LEAST, _MOST)


class KitchenEnv(MujocoEnv):
    """A task of the kitchen with its scripted expert.

    An action is nine velocities in [-1, 1], of the arm's seven joints and the two fingers. For joints, 1 is 2 rad/s,
    which motors of limited force do not reach (0.87 rad/s near the base). The state is the positions of these nine
    joints, as in the papers. The environment state is for policies without images: the vectors from the hand to the
    handles of the five tasks in metres (15), as in RoboHive, and the progress of the task's joint (1).

    Other versions of the kitchen have other observations. gymnasium-robotics has 59 numbers: positions and velocities
    of the robot (9 and 9) and of objects (21 and 20). D4RL has 60 numbers: 30 positions, and 30 for a goal. RoboHive
    has 75 numbers: 9 of the robot, 15 of objects, 15 of a goal, 6 of the hand, 30 from the hand to handles.

    Args:
        task: A name of `TASKS`, such as `micro_open`, or several joined by `+`, such as `micro_open+light_on`. The
            expert carries them out in this order. The episode is a success when the last task is.
        play: Number of other tasks, sampled by the seed, that the experts carry out before an episode begins.
        leaves: True to let the expert return to `POSE` after a task is solved, so that the arm does not show which
            task it was. The next of several tasks begins after this return.
        **options: See `Options`; by default the left camera at 84 pixels, and 50 steps, or 110 with `play`, and 110
            more for each further task.

    Attributes:
        task: The task's name.
        part: Index of the task that is carried out now, 0 unless there are several tasks.
        model: The `mujoco.MjModel`; `data` is its state.
        place: Index among the positions of the joint of the task that is carried out now.
    """

    packages = ("gymnasium-robotics", "mujoco", "numpy")
    canary = "kitchen/micro_open"

    def __init__(self, task: str, *, play: int = 0, leaves: bool = False, **options: Unpack[Options]) -> None:
        self.task, self._play, self._leaves = resolve_kitchen(task), play, leaves
        self._parts = tuple(TASKS[name] for name in self.task.split("+"))
        most, further = len(TASKS) - len(self._parts), len(self._parts) - 1
        require(0 <= play <= most, "play", play, f"0 to {most}, the kitchen's other tasks", "ask for fewer")
        super().__init__(
            f"kitchen/{self.task}",
            task_of([(0, part.instruction) for part in self._parts]),
            action_dim=len(POSE),
            state_dim=len(POSE),
            environment_dim=3 * len(TASKS) + 1,
            control_hz=CONTROL_HZ,
            horizon=HORIZON + RETURN * ((play > 0) + leaves) + (HORIZON + RETURN) * further,
            usual=CAMERAS[:1],
            known=CAMERAS,
            **options,
        )
        self.mujoco = import_mujoco()
        self.model = copy.copy(kitchen_model())
        self.data = self.mujoco.MjData(self.model)
        self._desk = self.model.body("desk").id
        self._origin = self.model.body_pos[self._desk].copy()
        self._experts = [self._expert_of(part) for part in self._parts]
        self._start(0)

    @property
    def joint(self) -> float:
        """The position of the task's joint."""
        return float(self.data.qpos[self.place])

    @property
    def progress(self) -> float:
        """The share of the way to the goal that the task's joint has moved; negative if it moved backwards."""
        return float(self.progress_of(self.joint))

    @property
    def solved(self) -> bool:
        """True if the task's joint is at its goal."""
        low, high = self._joint.range
        return bool(abs(self.joint - self._about.goal) < NEAR * (high - low))

    def progress_of(self, joint: Any) -> Any:
        """Return the progress at the given positions of the joint, as a share of the way to the goal."""
        return joint / self._about.goal

    def gap(self, data: Any) -> float:
        """Return the distance of the hand from the task's handle in a state of the model, in metres."""
        return float(np.linalg.norm(data.site(HAND).xpos - data.site(self._about.site).xpos))

    def state(self) -> Array:
        """Return the positions of the arm's joints and of the fingers: float32 [9], radians and metres."""
        return np.asarray(self.data.qpos[: self.state_dim], np.float32)

    def environment_state(self) -> Array:
        """Return the vectors from the hand to the tasks' handles in metres, and the joint's progress: float32 [16]."""
        hand = self.data.site(HAND).xpos
        ways = [self.data.site(task.site).xpos - hand for task in TASKS.values()]
        return np.concatenate([*ways, [self.progress]]).astype(np.float32)

    def expert(self) -> Array:
        """Return the scripted expert's action: float32 [9] in [-1, 1]."""
        if self._leaves and self._held > HELD:
            self._expert.leave()
        return self._expert.act().astype(np.float32)

    def _begin(self, seed: int) -> None:
        rng = sample_rng(seed, 0, "kitchen")
        shift = rng.uniform(-MOVED, MOVED, 3)
        self.model.body_pos[self._desk] = self._origin + shift
        self.mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
        qpos = self.data.qpos
        qpos[: len(POSE)] = self._parts[0].pose
        qpos[:7] += rng.uniform(-SWUNG, SWUNG, 7)
        kettle = self.model.joint("kettle").qposadr[0]
        qpos[kettle : kettle + 3] += shift
        self.mujoco.mj_forward(self.model, self.data)
        others = [name for name in TASKS if TASKS[name] not in self._parts]
        for number, name in enumerate(rng.permutation(others)[: self._play]):
            other = self._expert_of(TASKS[name])
            for _ in range(HORIZON + RETURN * (number > 0)):
                self._move(other.act())
        self._start(0)

    def _start(self, part: int) -> None:
        """Begin one of the tasks where the arm is."""
        self.part, self._about, self._held = part, self._parts[part], 0
        self._joint = self.model.joint(self._about.joint)
        self.place = int(self._joint.qposadr[0])
        self._expert = self._experts[part]
        self._expert.reset()

    def _expert_of(self, about: KitchenTask) -> KitchenExpert:
        expert = KitchenExpert(
            self.model,
            self.data,
            joint=about.joint,
            site=about.site,
            goal=about.goal,
            ways=about.ways,
            pose=about.pose[:7],
            over=POSE[:7],
            seconds=STEPS * self.model.opt.timestep,
            fastest=FASTEST,
        )
        expert.reset()
        return expert

    def _move(self, action: Array) -> None:
        self.data.ctrl[:] = control(self.data.qpos[: len(POSE)], action)
        self.mujoco.mj_step(self.model, self.data, nstep=STEPS)
        self.mujoco.mj_forward(self.model, self.data)  # otherwise sites lag one simulation step behind

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        self._move(action)
        self._held += self.solved
        reward, last = float(self.solved), self.part + 1 == len(self._parts)
        success = last and self._held > HELD
        if not last and self._held > HELD + LEAVE * self._leaves:
            self._start(self.part + 1)
        return reward, success, False

    def _scene(self) -> tuple[Any, Any]:
        return self.model, self.data
