"""Which goal-reaching environment, in which form; and whether a simulation can take that form."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from counterpoint.config import FrozenConfig
from counterpoint.envs.goal.sources import FAMILIES, GoalTask
from counterpoint.envs.goal.waypoints import Cell, MazeGrid
from counterpoint.errors import BadInputError, MissingExtraError

try:
    import gymnasium
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

__all__ = ["EnvConfig", "episode_steps", "refuse_impossible_form", "success_distance"]


class EnvConfig(FrozenConfig):
    """A goal-reaching environment.

    Attributes:
        name: Its gymnasium id, such as `FetchPush-v4` or `PointMaze_Medium-v3`; of `module:MyEnv-v0` the
            module is imported before, to register it.
        observations: `state`, or `image`: a picture, and then goals are pictures too.
        goals: `coordinates` of what is to be moved; `state`: the whole observation, also of the goal that is
            commanded; `state_zero_padded`: whole observations in training, and as command the coordinates with
            zeros around them (the TD InfoNCE authors' form, an inconsistency kept for comparison).
        corruption: Probability with which each observation is replaced by another one (`corruption.py`).
        max_episode_steps: Length of an episode; the environment's own where `None`.
        image_size: Height and width of pictures; the agents' convolutions need 36 pixels.
        start_cells: (row, column) of the maze's cells where episodes begin; the maze's own rule where empty.
        goal_cells: Cells where goals lie.
        success_distance: Within which a goal counts as reached; the environment's own where `None`.
    """

    name: str
    observations: Literal["state", "image"] = "state"
    goals: Literal["coordinates", "state", "state_zero_padded"] = "coordinates"
    corruption: float = Field(default=0.0, ge=0, le=1)
    max_episode_steps: int | None = Field(default=None, ge=1)
    image_size: int = Field(default=64, ge=36)
    start_cells: tuple[Cell, ...] = ()
    goal_cells: tuple[Cell, ...] = ()
    success_distance: float | None = Field(default=None, gt=0)

    @field_validator("goals")
    @classmethod
    def _pictures_have_no_zeros_around_them(cls, goals: str, others: ValidationInfo) -> str:
        if others.data.get("observations") == "image" and goals == "state_zero_padded":
            raise ValueError('another value: with observations = "image" goals are pictures')
        return goals


def refuse_impossible_form(config: EnvConfig, task: GoalTask) -> None:
    """See that the simulation can take this form.

    Raises:
        BadInputError: When its goals cannot be drawn or known as states, or cells lie in a wall.
    """
    known = ", ".join(FAMILIES)
    if config.observations == "image" and not (task.view and task.can_stand_at_goal):
        raise BadInputError(
            f"env {config.name}",
            'observations = "image"',
            f"one of {known}, whose goals can be drawn",
            'use observations = "state"',
        )
    impossible = {"state": not task.can_stand_at_goal, "state_zero_padded": not task.goal_slots}
    if impossible.get(config.goals):
        raise BadInputError(
            f"env {config.name}",
            f'goals = "{config.goals}"',
            f"one of {known}, whose goals are known as whole states",
            'use goals = "coordinates"',
        )
    cells = {*config.start_cells, *config.goal_cells}
    walls = cells - set(MazeGrid.of(task.simulation).free) if cells else cells
    if walls:
        raise BadInputError(
            f"env {config.name}",
            f"start_cells or goal_cells in a wall: {sorted(walls)}",
            "free cells, as (row, column)",
            "choose others",
        )


def success_distance(config: EnvConfig, task: GoalTask) -> float:
    """Within which a goal counts as reached.

    Raises:
        BadInputError: When neither the configuration nor the simulation says.
    """
    own = getattr(task, "success_distance", None) or getattr(task.simulation, "distance_threshold", None)
    if config.success_distance is None and own is None:
        raise BadInputError(
            f"env {config.name}",
            "no distance within which a goal counts as reached",
            "one, since the environment has none of its own",
            "give success_distance",
        )
    return float(config.success_distance or own or 0.0)


def episode_steps(config: EnvConfig, env: gymnasium.Env[Any, Any]) -> int:
    """The length of an episode.

    Raises:
        BadInputError: When episodes have no end.
    """
    steps = env.spec.max_episode_steps if env.spec else None
    if not steps or steps < 1:
        raise BadInputError(
            f"env {config.name}", "episodes without an end", "episodes of a known length", "give max_episode_steps"
        )
    return int(steps)
