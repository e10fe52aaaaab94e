"""The DeepMind Control Suite as `CameraEnv`s.

As in Premier-TACO (Appendix C: 500 steps per episode) and DrQ-v2, each action is executed for two control steps, and
the reward is summed over them. An episode has the suite's 1000 control steps, so a return lies between 0 and 1000.

The suite's renderer and `mujoco.Renderer` cannot run in the same process. So the suite is imported with its renderer
switched off, and images come from `FastRenderer`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import MujocoEnv, Options, choose_cameras
from counterpoint.envs.rendering import import_mujoco
from counterpoint.errors import import_extra, require, require_known

PRETRAINING = ("acrobot-swingup", "finger-turn_hard", "hopper-stand", "walker-run", "humanoid-walk", "dog-stand")
"""Premier-TACO's six pretraining tasks, called DMC-6 (section 4).

Appendix C counts episodes of Humanoid Stand and Dog Walk, which are not part of DMC-6.
"""
EVALUATION = (
    "finger-spin",
    "hopper-hop",
    "walker-walk",
    "humanoid-walk",
    "dog-trot",
    "cup-catch",
    "reacher-hard",
    "cheetah-run",
    "quadruped-walk",
    "quadruped-run",
)
"""The ten tasks of Premier-TACO's Table 1, which calls Humanoid Walk unseen although it is a pretraining task."""
HARD_DOMAINS = ("humanoid", "dog")
"""Domains for which the paper uses 100 demonstrations instead of 20."""

_INSTRUCTIONS = {
    "acrobot-swingup": "swing the two-link pendulum up and balance it",
    "finger-turn_hard": "turn the spinner with the finger until its tip is on the small target",
    "finger-spin": "spin the body with the finger",
    "hopper-stand": "stand upright on one leg",
    "hopper-hop": "hop forward on one leg",
    "walker-stand": "stand upright on two legs",
    "walker-walk": "walk forward on two legs",
    "walker-run": "run forward on two legs",
    "humanoid-stand": "stand up and keep standing",
    "humanoid-walk": "stand up and walk",
    "dog-stand": "stand as a dog",
    "dog-walk": "walk as a dog",
    "dog-trot": "trot as a dog",
    "cup-catch": "swing the ball up and catch it in the cup",
    "reacher-hard": "reach the small target with the tip of the arm",
    "cheetah-run": "run forward as a cheetah",
    "quadruped-walk": "walk forward on four legs",
    "quadruped-run": "run forward on four legs",
}


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """A task of the suite: its name in this library, such as `cup-catch`, and the task in words."""

    name: str
    instruction: str

    @property
    def domain(self) -> str:
        """The suite's domain, such as `ball_in_cup`."""
        domain = self.name.partition("-")[0]
        return "ball_in_cup" if domain == "cup" else domain

    @property
    def task(self) -> str:
        """The suite's task, such as `catch`."""
        return self.name.partition("-")[2]

    @property
    def camera(self) -> int:
        """Number of the usual camera, as in DrQ-v2's `dmc.py`, also for the dog."""
        return 2 if self.domain == "quadruped" else 0


TASKS = {name: SuiteTask(name, instruction) for name, instruction in _INSTRUCTIONS.items()}
"""Name of a task -> task."""


