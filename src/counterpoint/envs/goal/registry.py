"""Goal-reaching environments from gymnasium's registry, with actions in [-1, 1] or counted from 0."""

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.envs.goal.tasks import task_of
from counterpoint.envs.rendering import choose_backend
from counterpoint.errors import BadInputError, MissingExtraError, require

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.envs import registration
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

KEYS = ("observation", "achieved_goal", "desired_goal")

Env = gymnasium.Env[Any, Any]


def make_base(name: str, *, max_episode_steps: int | None, images: bool) -> Env:
    """Make an environment by its gymnasium id; with `module:` before it, the module is imported first.

    Args:
        name: The id.
        max_episode_steps: Length of an episode; the environment's own where `None`.
        images: Whether it will be rendered.

    Raises:
        BadInputError: When there is none, or it is out of date.
        MissingExtraError: When gymnasium-robotics is not installed.
    """
    if images or "mujoco" not in sys.modules:
        choose_backend()
    _register_robotics()
    module, _, own = name.rpartition(":")
    if module:
        _import(name, module)
    if own not in gymnasium.registry:
        close = difflib.get_close_matches(own, gymnasium.registry, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "register it, in a module named before a colon"
        expected = "a gymnasium id with its version, such as FetchReach-v4, or module:MyEnv-v0 of your own"
        raise BadInputError(f"env {name!r}", "no such environment", expected, hint)
    arguments = task_of(own).arguments(own)
    if not task_of(own).can_stand_at_goal and "rgb_array" in _render_modes(own):
        arguments["render_mode"] = "rgb_array"
    try:
        env = gymnasium.make(own, max_episode_steps=max_episode_steps, disable_env_checker=True, **arguments)
    except (gymnasium.error.Error, TypeError) as error:
        newest = _newest(own)
        if isinstance(error, TypeError) and newest == own:
            raise  # of code that is not out of date: its own fault, to be seen where it lies
        reason = str(error.args[0] if error.args else error).split(". ")[0]
        found = "a version out of date" if newest != own else "an environment"
        hint = f"choose {newest}" if newest != own else "install what it asks for"
        raise BadInputError(
            f"env {name}", f"{found} that cannot be made ({reason})", "one that runs here", hint
        ) from error
    written = getattr(env.unwrapped, "tmp_xml_file_path", None)
    if written:  # mazes leave their model behind in the folder for temporary files
        Path(written).unlink(missing_ok=True)
    return env


def with_standard_actions(name: str, env: Env) -> Env:
    """Return an environment with goals that takes actions in [-1, 1], or counted from 0 where they are discrete.

    Raises:
        BadInputError: When it has no goals, or not of one vector, or actions without bounds.
    """
    try:
        _require_goals(name, env.observation_space)
        return _standard_actions(name, env)
    except BadInputError:
        env.close()
        raise


def _require_goals(name: str, space: spaces.Space[Any]) -> None:
    """Distances, and goals that stand in for each other, need goals that are vectors of one length."""
    where, held = f"env {name}", list(space) if isinstance(space, spaces.Dict) else type(space).__name__
    if not isinstance(space, spaces.Dict) or not set(KEYS) <= set(space):
        hint = "choose a goal-reaching environment (Fetch*, PointMaze_*, AntMaze_*), or wrap yours so that it has goals"
        raise BadInputError(where, f"observations without goals ({held})", f"a dictionary with {', '.join(KEYS)}", hint)
    forms = {key: space[key].shape if isinstance(space[key], spaces.Box) else type(space[key]).__name__ for key in KEYS}
    vectors = all(isinstance(form, tuple) and len(form) == 1 for form in forms.values())
    require(
        vectors and forms["achieved_goal"] == forms["desired_goal"],
        where,
        ", ".join(f"{key} {form}" for key, form in forms.items()),
        "vectors, the achieved and the desired goal of one length",
        "wrap the environment so that it has them",
    )


def _standard_actions(name: str, env: Env) -> Env:
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        first = space.start
        if not first:
            return env
        return gymnasium.wrappers.TransformAction(env, lambda action: action + first, spaces.Discrete(space.n))
    bounded = isinstance(space, spaces.Box) and len(space.shape) == 1 and space.is_bounded()
    expected, hint = "a bounded vector, or discrete actions", "wrap the environment so that its actions have bounds"
    require(bounded, f"env {name}", f"actions {space}", expected, hint)
    assert isinstance(space, spaces.Box)
    if (space.low == -1).all() and (space.high == 1).all():
        return env
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))


def _import(name: str, module: str) -> None:
    """Import the module that registers an environment, from the current folder too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end, so that nothing there hides an installed module
    try:
        importlib.import_module(module)
    except Exception as error:  # a module raises whatever its code does
        found = f"module {module}, whose import failed ({type(error).__name__}: {error})"
        expected, hint = "a module that registers the environment", "install it, or run the command in its folder"
        raise BadInputError(f"env {name!r}", found, expected, hint) from error


def _newest(own: str) -> str:
    spec = gymnasium.registry[own]
    newest = registration.find_highest_version(spec.namespace, spec.name)
    return own if newest is None else registration.get_env_id(spec.namespace, spec.name, newest)


def _render_modes(own: str) -> list[str]:
    entry = gymnasium.registry[own].entry_point
    try:
        creator = registration.load_env_creator(entry) if isinstance(entry, str) else entry
    except (ImportError, gymnasium.error.Error):  # `gymnasium.make` will say so
        return []
    return list(getattr(creator, "metadata", {}).get("render_modes", ()))


def _register_robotics() -> None:
    """Register gymnasium-robotics' environments, without the note on Adroit that its first import prints."""
    try:
        from farama_notifications import notifications
    except ImportError:
        notifications = {}
    notes = notifications.get("gymnasium_robotics", {})
    for version in [version for version, note in notes.items() if note.startswith("Adroit")]:
        del notes[version]
    try:
        import gymnasium_robotics
    except ModuleNotFoundError:
        raise MissingExtraError("gymnasium-robotics", "sim") from None
    gymnasium.register_envs(gymnasium_robotics)
