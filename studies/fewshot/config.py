"""The configuration of a few-shot study: data, pretrainings, rows of the table, and evaluation."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from counterpoint.config import FrozenConfig
from counterpoint.encoders.observation import ObservationConfig
from counterpoint.training.learner import OptimizerConfig
from counterpoint.training.settings import TrainConfig
from studies.harness import ALLOWED, check_names, refuse_keys

STEPS = {"metaworld": 200, "dmc": 500}
"""For each suite, the control steps (dm_control: actions) of an episode in the paper's data (Appendix C)."""

SET_ELSEWHERE = {"cloning.freeze": "a row says it, by frozen", "seed": "seeds counts them"}
"""Settings of cloning that the study sets itself, with the reason."""


class FewshotData(FrozenConfig):
    """Tasks and their data.

    Attributes:
        suite: The simulator.
        pretraining_tasks: Names of the pretraining tasks, without the suite.
        unseen_tasks: Names of the unseen tasks, which are the columns of the table.
        episodes: Number of pretraining episodes per task.
        validation_episodes: Number of episodes per task that are held out to evaluate pretraining; 0 for none.
        behaviour: Behaviour in the pretraining data: `expert` is the scripted expert or planner with noise, `random`
            acts uniformly (Figure 7).
        noise: Standard deviation of the Gaussian noise on the expert's actions; 0.3 in the paper (Appendix C).
        repeat: Number of control steps per action on Meta-World. The paper gives none; 1 records and acts at 80 Hz.
        steps: Number of control steps (dm_control: actions) of a pretraining episode, which continues after the task is
            solved, and the limit of demonstrations and rollouts. By default 200 on Meta-World, 500 on dm_control, and
            the simulator's own limit in other suites.
        demonstrations: Number N of demonstrations per task, all successful and recorded without noise. Each seed of the
            study has its own N demonstrations, the same for all methods.
        more_demonstrations: N of unseen tasks with another N, such as the paper's 100 for humanoid and dog.
        camera: Camera of pretraining, or several as in `encoder.cameras`; by default the suite's usual camera. For data
            that are opened, the name in these data, which LIBERO's and robomimic's simulators share.
        demonstration_camera: Camera of demonstrations and rollouts, if it is another one (Figure 6, right).
        pretraining_path: A data set to pretrain on instead of recording one.
        demonstrations_path: A data set with demonstrations of the unseen tasks, which are identified by instruction.
        render: Height and width in pixels of rendered and recorded images, if larger than the encoder's, because small
            images are jagged if they are rendered directly. Rollouts render and resize in the same way.
        seed: Random seed of all recordings.
        workers: Number of processes that record.
    """

    suite: Literal["metaworld", "dmc", "robosuite", "libero", "robomimic"] = "metaworld"
    pretraining_tasks: tuple[str, ...] = Field(default=())
    unseen_tasks: tuple[str, ...] = Field(min_length=1)
    episodes: PositiveInt = 100
    validation_episodes: int = Field(default=0, ge=0)
    behaviour: Literal["expert", "random"] = "expert"
    noise: float = Field(default=0.3, ge=0)
    repeat: PositiveInt = 1
    steps: PositiveInt | None = None
    demonstrations: PositiveInt = 5
    more_demonstrations: dict[str, PositiveInt] = Field(default={})
    camera: str | tuple[str, ...] | None = None
    demonstration_camera: str | tuple[str, ...] | None = None
    pretraining_path: str | None = None
    demonstrations_path: str | None = None
    render: PositiveInt | None = None
    seed: int = Field(default=0, ge=0)
    workers: PositiveInt = 2

    @model_validator(mode="after")
    def _known_tasks(self) -> FewshotData:
        strange = sorted(set(self.more_demonstrations) - set(self.unseen_tasks))
        if strange:
            raise ValueError(f"more_demonstrations of unseen_tasks only, not of {', '.join(strange)}")
        return self

    @property
    def limit(self) -> int | None:
        """Steps after which demonstrations and rollouts end; `None` for the simulator's own."""
        return self.steps or STEPS.get(self.suite)

    def demonstrations_for(self, task: str) -> int:
        """Return the number of demonstrations of a task, N."""
        return self.more_demonstrations.get(task, self.demonstrations)

    @property
    def seen_camera(self) -> str | tuple[str, ...] | None:
        """The camera or cameras of demonstrations and rollouts."""
        return self.demonstration_camera or self.camera


class Pretraining(FrozenConfig):
    """One way to pretrain an encoder; every seed has a run of its own.

    Attributes:
        objective: The objective's name and settings.
        encoder: Settings of the encoder that differ from the study's, by dotted key.
        optimizer: Settings of the optimiser that differ from the study's.
        train: Settings of the training loop that differ from the study's, usually `batch_size`.
        data: Settings of the data: `balance` of `StepDataConfig`.
        initialize_from: An encoder to start from, instead of random weights (Figures 8, 10, 11).
    """

    objective: dict[str, Any]
    encoder: dict[str, Any] = Field(default={})
    optimizer: dict[str, Any] = Field(default={})
    train: dict[str, Any] = Field(default={})
    data: dict[str, Any] = Field(default={})
    initialize_from: str | None = None

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Pretraining:
        if set(self.data) - {"balance"}:
            raise ValueError(f"data may say balance alone, not {', '.join(sorted(self.data))}")
        if "seed" in self.train:
            raise ValueError("train cannot say a seed: seeds counts them")
        return self


