"""Where goal-reaching environments come from: gymnasium's registry, with the families that are known here."""

from __future__ import annotations

import difflib
import importlib
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
    """An environment with goals, as it comes, but for actions in [-1, 1], or counted from 0.

    Args:
        name: Its gymnasium id; with `module:` before it, the module is imported first.
        max_episode_steps: Where episodes are cut off; at its own length where `None`.
        pictures: Whether it will be drawn.

    Raises:
        BadInputError: When there is none, it is out of date, has no goals (or not of one vector), or actions without
            bounds.
        MissingExtraError: When gymnasium-robotics is not installed.
    """
    if pictures or "mujoco" not in sys.modules:
        choose_backend()
    _register()
    module, _, own = name.rpartition(":")
    if module:
        _import(name, module)
    if own not in gymnasium.registry:
        raise _unknown(name, own)
    arguments = FAMILIES.get(_family(own), GoalTask).arguments(own)
    try:
        env = gymnasium.make(own, max_episode_steps=max_episode_steps, disable_env_checker=True, **arguments)
    except (gymnasium.error.Error, TypeError) as error:
        newest = _newest(own)
        if isinstance(error, TypeError) and newest == own:
            raise  # of code that is not out of date: its own fault, to be seen where it lies
        raise _not_made(name, newest, error) from error
    written = getattr(env.unwrapped, "tmp_xml_file_path", None)
    if written:  # mazes leave their model behind in the folder for temporary files
        Path(written).unlink(missing_ok=True)
    _refuse_goalless(name, env)
    _refuse_other_goals(name, env)
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        return _from_zero(env)
    return _in_unit_box(name, env) if isinstance(env.action_space, gymnasium.spaces.Box) else env


def task_of(name: str, simulation: Any) -> GoalTask:
    """What is known of an environment: its family's, or nothing."""
    return FAMILIES.get(_family(name), GoalTask)(simulation)


def _family(name: str) -> str:
    return name.rpartition(":")[2].split("_")[0].split("-")[0]


def _import(name: str, module: str) -> None:
    """Import the module that registers an environment, from the current folder too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end, so that nothing there hides an installed module
    try:
        importlib.import_module(module)
    except Exception as error:  # a module raises whatever its code does
        raise BadInputError(
            f"env {name!r}",
            found=f"module {module}, whose import failed ({type(error).__name__}: {error})",
            expected="a module that can be imported and registers the environment",
            mend="install the module, or run the command in its folder",
        ) from error


def _newest(own: str) -> str:
    """The newest version of an environment; itself where there is no newer one."""
    spec = gymnasium.registry[own]
    newest = gymnasium.envs.registration.find_highest_version(spec.namespace, spec.name)
    return (
        own if newest is None else gymnasium.envs.registration.get_env_id(spec.namespace, spec.name, newest)
    )


def _not_made(name: str, newest: str, error: Exception) -> BadInputError:
    reason = str(error.args[0] if error.args else error).split(". ")[0]
    outdated = newest != name.rpartition(":")[2]
    return BadInputError(
        f"env {name}",
        found=f"{'a version out of date' if outdated else 'an environment'} that cannot be made ({reason})",
        expected="one that runs here",
        mend=f"choose {newest}" if outdated else "install what it asks for",
    )


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


def _unknown(name: str, own: str) -> BadInputError:
    close = difflib.get_close_matches(own, gymnasium.registry, n=3)
    return BadInputError(
        f"env {name!r}",
        found="no such environment",
        expected="a gymnasium id with its version, such as FetchReach-v4, or module:MyEnv-v0 of your own",
        mend=f"did you mean {' or '.join(close)}?"
        if close
        else "register it, in a module named before a colon",
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


def _refuse_other_goals(name: str, env: gymnasium.Env[Any, Any]) -> None:
    """Distances, and goals that stand in for each other, need goals that are vectors of one length."""
    held = cast("gymnasium.spaces.Dict", env.observation_space)
    boxes = [isinstance(held[key], gymnasium.spaces.Box) and len(held[key].shape or ()) == 1 for key in KEYS]
    if all(boxes) and held["achieved_goal"].shape == held["desired_goal"].shape:
        return
    env.close()
    found = ", ".join(
        f"{key} {held[key].shape if isinstance(held[key], gymnasium.spaces.Box) else type(held[key]).__name__}"
        for key in KEYS
    )
    raise BadInputError(
        f"env {name}",
        found=found,
        expected="vectors, the achieved and the desired goal of one length",
        mend="wrap the environment so that it has them",
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


def _from_zero(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Agents count discrete actions from 0; an environment may count them from another number."""
    own = cast("gymnasium.spaces.Discrete", env.action_space)
    first = own.start
    if not first:
        return env
    return gymnasium.wrappers.TransformAction(
        env, lambda action: action + first, gymnasium.spaces.Discrete(own.n)
    )
