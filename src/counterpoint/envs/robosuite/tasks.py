"""robosuite tasks of this library, `OpenBox` and `CloseDrawer`, each with one articulated object on the table.

They are like the RLBench tasks of the same names (James et al. 2020), which ICon uses for its ablations: an object has
a new position in each episode, and the reward is 1 once it is open or shut, and 0 before. An object is an MJCF file in
`assets/` in robosuite's form (a body named `object`, sites that mark its extent, collision geoms of group 0). Importing
this module imports robosuite and registers the tasks in robosuite.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.rendering import choose_backend
from counterpoint.errors import MissingExtraError

choose_backend()
try:
    from robosuite.environments.base import REGISTERED_ENVS
    from robosuite.environments.manipulation.manipulation_env import ManipulationEnv
    from robosuite.models.arenas import TableArena
    from robosuite.models.objects import MujocoXMLObject
    from robosuite.models.tasks import ManipulationTask
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
