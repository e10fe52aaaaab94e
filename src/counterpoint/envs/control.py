"""One face for simulated control tasks seen through a camera.

The suites are Meta-World, dm_control, LIBERO, robomimic, robosuite and RLBench.
A task is named `SUITE/TASK`, such as `metaworld/bin-picking` or `dmc/walker-walk`. Simulators are imported when one
of their tasks is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from counterpoint.data.cache_build import resize
from counterpoint.data.cameras import Cameras
from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError

__all__ = ["SUITES", "ControlTask", "Outcome", "draw_each", "make_task", "named_cameras"]

SUITES = ("metaworld", "dmc", "libero", "robomimic", "robosuite", "rlbench")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step led to.

    Attributes:
        reward: Of the step.
        success: Whether the task is solved at this moment; always False where a suite has rewards alone.
        ended: Whether the episode is over before its time.
    """

    reward: float
    success: bool
    ended: bool = False


class ControlTask(Protocol):
    """A task with a camera or several. What follows `reset(seed)` depends on the seed and the actions alone.

    Attributes:
        name: `SUITE/TASK`.
        instruction: The task in words.
        action_dim: A; actions are float32 [A] in [-1, 1].
        state_dim: P, numbers of proprioception.
        horizon: Steps of an episode.
    """

    name: str
    instruction: str
    action_dim: int
    state_dim: int
    horizon: int

    def reset(self, seed: int) -> None:
        """Begin an episode."""

    def draw(self) -> Array:
        """What the camera sees: uint8 [size, size, 3], RGB, upright; several cameras: [C, size, size, 3]."""

    def state(self) -> Array:
        """Proprioception: float32 [P]."""

    def step(self, action: Array) -> Outcome:
        """Act once."""

    def close(self) -> None:
        """Free the graphics context."""


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
        cut = {} if steps is None else {"control_steps": steps}
        return MetaWorldControl(task, camera=camera, size=size, repeat=repeat, **cut)
    if suite not in SUITES:
        raise BadInputError(
            name, found=f"suite {suite!r}", expected=f"one of {', '.join(SUITES)}", mend="say SUITE/TASK"
        )
    if repeat != 1:
        raise BadInputError(
            "repeat",
            found=f"{repeat} on {suite}",
            expected="1",
            mend="leave it out: only Meta-World has a choice",
        )
    length: dict[str, Any] = {} if steps is None else {"horizon": steps}
    if suite == "dmc":
        from counterpoint.envs.dmc import DMCTask

        return DMCTask(task, camera=camera, size=size, **length)
    if suite == "libero":
        from counterpoint.envs.libero import LiberoTask

        return LiberoTask(task, camera=camera, size=size, **length)
    if suite == "robosuite":
        from counterpoint.envs.robosuite import RobosuiteTask

        return RobosuiteTask(task, cameras=camera, size=size, **length)
    if suite == "rlbench":
        from counterpoint.envs.rlbench import RLBenchTask

        return RLBenchTask(task, cameras=camera, size=size, **length)
    from counterpoint.envs.robomimic import RobomimicTask

    return RobomimicTask(task, camera=camera, size=size, **length)


def named_cameras(camera: Cameras, usual: str) -> tuple[str, ...]:
    """Those named, or the usual one."""
    names = (camera,) if isinstance(camera, str) else tuple(camera or ())
    return names or (usual,)


def draw_each(draw: Callable[[str], Array], cameras: Sequence[str]) -> Array:
    """What `ControlTask.draw` returns, of one camera or of several."""
    pictures = [draw(camera) for camera in cameras]
    return np.stack(pictures) if len(pictures) > 1 else pictures[0]


class MetaWorldControl:
    """A Meta-World task. Success is being solved at this moment; the reward is Meta-World's.

    Args:
        task: A task's name; `-v3` may be left away.
        camera: A camera of `metaworld.CAMERAS`, or several; `corner2` by default.
        size: Height and width of the pictures, in pixels.
        repeat: Control steps of 1/80 s that an action lasts.
        control_steps: Of an episode; 200 in Premier-TACO's data (Appendix C), 500 at most.
    """

    action_dim = 4
    state_dim = 4

    def __init__(
        self, task: str, *, camera: Cameras = None, size: int, repeat: int = 1, control_steps: int = 200
    ) -> None:
        from counterpoint.envs.metaworld import HORIZON, MetaWorldTask

        if repeat < 1:
            raise BadInputError("repeat", found=f"{repeat}", expected="1 or more", mend="2 halves the rate")
        if not 1 <= control_steps <= HORIZON:
            raise BadInputError(
                "steps", found=f"{control_steps}", expected=f"1 to {HORIZON}", mend="take 200, as the paper"
            )
        self._simulation = MetaWorldTask(task, cameras=named_cameras(camera, "corner2"), size=size)
        self._repeat, self._control_steps, self.horizon = repeat, control_steps, -(-control_steps // repeat)
        self.name = f"metaworld/{self._simulation.task.removesuffix('-v3')}"
        self.instruction = self._simulation.instruction

    def reset(self, seed: int) -> None:
        """Place the objects by `seed`."""
        self._observation, self._left = self._simulation.reset(seed), self._control_steps

    def draw(self) -> Array:
        """uint8 [size, size, 3], or [C, size, size, 3]."""
        return draw_each(self._simulation.draw().__getitem__, self._simulation.cameras)

    def state(self) -> Array:
        """Hand position in metres and gripper opening: float32 [4]."""
        return np.asarray(self._observation[: self.state_dim], np.float32)

    def step(self, action: Array) -> Outcome:
        """Act for `repeat` control steps; rewards are summed, and solved at any of them is solved.

        The last action of an episode is shorter where `repeat` does not divide its steps, as in recorded data.
        """
        total, success = 0.0, False
        lasts = min(self._repeat, self._left)
        self._left -= lasts
        for _ in range(lasts):
            self._observation, reward, solved = self._simulation.step(action)
            total, success = total + reward, success or solved
        return Outcome(total, success)

    def close(self) -> None:
        """Free the graphics context."""
        self._simulation.close()


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
