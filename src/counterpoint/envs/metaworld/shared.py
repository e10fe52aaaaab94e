"""One scene for eight Meta-World tasks: a drawer, a door, a window and a faucet on one table.

In Meta-World every task has a scene of its own, so that a single frame names the task. Here all tasks share one scene,
and every object may be at either of its two ends when an episode begins. A frame then leaves four of the eight tasks
possible, one per object. Objects are Meta-World's own, made smaller so that all of them fit within the arm's reach.
A button is missing: it springs back, so no task undoes it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Unpack
from xml.sax.saxutils import quoteattr

import numpy as np

from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Array
from counterpoint.envs.base import MujocoEnv, Options
from counterpoint.envs.metaworld.env import (
    CAMERAS,
    CONTROL_HZ,
    HORIZON,
    INSTRUCTIONS,
    STATE_DIMS,
    MetaWorldEnv,
    correct_cameras,
)
from counterpoint.envs.rendering import import_mujoco
from counterpoint.errors import import_extra, require, require_known

Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Thing:
    """An object of the scene: one joint that moves between two ends.

    Attributes:
        asset: Name of Meta-World's file with the object.
        looks: Name of Meta-World's file with the object's meshes and materials.
        place: Usual position, in metres.
        scale: Size relative to Meta-World's.
        joint: Name of the joint.
        ends: The joint's two ends, in radians or metres: those of the object in Meta-World's size.
        body: Name of the body that moves.
        handle: The point where the expert pushes, in the body's frame and Meta-World's size, in metres.
        slides: True if the joint slides; False if it turns.
        mirrored: True to turn the object by 180 degrees about y: left becomes right.
    """

    asset: str
    looks: str
    place: Point
    scale: float
    joint: str
    ends: tuple[float, float]
    body: str
    handle: Point
    slides: bool = False
    mirrored: bool = False


THINGS = {
    "drawer": Thing(
        asset="drawer",
        looks="drawer",
        place=(0.47, 0.84, 0.0),
        scale=0.9,
        joint="goal_slidey",
        ends=(0.0, -0.16),
        body="drawer_link",
        handle=(0.0, -0.15, 0.0),
        slides=True,
    ),
    # Mirrored, so that the open door and its handle are in the middle of the table, within reach.
    "door": Thing(
        asset="doorlockB",
        looks="doorlock",
        place=(-0.37, 0.79, 0.105),
        scale=0.7,
        joint="doorjoint",
        ends=(0.0, -1.5),
        body="door_link",
        handle=(0.36, -0.12, 0.0),
        mirrored=True,
    ),
    "window": Thing(
        asset="window_horiz",
        looks="window",
        place=(0.0, 0.88, 0.15),
        scale=0.75,
        joint="window_slide",
        ends=(0.0, 0.2),
        body="windowb_a",
        handle=(-0.014, -0.095, 0.0),
        slides=True,
    ),
    "faucet": Thing(
        asset="faucet",
        looks="faucet",
        place=(0.22, 0.76, 0.0),
        scale=0.75,
        joint="knob_Joint_1",
        ends=(-0.9, 0.9),
        body="faucet_link2",
        handle=(0.0, -0.14, 0.0),
    ),
}
"""Name of an object -> the object; a task moves it from one end to the other."""


@dataclass(frozen=True, slots=True)
class SharedTask:
    """A task: an object's joint that must be moved to one of its ends.

    Attributes:
        thing: Name of the object.
        end: Index of the goal among the object's `ends`.
        behind: Distance of the hand behind the handle, opposite to its motion, when the push begins, in metres.
        height: Height of the hand above the handle during the push, in metres.
        grip: The gripper's command, -1 open to 1 closed.
    """

    thing: str
    end: int
    behind: float = 0.05
    height: float = 0.02
    grip: float = 1.0


TASKS = {
    # The open gripper straddles the handle: one finger is behind it.
    "drawer-open-v3": SharedTask("drawer", 1, behind=-0.027, grip=-1.0),
    "drawer-close-v3": SharedTask("drawer", 0),
    "door-open-v3": SharedTask("door", 1, behind=0.038),
    "door-close-v3": SharedTask("door", 0),
    "window-open-v3": SharedTask("window", 1, behind=0.04, height=0.04),
    "window-close-v3": SharedTask("window", 0, behind=0.04, height=0.04),
    "faucet-open-v3": SharedTask("faucet", 1),
    "faucet-close-v3": SharedTask("faucet", 0),
}
"""Meta-World's name of a task -> the task; the instructions are those of Meta-World's tasks."""

SHARED_CAMERAS = ("left", *CAMERAS)
"""The camera `left`, in which the arm hides little of the objects when an episode begins, and Meta-World's cameras."""
NEAR = 0.1
"""A joint is at an end if it is closer than this share of its range."""
LOOSE = 0.05
"""Maximum random distance of joints from their ends at a reset, as a share of their range."""
MOVED = (0.01, 0.02, 0.0)
"""Maximum random shift of objects at a reset, along x, y and z in metres."""
HAND_LOW, HAND_HIGH = (-0.2, 0.42, 0.22), (0.0, 0.5, 0.30)
"""Box in which the hand begins, in metres."""
BACK = 120
"""Number of control steps in which the expert's hand moves back after a task is solved."""
REACH_LOW, REACH_HIGH = (-0.55, 0.4, 0.05), (0.55, 1.0, 0.5)
"""Box in which actions move the hand's target, in metres."""
STEPS = 5
"""Number of simulation steps per control step."""
_SETTLE = 50  # control steps in which the hand moves to its start, as in Meta-World
_LEFT = ((-0.66, 0.32, 1.15), (0.0, 0.71, 0.05))  # the camera's position, and the point in the middle of its image
_HOME = (np.array(HAND_LOW) + HAND_HIGH) / 2  # where the hand ends, in metres
_LIFT = 0.16  # height of the hand above the handle on its way there, in metres
_ON_SPOT = 0.02  # distance at which the hand has arrived, in metres
_LEAD = 0.08  # distance of the push's target ahead of the handle, in metres


