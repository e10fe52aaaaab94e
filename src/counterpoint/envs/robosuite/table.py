"""What robosuite tasks of this library share: one articulated object that stands somewhere on the table.

robosuite has a door and nothing else that is hinged or slides. An object is an MJCF file of `assets/` in the form of
robosuite's own (a body named `object`, sites that tell its extent, geoms of group 0 that collide and are drawn).

Importing this module imports robosuite.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

__all__ = ["Placement", "TableTask", "object_observables", "on_table", "place"]

_ASSETS = Path(__file__).with_name("assets")
_TABLE_SIZE = (0.8, 0.8, 0.05)
_TABLE_TOP = np.array((0.0, 0.0, 0.8))
# From beyond the table towards the robot, as robosuite's own `agentview`, and from far enough to see both whole.
_CAMERA = {"pos": (0.6, 0.0, 1.6), "quat": (0.653, 0.271, 0.271, 0.653)}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an object may stand, each number drawn evenly.

    Attributes:
        x: Of its middle on the table, in metres; the robot stands at -0.56.
        y: Likewise.
        yaw: Its turn about the vertical, in radians.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    yaw: tuple[float, float]


class TableTask(ManipulationEnv):  # type: ignore[misc]
    """A task that is solved or not, with its object on the table.

    Args:
        robots: A single-arm robot of robosuite, such as `Panda`.
        use_object_obs: Whether observations tell of the object.
        **arguments: robosuite's own, as of its `Lift`.
    """

    def __init__(self, robots: Any, use_object_obs: bool = True, **arguments: Any) -> None:
        self.use_object_obs = use_object_obs
        super().__init__(robots=robots, **{"initialization_noise": "default", **arguments})

    def reward(self, action: Array | None = None) -> float:
        """1 when the task is solved, 0 otherwise."""
        return float(self._check_success())


# robosuite makes every subclass known by its name, and this one is no task.
del REGISTERED_ENVS[TableTask.__name__]


def on_table(env: Any, asset: str, name: str) -> Any:
    """Make the scene of `env.model`: robot, table and the object of an asset, which is returned."""
    robot = env.robots[0].robot_model
    robot.set_base_xpos(robot.base_xpos_offset["table"](_TABLE_SIZE[0]))
    arena = TableArena(table_full_size=_TABLE_SIZE, table_offset=_TABLE_TOP)
    arena.set_origin([0, 0, 0])
    arena.set_camera(camera_name="agentview", **_CAMERA)
    thing = MujocoXMLObject(str(_ASSETS / asset), name=name, joints=None)
    env.model = ManipulationTask(
        mujoco_arena=arena, mujoco_robots=[each.robot_model for each in env.robots], mujoco_objects=thing
    )
    return thing


def place(env: Any, thing: Any, where: Placement) -> None:
    """Put the object somewhere, by numpy's global generator, as robosuite places its own."""
    x, y, yaw = (np.random.uniform(*bounds) for bounds in (where.x, where.y, where.yaw))
    body = env.sim.model.body_name2id(thing.root_body)
    env.sim.model.body_pos[body] = _TABLE_TOP + np.array((x, y, -thing.bottom_offset[2]))
    env.sim.model.body_quat[body] = (np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))


def object_observables(env: Any, **read: Any) -> dict[str, Any]:
    """robosuite's observables of modality `object`, each from a function without arguments to an array."""
    made: dict[str, Any] = {}
    for name, function in read.items():

        @sensor(modality="object")  # type: ignore[untyped-decorator]
        def reading(_: Any, function: Any = function) -> Any:
            return function()

        made[name] = Observable(name=name, sensor=reading, sampling_rate=env.control_freq)
    return made
