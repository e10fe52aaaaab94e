"""robosuite tasks of this library: `OpenBox` and `CloseDrawer`, and six tasks in one shared scene.

`OpenBox` and `CloseDrawer` have one articulated object on the table. They are like the RLBench tasks of the same names
(James et al. 2020), which ICon uses for its ablations: an object has a new position in each episode, and the reward is
1 once it is open or shut, and 0 before. An object is an MJCF file in `assets/` in robosuite's form (a body named
`object`, sites that mark its extent, collision geoms of group 0).

In those two, as in robosuite's own tasks, each task has its own objects, so that a single image names the task. In the
shared scene (a drawer, a box with a lid, a red cube and a green cube on one table) all tasks have all objects. A reset
draws the places and states of all objects, with the same draws for every task, and then gives the task's own object the
state in which the task can begin. The first frame therefore says little about the task.

Importing this module imports robosuite and registers the tasks in robosuite.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.rendering import choose_backend
from counterpoint.errors import MissingExtraError

choose_backend()
try:
    from robosuite.environments.base import REGISTERED_ENVS
    from robosuite.environments.manipulation.manipulation_env import ManipulationEnv
    from robosuite.models.arenas import TableArena
    from robosuite.models.objects import BoxObject, MujocoXMLObject
    from robosuite.models.tasks import ManipulationTask
    from robosuite.utils.mjcf_utils import CustomMaterial
    from robosuite.utils.observables import Observable, sensor
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "robosuite", "robosuite") from None

_ASSETS = Path(__file__).with_name("assets")
_TABLE_SIZE = (0.8, 0.8, 0.05)
TABLE_TOP = np.array((0.0, 0.0, 0.8))
# Like robosuite's `agentview`, the camera looks across the table at the robot, but from farther away, so that it shows
# the table and the robot completely.
_CAMERA = {"pos": (0.6, 0.0, 1.6), "quat": (0.653, 0.271, 0.271, 0.653)}
Bounds = tuple[float, float]
Kind = TypeVar("Kind", bound=type)


def articulated(asset: str) -> Any:
    """Return robosuite's model of an articulated object, from the name of its file in `assets/`."""
    return MujocoXMLObject(str(_ASSETS / asset), name=asset.removesuffix(".xml").title(), joints=None)


def base_class(kind: Kind) -> Kind:
    """Decorate a class that is not a task by itself: robosuite registers every subclass by its name."""
    del REGISTERED_ENVS[kind.__name__]
    return kind


@base_class
class TableTask(ManipulationEnv):  # type: ignore[misc]
    """A task with a binary reward and one articulated object on the table.

    At each reset the object's position and rotation are sampled uniformly, from numpy's global generator as in
    robosuite.

    Args:
        robots: A single-arm robot of robosuite, such as `Panda`.
        use_object_obs: Include the object in observations.
        **arguments: Further robosuite arguments, as for its `Lift`.
    """

    asset: ClassVar[str]
    within: ClassVar[tuple[Bounds, Bounds, Bounds]]
    """Bounds of the object's x and y on the table, in metres (the robot is at -0.56), and its rotation in radians."""
    joint_range: ClassVar[Bounds] = (0.0, 0.0)
    """Bounds of the joint's position at reset, in metres or radians."""
    observed: ClassVar[dict[str, str]]
    """Name of an observation in robosuite -> the attribute that holds it."""
    camera: ClassVar[dict[str, tuple[float, ...]]] = _CAMERA
    """The pose of the camera `agentview`."""

    def __init__(self, robots: Any, use_object_obs: bool = True, **arguments: Any) -> None:
        self.use_object_obs = use_object_obs
        super().__init__(robots=robots, **{"initialization_noise": "default", **arguments})

    @property
    def joint(self) -> float:
        """The position of the object's joint, in metres or radians."""
        return float(self.sim.data.qpos[self._joint])

    def site(self, name: str) -> Array:
        """Return the position of one of the object's sites in the world, in metres: float64 [3]."""
        return np.array(self.sim.data.site_xpos[self.sim.model.site_name2id(self.object.naming_prefix + name)])

    def axis(self, number: int) -> Array:
        """Return one of the object's axes in the world: float64 [3]."""
        return np.array(self.sim.data.body_xmat[self._body]).reshape(3, 3)[:, number]

    def reward(self, action: Array | None = None) -> float:
        """Return 1 if the task is solved, otherwise 0."""
        return float(self._check_success())

    def _load_model(self) -> None:
        super()._load_model()
        robot = self.robots[0].robot_model
        robot.set_base_xpos(robot.base_xpos_offset["table"](_TABLE_SIZE[0]))
        arena = TableArena(table_full_size=_TABLE_SIZE, table_offset=TABLE_TOP)
        arena.set_origin([0, 0, 0])
        arena.set_camera(camera_name="agentview", **self.camera)
        robots, objects = [each.robot_model for each in self.robots], self._make_objects()
        self.model = ManipulationTask(mujoco_arena=arena, mujoco_robots=robots, mujoco_objects=objects)

    def _make_objects(self) -> list[Any]:
        """Return the objects on the table, as robosuite's models, and set `object`, the task's own object."""
        self.object = articulated(self.asset)
        return [self.object]

    def _setup_references(self) -> None:
        super()._setup_references()
        self._body = self.sim.model.body_name2id(self.object.root_body)
        self._joint = self.sim.model.get_joint_qpos_addr(self.object.joints[0])

    def _setup_observables(self) -> dict[str, Any]:
        observables: dict[str, Any] = super()._setup_observables()
        for name, attribute in self.observed.items() if self.use_object_obs else ():

            @sensor(modality="object")  # type: ignore[untyped-decorator]
            def reading(_: Any, attribute: str = attribute) -> Array:
                return np.atleast_1d(getattr(self, attribute))

            observables[name] = Observable(name=name, sensor=reading, sampling_rate=self.control_freq)
        return observables

    def _reset_internal(self) -> None:
        super()._reset_internal()
        if not self.deterministic_reset:  # otherwise a recorded state is restored
            self._place_objects()

    def _place_objects(self) -> None:
        self._place(self.object, self.within)
        low, high = self.joint_range
        self.sim.data.qpos[self._joint] = np.random.uniform(low, high) if high > low else low

    def _place(self, thing: Any, within: tuple[Bounds, Bounds, Bounds]) -> None:
        """Put an articulated object at a random position within bounds of x, y and rotation."""
        x, y, yaw = (np.random.uniform(*bounds) for bounds in within)
        body = self.sim.model.body_name2id(thing.root_body)
        self.sim.model.body_pos[body] = TABLE_TOP + np.array((x, y, -thing.bottom_offset[2]))
        self.sim.model.body_quat[body] = (np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))