def resolve_shared(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tasks that the given names stand for, each task once and with its `-v3`, which names may omit.

    The names `default` and `all` stand for all tasks of the shared scene.

    Raises:
        BadInputError: If the shared scene does not have a task, or no name is given.
    """
    tasks: dict[str, None] = {}
    for name in names:
        task = name if name.endswith("-v3") else f"{name}-v3"
        if name not in ("default", "all"):
            found, hint = f"{name!r}, no task of the shared scene", "choose one of these, or record --scene own"
            require_known(task, TASKS, "tasks", found, "some of {}", hint)
        tasks.update(dict.fromkeys(TASKS if name in ("default", "all") else (task,)))
    require(tasks, "tasks", "none", "at least one", "name a task, or say default")
    return tuple(tasks)


@cache
def shared_model() -> Any:
    """Return the scene as a `mujoco.MjModel`, with `SHARED_CAMERAS`; environments copy it.

    Raises:
        MissingExtraError: If Meta-World is not installed.
    """
    mujoco = import_mujoco()
    assets = Path(import_extra("metaworld", "sim").__file__).parent / "assets"
    folder = str(assets / "sawyer_xyz")  # of Meta-World's models, in which paths of meshes and textures begin
    looks = "".join(_include(assets, f"{thing.looks}_dependencies") for thing in THINGS.values())
    bodies = "".join(f'<body name="{name}">{_include(assets, at.asset)}</body>' for name, at in THINGS.items())
    spec = mujoco.MjSpec.from_string(
        f"""<mujoco>
        <compiler meshdir={quoteattr(folder)} texturedir={quoteattr(folder)}/>
        <include file={quoteattr(str(assets / "scene" / "basic_scene.xml"))}/>
        {looks}{_include(assets, "xyz_base_dependencies")}
        <worldbody>{_include(assets, "xyz_base")}{bodies}</worldbody>
        <actuator>
            <position ctrllimited="true" ctrlrange="-1 1" joint="r_close" kp="400"/>
            <position ctrllimited="true" ctrlrange="-1 1" joint="l_close" kp="400"/>
        </actuator>
        <equality><weld body1="mocap" body2="hand" solref="0.02 1"/></equality>
        </mujoco>"""
    )
    for name, thing in THINGS.items():
        body = spec.body(name)
        _scale(mujoco, spec, body, thing.scale)
        body.pos = thing.place
        body.quat = (0.0, 0.0, 1.0, 0.0) if thing.mirrored else (1.0, 0.0, 0.0, 0.0)
        joint = spec.joint(thing.joint)
        joint.range = sorted(_ends(thing))  # the ends are stops, stiffer than usual: the hand is strong
        joint.frictionloss = 0.3  # newtons or newton metres: objects stay where they are left
        joint.solref_limit, joint.solimp_limit[:3] = (0.005, 1.0), (0.99, 0.99, 0.001)
    spec.add_exclude(bodyname1="doorlockB", bodyname2="door_link")  # an open door would be pushed off its box
    spec.worldbody.add_camera(name=SHARED_CAMERAS[0], pos=_LEFT[0], quat=_looking(mujoco, *_LEFT), fovy=46)
    model = spec.compile()
    model.eq_data[:] = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 5.0]  # Meta-World's reset_mocap_welds
    correct_cameras(mujoco, model)
    return model


class SharedSceneEnv(MujocoEnv):
    """A task of the shared scene with its scripted expert.

    Actions and the state are those of `MetaWorldEnv`. The reward is 1 if the task is solved at the current step, else
    0. The environment state is the positions of the four handles in metres (12), and the four joints' shares of the way
    from their first to their second end (4).

    Args:
        task: A name of `TASKS`; `-v3` may be omitted.
        repeat: Number of control steps per action. Rewards are summed; a task solved at any of these steps counts as
            solved.
        **options: See `Options`; by default the camera is `left` and images have 112 pixels. `steps` counts control
            steps: by default 200, at most 500.

    Attributes:
        task: Meta-World's name of the task.
        model: The `mujoco.MjModel`; `data` is its state.
    """

    packages = MetaWorldEnv.packages
    usual_size = MetaWorldEnv.usual_size
    canary = "shared/drawer-open-v3"

    def __init__(self, task: str, *, repeat: int = 1, **options: Unpack[Options]) -> None:
        chosen = options.pop("steps", None)
        steps = 200 if chosen is None else chosen
        self.task = f"{task.removesuffix('-v3')}-v3"
        require_known(self.task, TASKS, f"metaworld/shared/{task}", "no such task of the shared scene")
        require(repeat >= 1, "repeat", repeat, "1 or more", "2 halves the rate")
        require(1 <= steps <= HORIZON, "steps", steps, f"1 to {HORIZON}", "leave it out for 200")
        self._about, self._repeat, self._control_steps = TASKS[self.task], repeat, steps
        super().__init__(
            f"metaworld/shared/{self.task.removesuffix('-v3')}",
            INSTRUCTIONS[self.task],
            action_dim=4,
            state_dim=STATE_DIMS,
            environment_dim=4 * len(THINGS),
            control_hz=CONTROL_HZ / repeat,
            horizon=-(-steps // repeat),
            usual=SHARED_CAMERAS[:1],
            known=SHARED_CAMERAS,
            **options,
        )
        self.mujoco = import_mujoco()
        self.model = copy.copy(shared_model())
        self.data = self.mujoco.MjData(self.model)

    @property
    def solved(self) -> bool:
        """True if the joint of the task's object is at its goal."""
        return self.remaining < NEAR

    @property
    def remaining(self) -> float:
        """The share of the way between its ends that the joint of the task's object has to move; about 0 at its goal.

        It is negative while the hand presses the joint against its stop, which gives way a little.
        """
        share = self.share(self._about.thing)
        return 1.0 - share if self._about.end else share

    def share(self, thing: str) -> float:
        """Return the share of the way from an object's first end to its second end that its joint has moved."""
        first, second = _ends(THINGS[thing])
        return float((self.data.joint(THINGS[thing].joint).qpos[0] - first) / (second - first))

    def handle(self, thing: str) -> Array:
        """Return the position of an object's handle: float64 [3], metres."""
        at, body = THINGS[thing], self.data.body(THINGS[thing].body)
        return np.asarray(body.xpos + body.xmat.reshape(3, 3) @ (at.scale * np.array(at.handle)))

    def state(self) -> Array:
        """Return hand position in metres and gripper opening, 0 closed to 1 open: float32 [4]."""
        apart = np.linalg.norm(self.data.body("rightclaw").xpos - self.data.body("leftclaw").xpos)
        return np.append(self.data.body("hand").xpos, np.clip(apart / 0.1, 0.0, 1.0)).astype(np.float32)

    def environment_state(self) -> Array:
        """Return the positions of the handles in metres (12), and the joints' shares of their way (4): float32 [16]."""
        handles = [self.handle(thing) for thing in THINGS]
        return np.concatenate([*handles, [self.share(thing) for thing in THINGS]]).astype(np.float32)

    def expert(self) -> Array:
        """Return the scripted expert's action: float32 [4] in [-1, 1].

        The expert depends only on the current state: it lifts the hand, moves it above the point behind the handle,
        lowers it, pushes the handle towards the goal, lifts the hand again, and moves it back, so that it does not show
        which task was carried out. Meta-World's own experts are made for objects in their size and for a table with no
        other object.
        """
        about, hand, handle = self._about, self.data.body("hand").xpos, self.handle(self._about.thing)
        ahead = self._ahead(handle)
        level = handle[2] + about.height
        start = handle - about.behind * ahead
        start[2] = level
        along = (hand - handle) @ ahead
        aside = float(np.linalg.norm((hand - handle - along * ahead)[:2]))
        low = abs(hand[2] - level) < 2 * _ON_SPOT
        if self.remaining < NEAR / 2:
            above = hand[2] > min(level + _LIFT, REACH_HIGH[2]) - 2 * _ON_SPOT or hand[1] < HAND_HIGH[1] + 2 * _ON_SPOT
            target = _HOME if above else np.append(hand[:2], level + _LIFT)
        elif low and aside < 2 * _ON_SPOT and abs(along + about.behind) < 2 * _ON_SPOT:
            target = handle + _LEAD * ahead
            target[2] = level
        elif np.linalg.norm((hand - start)[:2]) < _ON_SPOT:
            target = start
        else:
            target, lifted = start.copy(), hand[2] > level + _LIFT - 2 * _ON_SPOT
            target[2] = level + _LIFT
            if not lifted:
                target[:2] = hand[:2]
        # From the hand's target and not from the hand, which lags behind: else the target would run away in a push.
        move = np.clip(20.0 * (target - self.data.mocap_pos[0]), -1.0, 1.0)
        return np.append(move, about.grip).astype(np.float32)

    def _ahead(self, handle: Array) -> Array:
        """Return the direction in which the handle moves towards the task's goal: a horizontal unit vector, [3]."""
        thing = THINGS[self._about.thing]
        joint, axis = self.data.joint(thing.joint), self.data.joint(thing.joint).xaxis
        way = axis if thing.slides else np.cross(axis, handle - joint.xanchor)
        first, second = thing.ends
        sign = np.sign((second - first) * (1 if self._about.end else -1))
        return np.asarray(sign * way / np.linalg.norm(way))

    def _begin(self, seed: int) -> None:
        rng = sample_rng(seed, 0, "metaworld shared")
        self.mujoco.mj_resetData(self.model, self.data)
        joints = {}
        for name, thing in THINGS.items():
            self.model.body(name).pos[:] = thing.place + rng.uniform(-1, 1, 3) * MOVED
            end, loose = int(rng.integers(2)), rng.uniform(0, LOOSE)
            if name == self._about.thing:
                end = 1 - self._about.end
            first, second = _ends(thing)
            joints[thing.joint] = first + (second - first) * abs(end - loose)
        hand, self._left = rng.uniform(HAND_LOW, HAND_HIGH), self._control_steps
        for _ in range(_SETTLE):
            self.data.mocap_pos[0], self.data.mocap_quat[0] = hand, (1.0, 0.0, 1.0, 0.0)
            self._simulate(-1.0)
        for joint, position in joints.items():  # last: the arm may touch objects on its way
            self.data.joint(joint).qpos[0], self.data.joint(joint).qvel[0] = position, 0.0
        self.mujoco.mj_forward(self.model, self.data)

    def _simulate(self, grip: float) -> None:
        self.data.ctrl[:] = grip, -grip
        self.mujoco.mj_step(self.model, self.data, nstep=STEPS)

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        total, success = 0.0, False
        lasts = min(self._repeat, self._left)
        self._left -= lasts
        for _ in range(lasts):
            moved = self.data.mocap_pos[0] + np.clip(action[:3], -1.0, 1.0) / 100
            self.data.mocap_pos[0] = np.clip(moved, REACH_LOW, REACH_HIGH)
            self._simulate(float(action[3]))
            self.mujoco.mj_forward(self.model, self.data)  # otherwise bodies lag one simulation step behind
            total, success = total + float(self.solved), success or self.solved
        return total, success, False

    def _scene(self) -> tuple[Any, Any]:
        return self.model, self.data


def make_metaworld(task: str, **options: Any) -> MujocoEnv:
    """Build a task in its own scene, or `shared/TASK` in the shared scene; see `MetaWorldEnv` and `SharedSceneEnv`."""
    scene, _, name = task.rpartition("/")
    return SharedSceneEnv(name, **options) if scene == "shared" else MetaWorldEnv(task, **options)


def _ends(thing: Thing) -> tuple[float, float]:
    """Return the joint's two ends at the object's size: metres are scaled, and radians are not."""
    factor = thing.scale if thing.slides else 1.0
    return factor * thing.ends[0], factor * thing.ends[1]


def _include(assets: Path, name: str) -> str:
    return f"<include file={quoteattr(str(assets / 'objects' / 'assets' / f'{name}.xml'))}/>"


def _scale(mujoco: Any, spec: Any, body: Any, factor: float) -> None:
    """Change the size of a body's geoms and of all bodies within it."""
    for geom in body.geoms:
        geom.pos, geom.size = factor * geom.pos, factor * geom.size
        if geom.type == mujoco.mjtGeom.mjGEOM_MESH:
            spec.mesh(geom.meshname).scale = [factor] * 3
    for site in body.sites:
        site.pos = factor * site.pos
    for inner in body.bodies:
        inner.pos = factor * inner.pos
        _scale(mujoco, spec, inner, factor)


def _looking(mujoco: Any, position: Point, lookat: Point) -> Array:
    """Return the quaternion of an upright camera that looks at a point: float64 [4]."""
    forward = np.subtract(lookat, position) / np.linalg.norm(np.subtract(lookat, position))
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    turn = np.empty(4)
    mujoco.mju_mat2Quat(turn, np.stack([right, np.cross(right, forward), -forward], 1).ravel())
    return turn
