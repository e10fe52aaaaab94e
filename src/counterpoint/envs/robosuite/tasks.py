"""The robosuite tasks and robots of the ICon paper, by name; needs no simulator.

Table 4 of ICon (Wang et al. 2025) gives the lengths; the paper's robots are Panda, Kinova3 with its Robotiq 85 and
IIWA with its Robotiq 140, robosuite's own choice of gripper for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from counterpoint.errors import require

CONTROL_HZ = 20.0
"""Actions a second."""

ROBOTS = ("Panda", "Kinova3", "IIWA")


@dataclass(frozen=True, slots=True)
class RobosuiteSpec:
    """A task in words, the steps of an episode, and whether `counterpoint.envs.robosuite.table` registers it."""

    instruction: str
    horizon: int
    ours: bool = False


TASKS = {
    "Lift": RobosuiteSpec("lift the cube", 200),
    "Door": RobosuiteSpec("open the door", 300),
    "Stack": RobosuiteSpec("stack the red cube on the green cube", 300),
    "CloseDrawer": RobosuiteSpec("close the drawer", 200, ours=True),
    "OpenBox": RobosuiteSpec("open the box", 200, ours=True),
}
"""robosuite's name of a task -> the task."""


def robosuite_name(task: str, robot: str = "Panda") -> str:
    """Return SUITE/TASK of a task with a robot: `robosuite/Lift` with Panda, `robosuite/Lift-IIWA` with another."""
    return f"robosuite/{task}" + ("" if robot == ROBOTS[0] else f"-{robot}")


def resolve_robosuite(task: str, robot: str | None = None) -> tuple[str, str]:
    """Return the task and the robot of a name: `Lift` with Panda, `Lift-IIWA`, or `Lift` with a robot named apart.

    Raises:
        BadInputError: When task or robot is unknown, or two robots are named.
    """
    where, (name, _, named) = f"robosuite/{task}", task.partition("-")
    hint = "choose from these; a robot may follow, as in Lift-IIWA"
    require(name in TASKS, where, f"task {name!r}", f"one of {', '.join(TASKS)}", hint)
    require(not named or robot in (None, named), where, f"robot {robot!r} beside it", "one robot", "name it once")
    chosen = named or robot or ROBOTS[0]
    require(chosen in ROBOTS, where, f"robot {chosen!r}", f"one of {', '.join(ROBOTS)}", "choose from these")
    return name, chosen