class OpenBox(TableTask):
    """A closed box with a hinged lid at +y. The task is to open the lid by 60 degrees (RLBench: 90), by its bar."""

    asset = "box.xml"
    within = ((-0.04, 0.08), (-0.02, 0.10), (-0.35, 0.35))
    observed: ClassVar = {"bar_pos": "bar", "lid_angle": "joint"}
    solved_from = np.pi / 3

    @property
    def bar(self) -> Array:
        """The middle of the lid's bar."""
        return self.site("bar")

    @property
    def hinge(self) -> tuple[Array, Array]:
        """A point of the hinge, and the direction of the axis about which the lid opens."""
        return self.site("hinge"), -self.axis(0)

    def _check_success(self) -> bool:
        return bool(self.joint >= self.solved_from)


class CloseDrawer(TableTask):
    """A cabinet whose drawer is open by 8 to 12 cm, towards -y. The task is to shut it to within 1 cm."""

    asset = "drawer.xml"
    within = ((-0.06, 0.08), (0.12, 0.20), (-0.35, 0.35))
    joint_range = (0.08, 0.12)
    observed: ClassVar = {"handle_pos": "handle", "drawer_opening": "joint"}
    solved_to = 0.01

    @property
    def handle(self) -> Array:
        """The middle of the handle's outer face."""
        return self.site("handle")

    @property
    def outward(self) -> Array:
        """The direction in which the drawer slides out."""
        return -self.axis(1)

    def _check_success(self) -> bool:
        return self.joint <= self.solved_to


class Fixture(NamedTuple):
    """The place of an articulated object and the states of its joint.

    Attributes:
        within: Bounds of x and y in metres and of the angle in radians, on the table.
        shut: The joint's position when the object is shut, in metres or radians.
        opened: Bounds of the joint's position when it is open.
    """

    within: tuple[Bounds, Bounds, Bounds]
    shut: float
    opened: Bounds


FIXTURES = {
    "drawer.xml": Fixture(((0.06, 0.10), (0.28, 0.31), (-0.15, 0.15)), 0.0, (0.08, 0.12)),
    # The box is turned by half a turn, so that its lid opens away from the other objects.
    "box.xml": Fixture(((0.0, 0.04), (-0.235, -0.205), (np.pi - 0.12, np.pi + 0.12)), 0.0, (1.75, 1.75)),
}
"""Asset of an object -> its places and states. An open lid rests at the limit of its hinge."""

CUBES = {"Red": 0.02, "Green": 0.025}
"""Colour of a cube -> half its edge, in metres, as in robosuite's `Stack`."""
_CUBES_WITHIN: tuple[Bounds, Bounds] = ((-0.20, -0.12), (-0.13, 0.16))
_APART = 0.10  # minimum distance of the cubes' centres, in metres, so that open fingers fit between them


