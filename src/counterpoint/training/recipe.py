"""Recipes: `kind` names the class that a recipe's keys fill, and that class plans the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, create_model

from counterpoint.config import FrozenConfig, free, override, read_recipe, recipe_names, suggestion, validate
from counterpoint.errors import require
from counterpoint.flags import Listed

KINDS = {
    "clips": "counterpoint.training.clips:ClipsRecipe",
    "transitions": "counterpoint.training.transitions:TransitionsRecipe",
    "cloning": "counterpoint.training.cloning:CloningRecipe",
    "imitation": "counterpoint.training.imitation:ImitationRecipe",
    "agent": "counterpoint.training.agent:AgentRecipe",
}
"""Kind of a recipe -> its class; the modules load torch, so they are imported when one is needed."""


class LoopConfig(FrozenConfig):
    """The settings that every training loop has.

    Attributes:
        steps: Optimiser steps; for online training, environment steps over all environments.
        batch_size: Samples an update, over all processes.
        seed: Random seed for initial weights and every draw.
        log_every: Updates between lines of training numbers (each the mean since the last).
        eval_every: Steps between evaluations; 0 evaluates never.
        save_every: Steps between checkpoints.
        keep: Number of checkpoints that are kept.
        trackers: `tensorboard`, `wandb`, both or none.
    """

    steps: int | None = free(None, ge=1)
    batch_size: int = Field(32, ge=1)
    seed: int = Field(0, ge=0)
    log_every: int = free(50, ge=1)
    eval_every: int = free(250, ge=0)
    save_every: int = free(500, ge=1)
    keep: int = free(2, ge=1)
    trackers: Listed[tuple[str, ...]] = free(("tensorboard",))

    last_evaluation: ClassVar[bool] = False
    """Whether the end is evaluated even where `eval_every` is 0."""

    def total_steps(self, epoch_size: int) -> int:
        """Return the steps of the run, on data of `epoch_size` samples."""
        require(self.steps is not None, "steps", "none", "a number of steps", "give --train.steps N")
        assert self.steps is not None
        return self.steps


class TrainConfig(LoopConfig):
    """The loop's settings.

    Attributes:
        epochs: Passes over the data; where `steps` is given too, the smaller of the two.
        workers: Processes that prepare batches.
        precision: `no` (float32), `fp16` or `bf16`.
        eval_batches: Batches of one validation, the same ones each time.
        keep_best: Number of models of least validation error that are kept in `best/` beside the last. The error is
            that of sampled actions, for a policy that samples any, and the loss otherwise.
    """

    epochs: int | None = free(None, ge=1)
    workers: int = free(0, ge=0)
    precision: Literal["no", "fp16", "bf16"] = "no"
    eval_batches: int = free(4, ge=1)
    keep_best: int = free(0, ge=0)

    def total_steps(self, epoch_size: int) -> int:
        """Return the optimiser steps of the run: `steps`, or those of `epochs` where these are fewer."""
        if self.epochs is None:
            return super().total_steps(epoch_size)
        steps = -(-self.epochs * epoch_size // self.batch_size)
        return steps if self.steps is None else min(steps, self.steps)


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
        """Return the class of each section that a name in it decides, such as the objective's."""
        return {}

    def plan(self, given: Any, accelerator: Any) -> Any:
        """Open the data and build the networks, so that nothing is refused later.

        Args:
            given: The training's other arguments, a `counterpoint.training.train.Given`.
            accelerator: Placement and precision.

        Returns:
            A `counterpoint.training.train.Plan`.

        Raises:
            BadInputError: When data, weights or settings do not fit.
        """
        raise NotImplementedError


def load_recipe(
    name: str | Path, overrides: Mapping[str, Any] | None = None, *, data: Sequence[object] = (), env: str | None = None
) -> Recipe:
    """Return a recipe with overrides, every key checked.

    Args:
        name: A recipe's name, the path of a TOML file, or an agent's name (its paper's defaults).
        overrides: Dotted keys and their values.
        data: The data sets it is for: with any, an agent's name means its offline defaults, and a recorder's
            note may name the environment.
        env: The environment it is for.

    Raises:
        BadInputError: Naming the key that is unknown or ill-typed, or the recipe that does not exist.
    """
    name, given = str(name), dict(overrides or {})
    if name in recipe_names() or name.endswith(".toml"):
        tree = read_recipe(name)
    else:
        agents = import_module("counterpoint.agents").AGENTS
        expected = f"an agent ({', '.join(agents)}), a recipe or the path of a .toml file"
        hint = suggestion(name, [*agents, *recipe_names()]) or "`counterpoint recipes` lists them"
        require(name in agents, f"recipe {name!r}", "no such agent or recipe", expected, hint)
        tree = {"kind": "agent", "agent": {"name": name, **(agents[name].offline if data else {})}}
    if tree.get("kind") == "agent":
        adapted = import_module(KINDS["agent"].partition(":")[0]).adapted
        tree = adapted(tree, tuple(data), env or given.pop("env.name", None))
    elif env is not None:
        acts = tree.get("kind") in ("cloning", "imitation")
        require(acts, "--env", env, f"no environment: recipe {name} trains no policy", "leave it out")
        given.setdefault("evaluation.env", env)
    found = recipe_of(tree, f"recipe {name}")
    # On the whole tree: what is not given keeps the recipe's value, as on the command line.
    return recipe_of(override(found.model_dump(mode="json"), given), f"recipe {name}") if given else found


def recipe_of(tree: Mapping[str, Any], where: str) -> Recipe:
    """Return a tree of settings as a recipe of its kind; its class lists every key of every section.

    Raises:
        BadInputError: Naming the key that is unknown, missing or ill-typed.
    """
    kind = tree.get("kind")
    hint = suggestion(str(kind), list(KINDS)) or "add it as the first key"
    require(isinstance(kind, str) and kind in KINDS, where, f"kind = {kind!r}", f"one of {', '.join(KINDS)}", hint)
    module, _, name = KINDS[str(kind)].partition(":")
    base: type[Recipe] = getattr(import_module(module), name)
    fields: dict[str, Any] = {
        key: (part, ... if key in tree else part()) for key, part in base.sections(tree, where).items()
    }
    typed: type[Recipe] = create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)
    return validate(typed, tree, where)


@cache
def named(config: type[FrozenConfig], name: str) -> type[FrozenConfig]:
    """Return a configuration's class with a field `name` that has one value."""
    fields: dict[str, Any] = {"name": (Literal[name], ...)}
    made: type[FrozenConfig] = create_model(config.__name__, __base__=config, __doc__=config.__doc__, **fields)
    return made


def objective_section(tree: Mapping[str, Any], where: str, kind: type[Any]) -> type[FrozenConfig]:
    """Return the class of the `objective` section of a tree."""
    section = tree.get("objective")
    name = section.get("name") if isinstance(section, Mapping) else None
    found = import_module("counterpoint.objectives").objective_class(name, kind, where)
    return named(found.config_type, str(name))
