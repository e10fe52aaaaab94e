"""Load recipes by name: a recipe's `kind` determines the class that its keys are read into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import create_model

from counterpoint.agents import AGENTS
from counterpoint.config import override, read_recipe, recipe_names, validate
from counterpoint.errors import require_known
from counterpoint.registry import LazyTable
from counterpoint.training.plan import Recipe

KINDS = LazyTable(
    "kind of recipe",
    {
        "clips": "counterpoint.training.clips:ClipsRecipe",
        "transitions": "counterpoint.training.transitions:TransitionsRecipe",
        "cloning": "counterpoint.training.cloning:CloningRecipe",
        "imitation": "counterpoint.training.imitation:ImitationRecipe",
        "agent": "counterpoint.training.agent:AgentRecipe",
    },
)
"""Kind of a recipe -> its class."""


def load_recipe(
    name: str | Path, overrides: Mapping[str, Any] | None = None, *, data: Sequence[object] = (), env: str | None = None
) -> Recipe:
    """Return a recipe with its overrides applied; every key is checked.

    Args:
        name: A recipe's name, the path of a TOML file, or an agent's name (which means the defaults of its paper).
        overrides: Values that replace settings of the recipe, by dotted key.
        data: The data sets that the recipe is for. With data sets, an agent's name means the agent's offline defaults,
            and a data set's `collect.json` may name the environment.
        env: The environment that the recipe is for.

    Raises:
        BadInputError: If a key is unknown or ill-typed, or the recipe does not exist; the message names it.
    """
    name, given = str(name), dict(overrides or {})
    where = f"recipe {name}"
    if name in recipe_names() or name.endswith(".toml"):
        tree = read_recipe(name)
    else:
        expected, hint = "one of {}, or the path of a .toml file", "`counterpoint recipes` lists them"
        require_known(name, [*recipe_names(), *AGENTS], f"recipe {name!r}", "no such agent or recipe", expected, hint)
        tree = {"kind": "agent", "agent": {"name": name, **(AGENTS[name].offline if data else {})}}
    env = env or given.pop("env.name", None)
    found = recipe_of(_class_of(tree, where).adapted(tree, data, env, where), where)
    # Overrides apply to the whole tree: keys that are not given keep the recipe's value, as on the command line.
    return recipe_of(override(found.model_dump(mode="json"), given), where) if given else found


def recipe_of(tree: Mapping[str, Any], where: str) -> Recipe:
    """Return a tree of settings as a recipe of its kind; the recipe's class lists every key of every section.

    Raises:
        BadInputError: If a key is unknown, missing or ill-typed; the message names it.
    """
    base = _class_of(tree, where)
    fields: dict[str, Any] = {
        key: (part, ... if key in tree else part()) for key, part in base.sections(tree, where).items()
    }
    # One expression, because mypy would treat a variable assigned from `create_model` as a class without fields.
    return validate(create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields), tree, where)


def _class_of(tree: Mapping[str, Any], where: str) -> type[Recipe]:
    """Return the class that a tree's `kind` names."""
    kind = tree.get("kind")
    require_known(kind, KINDS, where, f"kind = {kind!r}", hint="add it as the first key")
    found: type[Recipe] = KINDS[str(kind)]
    return found