@base_class
class SharedTask(TableTask):
    """A task of the shared scene.

    Observations of objects are the same for all tasks; see `poses`.

    Args:
        robots: A single-arm robot of robosuite, such as `Panda`.
        **arguments: Further robosuite arguments, as for `TableTask`.
    """

    own: ClassVar[str]
    """The task's own object: an asset, or the colour of a cube."""
    begins_open: ClassVar[bool] = False
    """True if the task's own articulated object is open when an episode begins."""
    observed: ClassVar = {"poses": "poses"}
    camera: ClassVar = {"pos": (0.76, 0.0, 1.78), "quat": (0.653, 0.271, 0.271, 0.653)}

    @property
    def poses(self) -> Array:
        """Poses of all objects, float64 [30].

        For the drawer, the box, the red cube and the green cube: position in the world in metres (3), quaternion w, x,
        y, z (4). The drawer's opening in metres and the lid's angle in radians come last.
        """
        sim = self.sim
        bodies = [sim.model.body_name2id(thing.root_body) for thing in self.objects.values()]
        joints = [sim.data.qpos[self._joint_of(asset)] for asset in FIXTURES]
        parts = [np.concatenate([sim.data.body_xpos[body], sim.data.body_xquat[body]]) for body in bodies]
        return np.concatenate([*parts, joints])

    def _make_objects(self) -> list[Any]:
        self.objects = {asset: articulated(asset) for asset in FIXTURES} | {
            colour: _cube(colour, half) for colour, half in CUBES.items()
        }
        self.object = self.objects[self.own]
        return list(self.objects.values())

    def _joint_of(self, asset: str) -> int:
        return int(self.sim.model.get_joint_qpos_addr(self.objects[asset].joints[0]))

    def _place_objects(self) -> None:
        for asset, fixture in FIXTURES.items():
            self._place(self.objects[asset], fixture.within)
            is_open, opening = np.random.random() < 0.5, np.random.uniform(*fixture.opened)
            if asset == self.own:  # after all draws, so that those of other objects do not depend on the task
                is_open = self.begins_open
            self.sim.data.qpos[self._joint_of(asset)] = opening if is_open else fixture.shut
        while True:
            places = np.array([[np.random.uniform(*bounds) for bounds in _CUBES_WITHIN] for _ in CUBES])
            if np.linalg.norm(places[0] - places[1]) >= _APART:
                break
        for (colour, half), place in zip(CUBES.items(), places, strict=True):
            yaw = np.random.uniform(-np.pi, np.pi)
            pose = [*(TABLE_TOP + np.array((*place, half))), np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]
            self.sim.data.set_joint_qpos(self.objects[colour].joints[0], np.array(pose))


def _cube(colour: str, half: float) -> Any:
    material = CustomMaterial(
        texture=f"Wood{colour}",
        tex_name=f"wood_{colour}",
        mat_name=f"wood_{colour}_material",
        tex_attrib={"type": "cube"},
        mat_attrib={"texrepeat": "1 1", "specular": "0.4", "shininess": "0.1"},
    )
    return BoxObject(name=colour, size=[half] * 3, material=material)


@base_class
class _CubeTask(SharedTask):
    """A task with the red cube; its properties are those that the experts of robosuite's `Lift` and `Stack` read."""

    own = "Red"
    table_offset = TABLE_TOP
    raised = 0.04  # height of the red cube's centre above the table, in metres, from which it counts as lifted

    @property
    def cubeA(self) -> Any:  # noqa: N802 (robosuite's name)
        """The red cube."""
        return self.objects["Red"]

    @property
    def cubeB(self) -> Any:  # noqa: N802 (robosuite's name)
        """The green cube."""
        return self.objects["Green"]

    cube = cubeA

    def _is_lifted(self) -> bool:
        return bool(self.sim.data.body_xpos[self._body][2] > TABLE_TOP[2] + self.raised)


class SharedLift(_CubeTask):
    """The task is to lift the red cube, as in robosuite's `Lift`."""

    def _check_success(self) -> bool:
        return self._is_lifted()


class SharedStack(_CubeTask):
    """The task is to put the red cube on the green cube and to let go of it, as in robosuite's `Stack`."""

    def _check_success(self) -> bool:
        gripper = self.robots[0].gripper
        held = self._check_grasp(gripper=gripper, object_geoms=self.cubeA)
        return not held and self._is_lifted() and bool(self.check_contact(self.cubeA, self.cubeB))


class SharedCloseDrawer(SharedTask, CloseDrawer):
    """The task is to shut the drawer to within 1 cm."""

    own = "drawer.xml"
    begins_open = True


class SharedOpenDrawer(SharedCloseDrawer):
    """The task is to open the drawer by 8 cm, by its handle."""

    begins_open = False
    solved_from = FIXTURES["drawer.xml"].opened[0]

    def _check_success(self) -> bool:
        return self.joint >= self.solved_from


class SharedOpenBox(SharedTask, OpenBox):
    """The task is to open the lid by 60 degrees, by its bar."""

    own = "box.xml"


class SharedCloseBox(SharedOpenBox):
    """The task is to shut the lid to within 0.1 rad (6 degrees)."""

    begins_open = True
    solved_to = 0.1

    def _check_success(self) -> bool:
        return self.joint <= self.solved_to
