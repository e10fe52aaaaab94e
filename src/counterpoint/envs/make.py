"""Make a simulated control task from its name; its simulator is imported only when the task is made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import gymnasium

from counterpoint.data.store import Cameras
from counterpoint.envs.base import CameraEnv, Options
from counterpoint.errors import require
from counterpoint.registry import LazyTable

SUITES = LazyTable(
    "suite",
    {
        "metaworld": "counterpoint.envs.metaworld.shared:make_metaworld",
        "dmc": "counterpoint.envs.dmc.env:DMCEnv",
        "kitchen": "counterpoint.envs.kitchen.env:KitchenEnv",
        "libero": "counterpoint.envs.libero:LiberoEnv",
        "robomimic": "counterpoint.envs.robomimic:RobomimicEnv",
        "robosuite": "counterpoint.envs.robosuite.env:RobosuiteEnv",
        "rlbench": "counterpoint.envs.rlbench:RLBenchEnv",
    },
    "counterpoint.envs",
)
"""Name of a suite -> its class or a function, called with the task and the keywords of `Options`."""
Maker: TypeAlias = Callable[[], gymnasium.Env[Any, Any]]


def make_env(
    name: str,
    size: int = 84,
    *,
    cameras: Cameras = None,
    render: int | None = None,
    repeat: int = 1,
    steps: int | None = None,
) -> CameraEnv:
    """Build a task's simulation.

    Args:
        name: SUITE/TASK, such as `metaworld/bin-picking`, or SUITE/TASK@CAMERA,CAMERA. `metaworld/shared/TASK` is a
            task in Meta-World's shared scene.
        size: Height and width of the images, in pixels.
        cameras: Names of cameras, used if `name` has none; see `Options`.
        render: Size at which images are rendered before they are resized to `size`; see `Options`.
        repeat: Number of control steps per action on Meta-World; in the other suites this number is fixed.
        steps: Number of steps per episode: control steps on Meta-World, actions in other suites. The default is the
            suite's number.

    Raises:
        BadInputError: If the suite, task or camera is unknown, or the suite does not support `repeat` or `steps`.
        MissingExtraError: If the simulator is not installed.
    """
    path, _, named = name.partition("@")
    suite, _, task = path.partition("/")
    kind = SUITES.find(suite, name)
    found, hint = f"{repeat} on {suite}", "leave it out: only Meta-World has a choice"
    require(repeat == 1 or suite == "metaworld", "repeat", found, "1", hint)
    chosen = {"repeat": repeat} if suite == "metaworld" else {}
    cameras = named.split(",") if named else cameras
    options: Options = {"cameras": cameras, "size": size, "render": render, "steps": steps}
    env: CameraEnv = kind(task, **chosen, **options)
    return env


def as_maker(env: gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]] | str) -> tuple[Maker, int]:
    """Return a function that makes an environment, and the maximum number of environments that it can make.

    Args:
        env: An environment (the maximum is then 1), a function that makes environments, a name SUITE/TASK, or the id of
            a goal-reaching environment.
    """
    if isinstance(env, gymnasium.Env):
        return lambda: env, 1
    if not isinstance(env, str):
        return env, sys.maxsize
    if env.partition("/")[0] in SUITES:
        return partial(make_env, env), sys.maxsize
    from counterpoint.envs.goal.env import EnvConfig, make_goal_env

    return partial(make_goal_env, EnvConfig(name=env)), sys.maxsize
