"""Typed, frozen configurations, and recipes: TOML files with trees of settings; an unknown key is an error."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterpoint.errors import BadInputError, require, require_known, suggestion

Config = TypeVar("Config", bound="FrozenConfig")
Tree = dict[str, Any]


class FrozenConfig(BaseModel):
    """Base of every configuration: immutable; unknown and ill-typed keys, NaN and infinity are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def free(default: Any, **options: Any) -> Any:
    """Return a pydantic field that may change when a run is continued, because it affects no learned parameter."""
    return Field(default, json_schema_extra={"free": True}, **options)


def bound(config: BaseModel) -> Tree:
    """Return the settings that must stay the same when a run is continued, as JSON values."""
    tree = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if field.json_schema_extra == {"free": True}:
            del tree[name]
        elif isinstance(value, BaseModel):
            tree[name] = bound(value)
    return tree


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    folder = resources.files("counterpoint") / "recipes"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def list_recipes() -> None:
    """Print the name, kind and first line of each recipe."""
    for name in recipe_names():
        print(f"{name:30} {read_recipe(name)['kind']:12} {recipe_title(name)}")


def read_recipe(recipe: str) -> Tree:
    """Read a recipe by name, or any TOML file by path.

    Raises:
        BadInputError: The recipe or file does not exist, or the file is not TOML.
    """
    if recipe.endswith(".toml"):
        require(Path(recipe).is_file(), recipe, "no file", "a recipe in TOML", "check the path")
        text = Path(recipe).read_text(encoding="utf-8")
    else:
        expected = "one of {}, or the path of a .toml file"
        require_known(recipe, recipe_names(), f"recipe {recipe!r}", "no such recipe", expected)
        text = _text_of(recipe)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInputError(recipe, f"broken TOML ({error})", "TOML", "repair it") from None


def recipe_title(name: str) -> str:
    """Return the first line of a recipe, which describes it."""
    return _text_of(name).splitlines()[0].removeprefix("# ")


def override(tree: Tree, overrides: Mapping[str, Any]) -> Tree:
    """Return a copy of `tree` with other values at dotted keys (`train.steps`); `validate` reports unknown keys."""
    changed: Tree = json.loads(json.dumps(tree))
    for dotted, value in overrides.items():
        *sections, last = dotted.split(".")
        node = changed
        for section in sections:
            if node.get(section) is None:
                node[section] = {}
            node = node[section]
            require(isinstance(node, dict), f"--{dotted}", f"{section} is a value", "a section", "check the key")
        node[last] = value
    return changed


def validate(kind: type[Config], tree: Mapping[str, Any], where: str) -> Config:
    """Return `tree` as a configuration of the given kind.

    Raises:
        BadInputError: If a key is unknown, missing or ill-typed; the message names the first one.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise bad_setting(error, kind, where) from None


def bad_setting(error: ValidationError, kind: type[BaseModel], where: str) -> BadInputError:
    """Return the first of pydantic's errors as a `BadInputError`."""
    first = error.errors()[0]
    key, expected = ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = _known_keys(kind, first["loc"][:-1])
        expected = f"one of {', '.join(known)}" if known else "a known key"
        hint = suggestion(first["loc"][-1], known) or "remove it"
        return BadInputError(where, f"unknown key {key!r}", expected, hint)
    if not key:
        return BadInputError(where, "settings that do not fit each other", expected, "correct one of them")
    return BadInputError(where, f"{key} = {first.get('input')!r}", expected, f"correct {key}")


def _text_of(name: str) -> str:
    return (resources.files("counterpoint") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")


def _known_keys(kind: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    model: Any = kind
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field is not None else None
    return sorted(getattr(model, "model_fields", {}))
