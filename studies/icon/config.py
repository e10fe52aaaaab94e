"""The configuration of a comparison of diffusion policies with and without ICon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from counterpoint.config import FrozenConfig
from studies.harness import ALLOWED, check_names, refuse_keys

SET_ELSEWHERE = {
    "frame": "data.frame is that",
    "train.seed": "seeds names them",
    "train.eval_every": "evaluation.checkpoints is that",
}
"""Settings of training that the study sets itself, with the reason."""


class IconData(FrozenConfig):
    """Tasks and their data.

    Attributes:
        tasks: Tasks as `SUITE/TASK`, which are the columns of the table.
        demonstrations: Number of training episodes per task; 50 in the paper. All methods and seeds use the same ones.
        validation: Number of held-out episodes per task, on which attention and separability are measured.
        cameras: The policy's cameras, in order.
        frame: Side of recorded and rendered images in pixels; 256 in the paper. The encoder's input is a crop.
        path: A folder with one data set per task, in a folder of the task's name; nothing is recorded then.
        noise: Standard deviation of Gaussian noise on the experts' actions, from which the experts recover.
        seed: Random seed of the recordings.
        workers: Number of processes that record.
    """

    tasks: tuple[str, ...] = Field(min_length=1)
    demonstrations: PositiveInt = 50
    validation: PositiveInt = 5
    cameras: tuple[str, ...] = Field(default=("agentview", "robot0_eye_in_hand"), min_length=1)
    frame: PositiveInt = 256
    path: str | None = None
    noise: float = Field(default=0.0, ge=0)
    seed: int = Field(default=0, ge=0)
    workers: PositiveInt = 2


class Method(FrozenConfig):
    """A row of the table.

    Attributes:
        name: Name in the table; the paper's name if the paper has the method.
        training: Settings that differ from the study's.
    """

    name: str
    training: dict[str, Any] = Field(default={})

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Method:
        refuse_keys(self.training, SET_ELSEWHERE, "training")
        return self


class Transfer(FrozenConfig):
    """Table 3: policies of one robot fine-tuned on a few demonstrations of another, and training only on these.

    Attributes:
        targets: For each source task, the same task with other robots.
        demonstrations: Number of demonstrations of each target.
        training: Settings of fine-tuning, and of training from scratch on the target, that differ from the study's.
    """

    targets: dict[str, tuple[str, ...]] = Field(min_length=1)
    demonstrations: PositiveInt = 5
    training: dict[str, Any] = Field(default={})

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Transfer:
        refuse_keys(self.training, SET_ELSEWHERE, "training")
        return self


class Evaluations(FrozenConfig):
    """Rollouts of checkpoints, from the same initial conditions for every method, seed and checkpoint.

    Attributes:
        checkpoints: Number of checkpoints, evenly spaced, the last one after the last step; the paper has one after
            every 50 of 600 epochs.
        episodes: Number of initial conditions for the last checkpoint; 50 in the paper.
        between: Number of initial conditions for the other checkpoints; they are the first ones of `episodes`.
        steps: Number of steps of an episode; by default the task's (Table 4).
        envs: Number of parallel simulations in each process.
        processes: True to run each simulation in a separate process.
        ensemble: Decay of ACT's temporal ensemble, with which policies plan at every step. The paper calls it crucial
            but gives no number. `None` executes eight actions of each plan.
        seed: Random seed of the initial conditions.
    """

    checkpoints: PositiveInt = 12
    episodes: PositiveInt = 50
    between: PositiveInt = 50
    steps: PositiveInt | None = None
    envs: PositiveInt = 8
    processes: bool = False
    ensemble: float | None = Field(default=None, ge=0)
    seed: int = Field(default=0, ge=0)


class Measures(FrozenConfig):
    """Measures inside the encoder.

    Attributes:
        camera: A camera that has masks.
        frames: Number of frames of each held-out episode, evenly spread.
        probe_frames: Total number of frames of training episodes on whose tokens linear probes are fitted.
        images: Number of held-out frames whose attention the report shows.
    """

    camera: str = "agentview"
    frames: PositiveInt = 10
    probe_frames: PositiveInt = 100
    images: PositiveInt = 4


class ComparisonConfig(FrozenConfig):
    """A whole comparison.

    Attributes:
        title: Name in the tables.
        data: Tasks and data.
        training: Settings of `counterpoint.training.imitation.ImitationRecipe` that all methods share.
        methods: The rows of the table.
        reference: The row with which others are compared.
        seeds: Seeds of initial weights and training; by default the paper's three.
        evaluation: Rollouts.
        measures: Attention and separability.
        transfer: The experiment of Table 3.
        minutes: Time of a training: every method takes the number of gradient steps that the slowest method takes in
            this time. Without it, `training` determines the steps.
        processes: Number of policies that are trained in parallel.
        notes: Notes that follow the tables.
    """

    title: str = "diffusion policies with and without ICon"
    data: IconData
    training: dict[str, Any] = Field(default={})
    methods: tuple[Method, ...] = Field(min_length=1)
    reference: str = "Diff-C"
    seeds: tuple[int, ...] = Field(default=(0, 42, 100), min_length=1)
    evaluation: Evaluations = Evaluations()
    measures: Measures = Measures()
    transfer: Transfer | None = None
    minutes: PositiveFloat | None = None
    processes: PositiveInt = 2
    notes: tuple[str, ...] = Field(default=())

    @model_validator(mode="after")
    def _consistent(self) -> ComparisonConfig:
        refuse_keys(self.training, SET_ELSEWHERE, "training")
        names = [method.name for method in self.methods]
        for what, values in (("methods", names), ("seeds", self.seeds), ("tasks", self.all_tasks)):
            if len(set(values)) < len(values):
                raise ValueError(f"{what} must differ from one another, not {', '.join(map(str, values))}")
        if self.reference not in names:
            raise ValueError(f"reference must be one of the methods, {', '.join(names)}")
        if self.measures.camera not in self.data.cameras:
            raise ValueError(f"measures.camera must be one of data.cameras, not {self.measures.camera}")
        for task in self.all_tasks:
            if not all(task.partition("/")) or not ALLOWED.fullmatch(task):
                raise ValueError(f"tasks are written SUITE/TASK, not {task!r}")
        check_names([[(name,) for name in names]])
        if self.transfer is not None:
            strange = sorted(set(self.transfer.targets) - set(self.data.tasks))
            if strange:
                raise ValueError(f"transfer.targets begins at tasks of data.tasks, not at {', '.join(strange)}")
        return self

    @property
    def all_tasks(self) -> tuple[str, ...]:
        """The tasks, and the same tasks of other robots."""
        more = self.transfer.targets.values() if self.transfer is not None else ()
        return (*self.data.tasks, *(target for targets in more for target in targets))

    def method(self, name: str) -> Method:
        """Return the method of a name."""
        return next(method for method in self.methods if method.name == name)

    def demonstrations_for(self, task: str) -> int:
        """Return the number of training episodes of a task."""
        if task in self.data.tasks or self.transfer is None:
            return self.data.demonstrations
        return self.transfer.demonstrations


def nested(changes: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings `into` with `changes`, which are merged key by key within sections; keys may be dotted."""
    found = dict(into or {})
    for dotted, value in changes.items():
        key, _, rest = dotted.partition(".")
        own = {rest: value} if rest else value
        old = found.get(key)
        found[key] = nested(own, old if isinstance(old, Mapping) else None) if isinstance(own, Mapping) else own
    return found
