"""Recipes, plans and jobs: a recipe with its checked arguments makes a plan, and a plan makes a job that can be run."""

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
from counterpoint.training.loop import Batches, Source
from counterpoint.training.run import Run
from counterpoint.training.settings import LoopConfig

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
        """Return the data set; raise `BadInputError` unless exactly one is given."""
        found = f"{len(self.data)} data sets" if self.data else "none"
        require(len(self.data) == 1, "--data", found, "one data set", "name one")
        return self.data[0]


@dataclass(frozen=True)
class Job:
    """A training run that is ready to start.

    Attributes:
        learner: The learner to train.
        source: Training batches.
        save: Function that writes the model's folder. All processes call it; only the main process writes.
        validation: Validation batches.
        seen: Batches of training episodes that are scored together with the validation batches.
        evaluate: Function that takes the number of steps done and scores the learner. All processes call it; the main
            process computes the scores, which are logged as `eval`.
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
    """A training run whose arguments have been checked.

    Attributes:
        identity: JSON values that must stay the same to continue a run, in addition to the recipe's settings.
        build: Function that prepares the data and returns the job; called after the run's folder is claimed.
        facts: Entries for the run's `config.json`.
        loop: The loop's settings, if they differ from the recipe's `loop`.
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
        """Return the configuration class of each section whose class depends on its key `name`, such as `objective`."""
        return {}

    @classmethod
    def adapted(cls, tree: Tree, data: Sequence[object], env: str | None, where: str) -> Tree:
        """Return the recipe's settings, adapted to the data sets and the environment that it is trained on.

        Raises:
            BadInputError: When an environment is given to a recipe that trains no policy.
        """
        if env is None:
            return tree
        expected = f"no environment: {where} trains no policy"
        require("evaluation" in cls.model_fields, "--env", env, expected, "leave it out")
        return override(tree, {"evaluation.env": env})

    def judges(self, given: Given) -> Sequence[Recipe]:
        """Return the recipes of the judges, which score data that they did not learn from; empty by default."""
        return ()

    def plan(self, given: Given, accelerator: Accelerator) -> Plan:
        """Open the data and build the networks, so that any error is raised before training begins.

        Args:
            given: The other arguments of the training run.
            accelerator: Placement and precision.

        Raises:
            BadInputError: When data, weights or settings do not fit.
        """
        raise NotImplementedError


@cache
def named(config: type[FrozenConfig], name: str) -> type[FrozenConfig]:
    """Return a configuration class with an additional field `name`, whose only valid value is the given name."""
    fields: dict[str, Any] = {"name": (Literal[name], ...)}
    made: type[FrozenConfig] = create_model(config.__name__, __base__=config, __doc__=config.__doc__, **fields)
    return made


def objective_section(tree: Mapping[str, Any], where: str, kind: type[Any]) -> type[FrozenConfig]:
    """Return the configuration class of the section `objective` in a tree of settings."""
    section = tree.get("objective")
    name = section.get("name") if isinstance(section, Mapping) else None
    found = objective_class(name, kind, where)
    return named(found.config_type, str(name))
