"""Recipes, plans and jobs: a recipe becomes a plan with accepted arguments, and a plan becomes a job ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from accelerate import Accelerator
from pydantic import BaseModel, create_model

from counterpoint.config import FrozenConfig, Tree, override
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import require
from counterpoint.objectives import objective_class
from counterpoint.objectives.base import Learner
from counterpoint.training.fit import Batches, Source
from counterpoint.training.loop import LoopConfig
from counterpoint.training.run import Run

Data = str | Path | EpisodeStore


@dataclass(frozen=True)
class Given:
    """The arguments of a training run in addition to its recipe.

    Attributes:
        data: Paths of data sets (or Minari's ids), or open stores.
        validation: An open store to validate on, if `data` is an open store.
        start_from: A saved model to start from.
        device: The device that computes.
    """

    data: tuple[Data, ...] = ()
    validation: EpisodeStore | None = None
    start_from: str | None = None
    device: str = "cpu"

    @property
    def is_open(self) -> bool:
        """True when the data are open stores with frames of training size."""
        return not any(isinstance(data, str | Path) for data in self.data)

    def one(self) -> Data:
        """Return the only data set."""
        found = f"{len(self.data)} data sets" if self.data else "none"
        require(len(self.data) == 1, "--data", found, "one data set", "name one")
        return self.data[0]


@dataclass(frozen=True)
class Job:
    """A training run that is ready to start.

    Attributes:
        learner: The learner to train.
        source: Training batches.
        save: Writes the model's folder, from the main process; all processes call it.
        validation: Validation batches.
        seen: Batches of training episodes that are scored together with the validation batches.
        evaluate: Scores the learner after a number of steps, in the main process; all processes call it. The numbers
            that it returns are logged as `eval`.
        facts: Entries for the run's `config.json`.
    """

    learner: Learner
    source: Source
    save: Callable[[Path], object]
    validation: Batches | None = None
    seen: Batches | None = None
    evaluate: Callable[[int], dict[str, float]] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A training run whose arguments are accepted.

    Attributes:
        identity: JSON values that must stay the same to continue a run, in addition to the recipe's settings.
        build: Prepares the data and returns the job, once the run's folder is claimed.
        facts: Entries for the run's `config.json`.
        loop: The loop's settings, if they are not the recipe's usual ones.
    """

    identity: dict[str, Any]
    build: Callable[[Run], Job]
    facts: Mapping[str, Any] = field(default_factory=dict)
    loop: LoopConfig | None = None


class Recipe(FrozenConfig):
    """Base of recipes.

    Attributes:
        kind: The kind of recipe.
    """

    kind: str

    @property
    def loop(self) -> LoopConfig:
        """The settings of the loop."""
        raise NotImplementedError

    @classmethod
    def sections(cls, tree: Mapping[str, Any], where: str) -> dict[str, type[BaseModel]]:
        """Return the class of each section whose class depends on a name in it, such as the objective's section."""
        return {}

    @classmethod
    def adapted(cls, tree: Tree, data: Sequence[object], env: str | None, where: str) -> Tree:
        """Return a recipe's tree for the data sets and the environment that it is trained on.

        Raises:
            BadInputError: An environment for a recipe that trains no policy.
        """
        if env is None:
            return tree
        expected = f"no environment: {where} trains no policy"
        require("evaluation" in cls.model_fields, "--env", env, expected, "leave it out")
        return override(tree, {"evaluation.env": env})

    def judges(self, given: Given) -> Sequence[Recipe]:
        """Return the recipes of the models that judge what they did not learn from: cross-fitting. Default: none."""
        return ()

    def plan(self, given: Given, accelerator: Accelerator) -> Plan:
        """Open the data and build the networks, so that any error is raised before the work begins.

        Args:
            given: The other arguments of the training run.
            accelerator: Placement and precision.

        Raises:
            BadInputError: When data, weights or settings do not fit.
        """
        raise NotImplementedError


@cache
def named(config: type[FrozenConfig], name: str) -> type[FrozenConfig]:
    """Return a configuration's class with an added field `name` that has only this value."""
    fields: dict[str, Any] = {"name": (Literal[name], ...)}
    made: type[FrozenConfig] = create_model(config.__name__, __base__=config, __doc__=config.__doc__, **fields)
    return made


def objective_section(tree: Mapping[str, Any], where: str, kind: type[Any]) -> type[FrozenConfig]:
    """Return the configuration's class for the `objective` section of a nested configuration `tree`."""
    section = tree.get("objective")
    name = section.get("name") if isinstance(section, Mapping) else None
    found = objective_class(name, kind, where)
    return named(found.config_type, str(name))