class Row(FrozenConfig):
    """A method: where the encoder comes from, and whether cloning changes it.

    Attributes:
        name: Name in the table.
        pretraining: Name of a pretraining; if there is none, the encoder has random weights.
        frozen: True to train only a head on the frozen encoder; otherwise both are trained.
        encoder: Settings of the encoder that differ from the study's, if there is no pretraining.
        initialize_from: A folder or Hub id of an encoder, if there is no pretraining.
        clone: Settings of cloning that differ from the study's, by dotted key (`cloning.shift`).
    """

    name: str
    pretraining: str | None = None
    frozen: bool = True
    encoder: dict[str, Any] = Field(default={})
    initialize_from: str | None = None
    clone: dict[str, Any] = Field(default={})

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Row:
        if self.pretraining is not None and (self.encoder or self.initialize_from):
            raise ValueError(
                f"encoder and initialize_from of {self.name} belong to its pretraining, {self.pretraining}"
            )
        refuse_keys(self.clone, SET_ELSEWHERE, "clone")
        return self


class Evaluations(FrozenConfig):
    """Evaluation of policies while they are cloned.

    Attributes:
        every: Number of gradient steps between evaluations; 1000 in the paper.
        episodes: Number of episodes of each evaluation; 40 in the paper (20 on dm_control). Each seed of the study has
            its own episodes, the same for all methods and evaluations.
        envs: Number of parallel simulations in each process.
        processes: True to run each simulation in a separate process.
        seed: Random seed of the episodes.
    """

    every: PositiveInt = 1000
    episodes: PositiveInt = 40
    envs: PositiveInt = 8
    processes: bool = False
    seed: int = Field(default=0, ge=0)


class FewshotConfig(FrozenConfig):
    """A whole study.

    Attributes:
        title: Name in the tables.
        data: Tasks and data.
        encoder: Encoder of every row, which a row may change.
        optimizer: Optimiser of pretraining.
        train: Loop of pretraining.
        pretrainings: Pretrainings by name.
        rows: The methods.
        clone: Steps, batch size, precision, learning rate and `cloning` settings of `CloningRecipe`.
        evaluation: Evaluation of policies.
        seeds: Number of seeds; a seed determines pretraining, demonstrations and cloning.
        reference: The row with which others are compared.
        resamples: Number of resamples of the bootstraps over seeds.
        processes: Number of policies that are cloned in parallel.
        pretraining_processes: Number of pretrainings that run in parallel.
    """

    title: str = "few-shot benchmark"
    data: FewshotData
    encoder: ObservationConfig = ObservationConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-4)
    train: TrainConfig = TrainConfig(steps=20_000, batch_size=256, trackers=())
    pretrainings: dict[str, Pretraining] = Field(default={})
    rows: tuple[Row, ...] = Field(min_length=1)
    clone: dict[str, Any] = Field(default={})
    evaluation: Evaluations = Evaluations()
    seeds: PositiveInt = 2
    reference: str
    resamples: PositiveInt = 2000
    processes: PositiveInt = 2
    pretraining_processes: PositiveInt = 2

    @model_validator(mode="after")
    def _consistent(self) -> FewshotConfig:
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise ValueError(f"rows need names of their own, not {names}")
        if self.reference not in names:
            raise ValueError(f"reference must be one of the rows, {names}")
        for row in self.rows:
            if row.pretraining is not None and row.pretraining not in self.pretrainings:
                raise ValueError(f"pretraining of {row.name} must be one of {sorted(self.pretrainings)}")
        if self.pretrainings and not (self.data.pretraining_tasks or self.data.pretraining_path):
            raise ValueError("pretraining_tasks must name at least one task")
        for camera in (self.data.camera, self.data.seen_camera):
            if self.encoder.cameras != (len(camera) if isinstance(camera, tuple) else 1):
                raise ValueError(f"camera must name encoder.cameras = {self.encoder.cameras} of them")
        tasks = [task for task in self.data.unseen_tasks if ALLOWED.fullmatch(task)]  # the suite's check names others
        check_names([[(name, task) for name in names for task in tasks], [(name,) for name in self.pretrainings]])
        refuse_keys(self.clone, SET_ELSEWHERE, "clone")
        return self

    @property
    def used_pretrainings(self) -> dict[str, Pretraining]:
        """The pretrainings of the rows."""
        used = {row.pretraining for row in self.rows}
        return {name: one for name, one in self.pretrainings.items() if name in used}

    def row(self, name: str) -> Row:
        """Return the row of a name."""
        return next(row for row in self.rows if row.name == name)