def resolve_dmc_tasks(names: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks that the given names stand for, each task once.

    The name `pretraining` stands for the six tasks on which Premier-TACO pretrains (DMC-6), and `evaluation` for the
    ten of its Table 1. The suite's spelling (`ball_in_cup-catch`), and underscores or spaces for hyphens (`Finger Turn
    Hard`), work too.

    Raises:
        BadInputError: If a name is unknown.
    """
    both = ((task, spelled) for task in TASKS.values() for spelled in (task.name, f"{task.domain}-{task.task}"))
    known: dict[str, tuple[str, ...]] = {_spelling(spelled): (task.name,) for task, spelled in both}
    known |= {"pretraining": PRETRAINING, "evaluation": EVALUATION}
    require(names, "tasks", "none", "at least one task", "name some")
    for name in names:
        if _spelling(name) not in known:
            expected = "one of {}, pretraining or evaluation"
            require_known(name, TASKS, f"task {name!r}", "no such task of dm_control", expected)
    return tuple(dict.fromkeys(task for name in names for task in known[_spelling(name)]))


def _spelling(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


ACTION_REPEAT = 2
"""Number of the suite's control steps per action."""
HORIZON = 500
"""Number of actions per episode: 1000 control steps."""


class DMCEnv(MujocoEnv):
    """A task of the suite. It has rewards, 0 to 2 per action, but no definition of success.

    `reset(seed)`, with a seed from 0 to 2^32 - 1, begins the same episode as the first one of the suite's environment
    loaded with `random=seed`. Actions are clipped to [-1, 1], the range of every actuator of these tasks. The state is
    all that the suite lets a policy observe, in the suite's order.

    Args:
        task: A name of `TASKS`, such as `walker-walk`.
        **options: See `Options`. Cameras are the model's, by name or number; the default is DrQ-v2's (2 for the
            quadruped, 0 for other domains). An episode has at most 500 steps.

    Attributes:
        task: The suite's name of the task.
        environment: The suite's environment; `physics` is its simulation.
        seconds: Simulated time per action.
    """

    packages = ("dm_control", "mujoco", "numpy")
    has_success = False

    def __init__(self, task: str, **options: Unpack[Options]) -> None:
        (known,) = resolve_dmc_tasks([task])
        steps = options.get("steps")
        possible = steps is None or 1 <= steps <= HORIZON
        require(possible, "steps", steps, f"1 to {HORIZON} actions", "leave it out for the suite's own")
        self.task = TASKS[known]
        self.environment = import_suite().load(self.task.domain, self.task.task, task_kwargs={"random": 0})
        self.physics = self.environment.physics
        if self.task.domain == "quadruped":
            _name_sensors(self.physics)
        self.seconds = float(self.environment.control_timestep()) * ACTION_REPEAT
        self._begin(0)
        model = self.physics.model.ptr
        names = {str(number): str(model.camera(number).name) for number in range(model.ncam)}
        chosen = choose_cameras(options.get("cameras"), (str(self.task.camera),), (*names.values(), *names))
        options["cameras"] = [names.get(name, name) for name in chosen]
        super().__init__(
            f"dmc/{known}",
            self.task.instruction,
            action_dim=int(model.nu),
            state_dim=len(self.state()),
            control_hz=1 / self.seconds,
            horizon=HORIZON,
            **options,
        )

    def state(self) -> Array:
        """Return all that the suite lets a policy observe: float32 [P]."""
        observed = self.environment.task.get_observation(self.physics).values()
        return np.concatenate([np.ravel(part) for part in observed]).astype(np.float32)

    def _begin(self, seed: int) -> None:
        self.environment.task._random = np.random.RandomState(seed)
        self.environment.reset()

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        control, total = action.astype(np.float64).clip(-1.0, 1.0), 0.0
        for _ in range(ACTION_REPEAT):
            step = self.environment.step(control)
            total += float(step.reward)
            if step.last():
                return total, False, step.discount == 0.0  # otherwise the time limit ended the episode
        return total, False, False

    def _scene(self) -> tuple[Any, Any]:
        return self.physics.model.ptr, self.physics.data.ptr


def import_suite() -> Any:
    """Import `dm_control.suite` without its renderer.

    Raises:
        MissingExtraError: If dm_control is not installed.
        BadInputError: If no rendering backend of MuJoCo works on this machine.
    """
    import_mujoco()
    chosen = os.environ.get("MUJOCO_GL", "")
    os.environ["MUJOCO_GL"] = "disable"  # read when the suite is first imported; MuJoCo has already read its value
    try:
        return import_extra("dm_control.suite", "sim")
    finally:
        os.environ["MUJOCO_GL"] = chosen


def _name_sensors(physics: Any) -> None:
    """Fill the quadruped's cache of sensor names; dm_control 1.0.28 fills it with `np.in1d`, which numpy 2.4 lacks."""
    kinds, model = import_mujoco().mjtSensor, physics.model.ptr
    for wanted in ((kinds.mjSENS_GYRO, kinds.mjSENS_ACCELEROMETER), (kinds.mjSENS_FORCE, kinds.mjSENS_TORQUE)):
        numbers = tuple(int(kind) for kind in wanted)
        names = [model.sensor(i).name for i in range(model.nsensor) if model.sensor_type[i] in numbers]
        physics._sensor_types_to_names[numbers] = names
