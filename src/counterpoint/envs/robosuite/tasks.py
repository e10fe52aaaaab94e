"""The robosuite tasks and robots of the ICon paper, by name; needs no simulator.

Table 4 of ICon (Wang et al. 2025) gives the lengths; the paper's robots are Panda, Kinova3 with its Robotiq 85 and
IIWA with its Robotiq 140, robosuite's own choice of gripper for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from counterpoint.errors import BadInputError

__all__ = ["CONTROL_HZ", "ROBOTS", "TASKS", "RobosuiteSpec", "resolve_robosuite", "robosuite_name"]

CONTROL_HZ = 20.0
"""Actions a second."""

ROBOTS = ("Panda", "Kinova3", "IIWA")


@dataclass(frozen=True, slots=True)
class RobosuiteSpec:
    """What the library knows of one environment of robosuite.

    Attributes:
        environment: robosuite's name of it.
        instruction: What is to be done, in words.
        horizon: Steps of an episode.
        expert: The class of the scripted expert, as `module:Class`.
        module: Imported before the environment is made, where a module other than robosuite's own registers it.
    """

    environment: str
    instruction: str
    horizon: int
    expert: str
    module: str | None = None


_EXPERTS = "counterpoint.envs.robosuite.experts"

TASKS: Mapping[str, RobosuiteSpec] = MappingProxyType(
    {
        "Lift": RobosuiteSpec("Lift", "lift the cube", 200, f"{_EXPERTS}:LiftExpert"),
        "Door": RobosuiteSpec("Door", "open the door", 300, "counterpoint.envs.robosuite.experts:DoorExpert"),
        "Stack": RobosuiteSpec("Stack", "stack the red cube on the green cube", 300, f"{_EXPERTS}:StackExpert"),
        "CloseDrawer": RobosuiteSpec(
            "CloseDrawer",
            "close the drawer",
            200,
            "counterpoint.envs.robosuite.drawer:CloseDrawerExpert",
            "counterpoint.envs.robosuite.drawer",
        ),
        "OpenBox": RobosuiteSpec(
            "OpenBox",
            "open the box",
            200,
            "counterpoint.envs.robosuite.box:OpenBoxExpert",
            "counterpoint.envs.robosuite.box",
        ),
    }
)
"""A task's name -> what is known of it."""


def robosuite_name(task: str, robot: str = "Panda") -> str:
    """`SUITE/TASK` of a task with a robot: `robosuite/Lift` with Panda, `robosuite/Lift-IIWA` with another."""
    return f"robosuite/{task}" + ("" if robot == ROBOTS[0] else f"-{robot}")


def resolve_robosuite(task: str, robot: str | None = None) -> tuple[str, str]:
    """The task and the robot that are meant: `Lift` with Panda, `Lift-IIWA`, or `Lift` with a robot named apart.

    Raises:
        BadInputError: When task or robot is unknown, or two robots are named.
    """
    name, _, told = task.partition("-")
    if name not in TASKS:
        raise BadInputError(
            f"robosuite/{task}",
            f"task {name!r}",
            f"one of {', '.join(TASKS)}",
            "choose from these; a robot may follow, as in Lift-IIWA",
        )
    if told and robot is not None and told != robot:
        raise BadInputError(f"robosuite/{task}", f"robot {robot!r} beside it", "one robot", "name it once")
    chosen = told or robot or ROBOTS[0]
    if chosen not in ROBOTS:
        raise BadInputError(
            f"robosuite/{task}", f"robot {chosen!r}", f"one of {', '.join(ROBOTS)}", "choose from these"
        )
    return name, chosen
