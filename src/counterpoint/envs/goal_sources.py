"""Where goal-reaching environments come from: gymnasium's registry, with the families that are known here."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

from counterpoint.envs.fetch import FETCH_TASKS
from counterpoint.envs.goal_tasks import GoalTask
from counterpoint.envs.mazes import AntMazeTask, PointMazeTask
from counterpoint.envs.rendering import choose_backend
from counterpoint.errors import BadInputError, MissingExtraError

try:
    import gymnasium
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

__all__ = ["FAMILIES", "KEYS", "make_base", "task_of"]

KEYS = ("observation", "achieved_goal", "desired_goal")

FAMILIES: dict[str, type[GoalTask]] = {
    **FETCH_TASKS,
    "PointMaze": PointMazeTask,
    "AntMaze": AntMazeTask,
}
"""By the part of the environment's name before the first underscore or hyphen."""


def make_base(name: str, *, max_episode_steps: int | None, pictures: bool) -> gymnasium.Env[Any, Any]:
    """An environment with goals, as it comes, but for actions in [-1, 1].

    Args:
        name: Its gymnasium id.
        max_episode_steps: Where episodes are cut off; at its own length where `None`.
        pictures: Whether it will be drawn.

    Raises:
        BadInputError: When there is none, or it has no goals, or actions without bounds.
        MissingExtraError: When gymnasium-robotics is not installed.
    """
    if pictures or "mujoco" not in sys.modules:
        choose_backend()
    _register()
    if name not in gymnasium.registry:
        raise _unknown(name)
    family = FAMILIES.get(_family(name), GoalTask)
    env = gymnasium.make(
        name, max_episode_steps=max_episode_steps, disable_env_checker=True, **family.arguments(name)
    )
    written = getattr(env.unwrapped, "tmp_xml_file_path", None)
    if written:  # mazes leave their model behind in the folder for temporary files
        Path(written).unlink(missing_ok=True)
    _refuse_goalless(name, env)
    return _in_unit_box(name, env) if isinstance(env.action_space, gymnasium.spaces.Box) else env


def task_of(name: str, simulation: Any) -> GoalTask:
    """What is known of an environment: its family's, or nothing."""
    return FAMILIES.get(_family(name), GoalTask)(simulation)


def _family(name: str) -> str:
    return name.split("_")[0].split("-")[0]


def _register() -> None:
    """Make known gymnasium-robotics' environments, without its note on Adroit, which no one here uses."""
    try:
        _silence_adroit()
        import gymnasium_robotics
    except ModuleNotFoundError:
        raise MissingExtraError("gymnasium-robotics", "sim") from None
    gymnasium.register_envs(gymnasium_robotics)


def _silence_adroit() -> None:
    """Take the note on Adroit out of what gymnasium-robotics prints when it is first imported."""
    try:
        from farama_notifications import notifications
    except ImportError:
        return
    notes = notifications.get("gymnasium_robotics", {})
    for version in [version for version, note in notes.items() if note.startswith("Adroit")]:
        del notes[version]


def _unknown(name: str) -> BadInputError:
    close = difflib.get_close_matches(name, gymnasium.registry, n=3)
    return BadInputError(
        f"env {name!r}",
        found="no such environment",
        expected="a gymnasium id with its version, such as FetchReach-v4 or PointMaze_Medium-v3",
        mend=f"did you mean {' or '.join(close)}?" if close else "register it before, or correct the name",
    )


def _refuse_goalless(name: str, env: gymnasium.Env[Any, Any]) -> None:
    space = env.observation_space
    held = list(space) if isinstance(space, gymnasium.spaces.Dict) else type(space).__name__
    if not isinstance(space, gymnasium.spaces.Dict) or not set(KEYS) <= set(space):
        env.close()
        raise BadInputError(
            f"env {name}",
            found=f"observations without goals ({held})",
            expected=f"a dictionary with {', '.join(KEYS)}",
            mend="choose a goal-reaching environment (Fetch*, PointMaze_*, AntMaze_*), or wrap yours so that it has "
            "goals",
        )


def _in_unit_box(name: str, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    box = cast("gymnasium.spaces.Box", env.action_space)
    if len(box.shape) != 1 or not box.is_bounded():
        raise BadInputError(
            f"env {name}",
            found=f"actions {box}",
            expected="a bounded vector, or discrete actions",
            mend="wrap the environment so that its actions have bounds",
        )
    if (box.low == -1).all() and (box.high == 1).all():
        return env
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
