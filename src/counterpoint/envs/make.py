"""One face for simulated control tasks seen through a camera.

The suites are Meta-World, dm_control, LIBERO, robomimic, robosuite and RLBench.
A task is named `SUITE/TASK`, such as `metaworld/bin-picking` or `dmc/walker-walk`. Simulators are imported when one
of their tasks is made.
"""

from __future__ import annotations

from typing import Any

from counterpoint.data.cache import resize
from counterpoint.data.episode import Array
from counterpoint.data.store import Cameras
from counterpoint.envs.base import ControlTask
from counterpoint.errors import BadInputError

__all__ = ["SUITES", "make_task"]

SUITES = ("metaworld", "dmc", "libero", "robomimic", "robosuite", "rlbench")


def make_task(
    name: str,
    *,
    camera: Cameras = None,
    size: int = 84,
    render: int | None = None,
    repeat: int = 1,
    steps: int | None = None,
) -> ControlTask:
    """Build a task's simulation.

    Args:
        name: `SUITE/TASK`.
        camera: A camera of the suite, or several in the order wanted; its usual one by default.
        size: Height and width of the pictures, in pixels.
        render: Draw at this size and resize as training stores do. Small pictures drawn directly are jagged, and a
            policy cloned from larger ones that were resized has never seen any such.
        repeat: Control steps an action lasts on Meta-World; the other suites fix it.
        steps: Of an episode: control steps on Meta-World, actions on the other suites; the suite's own by default.

    Raises:
        BadInputError: When suite, task or camera is unknown, or repeat or steps cannot be had.
        MissingExtraError: When the simulator is not installed.
    """
    if render is not None and render != size:
        return _Resized(make_task(name, camera=camera, size=render, repeat=repeat, steps=steps), size)
    suite, _, task = name.partition("/")
    if suite == "metaworld":
        from counterpoint.envs.metaworld.env import MetaWorldControl

        cut = {} if steps is None else {"control_steps": steps}
        return MetaWorldControl(task, camera=camera, size=size, repeat=repeat, **cut)
    if suite not in SUITES:
        raise BadInputError(name, f"suite {suite!r}", f"one of {', '.join(SUITES)}", "say SUITE/TASK")
    if repeat != 1:
        raise BadInputError("repeat", f"{repeat} on {suite}", "1", "leave it out: only Meta-World has a choice")
    length: dict[str, Any] = {} if steps is None else {"horizon": steps}
    if suite == "dmc":
        from counterpoint.envs.dmc.env import DMCTask

        return DMCTask(task, camera=camera, size=size, **length)
    if suite == "libero":
        from counterpoint.envs.libero import LiberoTask

        return LiberoTask(task, camera=camera, size=size, **length)
    if suite == "robosuite":
        from counterpoint.envs.robosuite.env import RobosuiteTask

        return RobosuiteTask(task, cameras=camera, size=size, **length)
    if suite == "rlbench":
        from counterpoint.envs.rlbench import RLBenchTask

        return RLBenchTask(task, cameras=camera, size=size, **length)
    from counterpoint.envs.robomimic import RobomimicTask

    return RobomimicTask(task, camera=camera, size=size, **length)


class _Resized:
    """A task whose pictures are resized as the training store resizes them."""

    def __init__(self, task: ControlTask, size: int) -> None:
        self._task, self._size = task, size
        self.name, self.instruction = task.name, task.instruction
        self.action_dim, self.state_dim, self.horizon = task.action_dim, task.state_dim, task.horizon
        self.reset, self.state, self.step, self.close = task.reset, task.state, task.step, task.close

    def draw(self) -> Array:
        """uint8 [size, size, 3], or [C, size, size, 3]."""
        drawn = self._task.draw()
        small = resize(drawn.reshape(-1, *drawn.shape[-3:]), self._size)
        return small.reshape(*drawn.shape[:-3], *small.shape[1:])
