"""One scene for several instructions: a drawer, a box with a lid, a red cube and a green cube on one table.

In robosuite's tasks, and in those of `tasks.py`, each task has its own objects, so that a single image names the task.
Here six tasks share all objects. A reset draws the places and states of all objects, with the same draws for every
task, and then gives the task's own object the state in which the task can begin. The first frame therefore says
little about the task. Importing this module imports robosuite and registers the tasks in robosuite.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite.tasks import (
    TABLE_TOP,
    Bounds,
    CloseDrawer,
    OpenBox,
    TableTask,
    articulated,
    base_class,
)


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
    from robosuite.models.objects import BoxObject
    from robosuite.utils.mjcf_utils import CustomMaterial

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
