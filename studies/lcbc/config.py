"""The configuration of a study of language-conditioned cloning: tasks, videos, encoders, policies, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from counterpoint.config import FrozenConfig
from studies.harness import check_names, refuse_keys

SUITES = ("kitchen", "metaworld")
SET_ELSEWHERE = {"train.seed": "seeds counts them", "data.camera": "cameras says it"}
"""Keys of cloning that the study sets itself, with the reason."""


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested sections of a recipe as one mapping with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


Keys = Annotated[dict[str, Any], AfterValidator(flat)]
"""Dotted keys of a recipe and their values."""
ANOTHER_TASKS = "another task's"
"""Kind of words that instruct a policy to do another task; if the policy reads them, its success falls."""


class Videos(FrozenConfig):
    """The videos that encoders are pretrained on.

    Attributes:
        tasks: Tasks as `SUITE/TASK`. Meta-World's must differ from the tasks of cloning. The kitchen's videos are play:
            an episode begins in the state in which another task's expert has ended.
        episodes: Number of episodes per task.
        noise: Standard deviation of Gaussian noise on the experts' actions.
        steps: Maximum number of actions of an episode, without those in which the kitchen's arm first returns.
        seed: Random seed of the scenes.
    """

    tasks: tuple[str, ...] = Field(min_length=1)
    episodes: PositiveInt = 20
    noise: float = Field(default=0.0, ge=0)
    steps: PositiveInt = 80
    seed: int = Field(default=100, ge=0)


class Encoder(FrozenConfig):
    """A row: where the embeddings come from.

    Attributes:
        recipe: A recipe of kind `clips`, which trains a dual encoder on the videos.
        overrides: Dotted keys of the recipe and their values.
        untrained: Use the recipe's encoder without training: `random` for random weights, `pretrained` for a pretrained
            image tower with random heads.
        checkpoint: A folder or Hub id of a dual encoder or reward model, instead of a recipe.
        policy: A recipe of cloning instead of the study's, such as `lcbc-rt1`, which trains end to end.
        clone: Dotted keys of cloning and their values; if there is neither recipe nor checkpoint, they configure the
            encoder.
    """

    recipe: str | None = None
    overrides: Keys = Field(default={})
    untrained: Literal["random", "pretrained"] | None = None
    checkpoint: str | None = None
    policy: str | None = None
    clone: Keys = Field(default={})

    @model_validator(mode="after")
    def _one_source(self) -> Encoder:
        if self.recipe and self.checkpoint:
            raise ValueError("a row has a recipe or a checkpoint, not both")
        if self.untrained and not self.recipe:
            raise ValueError("untrained is for a row with a recipe, which says the encoder")
        refuse_keys(self.clone, SET_ELSEWHERE, "clone")
        return self

    @property
    def blind(self) -> bool:
        """True if policies see no images."""
        return self.clone.get("encoder.kind") == "none"

    @property
    def dual(self) -> bool:
        """True if a dual encoder embeds images and instruction."""
        return bool(self.recipe or self.checkpoint)


class LcbcConfig(FrozenConfig):
    """A whole study.

    Attributes:
        title: Name in the tables.
        tasks: Tasks as `SUITE/TASK`, which are the columns of the table.
        cameras: Cameras of each suite; every camera has its own policies, and AcTOL averages over cameras.
        views: Number of cameras that one policy sees at once, the first ones of `cameras`.
        demonstrations: Numbers of demonstrations per task.
        together: True for one policy for all tasks of a suite.
        videos: The videos of pretraining.
        encoders: The rows by name.
        overrides: Dotted keys and values that change every row's recipe.
        recipe: The recipe of cloning.
        clone: Dotted keys of cloning and their values, for every row.
        size: Height and width of all images, in pixels.
        seeds: Number of seeds; a seed determines pretraining, demonstrations and cloning.
        episodes: Number of episodes of one evaluation, the same ones for every row.
        reworded: True to evaluate the last policy also under other wordings and under the other tasks' instructions.
        gate: Row that must reach .8 with the largest number of demonstrations, as a check of the cloning.
        reference: Row with which others are compared.
        noise: Standard deviation of Gaussian noise on the executed actions of demonstrations; the recorded actions are
            the experts' actions without noise.
        processes: Number of trials that run in parallel.
    """

    title: str
    tasks: tuple[str, ...] = Field(min_length=1)
    cameras: dict[str, tuple[str, ...]] = Field(default={"kitchen": ("left",), "metaworld": ("corner2",)})
    views: PositiveInt = 1
    demonstrations: tuple[PositiveInt, ...] = (5, 25)
    together: bool = False
    videos: Videos
    encoders: dict[str, Encoder] = Field(min_length=1)
    overrides: Keys = Field(default={})
    recipe: str = "lcbc-decisionnce"
    clone: Keys = Field(default={})
    size: PositiveInt = 112
    seeds: PositiveInt = 3
    episodes: PositiveInt = 20
    reworded: bool = False
    gate: str = "raw state"
    reference: str = "random"
    noise: float = Field(default=0.0, ge=0)
    processes: PositiveInt = 2

    @model_validator(mode="after")
    def _consistent(self) -> LcbcConfig:
        for task in (*self.tasks, *self.videos.tasks):
            suite, slash, name = task.partition("/")
            if suite not in SUITES or not slash or not name:
                raise ValueError(f"tasks are SUITE/TASK, of {' or '.join(SUITES)}, not {task!r}")
        cloned = [task.removesuffix("-v3") for task in self.tasks if suite_of(task) == "metaworld"]
        both = [task for task in self.videos.tasks if task.removesuffix("-v3") in cloned]
        if both:
            raise ValueError(
                f"the videos' tasks must be others than those of cloning, which have {', '.join(both)} too"
            )
        for suite in dict.fromkeys(map(suite_of, (*self.tasks, *self.videos.tasks))):
            if len(self.cameras.get(suite, ())) < self.views:
                raise ValueError(f"cameras must name {self.views} or more of {suite}")
        for key in ("gate", "reference"):
            if getattr(self, key) not in self.encoders:
                raise ValueError(f"{key} must be one of the encoders, {', '.join(self.encoders)}")
        refuse_keys(self.clone, SET_ELSEWHERE, "clone")
        check_names([[(name,) for name in map(spaceless, self.encoders)], [(task,) for task in self.tasks]])
        return self

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of the tasks."""
        return tuple(dict.fromkeys(map(suite_of, self.tasks)))

    def groups(self) -> list[tuple[str, ...]]:
        """Return the tasks of every policy."""
        if not self.together:
            return [(task,) for task in self.tasks]
        return [tuple(task for task in self.tasks if suite_of(task) == suite) for suite in self.suites]

    def views_of(self, suite: str, row: str) -> list[tuple[str, ...]]:
        """Return the cameras of each policy of a row in a suite; a row without images has one policy."""
        names = self.cameras[suite]
        if self.encoders[row].blind:
            names = names[: self.views]
        return [names[: self.views]] if self.views > 1 else [(name,) for name in names]


def suite_of(task: str) -> str:
    """Return the suite of `SUITE/TASK`."""
    return task.partition("/")[0]


def spaceless(name: str) -> str:
    """Return a row's name without spaces, for file names."""
    return name.replace(" ", "_")
